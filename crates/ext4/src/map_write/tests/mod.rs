//! Tests of maps on real images, judged by e2fsck and debugfs.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::space::ReserveAccess;
use base::{Error, FileOffset, FsBlock, Result};
use fs::{Piece, Run};
use iomap::MapWrite;
use testkit::Random;

use super::new_blocks::Mapped;
use super::*;
use crate::alloc::Purpose;
use crate::common::{self, Image, inode_of, open_for_writing};
use crate::volume::Volume;

const KINDS: &[(u64, &str)] = &[
    (48, "-t ext4 -b 1024"),
    (64, "-t ext4 -b 4096 -O metadata_csum_seed"),
    (512, "-t ext4 -b 65536"),
    (64, "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^huge_file"),
    (64, "-t ext4 -b 1024 -O ^has_journal -g 1024"),
    (64, "-t ext4 -b 1024 -O bigalloc,^resize_inode -C 8192"),
    (256, "-t ext4 -b 4096 -O bigalloc,^resize_inode -C 65536"),
    (48, "-t ext3 -b 1024"),
    (64, "-t ext2 -b 4096"),
    (512, "-t ext4 -b 65536 -O ^extent,^64bit"),
];

fn image(megabytes: u64, options: &str) -> Image {
    Image::filled(megabytes, options, |folder| {
        for name in ["a", "b"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        std::fs::create_dir(folder.join("directory")).unwrap();
    })
}

/// A file, and the expected block and state of each file block.
struct Subject {
    inode: Inode,
    name: &'static str,
    model: BTreeMap<u64, (u64, bool)>,
}

impl Subject {
    fn new(volume: &Arc<Volume>, image: &Image, name: &'static str) -> Self {
        let inode = volume.inode(inode_of(image, name)).unwrap();
        Self { inode, name, model: BTreeMap::new() }
    }

    fn volume(&self) -> &Arc<Volume> {
        self.inode.volume()
    }

    fn map(&mut self, at: u64, wanted: u64, unwritten: bool) -> Result<Mapped> {
        let (at, purpose) = (FileBlock(at), Purpose::Data);
        let request = NewBlocks { at, wanted, unwritten, purpose };
        let mapped = self.volume().change(self.inode.credits_for_map(1), |handle| {
            self.inode.map_new_blocks(handle, request)
        })?;
        assert_eq!(mapped.run.start, at);
        for index in 0..mapped.run.length {
            let (at, value) = (at.0 + index, (mapped.run.block.0 + index, mapped.run.unwritten));
            let was = self.model.insert(at, value);
            assert_eq!(was, (!mapped.is_new).then_some(value), "{}: {at}", self.name);
        }
        Ok(mapped)
    }

    fn convert(&mut self, start: u64, count: u64, unwritten: bool) {
        let (mut at, end) = (start, start + count);
        while at < end {
            let credits = self.inode.credits_for_map(1);
            let progress = self.volume().change(credits, |handle| match unwritten {
                true => self.inode.convert_unwritten(handle, FileBlock(at), end - at),
                false => {
                    let mut left = vec![FileBlock(at)..FileBlock(end)];
                    self.inode.convert_written(handle, &mut left, 0)?;
                    Ok(left.pop().map_or(Progress::Done, |left| Progress::More(left.start)))
                }
            });
            at = match progress.unwrap() {
                Progress::Done => end,
                Progress::More(next) => next.0,
            };
        }
        self.model.range_mut(start..end).for_each(|(_, (_, state))| *state = unwritten);
    }

    /// Unmaps blocks, and shifts the blocks behind them to their positions.
    fn collapse(&mut self, start: u64, count: u64) {
        self.unmap(start, count).unwrap();
        let mut at = FileBlock(start + count);
        while let Progress::More(next) =
            self.with_few_credits(|handle| self.inode.shift_left(handle, at, count))
        {
            assert!(next > at, "there must be progress");
            at = next;
        }
        self.move_model(start, |at| at - count);
    }

    /// Shifts the blocks from `start` on to make room for `count` blocks.
    fn insert(&mut self, start: u64, count: u64) {
        let from = FileBlock(start);
        let credits = self.inode.credits_for_map(1);
        self.volume()
            .change(credits, |handle| self.inode.split_extent(handle, from, Purpose::Metadata))
            .unwrap();
        let mut end = self.inode.map_end();
        while let Progress::More(left) =
            self.with_few_credits(|handle| self.inode.shift_right(handle, from..end, count))
        {
            assert!(left < end, "there must be progress");
            end = left;
        }
        self.move_model(start, |at| at + count);
    }

    /// Runs a change with credits for few leaves.
    fn with_few_credits(
        &self,
        change: impl FnOnce(&mut crate::journal::Handle<'_>) -> Result<Progress>,
    ) -> Progress {
        self.volume().change(self.inode.credits_for_map(2), change).unwrap()
    }

    fn move_model(&mut self, from: u64, target: impl Fn(u64) -> u64) {
        let moved = self.model.split_off(&from);
        self.model.extend(moved.into_iter().map(|(at, value)| (target(at), value)));
    }

    fn unmap(&mut self, start: u64, count: u64) -> Result<()> {
        let mut end = start + count;
        loop {
            let credits = self.inode.credits_for_unmap();
            let range = FileBlock(start)..FileBlock(end);
            let unmap = |handle: &mut _| self.inode.unmap(handle, range);
            let progress = self.volume().change(credits, unmap)?;
            let left = match progress {
                Progress::Done => start,
                Progress::More(next) => next.0,
            };
            self.model.retain(|&at, _| at < left || at >= end);
            if progress == Progress::Done {
                return Ok(());
            }
            assert!(left < end, "there must be progress");
            end = left;
        }
    }

    /// Compares the mapping around a block, as read through the cached extents, with the model.
    fn check_at(&self, at: u64) {
        let piece = self.inode.piece_at(FileBlock(at), FileBlock(at + 1)).unwrap();
        let found = match piece {
            Piece::Hole { .. } => None,
            Piece::Run(Run { start, block, unwritten, .. }) => {
                Some((block.0 + at - start.0, unwritten))
            }
        };
        assert_eq!(found, self.model.get(&at).copied(), "{}: {at}", self.name);
        for at in [piece.start().0, piece.end().0 - 1] {
            let is_hole = !self.model.contains_key(&at);
            assert_eq!(is_hole, matches!(piece, Piece::Hole { .. }), "{}: {at}", self.name);
        }
    }

    /// Sets the size to the end of the mapped blocks.
    fn set_size(&self) {
        let blocks = self.model.last_key_value().map_or(0, |(&at, _)| at + 1);
        let size = blocks << self.volume().geometry().block_size.shift();
        let set = |handle: &mut _| self.inode.update(handle, |record| record.size = size);
        self.volume().change(1, set).unwrap();
    }

    fn runs(&self) -> Vec<(u64, u64, u64, bool)> {
        let mut runs = Vec::new();
        for (&at, &(block, unwritten)) in &self.model {
            common::join(&mut runs, (at, block, 1, unwritten));
        }
        runs
    }
}

/// Returns the runs that `debugfs stat` prints: "(0-11):100-111, (IND):112, …", with "[u]" for
/// unwritten runs.
fn runs_by_debugfs(image: &Image, name: &str) -> Vec<(u64, u64, u64, bool)> {
    let text = image.debugfs(&format!("stat /{name}"));
    let Some((_, list)) = text.split_once("BLOCKS:").or_else(|| text.split_once("EXTENTS:")) else {
        return Vec::new();
    };
    let range = |text: &str| -> Option<(u64, u64)> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let mut runs = Vec::new();
    for item in list.split("TOTAL").next().unwrap().split(',').map(str::trim) {
        let Some((file, volume)) = item.split_once(':') else { continue };
        let file = file.trim_start_matches('(');
        let unwritten = file.ends_with("[u])");
        // Blocks of the map itself have names instead of numbers.
        let Some((start, end)) = range(file.trim_end_matches("[u])").trim_end_matches(')')) else {
            continue;
        };
        let (block, _) = range(volume).unwrap();
        common::join(&mut runs, (start, block, end - start + 1, unwritten));
    }
    runs
}

/// Closes the volume, and compares with e2fsck and debugfs.
fn check(image: &Image, volume: &Volume, subjects: &[Subject]) {
    subjects.iter().for_each(Subject::set_size);
    volume.close().unwrap();
    image.check_by_e2fsck();
    for subject in subjects {
        let (ours, theirs) = (subject.runs(), runs_by_debugfs(image, subject.name));
        let differs = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        assert_eq!(differs, None, "{}", subject.name);
        assert_eq!(ours.len(), theirs.len(), "{}", subject.name);
    }
}

/// Returns a file block: usually near others, sometimes far away.
fn random_block(random: &mut Random, volume: &Volume) -> u64 {
    let per_block = u64::from(volume.geometry().block_size.bytes() / 4);
    match random.below(20) {
        0 => 12 + per_block + random.below(4) * per_block,
        1 => 12 + per_block + per_block * per_block - random.below(5),
        2 => 1_000_000 + random.below(1000),
        _ => random.below(3000),
    }
}

/// Does a random change that is only possible with extents.
fn change_extents(subject: &mut Subject, at: u64, random: &mut Random) {
    let cluster = u64::from(subject.volume().geometry().blocks_per_cluster());
    let (at, count) = (at / cluster * cluster, (1 + random.below(30)) * cluster);
    match random.below(3) {
        0 => subject.convert(at, 1 + random.below(40), true),
        1 => subject.collapse(at, count),
        _ => subject.insert(at, count),
    }
}

/// Does random changes in both files.
fn change_at_random(subjects: &mut [Subject; 2], random: &mut Random, rounds: u64) {
    let volume = Arc::clone(subjects[0].volume());
    for round in 0..rounds {
        let at = random_block(random, &volume);
        let subject = &mut subjects[random.below(2) as usize];
        match random.below(8) {
            0 => {
                let count = 1 + random.below(if round % 40 == 0 { 4000 } else { 60 });
                subject.unmap(at, count).unwrap();
            }
            1 | 2 => subject.convert(at, 1 + random.below(40), false),
            3 if subject.inode.has(InodeFlags::EXTENTS) => change_extents(subject, at, random),
            _ => {
                let wanted = 1 + random.below(if round % 10 == 0 { 500 } else { 6 });
                match subject.map(at, wanted, random.below(2) == 0) {
                    Ok(_) | Err(Error::NoSpace) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        subject.check_at(at);
        subject.check_at(random_block(random, &volume));
    }
}

#[test]
fn e2fsck_and_debugfs_see_the_maps_that_random_changes_make() {
    for (megabytes, options) in KINDS {
        let image = image(*megabytes, options);
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let mut models = [BTreeMap::new(), BTreeMap::new()];
        for round in 0..4 {
            let volume = open_for_writing(&image);
            let [a, b] = models;
            let mut subjects = [("a", a), ("b", b)]
                .map(|(name, model)| Subject { model, ..Subject::new(&volume, &image, name) });
            if round < 3 {
                change_at_random(&mut subjects, &mut random, 400);
            } else {
                for subject in &mut subjects {
                    subject.unmap(0, u64::from(u32::MAX)).unwrap();
                    assert_eq!(subject.inode.record().blocks, 0, "{options}");
                }
            }
            check(&image, &volume, &subjects);
            models = subjects.map(|subject| subject.model);
        }
    }
}

#[test]
fn a_full_volume_returns_no_space_and_stays_consistent() {
    for (megabytes, options) in [
        (8, "-t ext4 -b 1024 -m 0"),
        (16, "-t ext4 -b 4096 -m 0 -O ^has_journal"),
        (8, "-t ext2 -b 1024 -m 0"),
        (16, "-t ext4 -b 1024 -m 0 -O bigalloc,^resize_inode -C 4096"),
    ] {
        let image = image(megabytes, options);
        let volume = open_for_writing(&image);
        let mut subjects = ["a", "b"].map(|name| Subject::new(&volume, &image, name));
        // With holes between the blocks, so that the map needs a block for every few of them.
        let full = (0..).find_map(|at| subjects[at as usize % 2].map(at * 3, 1, at % 5 == 0).err());
        assert_eq!(full, Some(Error::NoSpace), "{options}");
        for subject in &mut subjects {
            subject.map(1, 1, false).unwrap_err();
            let (start, end) = (30, subject.model.len() as u64);
            subject.unmap(start, end).unwrap();
        }
        volume.sync().unwrap();
        for subject in &mut subjects {
            subject.map(31, 8, false).unwrap();
        }
        check(&image, &volume, &subjects);
    }
}

#[test]
fn blocks_of_the_format_in_a_cluster_that_a_file_has_are_refused() {
    let image = image(8, "-t ext4 -b 1024 -O bigalloc,^resize_inode -C 8192");
    let volume = open_for_writing(&image);
    let inode = volume.inode(inode_of(&image, "a")).unwrap();
    let geometry = volume.geometry();
    let table = volume.group(base::GroupNumber(0)).unwrap().inode_table.0;
    let end = table + u64::from(geometry.inode_table_blocks());
    let cluster = end - end % 8;
    assert!((cluster + 1..cluster + 7).contains(&end), "the table ends within a cluster");
    // A hostile extent behind the inode table.
    let block = FsBlock(cluster + 7);
    let run = Run { start: FileBlock(7), length: 1, block, unwritten: false };
    let credits = inode.credits_for_map(1);
    volume.change(credits, |handle| inode.map_given_blocks(handle, run)).unwrap();
    let map = |at| {
        let (at, purpose) = (FileBlock(at), Purpose::Data);
        let request = NewBlocks { at, wanted: 1, unwritten: false, purpose };
        volume.change(credits, |handle| inode.map_new_blocks(handle, request))
    };
    for at in 0..end - cluster {
        let error = map(at).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{at}: {error}");
    }
    assert_eq!(map(end - cluster).unwrap().run.block, FsBlock(end));
}

#[test]
fn a_file_does_not_continue_behind_a_short_last_cluster() {
    let image = image(8, "-t ext4 -b 1024 -m 0 -O bigalloc,^resize_inode -C 8192");
    // mke2fs makes no such volumes, but e2fsck accepts them.
    image.debugfs_write("ssv blocks_count 8189\n");
    image.check_by_e2fsck();
    // A file with all blocks of that cluster.
    let volume = open_for_writing(&image);
    let inode = volume.inode(inode_of(&image, "a")).unwrap();
    let run = Run { start: FileBlock(0), length: 5, block: FsBlock(8184), unwritten: false };
    let credits = inode.credits_for_map(1);
    volume
        .change(credits, |handle| {
            inode.update(handle, |record| record.size = 5 * 1024)?;
            inode.map_given_blocks(handle, run)
        })
        .unwrap();
    volume.close().unwrap();
    drop((inode, volume));
    testkit::command::output(std::process::Command::new("e2fsck").arg("-fy").arg(&image.path));
    image.check_by_e2fsck();
    let volume = open_for_writing(&image);
    let mut subject = Subject::new(&volume, &image, "a");
    subject.model.extend((0..5).map(|at| (at, (8184 + at, false))));
    let last = 4;
    assert_eq!(subject.map(last + 1, 3, false), Err(Error::NoSpace));
    let written = subject.inode.map_write(FileOffset((last + 1) * 1024), 1024);
    assert_eq!(written.map(drop), Err(Error::NoSpace));
    // A run that begins in the volume ends with it.
    subject.unmap(last - 1, 2).unwrap();
    assert_eq!(subject.map(last - 1, 5, true).unwrap().run.length, 2);
    check(&image, &volume, &[subject]);
}

#[test]
fn trees_of_several_levels_grow_and_shrink() {
    for options in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^metadata_csum"] {
        let image = image(32, options);
        let volume = open_for_writing(&image);
        let mut subjects = [Subject::new(&volume, &image, "a")];
        let subject = &mut subjects[0];
        // From both ends to the middle.
        for index in 0..1000 {
            subject.map(index * 2, 1, true).unwrap();
            subject.map(4001 - index * 2, 1, true).unwrap();
        }
        assert_eq!(subject.inode.map_depth(), 2);
        subject.convert(7, 3500, false);
        subject.unmap(1500, 600).unwrap();
        check(&image, &volume, &subjects);
        assert!(image.debugfs("ex /a").contains(" 2/ 2 "));
        let [model] = subjects.map(|subject| subject.model);
        drop(volume);
        let volume = open_for_writing(&image);
        let mut subjects = [Subject { model, ..Subject::new(&volume, &image, "a") }];
        subjects[0].unmap(8, 10_000).unwrap();
        assert_eq!(subjects[0].inode.map_depth(), 0);
        check(&image, &volume, &subjects);
    }
}

#[test]
fn several_calls_use_one_handle() {
    let image = image(32, "-t ext4 -b 1024");
    let volume = open_for_writing(&image);
    let mut subject = Subject::new(&volume, &image, "a");
    for round in 0..60 {
        let inode = &subject.inode;
        let model = &mut subject.model;
        volume
            .change(inode.credits_for_map(8), |handle| {
                for index in 0..8 {
                    let at = (round * 8 + index) * 2;
                    let request = NewBlocks {
                        at: FileBlock(at),
                        wanted: 1,
                        unwritten: false,
                        purpose: Purpose::Data,
                    };
                    let run = inode.map_new_blocks(handle, request)?.run;
                    model.insert(at, (run.block.0, false));
                }
                Ok(())
            })
            .unwrap();
    }
    check(&image, &volume, &[subject]);
}

#[test]
fn reserved_blocks_and_their_nodes_can_always_be_allocated() {
    let image = image(8, "-t ext4 -b 1024 -m 0");
    let volume = open_for_writing(&image);
    let mut subject = Subject::new(&volume, &image, "a");
    // Fills the first leaf.
    for at in 0..84 {
        subject.map(at * 2, 1, false).unwrap();
    }
    let free = volume.writer().unwrap().allocator.free_clusters();
    let promised = (0..=free)
        .rev()
        .find(|&count| volume.allocator().unwrap().reserve(count, ReserveAccess::Root).is_ok());
    let left = promised.unwrap();
    assert_eq!(subject.map(1000, 1, false), Err(Error::NoSpace));
    // One block can be allocated, but none for a node. The block is freed again, and the volume
    // stays usable.
    volume.allocator().unwrap().unreserve(1);
    assert_eq!(subject.map(1000, 1, false), Err(Error::NoSpace));
    assert_eq!(volume.allocator().unwrap().reserve(1, ReserveAccess::Root), Ok(()));
    let (at, purpose) = (FileBlock(1000), Purpose::ReservedData);
    let request = NewBlocks { at, wanted: 3, unwritten: true, purpose };
    let credits = subject.inode.credits_for_map(1);
    let mapped =
        volume.change(credits, |handle| subject.inode.map_new_blocks(handle, request)).unwrap();
    for index in 0..mapped.run.length {
        subject.model.insert(1000 + index, (mapped.run.block.0 + index, true));
    }
    volume.allocator().unwrap().unreserve(left - mapped.run.length);
    check(&image, &volume, &[subject]);
}

#[test]
fn sizes_over_the_limits_are_refused_before_anything_changes() {
    let image = image(32, "-t ext4 -b 1024 -O ^huge_file");
    let volume = open_for_writing(&image);
    let mut subject = Subject::new(&volume, &image, "a");
    let end = subject.inode.map_end().0;
    assert_eq!(subject.map(end, 1, false), Err(Error::FileTooLarge));
    assert_eq!(subject.map(end - 1, 5, false).unwrap().run.length, 1);
    subject.unmap(end - 1, 1).unwrap();
    let set_blocks = |blocks| {
        let set = |handle: &mut _| subject.inode.update(handle, |record| record.blocks = blocks);
        volume.change(1, set).unwrap();
    };
    set_blocks(u64::from(u32::MAX) - 17);
    let inode = &subject.inode;
    let (at, purpose) = (FileBlock(0), Purpose::Data);
    let request = NewBlocks { at, wanted: 40, unwritten: false, purpose };
    let map = |handle: &mut _| inode.map_new_blocks(handle, request);
    assert_eq!(volume.change(10, map), Err(Error::FileTooLarge));
    set_blocks(0);
    // Block maps end before extent trees.
    check(&image, &volume, &[subject]);
    let image = self::image(32, "-t ext2 -b 1024");
    let volume = open_for_writing(&image);
    let mut subject = Subject::new(&volume, &image, "a");
    let end = 12 + 256 + 256 * 256 + 256 * 256 * 256;
    assert_eq!(subject.map(end, 1, false), Err(Error::FileTooLarge));
    assert_eq!(subject.map(end - 2, 5, false).unwrap().run.length, 2);
    check(&image, &volume, &[subject]);
}

#[test]
fn a_directory_grows_and_shrinks_at_its_end() {
    for (options, blocks) in [
        ("-t ext4 -b 1024 -O ^metadata_csum", 200),
        ("-t ext2 -b 1024", 300),
        ("-t ext4 -b 1024 -O ^metadata_csum,bigalloc,^resize_inode -C 8192", 40),
    ] {
        let image = image(32, options);
        let volume = open_for_writing(&image);
        let inode = volume.inode(inode_of(&image, "directory")).unwrap();
        // One unused entry that fills the block.
        let mut contents = vec![0; 1024];
        contents[4..6].copy_from_slice(&1024_u16.to_le_bytes());
        let size = inode.size();
        for _ in 0..blocks {
            let (at, block) = volume
                .change(inode.credits_for_map(1) + 1, |handle| {
                    let (at, block) = inode.append_block(handle)?;
                    handle.replace(block, contents.clone());
                    Ok((at, block))
                })
                .unwrap();
            assert_eq!((at.0 + 1) * 1024, inode.size());
            let read = inode.read_block(at, "directory").unwrap().unwrap();
            assert_eq!(read.block(), block);
        }
        assert_eq!(inode.size(), size + blocks * 1024);
        let last = inode.read_block(FileBlock(inode.size() / 1024 - 1), "directory");
        let last = last.unwrap().unwrap().block();
        assert!(volume.metadata().changed(last).is_some());
        let kept = size / 1024 + 5;
        let mut range = FileBlock(kept)..FileBlock(10_000);
        loop {
            // So few credits that it stops on the way.
            let progress = volume.change(30, |handle| {
                inode.update(handle, |record| record.size = kept * 1024)?;
                inode.unmap(handle, range.clone())
            });
            match progress.unwrap() {
                Progress::Done => break,
                Progress::More(end) => range.end = end,
            }
        }
        assert!(inode.read_block(FileBlock(kept), "directory").unwrap().is_none());
        // The block is not metadata any more, and is not written as such.
        assert_eq!(volume.metadata().changed(last), None);
        check(&image, &volume, &[]);
    }
}

#[test]
fn a_directory_with_blocks_behind_its_size_does_not_grow() {
    for unwritten in [false, true] {
        let image = image(8, "-t ext4 -b 1024");
        let volume = open_for_writing(&image);
        let inode = volume.inode(inode_of(&image, "directory")).unwrap();
        let (at, purpose) = (FileBlock(inode.size() / 1024), Purpose::Metadata);
        let request = NewBlocks { at, wanted: 1, unwritten, purpose };
        let credits = inode.credits_for_map(1);
        volume.change(credits, |handle| inode.map_new_blocks(handle, request)).unwrap();
        let appended = volume.change(credits, |handle| inode.append_block(handle));
        assert!(matches!(appended, Err(Error::Corrupt(_))), "{appended:?}");
        volume.check_writable().unwrap();
    }
}

#[test]
fn readers_see_a_consistent_map_during_changes() {
    let image = image(64, "-t ext4 -b 1024");
    let volume = open_for_writing(&image);
    let mut subject = Subject::new(&volume, &image, "a");
    // Blocks that are never changed.
    let fixed: Vec<(u64, u64)> = (0..400)
        .map(|index| (index * 5, subject.map(index * 5, 1, false).unwrap().run.block.0))
        .collect();
    let reader = volume.inode(subject.inode.number()).unwrap();
    drop(reader);
    let done = std::sync::atomic::AtomicBool::new(false);
    let inode = &subject.inode;
    std::thread::scope(|scope| {
        for first in 0..2_usize {
            let (fixed, done) = (&fixed, &done);
            scope.spawn(move || {
                for &(at, block) in fixed.iter().skip(first * 77).cycle() {
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let at = FileBlock(at);
                    let piece = inode.piece_at(at, at).unwrap();
                    let Piece::Run(run) = piece else { panic!("{piece:?}") };
                    assert_eq!(run.block.0 + at.0 - run.start.0, block);
                    let sequence = inode.map_sequence();
                    let (next, end) = (FileBlock(at.0 + 2), FileBlock(at.0 + 3));
                    let before = inode.piece_at(next, end).unwrap();
                    let after = inode.piece_at(next, end).unwrap();
                    if inode.map_sequence() == sequence {
                        assert_eq!(before.start() <= next, after.start() <= next);
                        let kind = |piece: &Piece| matches!(piece, Piece::Hole { .. });
                        assert_eq!(kind(&before), kind(&after));
                    }
                }
            });
        }
        let _ends = scope.spawn(|| {
            struct Ends<'a>(&'a std::sync::atomic::AtomicBool);
            impl Drop for Ends<'_> {
                fn drop(&mut self) {
                    self.0.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }
            let _ends = Ends(&done);
            for round in 0..30 {
                let at = FileBlock(0);
                for at in (at.0 + round % 3..1990).step_by(15).filter(|at| at % 5 != 0) {
                    let (at, purpose) = (FileBlock(at), Purpose::Data);
                    let request = NewBlocks { at, wanted: 2, unwritten: true, purpose };
                    let map = |handle: &mut _| inode.map_new_blocks(handle, request);
                    volume.change(inode.credits_for_map(1), map).unwrap();
                }
                for at in (0..400).map(|index| index * 5 + 1) {
                    let range = FileBlock(at)..FileBlock(at + 4);
                    let unmap = |handle: &mut _| inode.unmap(handle, range);
                    volume.change(inode.credits_for_unmap(), unmap).unwrap();
                }
            }
        });
    });
    check(&image, &volume, &[subject]);
}
