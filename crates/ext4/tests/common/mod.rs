//! Images that e2fsprogs creates for the tests of this crate, the output of its tools, and volumes
//! and files on these images.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod cached_file;
pub mod counting_device;
pub mod fast_commits;
pub mod replays;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::attributes::{DeviceNumber, FileType, Timestamp};
use base::{DeviceOffset, InodeNumber};
use device::{FileDevice, MemoryDevice, SharedDevice};
use ext4::{Inode, OpenOptions, ROOT_INODE, Volume};
use fs::NewInode;
use iomap::{CacheOptions, Iomap, IomapKind, PageCache};
use testkit::{MKE2FS_CONF, must};

/// A temporary folder, removed at the end of the test.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, data: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, data).unwrap();
        path
    }
}

/// An image file.
pub struct Image {
    pub scratch: Scratch,
    pub path: PathBuf,
}

impl Image {
    /// Runs `mke2fs` with `options` on an image of `megabytes` MiB.
    pub fn make(megabytes: u64, options: &[&str]) -> Self {
        Self::make_in(Scratch::new(), megabytes, options)
    }

    fn make_in(scratch: Scratch, megabytes: u64, options: &[&str]) -> Self {
        let path = scratch.path("image");
        std::fs::File::create(&path).unwrap().set_len(megabytes << 20).unwrap();
        // A configuration of our own, independent of the distribution's defaults.
        let config = scratch.write("mke2fs.conf", MKE2FS_CONF);
        let mut command = Command::new("mke2fs");
        command.env("MKE2FS_CONFIG", config).args(["-q", "-F"]).args(options);
        run(command.arg(&path));
        Self { scratch, path }
    }

    /// Runs `mke2fs` with options separated by white space, and copies the folder that `fill`
    /// fills. The folder stays at `source`.
    pub fn filled(megabytes: u64, options: &str, fill: impl FnOnce(&Path)) -> Self {
        let scratch = Scratch::new();
        let source = scratch.path("source");
        std::fs::create_dir(&source).unwrap();
        fill(&source);
        let mut all: Vec<&str> = options.split_whitespace().collect();
        all.extend(["-d", source.to_str().unwrap()]);
        Self::make_in(scratch, megabytes, &all)
    }

    /// Runs `debugfs` commands, one per line, that change the image.
    pub fn debugfs_write(&self, commands: &str) {
        let script = self.scratch.write("commands", commands.as_bytes());
        run(Command::new("debugfs").arg("-w").arg("-f").arg(script).arg(&self.path));
    }

    /// Returns the output of one `debugfs` command.
    pub fn debugfs(&self, command: &str) -> String {
        run(Command::new("debugfs").args(["-R", command]).arg(&self.path))
    }

    /// Returns the output of `dumpe2fs`; with `-h` only the superblock's.
    pub fn dumpe2fs(&self, options: &[&str]) -> String {
        run(Command::new("dumpe2fs").args(options).arg(&self.path))
    }

    /// Checks that e2fsck has nothing to repair.
    pub fn check_by_e2fsck(&self) {
        testkit::check_by_e2fsck(&self.path);
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    pub fn open(&self) -> Arc<Volume> {
        must(open_device(self.device(true)), "opening the volume")
    }

    /// Opens the image as a device. While another test starts a program, that program's process
    /// briefly holds copies of our open files with their locks, so this is tried again.
    pub fn device(&self, read_only: bool) -> SharedDevice {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match FileDevice::open(&self.path, read_only) {
                Err(base::Error::Open { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                opened => return Arc::new(must(opened, "opening")),
            }
        }
    }
}

/// Opens the volume of an image for writing.
pub fn open_for_writing(image: &Image) -> Arc<Volume> {
    let device = image.device(false);
    must(open_device_for_writing(device), "opening for writing")
}

pub fn open_device_for_writing(device: SharedDevice) -> base::Result<Arc<Volume>> {
    let cache = PageCache::new(CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() })?;
    Volume::open_for_writing(device, &cache, &OpenOptions::default())
}

/// Opens the volume in `bytes`.
pub fn open(bytes: Vec<u8>) -> base::Result<Arc<Volume>> {
    open_device(Arc::new(MemoryDevice::new(bytes)))
}

/// Returns the findings of the check of the volume in `bytes`, or the error of opening it, as text.
pub fn findings(bytes: Vec<u8>) -> Vec<String> {
    let mut findings = Vec::new();
    match open(bytes) {
        Ok(volume) => {
            volume.check(&mut |error| {
                findings.push(error.to_string());
                ControlFlow::Continue(())
            });
        }
        Err(error) => findings.push(error.to_string()),
    }
    findings
}

pub fn open_device(device: SharedDevice) -> base::Result<Arc<Volume>> {
    let cache = PageCache::new(CacheOptions { bytes_max: 32 << 20, ..CacheOptions::default() })?;
    Volume::open(device, &cache, &OpenOptions::default())
}

/// Time of creation and change of inodes.
pub const TIME: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 1 };

/// Returns the parameters of a new inode of this type.
pub fn new_inode(kind: FileType) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o644,
        uid: 7,
        gid: 70_000,
        device: DeviceNumber::default(),
        target: &[],
        xattrs: &[],
        time: TIME,
        created: TIME,
    }
}

/// Creates a regular file in the root directory.
pub fn new_file(volume: &Arc<Volume>, name: &str) -> Arc<Inode> {
    let root = must(volume.inode(ROOT_INODE), "the root");
    must(root.create(name.as_bytes(), &new_inode(FileType::Regular)), name)
}

/// Runs a program, which must succeed. Returns its standard output.
pub fn run(command: &mut Command) -> String {
    String::from_utf8_lossy(&testkit::command::run(command)).into_owned()
}

/// Returns the first number in the text after `label`.
pub fn number_after(text: &str, label: &str) -> Option<u64> {
    let rest = text.split_once(label)?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Returns the mappings of the file up to its last allocated block, each looked up by its first
/// byte.
pub fn maps(inode: &Inode) -> Vec<Iomap> {
    testkit::crash::maps(inode)
}

/// Returns the file's contents, read by its map.
pub fn contents(volume: &Volume, inode: &Inode) -> Vec<u8> {
    testkit::crash::contents(volume.device(), inode, inode.size())
}

/// Returns the file's runs as (file block, volume block, blocks, unwritten). Adjacent runs are
/// joined.
pub fn runs(volume: &Volume, inode: &Inode) -> Vec<(u64, u64, u64, bool)> {
    let shift = volume.geometry().block_size.shift();
    let mut runs = Vec::new();
    for map in maps(inode) {
        let Some(DeviceOffset(address)) = map.address else { continue };
        let unwritten = map.kind == IomapKind::Unwritten;
        join(&mut runs, (map.offset.0 >> shift, address >> shift, map.length >> shift, unwritten));
    }
    runs
}

/// Adds a run to a list. Extends the last run if the new one continues it.
pub fn join(runs: &mut Vec<(u64, u64, u64, bool)>, run: (u64, u64, u64, bool)) {
    match runs.last_mut() {
        Some(last) if last.0 + last.2 == run.0 && last.1 + last.2 == run.1 && last.3 == run.3 => {
            last.2 += run.2;
        }
        _ => runs.push(run),
    }
}

/// Returns the inode number of a name in the root directory, as debugfs prints it.
pub fn inode_of(image: &Image, name: &str) -> InodeNumber {
    let text = image.debugfs(&format!("stat /{name}"));
    InodeNumber(number_after(&text, "Inode:").unwrap_or_else(|| panic!("{text}")))
}
