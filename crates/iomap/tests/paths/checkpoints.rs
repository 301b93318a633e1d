//! Power cuts on a format that writes out of place and makes checkpoints: after a cut at any time,
//! the last checkpoint has the contents that it had when it was made, whatever was written since.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;

use crate::support::format::{Checkpoint, Format, Mode};
use crate::support::{Late, Random, block_size, cache, for_each_cut};
use base::FileOffset;
use device::{RecordDevice, SharedDevice};
use iomap::{
    Caching, EndIo, ReadOptions, SplitExtents, WritableFile, note_size_on_disk, overwrite_direct,
    punch_cache, truncate_cache, wait_for_writeback, write_as, write_back,
};

const SIZE_MAX: u64 = 512 << 10;

/// A file with recorded writes, and its checkpoints.
struct Subject {
    format: Arc<Format>,
    device: Arc<RecordDevice>,
    file: Arc<WritableFile>,
    /// The contents. Their lock stands for the inode's lock.
    model: RwLock<Vec<u8>>,
    checkpoints: Mutex<Vec<DurableCheckpoint>>,
    /// Held to submit writes, and alone for a checkpoint.
    submitting: RwLock<()>,
}

/// A checkpoint, the point of the recording from which on it is durable, and the contents of the
/// file in it.
struct DurableCheckpoint {
    point: usize,
    checkpoint: Checkpoint,
    contents: Vec<u8>,
}

impl Subject {
    fn new(random: &mut Random) -> Self {
        let size = block_size(1024 << random.below(5));
        let mode = Mode::OutOfPlace { orders_size: random.one_in(2) };
        let blocks = 2 * SIZE_MAX / u64::from(size.bytes());
        let format = Format::with_mode(size, blocks, 1 << 20, mode);
        let recorded = Arc::new(RecordDevice::new(format.device()).expect("memory"));
        let device: SharedDevice = Arc::new(Late::device(recorded.clone(), random.next()));
        let cache = cache(4 << 20, random.below(6) as u8);
        let (mapping, end_io) = (cache.new_mapping(size), EndIo::start().expect("a thread"));
        let (options, mapper) = (ReadOptions::default(), Arc::clone(&format));
        let file = WritableFile::new(mapping, mapper, device, end_io, 0, options);
        Self {
            format,
            device: recorded,
            file,
            model: RwLock::default(),
            checkpoints: Mutex::default(),
            submitting: RwLock::default(),
        }
    }

    /// Makes a checkpoint while other threads write.
    fn checkpoint(&self) -> Vec<u8> {
        let mut checkpoints = self.checkpoints.lock().expect("no panic");
        let _alone = self.submitting.write().expect("no panic");
        wait_for_writeback(&self.file, 0..u64::MAX);
        self.file.wait_for_direct();
        let device: SharedDevice = self.device.clone();
        device.flush().expect("memory");
        let (checkpoint, contents) = self.format.checkpoint();
        let point = self.device.point();
        checkpoints.push(DurableCheckpoint { point, checkpoint, contents: contents.clone() });
        contents
    }

    fn change(&self, random: &mut Random) {
        let mut model = self.model.write().expect("no panic");
        let submitting = self.submitting.read().expect("no panic");
        let at = random.below(model.len() as u64 + 1);
        let length = random.of_magnitude(1..17).max(1).min(SIZE_MAX - at.min(SIZE_MAX - 1));
        let end = (at + length).min(model.len() as u64);
        match random.below(12) {
            0 => {
                let size = random.below(SIZE_MAX);
                self.file.wait_for_direct();
                truncate_cache(&self.file, size).expect("memory");
                self.format.truncate(size);
                note_size_on_disk(&self.file);
                model.resize(size as usize, 0);
            }
            1 if at < end => {
                self.file.wait_for_direct();
                self.format.punch(punch_cache(&self.file, at..end).expect("memory"));
                model[at as usize..end as usize].fill(0);
            }
            2 => {
                self.format.preallocate(at..end);
            }
            3 => {
                write_back(&self.file, 0..u64::MAX);
                wait_for_writeback(&self.file, 0..u64::MAX);
                drop(submitting);
                assert_eq!(self.checkpoint(), *model, "a checkpoint after a sync");
            }
            4 | 5 => {
                let block = u64::from(self.file.mapping().block_size().bytes());
                let (at, length) = (at / block * block, length.next_multiple_of(block));
                let data = vec![random.next() as u8 & 0x7f; length as usize];
                let split = SplitExtents::AtEnd;
                if let Ok(written) = overwrite_direct(&self.file, FileOffset(at), &data, split, ())
                {
                    let written = written.expect("memory");
                    model[at as usize..at as usize + written].copy_from_slice(&data[..written]);
                }
            }
            _ => {
                let data = vec![random.next() as u8 & 0x7f; length as usize];
                let caching = if random.one_in(4) { Caching::Dropbehind } else { Caching::Kept };
                let written = write_as(&self.file, FileOffset(at), &data, caching);
                let written = written.expect("room");
                let size = model.len().max(at as usize + written);
                model.resize(size, 0);
                model[at as usize..at as usize + written].copy_from_slice(&data[..written]);
            }
        }
    }

    /// Cuts the power at random times, and compares the last checkpoint with its contents when it
    /// was made.
    fn judge(&self, random: &mut Random, cuts: u64) {
        let made = self.checkpoints.lock().expect("no panic");
        let block = self.file.mapping().block_size().len();
        let points: Vec<usize> = made.iter().map(|made| made.point).collect();
        for_each_cut(&self.device.recording(), &points, random, cuts, |last, cut, image| {
            let DurableCheckpoint { checkpoint, contents: before, .. } = &made[last];
            let contents = checkpoint.contents(image, block);
            let differs = contents.iter().zip(before).position(|(one, two)| one != two);
            assert_eq!((differs, contents.len()), (None, before.len()), "cut at {cut}");
        });
    }
}

#[test]
fn a_checkpoint_has_its_contents_after_a_power_cut_at_any_time() {
    for seed in 0..30 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let subject = Subject::new(&mut random);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let flusher = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let submitting = subject.submitting.read().expect("no panic");
                    write_back(&subject.file, 0..u64::MAX);
                    drop(submitting);
                    thread::yield_now();
                }
            });
            let checkpointer = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    subject.checkpoint();
                    thread::yield_now();
                }
            });
            for _ in 0..150 {
                subject.change(&mut random);
            }
            done.store(true, Ordering::Release);
            flusher.join().expect("no panic");
            checkpointer.join().expect("no panic");
        });
        write_back(&subject.file, 0..u64::MAX);
        wait_for_writeback(&subject.file, 0..u64::MAX);
        assert_eq!(subject.file.errors().check(&subject.file.errors().cursor()), Ok(()));
        assert_eq!(subject.checkpoint(), *subject.model.read().expect("no panic"));
        subject.judge(&mut random, 60);
    }
}
