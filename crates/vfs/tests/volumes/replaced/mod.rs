//! Power cuts around files whose contents are replaced without an fsync: by a rename, or by
//! truncating and writing again. In each state that a cut may leave, the file has the old or the
//! new contents. With `noauto_da_alloc`, the same judge must find violations.

mod history;
mod pause;

use std::sync::{Arc, mpsc};
use std::thread;

use base::FileOffset;
use device::{MemoryDevice, RecordDevice, SharedDevice};
use testkit::{HookedDevice, Mke2fs, Random, Waiter};
use vfs::{Credentials, File, Follow, Privileges, RenameFlags, Volume, VolumeOptions};

use crate::common::{file, make};
use crate::replaced::history::{History, Replacement};
use crate::replaced::pause::Pause;

/// The file whose contents are replaced.
const TARGET: &str = "target";
const ROUNDS: u64 = 12;

fn image(seed: u64, arguments: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let block_size = if seed % 2 == 0 { 1024 } else { 4096 };
    let mke2fs = Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", block_size) };
    mke2fs.with(arguments).make(&path, None);
    std::fs::read(path).unwrap()
}

/// A volume on a recorded device.
struct Stage {
    device: Arc<RecordDevice>,
    volume: Volume,
    random: Random,
}

impl Stage {
    fn new(seed: u64, auto_da_alloc: bool) -> Self {
        Self::on(image(seed, ""), seed, auto_da_alloc, |device| device)
    }

    fn on(
        image: Vec<u8>,
        seed: u64,
        auto_da_alloc: bool,
        wrap: impl FnOnce(SharedDevice) -> SharedDevice,
    ) -> Self {
        let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image))).unwrap());
        let mut options =
            VolumeOptions { writable: true, auto_da_alloc, ..VolumeOptions::default() };
        options.cache.bytes_max = 16 << 20;
        let volume = Volume::open_device(wrap(device.clone()), &options).unwrap();
        Self { device, volume, random: Random(seed) }
    }

    /// Returns contents for a file with this number: some bytes, some blocks, or some folios.
    fn contents(&mut self, number: u64) -> Vec<u8> {
        let length = 1 + match self.random.below(3) {
            0 => self.random.below(200),
            1 => self.random.below(20_000),
            _ => self.random.below(300_000),
        };
        (0..length).map(|at| (at / 512 + number * 16 + 1) as u8).collect()
    }

    /// Creates the target with durable contents, and returns them.
    fn begin(&mut self) -> Vec<u8> {
        let contents = self.contents(0);
        write(&make(&self.volume, TARGET), &contents);
        self.volume.sync().unwrap();
        contents
    }

    /// Commits all changes of metadata so far, without writing back the target.
    fn commit(&self, number: u64) {
        make(&self.volume, &format!("other {number}")).sync_all().unwrap();
    }

    /// Returns whether there was a flush since `point`: background threads may commit at any time.
    fn was_flushed_since(&self, point: usize) -> bool {
        self.device.recording().flush_points().into_iter().any(|flush| flush > point)
    }
}

fn write(file: &File, data: &[u8]) {
    for (index, part) in data.chunks(70_000).enumerate() {
        let at = FileOffset(index as u64 * 70_000);
        assert_eq!(file.write_at(part, at.0).unwrap(), part.len());
    }
}

fn rename(volume: &Volume, from: &str, to: &str, flags: RenameFlags) {
    let root = volume.root().unwrap();
    let [from, to] = [from, to].map(|name| (&root, name.as_bytes()));
    volume.rename_in(from, to, flags, &Credentials::ROOT).unwrap();
}

/// Replaces the target by new files with renames.
fn renames(seed: u64, auto_da_alloc: bool) -> History {
    let mut stage = Stage::new(seed, auto_da_alloc);
    let (first, mut steps) = (stage.begin(), Vec::new());
    for round in 1..=ROUNDS {
        let new = stage.contents(round);
        let begun = stage.device.point();
        let written = make(&stage.volume, "new");
        write(&written, &new);
        // Most programs close the file before the rename. It must make no difference.
        let open = (stage.random.below(3) == 0).then_some(written);
        let volume = &stage.volume;
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        let whiteout = RenameFlags { whiteout: true, ..RenameFlags::default() };
        match stage.random.below(4) {
            0 => rename(volume, "new", TARGET, exchange),
            1 => rename(volume, TARGET, "new", exchange),
            2 => rename(volume, "new", TARGET, whiteout),
            _ => rename(volume, "new", TARGET, RenameFlags::default()),
        }
        drop(open);
        if volume.resolve(b"/new", Follow::No).is_ok() {
            let root = volume.root().unwrap();
            volume.unlink(&root, b"new", &Credentials::ROOT).unwrap();
        }
        let is_committed = round == ROUNDS || stage.random.below(3) > 0;
        if is_committed {
            stage.commit(round);
        }
        let durable = is_committed.then(|| stage.device.point());
        steps.push(Replacement { begun, durable, may_be_short: false, new });
    }
    History { recording: stage.device.recording(), first, steps }
}

/// Replaces the target's contents: truncates it, writes it again, and closes it.
fn rewrites(seed: u64, auto_da_alloc: bool) -> History {
    let mut stage = Stage::new(seed, auto_da_alloc);
    let (first, mut steps) = (stage.begin(), Vec::new());
    for round in 1..=ROUNDS {
        let new = stage.contents(round);
        let begun = stage.device.point();
        let mut others: Vec<File> = Vec::new();
        if stage.random.below(2) == 0 {
            others.push(file(&stage.volume, TARGET));
        }
        let written = file(&stage.volume, TARGET);
        written.node().set_size(0, Privileges::Keep).unwrap();
        if stage.random.below(2) == 0 {
            // An early close by one handle does not write back for later handles.
            others.clear();
        }
        write(&written, &new);
        drop(written);
        let may_be_short = stage.was_flushed_since(begun);
        drop(others);
        stage.commit(round);
        let durable = Some(stage.device.point());
        steps.push(Replacement { begun, durable, may_be_short, new });
    }
    History { recording: stage.device.recording(), first, steps }
}

/// Replaces the target's contents as [`rewrites`] does. Another thread commits while the close
/// writes the target back.
fn rewrites_amid_commits(seed: u64, auto_da_alloc: bool) -> History {
    let mut pause = None;
    let mut stage = Stage::on(image(seed, ""), seed, auto_da_alloc, |device| {
        pause.insert(Arc::new(HookedDevice::new(device, Pause::default()))).clone()
    });
    let pause = pause.unwrap();
    let (first, mut steps) = (stage.begin(), Vec::new());
    for round in 1..=ROUNDS {
        let new = stage.contents(round);
        let begun = stage.device.point();
        let written = file(&stage.volume, TARGET);
        written.node().set_size(0, Privileges::Keep).unwrap();
        write(&written, &new);
        let may_be_short = stage.was_flushed_since(begun);
        let (reached, writing) = mpsc::channel();
        let waiter = Arc::new(Waiter::default());
        pause.arm(reached, Arc::clone(&waiter));
        thread::scope(|scope| {
            let stage = &stage;
            scope.spawn(move || {
                // Without writeback, the round ends here with an error.
                let _ = writing.recv();
                waiter.run(|| stage.commit(round));
            });
            drop(written);
            pause.disarm();
        });
        stage.commit(ROUNDS + round);
        let durable = Some(stage.device.point());
        steps.push(Replacement { begun, durable, may_be_short, new });
    }
    History { recording: stage.device.recording(), first, steps }
}

/// Judges histories: with `auto_da_alloc` they must be right, and without it wrong.
fn check(record: fn(u64, bool) -> History) {
    for seed in 1..=4 {
        if let Err(wrong) = record(seed, true).judge(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
    for seed in 1..=2 {
        let planted = record(seed, false).judge(seed);
        assert!(
            planted.is_err(),
            "seed {seed}: the judge did not see that data was not written back"
        );
    }
}

#[test]
fn a_rename_over_a_file_leaves_the_old_contents_or_the_new_ones() {
    check(renames);
}

#[test]
fn a_file_that_is_truncated_rewritten_and_closed_has_the_old_contents_or_the_new_ones() {
    check(rewrites);
}

#[test]
fn a_commit_waits_for_the_writeback_of_a_close() {
    check(rewrites_amid_commits);
}

#[test]
fn without_a_journal_the_data_of_a_file_is_written_before_it_is_renamed_over_another() {
    for auto_da_alloc in [true, false] {
        let image = image(0, "-O ^has_journal");
        let stage = Stage::on(image, 0, auto_da_alloc, |device| device);
        make(&stage.volume, TARGET);
        write(&make(&stage.volume, "new"), &[0xA5; 5000]);
        rename(&stage.volume, "new", TARGET, RenameFlags::default());
        let recording = stage.device.recording();
        let writes = recording.volatile_writes(stage.device.point());
        let is_written = writes.iter().any(|write| write.data.starts_with(&[0xA5; 1024]));
        assert_eq!(is_written, auto_da_alloc);
    }
}

#[test]
fn only_the_first_close_that_finds_data_writes_back_a_file_that_was_emptied() {
    let mut stage = Stage::new(1, true);
    stage.begin();
    let writes_back_at_close = |fill: u8| {
        let appended = file(&stage.volume, TARGET);
        write(&appended, &[fill; 5000]);
        drop(appended);
        let recording = stage.device.recording();
        let writes = recording.volatile_writes(stage.device.point());
        writes.iter().any(|write| write.data.starts_with(&[fill; 1024]))
    };
    let truncated = file(&stage.volume, TARGET);
    truncated.node().set_size(0, Privileges::Keep).unwrap();
    // This close finds no data.
    drop(file(&stage.volume, TARGET));
    assert!(writes_back_at_close(0xA5));
    assert!(!writes_back_at_close(0xA6));
    truncated.node().set_size(0, Privileges::Keep).unwrap();
    assert!(writes_back_at_close(0xA7));
    drop(truncated);
    assert!(!writes_back_at_close(0xA8));
}

#[test]
fn files_that_replace_nothing_are_not_written_back_early() {
    let stage = Stage::new(1, true);
    let volume = &stage.volume;
    let begun = stage.device.point();
    let new = make(volume, "new");
    write(&new, &[0xA5; 5000]);
    rename(volume, "new", "renamed", RenameFlags::default());
    drop(new);
    let appended = file(volume, "renamed");
    write(&appended, &[0xA6; 6000]);
    appended.node().set_size(1, Privileges::Keep).unwrap();
    write(&appended, &[0xA7; 7000]);
    drop(appended);
    let gone = file(volume, "renamed");
    gone.node().set_size(0, Privileges::Keep).unwrap();
    write(&gone, &[0xA8; 8000]);
    volume.unlink(&volume.root().unwrap(), b"renamed", &Credentials::ROOT).unwrap();
    drop(gone);
    let recording = stage.device.recording();
    let writes = recording.volatile_writes(stage.device.point());
    let is_data = |data: &[u8]| matches!(data, [0xA5..=0xA8, 0xA5..=0xA8, ..]);
    assert!(stage.device.point() >= begun && !writes.iter().any(|write| is_data(&write.data)));
}
