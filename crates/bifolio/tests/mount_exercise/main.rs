//! All that can be done to files of a mount, at random, on files beside models of them, whose caches are
//! smaller than they are: what is read is compared with the model, and now and then the volume is
//! unmounted, judged by e2fsck, mounted and read again. `testkit::exercise` says what the environment
//! chooses. Not here: the same in one process (`crates/vfs/tests/exercise`).

#[path = "../mounting/mod.rs"]
mod mounting;
mod operation;
mod subject;
mod window;

use std::fs::File;
use std::path::Path;

use mounting::{Location, Mount};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use testkit::exercise::{Model, Run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

use crate::operation::SHARES;
use crate::subject::{SIZE_MAX, Subject};

/// Files; together they may be larger than the server's cache.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// So often e2fsck looks at the volume.
const JUDGED_EVERY: u64 = 1000;

/// A mounted volume and the files on it.
struct Stage<'a> {
    place: &'a Location,
    options: &'a str,
    mount: Mount<'a>,
    subjects: Vec<Subject>,
}

impl<'a> Stage<'a> {
    /// Mounts what is at `place`, with the files of some models.
    fn new(place: &'a Location, options: &'a str, models: impl IntoIterator<Item = Model>) -> Self {
        let mount = place.mount(&["-o", options, "--cache-size", "4M"]);
        let subject = |model| Subject::new(mount.path(), model);
        let subjects = models.into_iter().map(subject).collect();
        Self { place, options, mount, subjects }
    }

    fn check(&mut self) {
        self.subjects.iter_mut().for_each(Subject::check);
    }

    /// Unmounts, and has the volume judged.
    fn close(self) -> Vec<Model> {
        let models = self.subjects.into_iter().map(Subject::close).collect();
        self.place.umount();
        self.mount.assert_gone();
        check_by_e2fsck(&self.place.image);
        models
    }

    /// Has all of it judged.
    fn judge(mut self) -> Self {
        self.check();
        let (place, options) = (self.place, self.options);
        let mut stage = Self::new(place, options, self.close());
        stage.check();
        stage
    }
}

fn exercise(block_size: u32, options: &str) {
    private_mounts();
    let place = Location::new();
    Mke2fs { size: 160 << 20, ..Mke2fs::new("ext4", block_size) }.make(&place.image, None);
    let mut run = Run::new(format!("blocks of {block_size}, {options}"), block_size.into(), 400);
    let mut stage = Stage::new(&place, options, NAMES.map(Model::new));
    while let Some(step) = run.next_step() {
        let operation = run.choose(&SHARES);
        let index = run.random.below(NAMES.len() as u64) as usize;
        let another = 1 + run.random.below(NAMES.len() as u64 - 1) as usize;
        let range = run.place(stage.subjects[index].size(), SIZE_MAX);
        run.note(format!("{}: {operation:?} {range:?}", NAMES[index]));
        let files = (index, (index + another) % NAMES.len());
        subject::run(&mut stage.subjects, operation, files, range, &mut run.random);
        if (step + 1) % JUDGED_EVERY == 0 {
            stage = stage.judge();
        }
    }
    stage.judge().close();
}

#[test]
fn blocks_of_1_kib() {
    exercise(1024, "rw,nowriteback");
}

#[test]
fn blocks_of_1_kib_with_writes_collected() {
    exercise(1024, "rw,writeback");
}

#[test]
fn blocks_of_4_kib() {
    exercise(4096, "rw,nowriteback");
}

#[test]
fn blocks_of_4_kib_with_writes_collected() {
    exercise(4096, "rw,writeback");
}

#[test]
fn blocks_of_4_kib_that_nobody_keeps() {
    exercise(4096, "rw,uncached");
}

#[test]
fn blocks_of_64_kib() {
    exercise(65_536, "rw,nowriteback");
}

#[test]
fn blocks_of_64_kib_with_writes_collected() {
    exercise(65_536, "rw,writeback");
}

/// What is in no list of operations here, since it does not come to the server.
#[test]
fn the_kernel_passes_no_collapsing_inserting_and_unsharing_on() {
    private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "rw"]);
    let path: &Path = &mount.path().join("big");
    let before = std::fs::read(path).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    for flags in [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
        FallocateFlags::UNSHARE_RANGE | FallocateFlags::KEEP_SIZE,
    ] {
        let done = rustix::fs::fallocate(&file, flags, 8192, 4096);
        assert_eq!(done, Err(Errno::OPNOTSUPP), "{flags:?}");
    }
    assert!(std::fs::read(path).unwrap() == before);
}
