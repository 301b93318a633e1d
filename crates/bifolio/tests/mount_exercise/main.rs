//! Random operations on files of a mount, compared with models of the files. The cache is smaller
//! than the files. At intervals, the volume is unmounted, checked by e2fsck, mounted and read
//! again. `testkit::exercise` documents the environment variables. Not here: the same test in one
//! process (`crates/vfs/tests/exercise`).

#[path = "../mounting/mod.rs"]
mod mounting;
mod operation;
mod subject;
mod window;

use std::fs::File;
use std::path::Path;

use mounting::{Fixture, Mount};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use testkit::exercise::{Model, Run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

use crate::operation::SHARES;
use crate::subject::{SIZE_MAX, Subject};

/// Names of the files. Together they may be larger than the cache of the server.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Number of operations between checks by e2fsck.
const CHECK_INTERVAL: u64 = 1000;

/// A mounted volume and the files on it.
struct MountedFiles<'a> {
    fixture: &'a Fixture,
    options: &'a str,
    mount: Mount<'a>,
    subjects: Vec<Subject>,
}

impl<'a> MountedFiles<'a> {
    /// Mounts the image, and opens or creates the files of the models.
    fn new(
        fixture: &'a Fixture,
        options: &'a str,
        models: impl IntoIterator<Item = Model>,
    ) -> Self {
        let mount = fixture.mount(&["-o", options, "--cache-size", "4M"]);
        let subject = |model| Subject::new(mount.path(), model);
        let subjects = models.into_iter().map(subject).collect();
        Self { fixture, options, mount, subjects }
    }

    fn check(&mut self) {
        self.subjects.iter_mut().for_each(Subject::check);
    }

    /// Unmounts the volume, and checks it with e2fsck.
    fn close(self) -> Vec<Model> {
        let models = self.subjects.into_iter().map(Subject::close).collect();
        self.fixture.umount();
        self.mount.assert_gone();
        check_by_e2fsck(&self.fixture.image);
        models
    }

    /// Checks all files and the volume, and mounts it again.
    fn check_and_remount(mut self) -> Self {
        self.check();
        let (fixture, options) = (self.fixture, self.options);
        let mut mounted = Self::new(fixture, options, self.close());
        mounted.check();
        mounted
    }
}

fn exercise(block_size: u32, options: &str) {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs { size: 160 << 20, ..Mke2fs::new("ext4", block_size) }.make(&fixture.image, None);
    let mut run = Run::new(format!("blocks of {block_size}, {options}"), block_size.into(), 400);
    let mut mounted = MountedFiles::new(&fixture, options, NAMES.map(Model::new));
    while let Some(step) = run.next_step() {
        let operation = run.choose(&SHARES);
        let index = run.random.below(NAMES.len() as u64) as usize;
        let another = 1 + run.random.below(NAMES.len() as u64 - 1) as usize;
        let range = run.choose_range(mounted.subjects[index].size(), SIZE_MAX);
        run.note(format!("{}: {operation:?} {range:?}", NAMES[index]));
        let files = (index, (index + another) % NAMES.len());
        subject::run(&mut mounted.subjects, operation, files, range, &mut run.random);
        if (step + 1) % CHECK_INTERVAL == 0 {
            mounted = mounted.check_and_remount();
        }
    }
    mounted.check_and_remount().close();
}

#[test]
fn blocks_of_1_kib() {
    exercise(1024, "rw,nowriteback");
}

#[test]
fn blocks_of_1_kib_with_writeback_cache() {
    exercise(1024, "rw,writeback");
}

#[test]
fn blocks_of_4_kib() {
    exercise(4096, "rw,nowriteback");
}

#[test]
fn blocks_of_4_kib_with_writeback_cache() {
    exercise(4096, "rw,writeback");
}

#[test]
fn blocks_of_4_kib_uncached() {
    exercise(4096, "rw,uncached");
}

#[test]
fn blocks_of_64_kib() {
    exercise(65_536, "rw,nowriteback");
}

#[test]
fn blocks_of_64_kib_with_writeback_cache() {
    exercise(65_536, "rw,writeback");
}

/// These operations are not in the list of random operations, because the kernel does not forward
/// them.
#[test]
fn the_kernel_does_not_forward_collapse_insert_and_unshare() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
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
