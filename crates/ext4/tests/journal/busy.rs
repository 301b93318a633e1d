//! Tests of volumes that are copied while the running kernel has them mounted, so that it has
//! written back only a part of its changes. Reading a copy must give the same tree as `e2fsck -fy`
//! on it. Not here: volumes that were shut down.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use testkit::command::run;
use testkit::{LoopMount, Manifest, Mke2fs, must, private_mounts};

use super::workload::{Operations, Writer};
use super::{WRITERS, copy, open, recover_by_e2fsck};

/// The size of an image, which is small enough to be copied in milliseconds.
const IMAGE_BYTES: u64 = 32 << 20;
/// The number of copies of one volume.
const ROUNDS: u64 = 4;
/// The time during which writers run before each copy.
const BUSY_TIME: Duration = Duration::from_millis(150);
/// The number of changes of each writer before the first round, so that no copy is empty even on a
/// slow machine.
const CHANGES_BEFORE: u64 = 20;
/// The maximum number of copies before two in a row must be equal.
const COPIES_MAX: usize = 500;

/// The mount option for a commit every second.
const COMMIT: &str = "commit=1";

/// Returns the contents of `image` at one moment, although the kernel may write to it at any time.
/// A single copy may mix earlier with later contents, which no power cut leaves. If two copies in a
/// row are equal, the image had these contents between them.
fn contents_at_once(image: &Path) -> Vec<u8> {
    let mut earlier = must(std::fs::read(image), "read");
    for _ in 0..COPIES_MAX {
        let later = must(std::fs::read(image), "read");
        if later == earlier {
            return later;
        }
        earlier = later;
    }
    panic!("the kernel did not stop writing during {COPIES_MAX} copies");
}

/// Lets the writers run for a while, and stops them without a sync, with their files open. They
/// continue in the next round.
fn write_for_a_while(writers: &mut [Writer]) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in writers {
            scope.spawn(|| writer.run(u64::MAX, &stop));
        }
        std::thread::sleep(BUSY_TIME);
        stop.store(true, Ordering::Relaxed);
    });
}

/// Counts over the logs of copies.
#[derive(Default)]
struct Logged {
    /// The number of copies whose log has transactions.
    copies: u64,
    /// The number of blocks that recovery changed.
    blocks_changed: u64,
    /// The maximum number of files in a copy. The writers also remove files.
    files_max: usize,
}

fn check_copy(folder: &Path, image: &Path, context: &str, logged: &mut Logged) {
    let before = must(std::fs::read(image), "read");
    let superblock = run(Command::new("dumpe2fs").arg("-h").arg(image));
    let superblock = String::from_utf8_lossy(&superblock);
    assert!(superblock.contains("needs_recovery"), "{context}: {superblock}");

    let volume = must(open(image), context);
    let report = volume.recovery().expect("the volume needs recovery");
    assert!(
        report.log.damage.is_none() && report.orphans.failure.is_none(),
        "{context}: {report:?}"
    );
    logged.copies += u64::from(report.log.transactions > 0);
    logged.blocks_changed += report.log.blocks_changed;
    drop(volume);
    let ours = Manifest::of_image(image);
    assert!(must(std::fs::read(image), "read") == before, "{context}: the image was changed");

    let fixed = copy(image, folder, "fixed");
    recover_by_e2fsck(&fixed);
    let mount = LoopMount::new(&fixed, "ext4", "ro,noload");
    let theirs = Manifest::of_host(mount.path());
    logged.files_max = logged.files_max.max(theirs.len());
    ours.assert_equal(&format!("ours ({context})"), &theirs, "e2fsck's and the kernel's");
}

/// Copies a volume repeatedly between bursts of writing, and checks every copy.
fn check(name: &str, seed: u64, make: Mke2fs, mount_options: &str) {
    private_mounts();
    let folder = must(TempDir::new_in("/dev/shm"), "a folder");
    let image = folder.path().join("image");
    Mke2fs { size: IMAGE_BYTES, ..make }.make(&image, None);

    let mount = LoopMount::new(&image, "ext4", mount_options);
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|writer| {
            let top = mount.path().join(writer.to_string());
            Writer::new(&top, seed * WRITERS + writer, Operations::ALL)
        })
        .collect();
    let stop = AtomicBool::new(false);
    writers.iter_mut().for_each(|writer| writer.run(CHANGES_BEFORE, &stop));
    must(rustix::fs::syncfs(must(File::open(mount.path()), "open")), "sync");
    let rounds = (0..ROUNDS).map(|round| {
        write_for_a_while(&mut writers);
        let path = folder.path().join(format!("copy {round}"));
        must(std::fs::write(&path, contents_at_once(&image)), "write");
        path
    });
    let copies: Vec<PathBuf> = rounds.collect();
    drop(writers);
    mount.unmount();

    let mut logged = Logged::default();
    for (round, path) in copies.iter().enumerate() {
        let context = format!("{name}, seed {seed}, round {round}");
        check_copy(folder.path(), path, &context, &mut logged);
    }
    assert!(logged.copies * 2 > ROUNDS, "{name}: only {} logs have transactions", logged.copies);
    assert!(logged.blocks_changed > 0, "{name}: nothing had to be recovered");
    assert!(logged.files_max > 20, "{name}: at most {} files in a copy", logged.files_max);
}

#[test]
fn a_copy_of_a_busy_volume_with_checksums_and_1k_blocks() {
    let make = Mke2fs::new("ext4", 1024).with("-O metadata_csum,64bit -J size=4");
    check("csum v3, 1k", 101, make, COMMIT);
}

#[test]
fn a_copy_of_a_busy_volume_with_checksums_and_4k_blocks() {
    let make = Mke2fs::new("ext4", 4096).with("-O metadata_csum,64bit -J size=4");
    check("csum v3, 4k", 102, make, COMMIT);
}

#[test]
fn a_copy_of_a_busy_volume_with_checksums_and_32_bits() {
    let make = Mke2fs::new("ext4", 2048).with("-O metadata_csum,^64bit -J size=4");
    check("csum v3, 32 bits, 2k", 103, make, COMMIT);
}

#[test]
fn a_copy_of_a_busy_ext3() {
    check("ext3", 104, Mke2fs::new("ext3", 1024).with("-J size=4"), COMMIT);
}

#[test]
fn a_copy_of_a_busy_volume_with_clusters() {
    let make = Mke2fs::new("ext4", 1024).with("-O bigalloc -C 8192 -J size=4");
    check("bigalloc", 105, make, COMMIT);
}

#[test]
fn a_copy_of_a_busy_volume_with_an_orphan_file() {
    let make = Mke2fs::new("ext4", 4096).with("-O metadata_csum,orphan_file -J size=4");
    check("orphan file", 106, make, COMMIT);
}

#[test]
fn a_copy_of_a_busy_volume_with_journaled_data() {
    let make = Mke2fs::new("ext4", 1024).with("-O metadata_csum -J size=4");
    check("data=journal", 107, make, "commit=1,data=journal");
}
