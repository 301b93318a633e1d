//! Requests that are cancelled while they wait for writes of other requests, on a device that holds
//! writes.

use crate::common;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{WRITE, close, make, open_on};
use base::{Error, FileOffset, Result, cancellation};
use device::{Bio, BioOperation, SharedDevice};
use iomap::DirectOptions;
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;
use testkit::f2fs::{Kind, check_by_both};
use testkit::{DeviceHooks, HookedDevice, Mke2fs, wait_until};
use vfs::{File, Privileges, RwFlags, Volume, VolumeOptions, WriteAt};

/// More bytes than may be dirty in the cache of [`common::open_on`] before writers wait.
const MANY: usize = 7 << 19;
const EIO: i32 = 5;

/// A device that holds writes while its gate is shut.
type GatedDevice = HookedDevice<Gate>;

#[derive(Default, Debug)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
    writes: AtomicUsize,
    /// Whether the next write fails.
    fails: AtomicBool,
}

impl Gate {
    fn shut(&self) {
        *self.is_shut.lock() = true;
    }

    fn open(&self) {
        *self.is_shut.lock() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut is_shut = self.is_shut.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        while *is_shut {
            self.opened.wait(&mut is_shut);
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn wait_until_used(&self) {
        wait_until("a write to the device", || self.waiting.load(Ordering::Relaxed) > 0);
    }
}

impl DeviceHooks for Gate {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let mut passed = Vec::with_capacity(batch.len());
        for bio in batch {
            if bio.operation() == BioOperation::Write {
                self.writes.fetch_add(1, Ordering::Relaxed);
                self.pass();
                if self.fails.swap(false, Ordering::Relaxed) {
                    bio.end(Err(EIO));
                    continue;
                }
            }
            passed.push(bio);
        }
        device.submit(passed);
    }
}

struct Stage {
    _folder: TempDir,
    image: PathBuf,
    gate: Arc<GatedDevice>,
    volume: Volume,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
        let gate = Arc::new(gate(&image));
        let volume = open_on(Arc::clone(&gate) as _, DirectOptions::default());
        Self { _folder: folder, image, gate, volume }
    }

    fn close(self) {
        close(self.volume, &self.image);
    }
}

fn gate(image: &Path) -> GatedDevice {
    HookedDevice::new(common::device(image), Gate::default())
}

fn write(file: &File, data: &[u8]) -> Result<usize> {
    file.write_at(data, 0)
}

/// Calls `call` on a thread, and cancels its request once it waits.
fn cancelled_while_it_waits<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    let (asked, is_cancelled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let (count, answer) = (Arc::clone(&asked), Arc::clone(&is_cancelled));
        let thread = scope.spawn(move || {
            let _cancellable = cancellation::cancel_when(move || {
                count.fetch_add(1, Ordering::Relaxed);
                answer.load(Ordering::Relaxed)
            });
            call()
        });
        wait_until("a wait", || asked.load(Ordering::Relaxed) > 2);
        is_cancelled.store(true, Ordering::Relaxed);
        thread.join().unwrap()
    })
}

#[test]
fn a_cancelled_fsync_leaves_errors_unreported() {
    let stage = Stage::new();
    let file = make(&stage.volume, "file");
    let other = file.node().open_for(WRITE).unwrap();
    write(&file, &[1; 100_000]).unwrap();
    stage.gate.shut();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| file.sync_data());
        stage.gate.wait_until_used();
        assert_eq!(cancelled_while_it_waits(|| other.sync_data()), Err(Error::Interrupted));
        assert!(!first.is_finished(), "the device holds no write");
        stage.gate.fails.store(true, Ordering::Relaxed);
        stage.gate.open();
        assert!(matches!(first.join().unwrap(), Err(Error::Io(_))));
    });
    assert!(matches!(other.sync_data(), Err(Error::Io(_))), "the error was reported before");
    assert_eq!(other.sync_data(), Ok(()));
    assert!(matches!(stage.volume.sync(), Err(Error::Io(_))));
    drop((file, other));
    stage.close();
}

#[test]
fn a_write_that_is_cancelled_before_it_begins_changes_nothing() {
    let stage = Stage::new();
    let (others, file) = (make(&stage.volume, "others"), make(&stage.volume, "file"));
    stage.gate.shut();
    write(&others, &[1; MANY]).unwrap();
    stage.gate.wait_until_used();
    let written = cancelled_while_it_waits(|| write(&file, &[2; 100_000]));
    assert_eq!(written, Err(Error::Interrupted));
    assert_eq!(file.node().attributes().size, 0);
    stage.gate.open();
    assert_eq!(write(&file, &[3; 100_000]), Ok(100_000));
    others.sync_all().unwrap();
    drop((others, file));
    stage.close();
}

#[test]
fn a_write_that_is_cancelled_between_parts_is_short() {
    const PART: usize = 4 << 20;
    let stage = Stage::new();
    let file = make(&stage.volume, "file");
    // The flusher cannot make data clean, and the writer waits with a cancelled request.
    stage.gate.shut();
    let cancellable = cancellation::cancel_when(|| true);
    assert_eq!(write(&file, &[1; 2 * PART]), Ok(PART));
    drop(cancellable);
    stage.gate.open();
    file.sync_all().unwrap();
    assert_eq!(file.node().attributes().size, PART as u64);
    drop(file);
    stage.close();
}

#[test]
fn a_cancelled_request_starts_no_write() {
    let stage = Stage::new();
    let file = make(&stage.volume, "file");
    write(&file, &[1; 100_000]).unwrap();
    let before = stage.gate.writes.load(Ordering::Relaxed);
    let cancellable = cancellation::cancel_when(|| true);
    assert_eq!(file.sync_data(), Err(Error::Interrupted));
    assert_eq!(stage.volume.sync(), Err(Error::Interrupted));
    assert_eq!(stage.gate.writes.load(Ordering::Relaxed), before);
    drop(cancellable);
    file.sync_data().unwrap();
    assert!(stage.gate.writes.load(Ordering::Relaxed) > before);
    drop(file);
    stage.close();
}

/// Holds flushes after a number of them has passed.
#[derive(Default, Debug)]
struct Flushes {
    /// The number of flushes that still pass, or `None` if all do.
    left: Mutex<Option<usize>>,
    changed: Condvar,
    waiting: AtomicUsize,
    ended: AtomicUsize,
}

impl Flushes {
    fn let_pass(&self, left: Option<usize>) {
        *self.left.lock() = left;
        self.changed.notify_all();
    }
}

impl DeviceHooks for Flushes {
    fn flush(&self, device: &SharedDevice) -> Result<()> {
        let mut left = self.left.lock();
        while *left == Some(0) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.changed.wait(&mut left);
        }
        *left = left.map(|left| left - 1);
        drop(left);
        device.flush()?;
        self.ended.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_cancelled_fsync_of_f2fs_does_not_wait_for_the_flush_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Kind::named("plain").make(&image, 64);
    let device = Arc::new(HookedDevice::new(common::device(&image), Flushes::default()));
    let volume = open_on(Arc::clone(&device) as _, DirectOptions::default());
    let [file, other] = ["file", "other"].map(|name| make(&volume, name));
    volume.sync().unwrap();
    write(&file, &[1; 4096]).unwrap();
    write(&other, &[2; 4096]).unwrap();
    device.let_pass(Some(0));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| file.sync_all());
        wait_until("a flush", || device.waiting.load(Ordering::Relaxed) > 0);
        assert_eq!(cancelled_while_it_waits(|| other.sync_all()), Err(Error::Interrupted));
        assert!(!first.is_finished(), "the device holds no flush");
        device.let_pass(None);
        assert_eq!(first.join().unwrap(), Ok(()));
    });
    other.sync_all().unwrap();
    drop((file, other));
    volume.close().unwrap();
    drop((volume, device));
    check_by_both(&image);
}

#[test]
fn data_that_a_cancelled_sync_has_written_back_becomes_durable_later() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let device = Arc::new(HookedDevice::new(common::device(&image), Flushes::default()));
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.commit_interval = Duration::from_secs(2);
    let volume = Volume::open_device(Arc::clone(&device) as _, &options).unwrap();
    let [file, other] = ["file", "other"].map(|name| make(&volume, name));
    // Changes no times, so that the data alone must cause a commit.
    let overwrite = || {
        let at = WriteAt::FromCache { at: FileOffset(0), keeps_times: true };
        file.write_with(at, &[1; 4096], Privileges::Keep, RwFlags::default()).unwrap()
    };
    overwrite();
    volume.sync().unwrap();
    other.node().touch().unwrap();
    device.let_pass(Some(1));
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| other.sync_all());
        let waiting = || device.waiting.load(Ordering::Relaxed);
        wait_until("the last flush of a commit", || waiting() > 0);
        overwrite();
        assert_eq!(cancelled_while_it_waits(|| volume.sync()), Err(Error::Interrupted));
        let before = device.ended.load(Ordering::Relaxed);
        device.let_pass(None);
        commit.join().unwrap().unwrap();
        wait_until("another flush", || device.ended.load(Ordering::Relaxed) > before + 1);
    });
    drop((file, other));
    close(volume, &image);
}
