//! fsync of f2fs files while their nodes are on the way to the device: other threads go on, a checkpoint waits, changes are
//! not lost, and a failed flush leaves nothing behind the chain. The judge is fsck.f2fs, and the contents after the volume
//! was opened anew.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base::{Error, Result};
use device::{MemoryDevice, SharedDevice};
use testkit::f2fs::{Kind, check_by_both};
use testkit::{DeviceHooks, HookedDevice};
use vfs::{Credentials, File, Follow, OpenMode, Volume, VolumeOptions};

const WRITE: OpenMode = OpenMode { write: true, append: false };
/// The maximum time of a held flush. It is only reached if what the test waits for does not happen.
const TIME_MAX: Duration = Duration::from_secs(20);
/// The time for which a flush is held to see that something does not happen meanwhile.
const WAITED: Duration = Duration::from_millis(300);

/// What the next flushes do.
#[derive(Debug, Default)]
struct Flushes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the next flush waits to be released.
    holds_next: bool,
    /// Whether a flush is held.
    is_held: bool,
    /// The number of flushes that may pass before one fails.
    until_failure: Option<usize>,
    count: usize,
}

impl Flushes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits until `condition` is true, for at most `time`. Returns whether it is.
    fn wait(&self, time: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !condition(state));
        !waited.unwrap().1.timed_out()
    }

    fn hold_next(&self) {
        self.state().holds_next = true;
    }

    fn release(&self) {
        self.state().is_held = false;
        self.changed.notify_all();
    }
}

impl DeviceHooks for Flushes {
    fn flush(&self, device: &SharedDevice) -> Result<()> {
        {
            let mut state = self.state();
            state.count += 1;
            if let Some(left) = &mut state.until_failure {
                if *left == 0 {
                    state.until_failure = None;
                    return Err(Error::Panicked("a planted failure"));
                }
                *left -= 1;
            }
            if std::mem::take(&mut state.holds_next) {
                state.is_held = true;
            }
            self.changed.notify_all();
            if !state.is_held {
                drop(state);
                return device.flush();
            }
        }
        assert!(self.wait(TIME_MAX, |state| !state.is_held), "nothing released the flush");
        device.flush()
    }
}

struct Disk {
    memory: Arc<MemoryDevice>,
    device: Arc<HookedDevice<Flushes>>,
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        Kind::named("plain").make(&path, 64);
        let memory = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
        let device = HookedDevice::new(Arc::clone(&memory) as _, Flushes::default());
        Self { memory, device: Arc::new(device) }
    }

    fn open(&self) -> Volume {
        // Nothing is committed in the background.
        let commit_interval = Duration::from_secs(3600);
        let options = VolumeOptions { writable: true, commit_interval, ..VolumeOptions::default() };
        Volume::open_device(Arc::clone(&self.device) as _, &options).unwrap()
    }

    /// Opens a copy of the device, as a power cut would leave it now, and checks the contents of files. Lets fsck.f2fs check
    /// the recovered volume.
    fn check(&self, files: &[(&str, &[u8])]) {
        let copy = Arc::new(MemoryDevice::new(self.memory.snapshot()));
        let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
        let volume = Volume::open_device(Arc::clone(&copy) as _, &options).unwrap();
        for (path, contents) in files {
            let file = volume.resolve(path.as_bytes(), Follow::No).unwrap();
            let mut found = vec![0; contents.len() + 1];
            let file = file.open_for(OpenMode::default()).unwrap();
            let length = file.read_at(&mut found, 0).unwrap();
            assert!(found[..length] == **contents, "{path} has other contents");
        }
        volume.close().unwrap();
        drop(volume);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, copy.snapshot()).unwrap();
        check_by_both(&path);
    }
}

/// Makes a file. Tests let it grow, so that a sync has nodes to write.
fn make(volume: &Volume, path: &str, contents: &[u8]) -> File {
    let node = volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    assert_eq!(file.write_at(contents, 0), Ok(contents.len()));
    file
}

#[test]
fn other_threads_change_files_while_nodes_are_in_flight() {
    let disk = Disk::new();
    let volume = disk.open();
    let file = make(&volume, "/synced", &[1; 5000]);
    volume.sync().unwrap();
    assert_eq!(file.write_at(&[2; 6000], 0), Ok(6000));
    disk.device.hold_next();
    thread::scope(|scope| {
        let synced = scope.spawn(|| file.sync_all());
        assert!(disk.device.wait(TIME_MAX, |state| state.is_held));
        // Both changes need the lock of changes; the second one changes the node that is in flight.
        make(&volume, "/other", &[3; 100]);
        file.node().set_size(9000, vfs::Privileges::Keep).unwrap();
        disk.device.release();
        synced.join().unwrap().unwrap();
    });
    disk.check(&[("/synced", &[2; 6000])]);
    // The change during the flight is not taken for durable.
    file.sync_all().unwrap();
    disk.check(&[("/synced", &[[2; 6000].as_slice(), &[0; 3000]].concat())]);
    volume.close().unwrap();
}

#[test]
fn a_checkpoint_waits_for_nodes_in_flight() {
    let disk = Disk::new();
    let volume = disk.open();
    let file = make(&volume, "/synced", &[1; 5000]);
    volume.sync().unwrap();
    assert_eq!(file.write_at(&[2; 6000], 0), Ok(6000));
    disk.device.hold_next();
    thread::scope(|scope| {
        let synced = scope.spawn(|| file.sync_all());
        assert!(disk.device.wait(TIME_MAX, |state| state.is_held));
        let held = disk.device.state().count;
        make(&volume, "/other", &[3; 100]);
        let checkpoint = scope.spawn(|| volume.sync());
        let is_flushed = disk.device.wait(WAITED, |state| state.count > held);
        assert!(!is_flushed, "the checkpoint was written while nodes were in flight");
        disk.device.release();
        synced.join().unwrap().unwrap();
        checkpoint.join().unwrap().unwrap();
    });
    disk.check(&[("/synced", &[2; 6000]), ("/other", &[3; 100])]);
    // The next chain begins behind the new checkpoint.
    assert_eq!(file.write_at(&[4; 100], 6000), Ok(100));
    file.sync_all().unwrap();
    disk.check(&[("/synced", &[[2; 6000].as_slice(), &[4; 100]].concat())]);
    volume.close().unwrap();
}

#[test]
fn after_a_failed_flush_of_the_chain_the_next_fsync_writes_a_checkpoint() {
    // The flush of data, and that of nodes.
    for passing in [0, 1] {
        let disk = Disk::new();
        let volume = disk.open();
        let file = make(&volume, "/synced", &[1; 5000]);
        volume.sync().unwrap();
        assert_eq!(file.write_at(&[2; 6000], 0), Ok(6000));
        disk.device.state().until_failure = Some(passing);
        assert!(file.sync_all().is_err());
        assert_eq!(file.write_at(&[3; 7000], 0), Ok(7000));
        let before = disk.device.state().count;
        file.sync_all().unwrap();
        assert_eq!(disk.device.state().count - before, 2);
        disk.check(&[("/synced", &[3; 7000])]);
        assert_eq!(file.write_at(&[4; 8000], 0), Ok(8000));
        file.sync_all().unwrap();
        disk.check(&[("/synced", &[4; 8000])]);
        volume.close().unwrap();
    }
}
