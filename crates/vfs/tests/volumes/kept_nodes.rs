//! Lookups of nodes by inode number, as for file handles, while an inode is being created.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{make, open_on};
use base::InodeNumber;
use base::attributes::FileType;
use device::{Bio, BioOperation, MemoryDevice, SharedDevice};
use iomap::DirectOptions;
use parking_lot::{Condvar, Mutex};
use testkit::{DeviceHooks, HookedDevice, Mke2fs, Waiter};
use vfs::{Creation, Credentials, Follow, Node, Volume};

/// A device that holds the first read after it was armed.
type HoldDevice = HookedDevice<Hold>;

#[derive(Default, Debug)]
struct Hold {
    is_armed: AtomicBool,
    held: Mutex<Vec<Bio>>,
    more: Condvar,
}

impl Hold {
    fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    fn wait(&self) {
        let mut held = self.held.lock();
        while held.is_empty() {
            let waited = self.more.wait_for(&mut held, Duration::from_secs(60));
            assert!(!waited.timed_out(), "nothing is read");
        }
    }
}

impl DeviceHooks for Hold {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_read = batch.iter().any(|bio| bio.operation() == BioOperation::Read);
        if is_read && self.is_armed.swap(false, Ordering::SeqCst) {
            self.held.lock().extend(batch);
            self.more.notify_all();
        } else {
            device.submit(batch);
        }
    }
}

/// Submits the reads that `device` holds.
fn release(device: &HoldDevice) {
    device.inner().submit(std::mem::take(&mut *device.held.lock()));
}

fn create(volume: &Volume, directory: &Arc<Node>, name: &[u8], kind: FileType) -> Arc<Node> {
    volume.create_in(directory, name, &Creation::of(kind, 0o755), &Credentials::ROOT).unwrap()
}

/// Returns a volume with the directory `/directory`, whose block is not cached, and the file
/// `/kept`, which is in memory. Also returns both nodes, and the number that the next inode in the
/// directory will get.
fn volume() -> (Arc<HoldDevice>, Volume, Arc<Node>, Arc<Node>, InodeNumber) {
    let image = tempfile::NamedTempFile::new().unwrap();
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 4096) }.make(image.path(), None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image.path()).unwrap()));
    let volume = open_on(memory.clone(), DirectOptions::default());
    let directory = create(&volume, &volume.root().unwrap(), b"directory", FileType::Directory);
    drop(make(&volume, "kept"));
    let next = create(&volume, &directory, b"new", FileType::Regular).number();
    volume.unlink(&directory, b"new", &Credentials::ROOT).unwrap();
    volume.close().unwrap();
    drop((directory, volume));
    let device = Arc::new(HookedDevice::new(memory, Hold::default()));
    let volume = open_on(device.clone(), DirectOptions::default());
    let [directory, kept] =
        ["/directory", "/kept"].map(|path| volume.resolve(path.as_bytes(), Follow::No).unwrap());
    (device, volume, directory, kept, next)
}

#[test]
fn a_lookup_of_an_inode_in_memory_does_not_wait_for_a_creation() {
    let (device, volume, directory, kept, _) = volume();
    thread::scope(|scope| {
        device.arm();
        scope.spawn(|| create(&volume, &directory, b"new", FileType::Regular));
        device.wait();
        let (sender, found) = mpsc::channel();
        let (volume, kept) = (&volume, &kept);
        scope.spawn(move || sender.send(volume.kept_node(kept.number())));
        let found = found.recv_timeout(Duration::from_secs(60));
        release(&device);
        let found = found.expect("it waits for the creation").unwrap();
        assert!(Arc::ptr_eq(&found, kept));
    });
    volume.close().unwrap();
}

#[test]
fn an_inode_that_is_looked_up_during_its_creation_has_one_node() {
    let (device, volume, directory, _, next) = volume();
    let waiter = Waiter::default();
    thread::scope(|scope| {
        device.arm();
        let new = scope.spawn(|| create(&volume, &directory, b"new", FileType::Regular));
        device.wait();
        let found = scope.spawn(|| waiter.run(|| volume.kept_node(next)));
        let waits = waiter.begins_to_wait();
        release(&device);
        assert!(waits, "the race was not reached");
        let (new, found) = (new.join().unwrap(), found.join().unwrap());
        assert_eq!(new.number(), next);
        assert!(Arc::ptr_eq(&found.unwrap(), &new));
    });
    volume.close().unwrap();
}
