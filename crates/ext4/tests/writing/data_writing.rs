//! Tests of files that are written through the cache, judged by a model, e2fsck and the kernel.

use crate::common;
use std::sync::Arc;

use crate::common::cached_file::writable_file;
use crate::common::{Image, TIME, new_file, open_device_for_writing, open_for_writing};
use base::attributes::Timestamp;
use base::{FileBlock, FileOffset};
use device::RecordDevice;
use ext4::{Inode, ROOT_INODE, Volume};
use fs::Piece;
use iomap::{
    CacheOptions, EndIo, ErrorCursor, PageCache, Readahead, WritableFile, note_size_on_disk,
    truncate_cache, wait_for_writeback, write, write_back, write_back_and_wait, zero_range,
};
use testkit::{LoopMount, Random, private_mounts};

/// A file and its expected contents.
struct Subject {
    inode: Arc<Inode>,
    file: Arc<WritableFile>,
    model: Vec<u8>,
    errors: ErrorCursor,
}

impl Subject {
    fn new(volume: &Arc<Volume>, cache: &Arc<PageCache>, end_io: &Arc<EndIo>, name: &str) -> Self {
        let inode = new_file(volume, name);
        let file = writable_file(&inode, Arc::clone(&inode), cache, end_io);
        let errors = file.errors().cursor();
        Self { inode, file, model: Vec::new(), errors }
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        let old = self.model.len();
        if at > old {
            zero_range(&self.file, old as u64..at as u64).unwrap();
        }
        assert_eq!(write(&self.file, FileOffset(at as u64), data).unwrap(), data.len());
        self.model.resize(old.max(at + data.len()), 0);
        self.model[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, size: usize) {
        truncate_cache(&self.file, size as u64).unwrap();
        self.inode.set_size(size as u64, false, TIME).unwrap();
        note_size_on_disk(&self.file);
        self.model.resize(size, 0);
    }

    fn sync(&self) {
        write_back_and_wait(&self.file, 0..u64::MAX);
        self.file.errors().check(&self.errors).unwrap();
        self.inode.sync(false).unwrap();
    }

    fn check(&self, what: &str) {
        let mut found = vec![0; self.model.len() + 1];
        let read = iomap::read(
            &self.file.read_context(),
            &Readahead::default(),
            FileOffset(0),
            &mut found,
        );
        assert_eq!(read.unwrap(), self.model.len(), "{what}");
        found.pop();
        let differs = found.iter().zip(&self.model).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{what}");
    }
}

fn check(options: &str, seed: u64, steps: usize, format: Option<&str>) {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let image = Image::make(64, &arguments);
    let volume = open_for_writing(&image);
    let cache =
        PageCache::new(CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() }).unwrap();
    let end_io = EndIo::start().unwrap();
    let mut random = Random(seed);
    let names = ["a", "b", "c"];
    let mut subjects: Vec<Subject> =
        names.iter().map(|name| Subject::new(&volume, &cache, &end_io, name)).collect();
    for step in 0..steps {
        let subject = &mut subjects[random.below(3) as usize];
        let at = random.below(600_000) as usize;
        match random.below(20) {
            0..=11 => {
                let at = if random.below(3) == 0 { subject.model.len() } else { at };
                let bits = random.below(17);
                let length = 1 + random.below(1 << bits) as usize;
                let byte = random.below(255) as u8 + 1;
                let data: Vec<u8> = (0..length).map(|index| byte ^ index as u8).collect();
                subject.write(at, &data);
            }
            12..=14 => subject.truncate(at),
            15..=17 => subject.sync(),
            _ => subject.check(&format!("{options}, seed {seed}, step {step}")),
        }
    }
    for subject in &subjects {
        subject.check(&format!("{options}, seed {seed}, at the end"));
        subject.sync();
    }
    let models: Vec<Vec<u8>> = subjects.iter().map(|one| one.model.clone()).collect();
    drop(subjects);
    volume.close().unwrap();
    drop(volume);
    image.check_by_e2fsck();
    let read_only = image.open();
    for (name, model) in names.iter().zip(&models) {
        let number = read_only.inode(ROOT_INODE).unwrap().lookup(name.as_bytes()).unwrap();
        let inode = read_only.inode(number).unwrap();
        assert!(common::contents(&read_only, &inode) == *model, "{options}: {name} on disk");
    }
    if let Some(format) = format {
        private_mounts();
        let mount = LoopMount::new(&image.path, format, "ro");
        for (name, model) in names.iter().zip(&models) {
            assert!(std::fs::read(mount.path().join(name)).unwrap() == *model, "{options}: {name}");
        }
    }
}

#[test]
fn random_writes_match_the_model_and_the_kernel() {
    for (index, (format, options)) in [
        ("ext4", "-t ext4 -b 1024"),
        ("ext4", "-t ext4 -b 4096"),
        ("ext4", "-t ext4 -b 4096 -O bigalloc -C 65536"),
        ("ext3", "-t ext3 -b 1024"),
        ("ext2", "-t ext2 -b 4096"),
        ("ext4", "-t ext4 -b 2048 -O ^has_journal"),
    ]
    .iter()
    .enumerate()
    {
        check(options, 10 + index as u64, 400, Some(format));
    }
}

#[test]
fn random_writes_with_large_blocks_match_the_model() {
    for (index, options) in ["-t ext4 -b 16384", "-t ext4 -b 65536"].iter().enumerate() {
        check(options, 30 + index as u64, 400, None);
    }
}

/// The device is looked at as after a power cut: the cache has written nothing since the
/// truncation.
#[test]
fn a_truncated_size_is_durable_only_with_zeroes_after_it() {
    for options in ["-t ext4 -b 4096", "-t ext3 -b 4096", "-t ext4 -b 4096 -O bigalloc -C 65536"] {
        let arguments: Vec<&str> = options.split_whitespace().collect();
        let image = Image::make(64, &arguments);
        let volume = open_for_writing(&image);
        let cache = PageCache::new(CacheOptions::default()).unwrap();
        let end_io = EndIo::start().unwrap();
        let mut subject = Subject::new(&volume, &cache, &end_io, "file");
        subject.write(0, &[7; 3 * 4096]);
        subject.sync();
        let inode = &subject.inode;
        let Piece::Run(run) = inode.piece_at(FileBlock(1), FileBlock(2)).unwrap() else {
            panic!("{options}: a hole");
        };
        let start = (run.block.0 + 1 - run.start.0) as usize * 4096;
        subject.truncate(4096 + 100);
        volume.sync().unwrap();
        let on_device = image.bytes();
        let block = &on_device[start..start + 4096];
        assert!(block[..100].iter().all(|byte| *byte == 7), "{options}");
        assert!(block[100..].iter().all(|byte| *byte == 0), "{options}");
        subject.check(options);
        subject.sync();
        drop(subject);
        volume.close().unwrap();
        drop(volume);
        image.check_by_e2fsck();
    }
}

#[test]
fn inline_data_is_converted_to_a_block_by_a_write() {
    let image = Image::filled(32, "-t ext4 -b 4096 -O inline_data", |folder| {
        std::fs::write(folder.join("small"), "inline contents").unwrap();
    });
    let volume = open_for_writing(&image);
    let number = volume.inode(ROOT_INODE).unwrap().lookup(b"small").unwrap();
    let inode = Arc::new(volume.inode(number).unwrap());
    let cache = PageCache::new(CacheOptions::default()).unwrap();
    let file = writable_file(&inode, Arc::clone(&inode), &cache, &EndIo::start().unwrap());
    write(&file, FileOffset(7), b"CONTENTS and more of them").unwrap();
    write_back(&file, 0..u64::MAX);
    wait_for_writeback(&file, 0..u64::MAX);
    inode.sync(false).unwrap();
    volume.close().unwrap();
    drop((file, inode, volume));
    image.check_by_e2fsck();
    let expected = b"inline CONTENTS and more of them";
    let read_only = image.open();
    let inode = read_only.inode(number).unwrap();
    assert_eq!(common::contents(&read_only, &inode), expected);
}

#[test]
fn a_sync_commits_nothing_if_the_clock_has_not_advanced() {
    let image = Image::make(32, &[]);
    let record = Arc::new(RecordDevice::new(image.device(false)).unwrap());
    let volume = open_device_for_writing(Arc::clone(&record) as _).unwrap();
    let inode = new_file(&volume, "file");
    let writes_of_sync = |time: Timestamp| {
        inode.note_modified(time);
        let before = record.recording().crash_points().end;
        inode.sync(false).unwrap();
        record.recording().crash_points().end - before
    };
    let later = Timestamp { nanoseconds: 2, ..TIME };
    assert!(writes_of_sync(later) > 2, "the new time is written");
    assert_eq!(writes_of_sync(later), 2, "a flush begins and ends");
    assert_eq!((inode.attributes().modified, inode.attributes().changed), (later, later));
    assert!(writes_of_sync(TIME) > 2, "an earlier time is written, too");
    // A pending time is not dropped when the record's own time is noted.
    inode.note_modified(later);
    assert!(writes_of_sync(TIME) > 2 && inode.attributes().modified == TIME);
}
