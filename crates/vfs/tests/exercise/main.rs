//! All that can be done to files, at random, on files beside models of them, whose cache is smaller than
//! they are: what is read is compared with the model, and now and then the volume is closed, judged by
//! e2fsck, opened and read again.
//!
//! `BIFOLIO_EXERCISE_OPERATIONS` says how many operations that are on each kind of volume, and
//! `BIFOLIO_EXERCISE_SEED` which ones. A failure tells its seed; with it all is the same again, but for
//! when the background writes.
#![allow(clippy::print_stderr, reason = "a run that fails says what it has done")]

#[path = "../common/mod.rs"]
mod common;
mod operation;
mod subject;

use std::collections::VecDeque;
use std::path::PathBuf;

use common::{close, file, make, open};
use testkit::{Mke2fs, Random};
use vfs::Volume;

use crate::operation::Operation;
use crate::subject::Subject;

/// Files; together they may be larger than the cache.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// So often e2fsck looks at the volume.
const JUDGED_EVERY: u64 = 2000;
/// Operations that are told when it fails.
const TOLD: usize = 24;

/// A number that the environment gives.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// What was done, told if it fails.
struct Log {
    kind: String,
    seed: u64,
    step: u64,
    last: VecDeque<String>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { kind, seed, step, last } = self;
            eprintln!("{kind}, seed {seed}, after {step} operations, at last {last:#?}");
        }
    }
}

/// An image, its volume and the files on it.
struct Stage {
    image: PathBuf,
    open: Option<(Vec<Subject>, Volume)>,
}

impl Stage {
    fn subjects(&mut self) -> &mut [Subject] {
        &mut self.open.as_mut().unwrap().0
    }

    /// Closes the volume, has it judged, and opens it again.
    fn reopen(&mut self) {
        let (subjects, volume) = self.open.take().unwrap();
        let models: Vec<_> = subjects.into_iter().map(Subject::close).collect();
        close(volume, &self.image);
        let volume = open(&self.image);
        let subjects = NAMES.iter().zip(models);
        let subjects = subjects.map(|(name, model)| Subject::new(name, file(&volume, name), model));
        self.open = Some((subjects.collect(), volume));
        self.subjects().iter().for_each(Subject::check);
    }
}

fn exercise(block_size: u32, arguments: &str) {
    let operations = number("BIFOLIO_EXERCISE_OPERATIONS").unwrap_or(1500);
    let seed = number("BIFOLIO_EXERCISE_SEED").unwrap_or(1);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let kind = Mke2fs { size: 160 << 20, ..Mke2fs::new("ext4", block_size) };
    kind.with(arguments).make(&image, None);
    let kind = format!("blocks of {block_size} {arguments}");
    let mut log = Log { kind, seed, step: 0, last: VecDeque::new() };
    // Odd, and so not zero.
    let mut random = Random((seed << 20 | u64::from(block_size)) << 1 | 1);
    let volume = open(&image);
    let subjects = NAMES.map(|name| Subject::new(name, make(&volume, name), Vec::new()));
    let mut stage = Stage { image, open: Some((subjects.into(), volume)) };
    for step in 0..operations {
        log.step = step;
        let operation = Operation::choose(&mut random);
        let index = random.below(NAMES.len() as u64) as usize;
        let (other, range) = subject::place(stage.subjects(), index, &mut random);
        if log.last.len() == TOLD {
            log.last.pop_front();
        }
        log.last.push_back(format!("{}: {operation:?} {range:?}", NAMES[index]));
        subject::run(stage.subjects(), operation, (index, other), range, &mut random);
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
