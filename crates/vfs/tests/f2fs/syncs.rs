//! fsync of f2fs files while their nodes are on the way to the device: other threads go on, a
//! checkpoint waits, and changes are not lost. After nodes that could not be written, a checkpoint
//! follows, and after a failed flush, nothing. What was written after the last checkpoint is kept
//! until the next one. And what a sync does not wait for: data of other files, and delays that
//! begin later. Also: changes that drop or move data which is on its way. The judge is fsck.f2fs,
//! and the contents after the volume was opened anew.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base::{Error, FileOffset, Result};
use device::{Bio, BioOperation, BlockDevice, MemoryDevice, SharedDevice};
use testkit::f2fs::{Kind, check_by_both};
use testkit::{DeviceHooks, HookedDevice, Waiter, wait_until};
use vfs::{Credentials, Fallocate, File, Follow, Node, OpenMode, Privileges, RwFlags, SyncRange};
use vfs::{Volume, VolumeOptions, WriteAt, WriteSync};

const WRITE: OpenMode = OpenMode { write: true, append: false };
/// The maximum time of a held flush. It is only reached if what the test waits for does not happen.
const TIME_MAX: Duration = Duration::from_secs(20);
/// The time for which a flush is held to see that something does not happen meanwhile.
const WAITED: Duration = Duration::from_millis(300);
/// The error number EIO.
const EIO: i32 = 5;

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
    /// Whether the first write after the next flush fails.
    fails_write_after_flush: bool,
    fails_next_write: bool,
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
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let is_write = bio.operation() == BioOperation::Write;
            if is_write && std::mem::take(&mut self.state().fails_next_write) {
                bio.end(Err(EIO));
            } else {
                device.submit(vec![bio]);
            }
        }
    }

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
            if std::mem::take(&mut state.fails_write_after_flush) {
                state.fails_next_write = true;
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

/// Hooks that hold writes of data, which begins with given bytes.
#[derive(Debug, Default)]
struct HeldData {
    bytes: Mutex<BTreeSet<u8>>,
    bios: Mutex<Vec<(u8, Bio)>>,
}

impl HeldData {
    /// The minimum length of data that is held. No file has another write of this length.
    const LENGTH_MIN: u64 = 8 * 4096;

    fn hold(&self, bytes: &[u8]) {
        self.bytes.lock().unwrap().extend(bytes);
    }

    fn holds(&self, byte: u8) -> bool {
        self.bios.lock().unwrap().iter().any(|(held, _)| *held == byte)
    }

    fn release(&self, device: &Arc<MemoryDevice>, byte: u8) {
        self.bytes.lock().unwrap().remove(&byte);
        let bios = std::mem::take(&mut *self.bios.lock().unwrap());
        let (released, held): (Vec<_>, Vec<_>) = bios.into_iter().partition(|bio| bio.0 == byte);
        self.bios.lock().unwrap().extend(held);
        device.submit(released.into_iter().map(|(_, bio)| bio).collect());
    }
}

impl DeviceHooks for HeldData {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let is_large = bio.length() >= Self::LENGTH_MIN;
            let first = if is_large { bio.to_vec()[0] } else { 0 };
            let is_write = bio.operation() == BioOperation::Write;
            if is_write && is_large && self.bytes.lock().unwrap().contains(&first) {
                self.bios.lock().unwrap().push((first, bio));
            } else {
                device.submit(vec![bio]);
            }
        }
    }
}

/// A volume in memory, whose requests pass through hooks.
struct Disk<H = Flushes> {
    memory: Arc<MemoryDevice>,
    device: Arc<HookedDevice<H>>,
}

impl<H: DeviceHooks + Default + 'static> Disk<H> {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        Kind::named("plain").make(&path, 64);
        let memory = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
        let device = HookedDevice::new(Arc::clone(&memory) as _, H::default());
        Self { memory, device: Arc::new(device) }
    }

    /// Opens the volume. Nothing is committed in the background.
    fn open(&self) -> Volume {
        self.open_with(Duration::from_secs(3600))
    }

    fn open_with(&self, commit_interval: Duration) -> Volume {
        let options = VolumeOptions { writable: true, commit_interval, ..VolumeOptions::default() };
        Volume::open_device(Arc::clone(&self.device) as _, &options).unwrap()
    }

    /// Returns a file as a power cut would leave it now.
    fn after_cut(&self, path: &str) -> Arc<Node> {
        let copy = Arc::new(MemoryDevice::new(self.memory.snapshot()));
        let volume = Volume::open_device(copy, &VolumeOptions::default()).unwrap();
        volume.resolve(path.as_bytes(), Follow::No).unwrap()
    }

    /// Returns the contents of a file after a power cut now.
    fn contents(&self, path: &str) -> Vec<u8> {
        let node = self.after_cut(path);
        let mut contents = vec![0; node.attributes().size as usize];
        let file = node.open_for(OpenMode::default()).unwrap();
        assert_eq!(file.read_at(&mut contents, 0), Ok(contents.len()));
        contents
    }

    /// Opens a copy of the device, as a power cut would leave it now, and checks the contents of
    /// files. Lets fsck.f2fs check the recovered volume.
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
    let disk = Disk::<Flushes>::new();
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
        file.node().set_size(9000, Privileges::Keep).unwrap();
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
    let disk = Disk::<Flushes>::new();
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
fn after_nodes_that_cannot_be_written_fsync_writes_a_checkpoint() {
    let disk = Disk::<Flushes>::new();
    let volume = disk.open();
    let file = make(&volume, "/synced", &[1; 5000]);
    volume.sync().unwrap();
    assert_eq!(file.write_at(&[2; 6000], 0), Ok(6000));
    let before = disk.device.state().count;
    // The flush of data comes before the nodes.
    disk.device.state().fails_write_after_flush = true;
    file.sync_all().unwrap();
    assert_eq!(disk.device.state().count - before, 3, "a checkpoint has two flushes");
    disk.check(&[("/synced", &[2; 6000])]);
    assert_eq!(file.write_at(&[4; 8000], 0), Ok(8000));
    file.sync_all().unwrap();
    disk.check(&[("/synced", &[4; 8000])]);
    volume.close().unwrap();
}

/// A call, of a test with two files.
type Call = fn(&Volume, &[File; 2]) -> Result<()>;

const SYNC_FILE: Call = |_, [file, _]| file.sync_all();
const SYNC_VOLUME: Call = |volume, _| volume.sync();
const NO_CHANGE: Call = |_, _| Ok(());
/// Changes the first file in the cache, and the other one on the device.
const CHANGE: Call = |_, [file, other]| {
    file.write_at(&[2; 6000], 0)?;
    other.write_at(&[2; 100], 0)?;
    other.sync_range(0..100, SyncRange { wait_before: true, write: true, wait_after: true })
};

/// The host may have dropped data of any file. A later flush, which reports no error, would not
/// make it durable.
#[test]
fn after_a_failed_flush_no_sync_succeeds() {
    for (what, passing, change, sync) in [
        ("the data of a file", 0, CHANGE, SYNC_FILE),
        ("the nodes of a file", 1, CHANGE, SYNC_FILE),
        ("a file without changes", 0, NO_CHANGE, SYNC_FILE),
        ("a volume without changes", 0, NO_CHANGE, SYNC_VOLUME),
        ("a checkpoint", 0, CHANGE, SYNC_VOLUME),
        ("the end of a checkpoint", 1, CHANGE, SYNC_VOLUME),
    ] {
        let disk = Disk::<Flushes>::new();
        let volume = disk.open();
        let files = ["/synced", "/other"].map(|path| make(&volume, path, &[1; 5000]));
        volume.sync().unwrap();
        change(&volume, &files).unwrap();
        disk.device.state().until_failure = Some(passing);
        assert!(sync(&volume, &files).is_err(), "{what}");
        assert_eq!(disk.device.state().until_failure, None, "{what}: no flush has failed");
        let [file, other] = &files;
        let later = [other.sync_data(), other.sync_all(), file.sync_all(), volume.sync()];
        for synced in later {
            assert!(matches!(synced, Err(Error::Lost(_))), "{what}: {synced:?}");
        }
        let changed = other.write_at(&[3; 100], 0);
        assert!(matches!(changed, Err(Error::ShutDown(_))), "{what}: {changed:?}");
        assert!(volume.close().is_err(), "{what}");
        disk.check(&[]);
    }
}

/// Data of hot files is in the same log as blocks of directories, of which the recovery writes one
/// for the name.
#[test]
fn a_recovery_writes_no_blocks_of_directories_over_synced_data() {
    let disk = Disk::<Flushes>::new();
    let volume = disk.open();
    // More names than an inode has room for.
    (0..300).for_each(|number| drop(make(&volume, &format!("/{number}"), b"")));
    volume.sync().unwrap();
    // The extension is on the list of hot files that mkfs.f2fs writes.
    let hot = make(&volume, "/new.db", &[2; 9000]);
    hot.sync_all().unwrap();
    let copy = Arc::new(MemoryDevice::new(disk.memory.snapshot()));
    let checkpoint = Volume::open_device(copy, VolumeOptions::new().no_recovery(true)).unwrap();
    assert!(checkpoint.resolve(b"/new.db", Follow::No).is_err(), "there is nothing to recover");
    disk.check(&[("/new.db", &[2; 9000])]);
    drop(hot);
    volume.close().unwrap();
}

/// No inode has dirty data, and only a checkpoint makes such changes durable.
#[test]
fn changes_of_names_become_durable_without_a_sync() {
    let disk = Disk::<Flushes>::new();
    let volume = disk.open_with(Duration::from_millis(500));
    make(&volume, "/new", b"new").sync_all().unwrap();
    make(&volume, "/old", b"old").sync_all().unwrap();
    let names = || {
        let copy = Arc::new(MemoryDevice::new(disk.memory.snapshot()));
        let copy = Volume::open_device(copy, VolumeOptions::new().no_recovery(true)).unwrap();
        ["/new", "/old", "/folder"].map(|path| copy.resolve(path.as_bytes(), Follow::No).is_ok())
    };
    wait_until("the files are committed", || names() == [true, true, false]);
    // Rounds without any changes follow.
    thread::sleep(2 * WAITED);
    volume.rename("/new", "/old").unwrap();
    wait_until("the new name is committed", || names() == [false, true, false]);
    thread::sleep(2 * WAITED);
    volume.create_dir("/folder").unwrap();
    wait_until("the folder is committed", || names() == [false, true, true]);
    volume.close().unwrap();
    disk.check(&[("/old", b"new")]);
}

/// The length of data that is held.
const LARGE: usize = 40 * 4096;

/// A way to make a file durable.
struct Sync {
    what: &'static str,
    call: fn(&Volume, &File),
    /// Whether all changes become durable with the file.
    is_checkpoint: bool,
}

const SYNCS: [Sync; 2] = [
    Sync { what: "a file", call: |_, file| file.sync_all().unwrap(), is_checkpoint: false },
    Sync {
        what: "the directory",
        call: |volume, _| volume.root().unwrap().sync(false).unwrap(),
        is_checkpoint: true,
    },
];

#[test]
fn closing_waits_for_the_data_of_a_file_without_a_name() {
    let disk = Disk::<HeldData>::new();
    let volume = disk.open();
    let file = make(&volume, "/removed", b"");
    volume.remove(b"/removed", &Credentials::ROOT).unwrap();
    disk.device.hold(&[7]);
    let uncached = RwFlags { dontcache: true, ..RwFlags::default() };
    let at = WriteAt::Offset(FileOffset(0));
    assert_eq!(file.write_with(at, &[7; LARGE], Privileges::Keep, uncached), Ok(LARGE));
    wait_until("the data is held", || disk.device.holds(7));
    let closed = Waiter::default();
    thread::scope(|scope| {
        let closing = scope.spawn(|| closed.run(|| volume.close()));
        let waits = closed.begins_to_wait();
        disk.device.release(&disk.memory, 7);
        closing.join().unwrap().unwrap();
        assert!(waits, "data was on its way when the volume was closed");
    });
    drop((file, volume));
    disk.check(&[]);
}

#[test]
fn a_sync_waits_for_no_data_of_another_file() {
    for Sync { what, call, .. } in SYNCS {
        let disk = Disk::<HeldData>::new();
        let volume = disk.open();
        let file = make(&volume, "/synced", &[1; 5000]);
        let other = make(&volume, "/other", &[3; LARGE]);
        volume.sync().unwrap();
        assert_eq!(file.write_at(&[2; 6000], 0), Ok(6000));
        file.node().sync(true).unwrap();
        assert_eq!(other.write_at(&[7; LARGE], 0), Ok(LARGE));
        disk.device.hold(&[7]);
        let ended = Waiter::default();
        thread::scope(|scope| {
            let late = scope.spawn(|| other.sync_all());
            wait_until("data is held", || disk.device.holds(7));
            file.node().set_size(7000, Privileges::Keep).unwrap();
            let synced = scope.spawn(|| ended.run(|| call(&volume, &file)));
            let waits = ended.begins_to_wait();
            if !waits {
                disk.check(&[("/synced", &[[2; 6000].as_slice(), &[0; 1000]].concat())]);
            }
            disk.device.release(&disk.memory, 7);
            synced.join().unwrap();
            late.join().unwrap().unwrap();
            assert!(!waits, "a sync of {what} waited for the data of another file");
        });
        disk.check(&[("/other", &[7; LARGE])]);
        volume.close().unwrap();
    }
}

#[test]
fn a_sync_waits_for_data_that_replaces_other_data_but_not_if_its_writeback_begins_later() {
    for Sync { what, call, is_checkpoint } in SYNCS {
        let disk = Disk::<HeldData>::new();
        let volume = disk.open();
        let file = make(&volume, "/synced", &[1; 5000]);
        let replaced = ["/first", "/later"].map(|path| make(&volume, path, &[3; LARGE]));
        volume.sync().unwrap();
        assert_eq!(file.write_at(&[2; 6000], 0), Ok(6000));
        file.sync_data().unwrap();
        for (file, byte) in replaced.iter().zip([7, 8]) {
            file.node().set_size(0, Privileges::Keep).unwrap();
            assert_eq!(file.write_at(&[byte; LARGE], 0), Ok(LARGE));
        }
        file.node().set_size(7000, Privileges::Keep).unwrap();
        disk.device.hold(&[7, 8]);
        let waiter = Waiter::default();
        let [first, later] = replaced;
        thread::scope(|scope| {
            scope.spawn(move || drop(first));
            wait_until("the first data is held", || disk.device.holds(7));
            let synced = scope.spawn(|| waiter.run(|| call(&volume, &file)));
            let waits = waiter.begins_to_wait();
            scope.spawn(move || drop(later));
            wait_until("the later data is held", || disk.device.holds(8));
            disk.device.release(&disk.memory, 7);
            // The thread wakes up, and waits no more.
            let ends = (0..200).any(|_| {
                thread::sleep(Duration::from_millis(10));
                waiter.has_ended()
            });
            disk.device.release(&disk.memory, 8);
            synced.join().unwrap();
            assert!(waits, "a sync of {what} did not wait for data that replaces other data");
            assert!(ends, "a sync of {what} waited for a writeback that began later");
        });
        // The truncation is not durable without the new data.
        let first = if is_checkpoint { 7 } else { 3 };
        disk.check(&[("/first", &[first; LARGE])]);
        volume.sync().unwrap();
        disk.check(&[("/later", &[8; LARGE])]);
        volume.close().unwrap();
    }
}

/// A change that drops dirty data from the cache: first there, and then in the format.
type Drop = fn(&File) -> Result<()>;

#[test]
fn a_sync_beside_a_change_that_drops_data_makes_the_data_or_the_change_durable() {
    let drops: [(&str, Drop, &[u8]); 3] = [
        (
            "a hole",
            |file| file.fallocate(Fallocate::PunchHole, whole(), Privileges::Keep),
            &[0; 4096],
        ),
        ("zeroes", |file| file.fallocate(ZERO, whole(), Privileges::Keep), &[0; 4096]),
        ("a truncation", |file| file.node().set_size(0, Privileges::Keep), &[]),
    ];
    for (what, drop_data, dropped) in drops {
        let disk = Disk::<HeldData>::new();
        let volume = disk.open();
        // Two folios: the first one is dropped, and then the change waits for the data of the other
        // one.
        let file = make(&volume, "/file", &[1; 4096]);
        assert_eq!(file.write_at(&[1; LARGE], 4096), Ok(LARGE));
        volume.sync().unwrap();
        disk.device.hold(&[7]);
        assert_eq!(file.write_at(&[7; LARGE], 4096), Ok(LARGE));
        let writeback = SyncRange { write: true, ..SyncRange::default() };
        file.sync_range(4096..4096 + LARGE as u64, writeback).unwrap();
        wait_until("the data is held", || disk.device.holds(7));
        assert_eq!(file.write_at(&[2; 4096], 0), Ok(4096));
        let [change, sync] = [Waiter::default(), Waiter::default()];
        thread::scope(|scope| {
            let changed = scope.spawn(|| change.run(|| drop_data(&file)));
            assert!(change.begins_to_wait(), "{what} did not wait for data on its way");
            let synced = scope.spawn(|| sync.run(|| file.make_durable(0..4096, WriteSync::Data)));
            let waits = sync.begins_to_wait();
            let at_once = (!waits).then(|| disk.contents("/file"));
            disk.device.release(&disk.memory, 7);
            synced.join().unwrap().unwrap();
            changed.join().unwrap().unwrap();
            let found = at_once.unwrap_or_else(|| disk.contents("/file"));
            let found = &found[..found.len().min(4096)];
            assert!(found == [2; 4096] || found == dropped, "{what}: synced data is lost");
        });
        volume.close().unwrap();
        disk.check(&[]);
    }
}

/// Data of pinned files is written in place, so that its end changes no inode.
#[test]
fn a_sync_of_the_volume_writes_the_times_of_a_file_that_is_written_to_again() {
    let disk = Disk::<HeldData>::new();
    let volume = disk.open();
    let file = make(&volume, "/pinned", b"");
    file.node().set_pinned(true).unwrap();
    let allocate = Fallocate::Allocate { keep_size: false };
    let bytes = FileOffset(0)..FileOffset(2 * LARGE as u64);
    file.fallocate(allocate, bytes, Privileges::Keep).unwrap();
    for at in [0, LARGE as u64] {
        assert_eq!(file.write_at(&[1; LARGE], at), Ok(LARGE));
    }
    volume.sync().unwrap();
    let modified = || disk.after_cut("/pinned").attributes().modified;
    let before = modified();
    // Longer than a tick of the clock.
    thread::sleep(Duration::from_millis(50));
    disk.device.hold(&[7]);
    assert_eq!(file.write_at(&[7; LARGE], 0), Ok(LARGE));
    thread::scope(|scope| {
        let synced = scope.spawn(|| volume.sync());
        wait_until("the data is held", || disk.device.holds(7));
        assert_eq!(file.write_at(&[8; LARGE], LARGE as u64), Ok(LARGE));
        disk.device.release(&disk.memory, 7);
        synced.join().unwrap().unwrap();
    });
    assert!(modified() > before, "the time of a synced write is not on the device");
    volume.close().unwrap();
    disk.check(&[]);
}

#[test]
fn defragmentation_keeps_direct_writes_that_are_on_their_way() {
    let disk = Disk::<HeldData>::new();
    let volume = disk.open();
    let file = make(&volume, "/file", &[1; LARGE]);
    volume.sync().unwrap();
    // Another file between both pieces.
    make(&volume, "/other", &[3; 4096]);
    volume.sync().unwrap();
    assert_eq!(file.write_at(&[1; LARGE], LARGE as u64), Ok(LARGE));
    volume.sync().unwrap();
    disk.device.hold(&[7]);
    let waiter = Waiter::default();
    let (data, at) = ([7; LARGE], WriteAt::Offset(FileOffset(0)));
    thread::scope(|scope| {
        let written =
            scope.spawn(|| file.write_direct(at, &data, Privileges::Keep, WriteSync::None));
        wait_until("the direct write is held", || disk.device.holds(7));
        let whole = FileOffset(0)..FileOffset(2 * LARGE as u64);
        let moved = scope.spawn(|| waiter.run(|| file.node().defragment_range(whole)));
        assert!(waiter.begins_to_wait(), "the direct write is not waited for");
        disk.device.release(&disk.memory, 7);
        assert_eq!(written.join().unwrap(), Ok(LARGE));
        assert_eq!(moved.join().unwrap(), Ok(2 * LARGE as u64));
    });
    let expected = [[7; LARGE], [1; LARGE]].concat();
    disk.check(&[("/file", &expected)]);
    volume.close().unwrap();
    disk.check(&[("/file", &expected)]);
}

const ZERO: Fallocate = Fallocate::ZeroRange { keep_size: true };

/// Returns the bytes of a file of such a test.
fn whole() -> Range<FileOffset> {
    FileOffset(0)..FileOffset(4096 + LARGE as u64)
}
