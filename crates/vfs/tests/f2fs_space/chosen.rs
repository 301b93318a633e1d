//! Sections that the tests choose to clean: those with blocks of an atomic write, of cached large
//! folios, and of files with holes, and those of logs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use base::{FileOffset, FsBlock};
use device::MemoryDevice;
use fs::AtomicWrite;
use vfs::{Fallocate, File, Follow, Node, Privileges, RangeCleaning, Volume, VolumeOptions};

use crate::clean::scattered;
use crate::model::{BLOCK, Model, ROOT, WRITE, check, close, fill, image, open};

/// The number of blocks in a section.
const SECTION: u64 = 512;
/// The number of bytes in which [`read_whole`] reads.
const PART: usize = 1 << 20;

/// The block of the device with each block of a file, or `None` if it has no place yet. Holes are
/// missing.
type Places = BTreeMap<u64, Option<u64>>;

fn places(node: &Arc<Node>) -> Places {
    let mut places = BTreeMap::new();
    let all = FileOffset(0)..FileOffset(u64::MAX);
    node.extents(all, &mut |extent| {
        let at = extent.logical.0 / BLOCK;
        for index in 0..extent.length / BLOCK {
            let place = extent.physical.0 / BLOCK + index;
            places.insert(at + index, Some(place).filter(|_| !extent.flags.unwritten));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    places
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()).into()
}

/// The numbers of sections of a volume.
struct Sections {
    /// The first block of the main area.
    start: u64,
    count: u64,
    /// The first block of the checkpoints.
    checkpoints: u64,
}

impl Sections {
    fn of(image: &[u8]) -> Self {
        let field = |at| word(&image[1024..], at);
        Self { start: field(92), count: field(68), checkpoints: field(76) }
    }

    fn of_block(&self, block: u64) -> u64 {
        (block - self.start) / SECTION
    }

    /// Cleans a section.
    fn clean(&self, volume: &Volume, section: u64) -> RangeCleaning {
        let block = FsBlock(self.start + section * SECTION);
        volume.clean_range(block..=block, false).unwrap()
    }

    /// Returns the sections of the logs in the last checkpoint.
    fn logs(&self, image: &[u8]) -> BTreeSet<u64> {
        let pack = |number| &image[((self.checkpoints + number * SECTION) * BLOCK) as usize..];
        let version = |pack: &&[u8]| word(pack, 4) << 32 | word(pack, 0);
        let last = [pack(0), pack(1)].into_iter().max_by_key(version).unwrap();
        [36, 84]
            .into_iter()
            .flat_map(|at| (0..3).map(move |log| word(last, at + log * 4)))
            .collect()
    }

    /// Returns the sections of which all blocks are those of a file.
    fn whole(&self, places: &Places) -> Vec<u64> {
        let mut counts = BTreeMap::new();
        for place in places.values().flatten() {
            *counts.entry(self.of_block(*place)).or_insert(0) += 1;
        }
        counts
            .into_iter()
            .filter(|(_, count)| *count == SECTION)
            .map(|(number, _)| number)
            .collect()
    }

    /// Returns the blocks of a file that lie in a section.
    fn blocks_in(&self, places: &Places, section: u64) -> BTreeSet<u64> {
        let is_in = |place: &u64| self.of_block(*place) == section;
        let blocks = places.iter().filter(|(_, place)| place.as_ref().is_some_and(is_in));
        blocks.map(|(at, _)| *at).collect()
    }
}

/// Returns the blocks of a file whose place is another one.
fn moved(before: &Places, after: &Places) -> BTreeSet<u64> {
    assert!(before.keys().eq(after.keys()), "the file has other blocks");
    before.iter().filter(|(at, place)| after[at] != **place).map(|(at, _)| *at).collect()
}

/// Creates a file with `blocks` blocks, and makes it durable.
fn make(volume: &Volume, path: &str, blocks: usize) -> (File, Model) {
    let mut model = Model { path: path.into(), versions: Vec::new() };
    assert!(!model.fill(volume, blocks), "the volume is full");
    volume.sync().unwrap();
    (volume.resolve(path.as_bytes(), Follow::No).unwrap().open_for(WRITE).unwrap(), model)
}

/// Writes the next version of blocks.
fn overwrite(file: &File, model: &mut Model, blocks: impl IntoIterator<Item = usize>) {
    for block in blocks {
        model.versions[block] += 1;
        let written = file.write_at(&model.data(block), block as u64 * BLOCK);
        assert_eq!(written, Ok(BLOCK as usize));
    }
}

/// Fills all free blocks with other data, and removes it.
fn overwrite_free_blocks(volume: &Volume, prefix: &str) {
    let others = fill(volume, prefix, 4096);
    volume.sync().unwrap();
    check(volume, &others, prefix);
    for model in others.iter().flatten() {
        volume.remove(model.path.as_bytes(), ROOT).unwrap();
    }
    volume.sync().unwrap();
}

/// Checks a file on a copy of a device, as after a power cut.
fn check_after_cut(device: &MemoryDevice, model: &Model, place: &str) {
    let copy = Arc::new(MemoryDevice::new(device.snapshot()));
    let volume = open(&copy);
    model.check(&volume, place);
    close(&copy, volume);
}

/// How an atomic write ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Commit,
    Abort,
    PowerCut,
}

#[test]
fn sections_with_old_and_pending_blocks_of_an_atomic_write_are_cleaned() {
    for end in [End::Commit, End::Abort, End::PowerCut] {
        let device = Arc::new(MemoryDevice::new(image(96)));
        let sections = Sections::of(&device.snapshot());
        let volume = open(&device);
        let (file, old) = make(&volume, "/f", 2000);
        let before = places(file.node());
        file.atomic_start(AtomicWrite::Update).unwrap();
        let mut new = old.clone();
        // The rest keeps its old blocks.
        overwrite(&file, &mut new, 100..1900);
        volume.sync().unwrap();
        let pending = places(file.node());
        let is_moved = moved(&before, &pending);
        assert!(is_moved.into_iter().eq(100..1900), "{end:?}: these blocks are pending");
        // One of which all old blocks were overwritten, and one whose blocks keep their place until
        // the end.
        let first = sections.of_block(before[&0].unwrap());
        let other = sections.whole(&before).into_iter().find(|section| *section != first).unwrap();
        for section in [other, first] {
            assert_eq!(sections.clean(&volume, section), RangeCleaning::Done, "{end:?}");
        }
        let new_section = sections.whole(&pending)[0];
        assert_eq!(sections.clean(&volume, new_section), RangeCleaning::Kept, "{end:?}");
        overwrite_free_blocks(&volume, "free");
        let now = places(file.node());
        let moved = moved(&pending, &now);
        assert!(moved.contains(&0) && moved.iter().all(|at| !(100..1900).contains(at)), "{end:?}");
        new.check(&volume, "during the atomic write");
        check_after_cut(&device, &old, "a power cut during the atomic write");
        let kept = match end {
            End::Commit => {
                file.atomic_commit().unwrap();
                assert_eq!(sections.clean(&volume, new_section), RangeCleaning::Done);
                &new
            }
            End::Abort => {
                file.atomic_abort().unwrap();
                // Pending blocks are free after the next checkpoint.
                volume.sync().unwrap();
                assert_eq!(sections.clean(&volume, new_section), RangeCleaning::Empty);
                &old
            }
            End::PowerCut => continue,
        };
        kept.check(&volume, "after the end");
        overwrite_free_blocks(&volume, "again");
        kept.check(&volume, "after all free blocks were overwritten");
        kept.check_directly(&volume, "after all free blocks were overwritten");
        check_after_cut(&device, kept, "a power cut after the end");
        drop(file);
        close(&device, volume);
    }
}

fn read_whole(file: &File, model: &Model, place: &str) {
    let mut found = vec![0; model.versions.len() * BLOCK as usize];
    for (part, at) in found.chunks_mut(PART).zip((0..).step_by(PART)) {
        assert_eq!(file.read_at(part, at), Ok(part.len()));
    }
    model.compare(&found, place);
}

#[test]
fn cleaning_moves_the_live_blocks_of_a_section_and_no_other_block_of_their_folios() {
    let device = Arc::new(MemoryDevice::new(image(96)));
    let sections = Sections::of(&device.snapshot());
    let volume = open(&device);
    let (file, mut model) = make(&volume, "/f", 1600);
    // Most of each 16 blocks stay in the old sections.
    overwrite(&file, &mut model, (0..1600).filter(|block| block % 16 < 4));
    drop(file);
    volume.close().unwrap();
    drop(volume);

    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = 64 << 20;
    // Nothing is written back by itself.
    options.commit_interval = Duration::from_secs(3600);
    options.f2fs.cleans_in_background = false;
    let volume = Volume::open_device(Arc::clone(&device) as _, &options).unwrap();
    let file = volume.resolve(b"/f", Follow::No).unwrap().open_for(WRITE).unwrap();
    read_whole(&file, &model, "before");
    let folios = volume.cache_stats().folios;
    let in_large: u64 = (0..).zip(folios).skip(4).map(|(order, count)| count << order).sum();
    assert!(in_large > 1500, "folios have several runs of blocks: {folios:?}");
    let on_device = model.clone();
    // Of each 32 blocks, some in old sections, and one in a new one. The other folios stay clean.
    let is_dirty = |block: &usize| *block < 800 && [1, 6, 7, 12].contains(&(block % 32));
    let dirty: Vec<usize> = (0..1600).filter(is_dirty).collect();
    overwrite(&file, &mut model, dirty.iter().copied());
    let stats = volume.dirty_stats();
    assert_eq!(stats.bytes_dirty, dirty.len() as u64 * BLOCK);

    let mut before = places(file.node());
    let mut total = 0;
    let of_file: BTreeSet<u64> =
        before.values().flatten().map(|place| sections.of_block(*place)).collect();
    for section in of_file {
        let live = sections.blocks_in(&before, section);
        let cleaned = sections.clean(&volume, section);
        if cleaned == RangeCleaning::InLog {
            continue;
        }
        assert_eq!(cleaned, RangeCleaning::Done, "section {section}");
        let after = places(file.node());
        assert_eq!(moved(&before, &after), live, "section {section}");
        total += live.len();
        before = after;
    }
    assert!(total > 1000, "{total} blocks were moved");
    assert_eq!(volume.dirty_stats(), stats, "other blocks are dirty, or were written");
    let new: HashSet<Vec<u8>> = dirty.iter().map(|block| model.data(*block)).collect();
    let snapshot = device.snapshot();
    let written = snapshot.chunks(BLOCK as usize).filter(|block| new.contains(*block)).count();
    assert_eq!(written, 0, "cleaning wrote data of the cache");
    check_after_cut(&device, &on_device, "a power cut after cleaning");
    read_whole(&file, &model, "cleaned");

    volume.sync().unwrap();
    let after = places(file.node());
    assert!(moved(&before, &after).into_iter().eq(dirty.iter().map(|block| *block as u64)));
    model.check_directly(&volume, "written back");
    drop(file);
    close(&device, volume);
    let volume = open(&device);
    model.check(&volume, "after closing");
}

#[test]
fn cleaning_keeps_holes_and_blocks_without_data() {
    let device = Arc::new(MemoryDevice::new(image(96)));
    let sections = Sections::of(&device.snapshot());
    let volume = open(&device);
    let (file, mut model) = make(&volume, "/f", 1600);
    let bytes =
        |blocks: Range<u64>| FileOffset(blocks.start * BLOCK)..FileOffset(blocks.end * BLOCK);
    for start in (0..1600).step_by(10) {
        let hole = start + 3..start + 7;
        let mode = match start {
            0..800 => Fallocate::PunchHole,
            _ => Fallocate::ZeroRange { keep_size: true },
        };
        file.fallocate(mode, bytes(hole.start..hole.end), Privileges::Keep).unwrap();
        model.punch(hole.start as usize..hole.end as usize);
    }
    volume.sync().unwrap();
    let before = places(file.node());
    assert_eq!(before.len(), 1600 - 80 * 4, "these are no holes");
    assert_eq!(before.values().filter(|place| place.is_none()).count(), 80 * 4);
    let blocks = file.node().attributes().blocks;
    for section in 0..sections.count {
        let live = sections.blocks_in(&before, section);
        if live.is_empty() || sections.clean(&volume, section) == RangeCleaning::InLog {
            continue;
        }
        assert_eq!(sections.clean(&volume, section), RangeCleaning::Empty, "{section}");
        assert!(live.len() < SECTION as usize * 7 / 10, "the section had holes");
        let after = places(file.node());
        let is_same = |at: &u64| after[at].is_some() == before[at].is_some();
        assert!(moved(&before, &after).is_superset(&live) && before.keys().all(is_same));
        // The blocks lie together now.
        let new: Vec<u64> = live.iter().filter_map(|at| after[at]).collect();
        let jumps = new.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        assert!(jumps <= 1, "section {section}: {new:?}");
    }
    assert_eq!(file.node().attributes().blocks, blocks);
    model.check(&volume, "cleaned");
    model.check_directly(&volume, "cleaned");
    check_after_cut(&device, &model, "a power cut after cleaning");
    drop(file);
    close(&device, volume);
}

#[test]
fn sections_of_logs_are_never_cleaned() {
    let device = Arc::new(MemoryDevice::new(image(96)));
    let sections = Sections::of(&device.snapshot());
    let volume = open(&device);
    let mut models = scattered(&volume, 11);
    // The last section of the log of data has few blocks in use, so that its cleaning would be the
    // cheapest.
    let (file, mut filler) = make(&volume, "/filler", SECTION as usize);
    let is_in_log = |file: &File, block: u64| {
        let section = sections.of_block(places(file.node())[&block].unwrap());
        sections.logs(&device.snapshot()).contains(&section)
    };
    assert!(is_in_log(&file, SECTION - 1), "data goes to another section");
    let mut left: Vec<usize> = (0..SECTION as usize - 1).collect();
    left.retain(|block| is_in_log(&file, *block as u64));
    for block in left {
        let range = FileOffset(block as u64 * BLOCK)..FileOffset((block as u64 + 1) * BLOCK);
        file.fallocate(Fallocate::PunchHole, range, Privileges::Keep).unwrap();
        filler.punch(block..block + 1);
    }
    volume.sync().unwrap();
    let last = places(file.node())[&(SECTION - 1)];
    let mut cleaned = 0;
    while cleaned < 20 && volume.clean_some().unwrap() {
        cleaned += 1;
        assert_eq!(places(file.node())[&(SECTION - 1)], last, "after {cleaned} sections");
    }
    assert!(cleaned > 5, "only {cleaned} sections were cleaned");
    let mut of_logs = 0;
    for section in 0..sections.count {
        let result = sections.clean(&volume, section);
        if result == RangeCleaning::InLog {
            of_logs += 1;
            assert!(sections.logs(&device.snapshot()).contains(&section), "section {section}");
        }
    }
    assert!(of_logs >= 3, "only {of_logs} sections are those of logs");
    assert_eq!(places(file.node())[&(SECTION - 1)], last, "after all sections were chosen");
    models.push(vec![filler]);
    check(&volume, &models, "cleaned");
    drop(file);
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}
