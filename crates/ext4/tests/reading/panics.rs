//! Tests of panics in the background: in the journal's thread, in the thread of multiple-mount
//! protection, and at the end of writes. A panic shuts the volume down, and later changes report
//! it.

use crate::common;
use std::ops::Range;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::cached_file::Cache;
use crate::common::{Image, new_file, open_device_for_writing};
use base::{Error, FileOffset, Result};
use device::{MemoryDevice, SharedDevice};
use ext4::{Inode, Volume};
use iomap::{FinishedRange, Iomap, MapRead, MapWrite};
use testkit::{PanicDevice, PanicOnce};

/// Returns a volume on a device that panics once when the thread with this name uses it, after it
/// is armed.
fn volume(
    options: &[&str],
    thread: &'static str,
) -> (Arc<MemoryDevice>, Arc<PanicDevice>, Arc<Volume>) {
    let memory = Arc::new(MemoryDevice::new(Image::make(16, options).bytes()));
    let device = Arc::new(PanicDevice::new(memory.clone(), PanicOnce::new(thread)));
    let volume = open_device_for_writing(device.clone() as SharedDevice).unwrap();
    (memory, device, volume)
}

/// Calls `work` until the volume is shut down. Returns the error of the shutdown.
fn work_until_shutdown(volume: &Volume, mut work: impl FnMut(u64)) -> Error {
    let deadline = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        assert!(Instant::now() < deadline, "the panic did not shut the volume down");
        work(number);
        std::thread::sleep(Duration::from_millis(20));
        if let Err(error) = volume.check_writable() {
            return error;
        }
    }
    unreachable!("numbers do not end")
}

fn is_shut_by(error: &Error, operation: &'static str) -> bool {
    matches!(error, Error::ShutDown(cause) if **cause == Error::Panicked(operation))
}

#[test]
fn a_panic_of_the_journals_thread_outside_a_commit_shuts_the_volume_down() {
    let options = ["-t", "ext4", "-b", "1024", "-J", "size=1"];
    let (memory, device, volume) = volume(&options, "bifolio-journal");
    new_file(&volume, "before");
    volume.sync().unwrap();
    device.arm();
    let root = volume.inode(ext4::ROOT_INODE).unwrap();
    let error = work_until_shutdown(&volume, |number| {
        // The changes soon fill half of the log, so that the thread checkpoints.
        let new = common::new_inode(base::attributes::FileType::Regular);
        let _ = root.create(format!("file {number}").as_bytes(), &new);
        let _ = volume.sync();
    });
    assert!(device.has_panicked() && is_shut_by(&error, "the journal's thread"), "{error}");
    volume.sync().unwrap_err();
    volume.close().unwrap_err();
    drop(root);
    drop(volume);
    // The superblock records the error, and durable changes are kept.
    let image = Image::make(1, &["-t", "ext4"]);
    std::fs::write(&image.path, memory.snapshot()).unwrap();
    let header = image.dumpe2fs(&["-h"]);
    assert!(header.contains("clean with errors"), "{header}");
    let repaired = Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert!(repaired.status.code().is_some_and(|code| code <= 1), "{repaired:?}");
    image.check_by_e2fsck();
    let volume = image.open();
    volume.inode(ext4::ROOT_INODE).unwrap().lookup(b"before").unwrap();
}

#[test]
fn a_panic_of_the_thread_of_multiple_mount_protection_shuts_the_volume_down() {
    let options = ["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"];
    let (memory, device, volume) = volume(&options, "bifolio-mmp");
    new_file(&volume, "file");
    device.arm();
    let error = work_until_shutdown(&volume, |_| ());
    assert!(
        device.has_panicked() && is_shut_by(&error, "the thread of multiple-mount protection"),
        "{error}"
    );
    // Not even the error is written, since another host may have claimed the volume.
    let before = memory.snapshot();
    volume.sync().unwrap_err();
    volume.close().unwrap_err();
    drop(volume);
    assert!(before == memory.snapshot(), "a volume was written that another host may have claimed");
}

/// The map of a file that panics once at the end of a write.
struct Panicking {
    inode: Arc<Inode>,
    is_armed: AtomicBool,
}

impl MapRead for Panicking {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_read(at, length)
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        self.inode.inline_data()
    }

    fn generation(&self) -> u64 {
        self.inode.generation()
    }
}

impl MapWrite for Panicking {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_write(at, length)
    }

    fn end_write(&self, unused: Range<FileOffset>) {
        self.inode.end_write(unused);
    }

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.inode.map_writeback(at, length)
    }

    fn end_io(&self, finished: &[FinishedRange], size: FileOffset) -> Result<()> {
        assert!(!self.is_armed.swap(false, Ordering::SeqCst), "caused by the test");
        self.inode.end_io(finished, size)
    }

    fn panicked(&self, operation: &'static str) {
        self.inode.panicked(operation);
    }
}

#[test]
fn a_panic_at_the_end_of_a_write_shuts_the_volume_down() {
    let (_, _, volume) = volume(&["-t", "ext4"], "");
    let (cache, inode) = (Cache::new(), new_file(&volume, "a"));
    let other = new_file(&volume, "b");
    let mapper = Panicking { inode: Arc::clone(&inode), is_armed: AtomicBool::new(true) };
    let file = cache.file(&inode, Arc::new(mapper));
    file.write(0, &[7; 5000]).unwrap();
    file.write_back();
    let error = volume.check_writable().unwrap_err();
    assert!(is_shut_by(&error, "the end of a write"), "{error}");
    assert!(matches!(file.error(), Err(Error::Lost(_))));
    assert!(other.sync(false).is_err() && volume.sync().is_err());
}
