//! Tests of the recovery of volumes that were cut off during the running kernel's writes. e2fsck
//! and the kernel judge the result.

mod busy;
mod workload;

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::DeviceOffset;
use device::{OpenDevice, SharedDevice};
use ext4::{OpenOptions, RecoveryReport, Volume};
use iomap::{CacheOptions, PageCache};
use tempfile::TempDir;
use testkit::command::{output, run};
use testkit::{LoopMount, Manifest, Mke2fs, must, private_mounts};
use workload::{Operations, Writer};

/// The number of threads that write concurrently.
const WRITERS: u64 = 2;

/// A kind of volume, a workload, and a number of cuts.
struct Scenario {
    name: &'static str,
    make: Mke2fs,
    mount_options: &'static str,
    operations: Operations,
    /// The number of cuts. After each cut, the kernel recovers the volume, and the workload
    /// continues on it.
    cuts: u64,
}

impl Scenario {
    fn new(name: &'static str, block_size: u32, arguments: &str) -> Self {
        let make = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", block_size) }.with(arguments);
        Self { name, make, mount_options: "", operations: Operations::ALL, cuts: 3 }
    }

    fn check(self) {
        private_mounts();
        let folder = must(TempDir::new_in("/dev/shm"), "a folder");
        let image = folder.path().join("image");
        self.make.make(&image, None);
        let options = ["commit=1", self.mount_options].join(",");
        for cut in 0..self.cuts {
            let mount = LoopMount::new(&image, "ext4", options.trim_end_matches(','));
            self.write_until_cut(&mount, cut);
            let snapshot = folder.path().join("snapshot");
            must(std::fs::copy(&image, &snapshot), "a snapshot");
            mount.unmount();
            check_snapshot(folder.path(), &snapshot, &format!("{}, cut {cut}", self.name));
        }
    }

    fn write_until_cut(&self, mount: &LoopMount, cut: u64) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (stop, top) = (&stop, mount.path().join(format!("{cut}-{writer}")));
                let operations = self.operations;
                scope
                    .spawn(move || Writer::new(&top, cut * 7 + writer, operations).run(1500, stop));
            }
            std::thread::sleep(Duration::from_millis(600 + 400 * cut));
            // Even cuts commit all changes first; odd ones lose uncommitted changes.
            let how = if cut % 2 == 0 { "shutdown -f" } else { "shutdown" };
            run(Command::new("xfs_io").args(["-x", "-c", how]).arg(mount.path()));
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn open(image: &Path) -> base::Result<Arc<Volume>> {
    let device = device::open(image, device::OpenDevice::default())?;
    let cache = PageCache::new(CacheOptions::default())?;
    Volume::open(device, &cache, &OpenOptions::default())
}

/// Writes the contents of `device` to a file.
fn write_out(device: &SharedDevice, path: &Path) {
    let mut file = must(File::create(path), "create");
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < device.size() {
        let length = (device.size() - at).min(buffer.len() as u64);
        let piece = &mut buffer[..length as usize];
        must(device.read_at(DeviceOffset(at), piece), "read the overlay");
        must(file.write_all(piece), "write");
        at += length;
    }
}

fn copy(from: &Path, folder: &Path, name: &str) -> PathBuf {
    let to = folder.join(name);
    must(std::fs::copy(from, &to), "copy");
    to
}

/// Returns the tree in `image`, without the volume's counts, which may differ between recoveries:
/// the kernel counts free space anew at each mount, and loses some blocks that it had allocated for
/// interrupted operations.
fn manifest(image: &Path) -> Manifest {
    let mount = LoopMount::new(image, "ext4", "ro,noload");
    Manifest::of_host(mount.path()).without_tree("(volume)")
}

/// Returns the errors that e2fsck finds in `image`.
fn complaints(image: &Path) -> String {
    let check = output(Command::new("e2fsck").arg("-fn").arg(image));
    let text = check.text();
    let lines = text.lines().filter(|line| {
        !line.is_empty()
            && !line.starts_with("Pass ")
            && !line.starts_with("e2fsck ")
            && !line.starts_with(&*image.to_string_lossy())
            // An optimization that e2fsck offers, not an error.
            && !line.contains("extent tree")
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Recovers `image` by a mount of the kernel.
fn recover_by_kernel(image: &Path) {
    LoopMount::new(image, "ext4", "rw").unmount();
}

fn recover_by_e2fsck(image: &Path) {
    // By default, e2fsck would also optimize extent trees.
    let fixed =
        output(Command::new("e2fsck").args(["-fy", "-E", "no_optimize_extents"]).arg(image));
    assert!(matches!(fixed.status.code(), Some(0 | 1)), "{}", fixed.text());
}

/// Opens `snapshot`, and writes the recovered volume to the file "ours". Checks that the snapshot
/// itself is unchanged.
fn recover_by_us(folder: &Path, snapshot: &Path) -> (PathBuf, RecoveryReport) {
    let before = must(std::fs::read(snapshot), "read");
    let volume = must(open(snapshot), "open");
    let report = volume.recovery().expect("the volume was not unmounted").clone();
    let ours = folder.join("ours");
    write_out(volume.device(), &ours);
    drop(volume);
    assert!(must(std::fs::read(snapshot), "read") == before, "the image was changed");
    (ours, report)
}

/// Returns a copy of `snapshot` that was opened for writing and closed.
fn recover_in_place(folder: &Path, snapshot: &Path) -> PathBuf {
    let written = copy(snapshot, folder, "written");
    let device = must(
        device::open(&written, OpenDevice { read_only: false, ..OpenDevice::default() }),
        "open",
    );
    let cache = must(PageCache::new(CacheOptions::default()), "a cache");
    let volume = Volume::open_for_writing(device, &cache, &OpenOptions::default());
    must(must(volume, "open for writing").close(), "close");
    written
}

fn check_snapshot(folder: &Path, snapshot: &Path, context: &str) {
    let (ours, report) = recover_by_us(folder, snapshot);
    assert!(report.log.transactions > 0 && report.log.damage.is_none(), "{context}: {report:?}");
    assert!(report.orphans.failure.is_none(), "{context}: {report:?}");

    let kernels = copy(snapshot, folder, "kernels");
    recover_by_kernel(&kernels);
    assert_eq!(complaints(&ours), complaints(&kernels), "{context}: ours left, the kernel's right");
    let written = recover_in_place(folder, snapshot);
    assert_eq!(complaints(&written), "", "{context}: opened for writing");

    let fixed = copy(snapshot, folder, "fixed");
    recover_by_e2fsck(&fixed);
    let ours = manifest(&ours);
    ours.assert_equal("ours", &manifest(&kernels), "the kernel's");
    ours.assert_equal("ours", &manifest(&fixed), "e2fsck's");
    ours.assert_equal("ours", &manifest(&written), "ours, opened for writing");
}

#[test]
fn checksum_version_3_with_1k_blocks() {
    Scenario::new("csum v3, 1k", 1024, "-J size=4").check();
}

#[test]
fn checksum_version_3_with_4k_blocks() {
    Scenario::new("csum v3, 4k", 4096, "-J size=8").check();
}

#[test]
fn no_checksums_and_32_bits_with_1k_blocks() {
    Scenario::new("no csum, 32 bits, 1k", 1024, "-O ^64bit,^metadata_csum -J size=4").check();
}

#[test]
fn checksum_version_1() {
    let scenario = Scenario::new("csum v1", 4096, "-O ^64bit,^metadata_csum -J size=8");
    Scenario { mount_options: "journal_checksum", ..scenario }.check();
}

#[test]
fn journaled_data() {
    let scenario = Scenario::new("data=journal", 1024, "-J size=4");
    Scenario { mount_options: "data=journal", ..scenario }.check();
}

#[test]
fn ext3() {
    let mut scenario = Scenario::new("ext3", 1024, "-J size=4");
    scenario.make.format = "ext3";
    scenario.check();
}

/// Returns the facts of a tree that fast commits contain. For directories, these are only the facts
/// that follow from their names.
fn without_directory_facts(manifest: Manifest) -> Manifest {
    manifest.map(|_, mode, fact, value| {
        let is_lost =
            matches!(fact, "modified" | "changed" | "extents" | "size" | "blocks" | "flags");
        (!mode.starts_with("04") || !is_lost).then(|| value.to_owned())
    })
}

/// Checks the recovery of fast commits. One writer runs, and commits all changes before the
/// shutdown. So the recovered tree must equal the tree at the shutdown.
fn check_fast_commits(name: &str, make: &Mke2fs, operations: Operations, seeds: Range<u64>) {
    private_mounts();
    let folder = must(TempDir::new_in("/dev/shm"), "a folder");
    let image = folder.path().join("image");
    make.make(&image, None);
    let mut fast_commits = 0;
    for seed in seeds {
        let mount = LoopMount::new(&image, "ext4", "commit=600");
        let mut writer = Writer::new(&mount.path().join("top"), seed, operations);
        must(writer.prepare(), "prepare");
        writer.run(60, &AtomicBool::new(false));
        writer.sync_files();
        let truth = Manifest::of_host(mount.path()).without_tree("(volume)");
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mount.path()));
        drop(writer);
        let snapshot = copy(&image, folder.path(), "snapshot");
        mount.unmount();

        let context = format!("{name}, seed {seed}");
        let (ours, report) = recover_by_us(folder.path(), &snapshot);
        assert_eq!(complaints(&ours), "", "{context}: {report:?}");
        let written = recover_in_place(folder.path(), &snapshot);
        assert_eq!(complaints(&written), "", "{context}: opened for writing");
        manifest(&ours).assert_equal("ours", &manifest(&written), "ours, opened for writing");
        // The next round continues on the recovered volume, since the kernel itself cannot mount
        // every volume whose fast commits it wrote.
        must(std::fs::copy(&ours, &image), "copy");
        let ours = without_directory_facts(manifest(&ours));
        let truth = without_directory_facts(truth);
        truth.assert_equal("what was written", &ours, &format!("ours ({context})"));
        fast_commits += report.fast_commits;
    }
    assert!(fast_commits > 0, "{name}: there were no fast commits");
}

const FAST: Operations =
    Operations { attributes: false, symlinks: false, crowds: false, ..Operations::ALL };

#[test]
fn fast_commits_with_4k_blocks() {
    let make = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", 4096) };
    check_fast_commits("4k", &make.with("-O fast_commit -J size=16"), FAST, 0..8);
}

#[test]
fn fast_commits_with_1k_blocks_and_without_checksums() {
    let make = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", 1024) };
    let make = make.with("-O fast_commit,^metadata_csum,^64bit -J size=8");
    check_fast_commits("1k, no checksums", &make, FAST, 10..18);
}

#[test]
fn fast_commits_with_clusters_and_linear_directories() {
    let make = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", 1024) };
    let make = make.with("-O fast_commit,bigalloc,^dir_index -C 8192 -J size=8");
    check_fast_commits("bigalloc", &make, FAST, 20..28);
}

#[test]
fn fast_commits_between_full_ones() {
    let make = Mke2fs { size: 96 << 20, ..Mke2fs::new("ext4", 2048) };
    let make = make.with("-O fast_commit -J size=8");
    check_fast_commits("with full commits", &make, Operations::ALL, 30..36);
}
