//! Random operations of all kinds on files and on models of them, with a cache that is smaller than the files. Reads
//! are compared with the models. From time to time the volume is closed, judged by e2fsck, opened and read again.
//! `testkit::exercise` describes the environment variables.

#[path = "../common/mod.rs"]
mod common;
mod operation;
mod subject;

use std::path::PathBuf;

use common::{close, file, make, open};
use testkit::Mke2fs;
use testkit::exercise::{Model, Run};
use vfs::Volume;

use crate::operation::SHARES;
use crate::subject::Subject;

/// The names of the files. Together, the files may be larger than the cache.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// The number of operations between two checks by e2fsck.
const JUDGED_EVERY: u64 = 2000;

/// An image, its volume and the files on it.
struct Stage {
    image: PathBuf,
    open: Option<(Vec<Subject>, Volume)>,
}

impl Stage {
    fn subjects(&mut self) -> &mut [Subject] {
        &mut self.open.as_mut().unwrap().0
    }

    /// Closes the volume, lets e2fsck judge it, and opens it again.
    fn reopen(&mut self) {
        let (subjects, volume) = self.open.take().unwrap();
        let models: Vec<_> = subjects.into_iter().map(Subject::close).collect();
        close(volume, &self.image);
        let volume = open(&self.image);
        let subjects = models.into_iter();
        let subjects = subjects.map(|model| Subject::new(file(&volume, model.name()), model));
        self.open = Some((subjects.collect(), volume));
        self.subjects().iter().for_each(Subject::check);
    }
}

fn exercise(block_size: u32, arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let kind = Mke2fs { size: 160 << 20, ..Mke2fs::new("ext4", block_size) };
    kind.with(arguments).make(&image, None);
    let kind = format!("blocks of {block_size} {arguments}");
    let mut run = Run::new(kind, block_size.into(), 1500);
    let volume = open(&image);
    let subjects = NAMES.map(|name| Subject::new(make(&volume, name), Model::new(name)));
    let mut stage = Stage { image, open: Some((subjects.into(), volume)) };
    while let Some(step) = run.next_step() {
        let operation = run.choose(&SHARES);
        let index = run.random.below(NAMES.len() as u64) as usize;
        let another = 1 + run.random.below(NAMES.len() as u64 - 1) as usize;
        let range = run.place(stage.subjects()[index].size(), subject::SIZE_MAX);
        run.note(format!("{}: {operation:?} {range:?}", NAMES[index]));
        let files = (index, (index + another) % NAMES.len());
        subject::run(stage.subjects(), operation, files, range, &mut run.random);
        if (step + 1) % JUDGED_EVERY == 0 {
            stage.subjects().iter().for_each(Subject::check);
            stage.reopen();
        }
    }
    stage.subjects().iter().for_each(Subject::check);
    stage.reopen();
    let (subjects, volume) = stage.open.take().unwrap();
    drop(subjects);
    close(volume, &stage.image);
}

#[test]
fn blocks_of_1_kib() {
    exercise(1024, "");
}

#[test]
fn blocks_of_4_kib() {
    exercise(4096, "");
}

#[test]
fn blocks_of_64_kib() {
    exercise(65_536, "");
}

#[test]
fn clusters() {
    exercise(4096, "-O bigalloc,^resize_inode -C 16384");
}

#[test]
fn without_a_journal() {
    exercise(1024, "-O ^has_journal");
}

#[test]
fn inline_data() {
    exercise(4096, "-O inline_data");
}
