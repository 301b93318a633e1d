//! The map of a file as a whole: read with the blocks of the map itself, changed, and written as an extent tree;
//! and truncation of block maps. Not here: the choice of free blocks.

use std::collections::{BTreeMap, HashSet};

use base::{Error, FileBlock, FsBlock, Location, Problem, Result};
use fs::Run;
use zerocopy::{FromBytes, IntoBytes};

use super::Editor;
use super::blocks::Blocks;
use crate::extent::{self, Expected, Node};
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::FILE_BLOCKS_MAX;
use crate::layout::geometry::Geometry;
use crate::ondisk::extent::{MAGIC, RawExtent, RawExtentHeader, RawExtentIndex, WRITTEN_MAX};
use crate::volume::Volume;

const ENTRY_BYTES: usize = 12;
const ROOT_ENTRIES: usize = 4;
const DIRECT: usize = 12;

/// Everything that a file's map says.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileMap {
    /// The runs, by their first file blocks.
    pub runs: BTreeMap<FileBlock, Run>,
    /// The blocks that the map itself takes, and where each begins in the file.
    pub nodes: Vec<(FileBlock, FsBlock)>,
}

impl FileMap {
    /// Reads the map of `record`, whose data is mapped rather than inline. `OutOfMemory` when it
    /// has more than `entries_max` runs and nodes.
    pub(crate) fn read(volume: &Volume, record: &InodeRecord, entries_max: usize) -> Result<Self> {
        let mut map = Self::default();
        if record.flags.contains(InodeFlags::EXTENTS) {
            map.read_tree(volume, record, entries_max)?;
        } else {
            read_pointers(volume, record, &mut map, entries_max)?;
        }
        Ok(map)
    }

    /// Returns the number of runs and nodes.
    pub(crate) fn entries(&self) -> usize {
        self.runs.len() + self.nodes.len()
    }

    fn check_entries(&self, max: usize) -> Result<()> {
        if self.entries() < max { Ok(()) } else { Err(Error::OutOfMemory) }
    }

    fn read_tree(
        &mut self,
        volume: &Volume,
        record: &InodeRecord,
        entries_max: usize,
    ) -> Result<()> {
        const STRUCTURE: &str = "extent node";
        let whole = FileBlock(0)..FileBlock(FILE_BLOCKS_MAX);
        let validity = volume.block_validity(record.number);
        let root = Node::parse(
            &record.block_area,
            validity,
            Expected::of_root(),
            Location::inode(record.number),
        )?;
        // Children of one parent have ranges apart from each other, so the work is bounded by
        // the number of entries.
        let mut ahead = vec![(root, whole)];
        while let Some((node, range)) = ahead.pop() {
            self.check_entries(entries_max)?;
            if node.depth == 0 {
                node.runs().iter().for_each(|run| self.push(*run));
                continue;
            }
            let children = node.children();
            let ends = children.iter().skip(1).map(|&(start, _)| start).chain([range.end]);
            let first = ahead.len();
            for (&(start, block), end) in children.iter().zip(ends) {
                let location = Location::inode(record.number).at_file_block(start).at_block(block);
                let buffer = volume.read_metadata(block, STRUCTURE, location)?;
                extent::verify_checksum(&buffer, record.checksum_seed, location)?;
                let expected = Expected { depth: Some(node.depth - 1), range: start..end };
                let child = Node::parse(&buffer, validity, expected, location)?;
                self.nodes.push((start, block));
                self.check_entries(entries_max)?;
                ahead.push((child, start..end));
            }
            // The first child comes off the stack first.
            ahead[first..].reverse();
        }
        Ok(())
    }

    /// Adds a run behind all others.
    fn push(&mut self, run: Run) {
        match self.runs.last_entry() {
            Some(mut last) if last.get().is_followed_by(&run) => {
                last.get_mut().length += run.length
            }
            _ => {
                self.runs.insert(run.start, run);
            }
        }
    }

    /// Returns the last run that begins at or before `at`.
    fn run_before(&self, at: FileBlock) -> Option<Run> {
        self.runs.range(..=at).next_back().map(|(_, run)| *run)
    }

    /// Unmaps file blocks from `start` to before `end`.
    pub(crate) fn remove(&mut self, start: FileBlock, end: FileBlock) {
        if start >= end {
            return;
        }
        // The run that `start` lies in, and then those that begin behind it.
        let first = self.run_before(start).filter(|run| run.end() > start);
        let rest = self.runs.range(start..end).map(|(_, run)| *run);
        let touched: Vec<Run> = first.into_iter().chain(rest).collect();
        for run in touched {
            self.runs.remove(&run.start);
            if run.start < start {
                let length = start.0 - run.start.0;
                self.runs.insert(run.start, Run { length, ..run });
            }
            if run.end() > end {
                let skip = end.0 - run.start.0;
                let kept = Run {
                    start: end,
                    length: run.length - skip,
                    block: FsBlock(run.block.0 + skip),
                    ..run
                };
                self.runs.insert(end, kept);
            }
        }
    }

    /// Maps `run`, whatever was there before.
    pub(crate) fn insert(&mut self, run: Run) {
        self.remove(run.start, run.end());
        self.runs.insert(run.start, run);
    }

    /// Returns the volume block of a file block.
    pub(crate) fn block_at(&self, at: FileBlock) -> Option<FsBlock> {
        let run = self.run_before(at)?;
        (at < run.end() && !run.unwritten).then(|| FsBlock(run.block.0 + (at.0 - run.start.0)))
    }

    /// Returns the first file block at or after `at` that is mapped.
    pub(crate) fn next_block(&self, at: FileBlock) -> Option<FileBlock> {
        match self.run_before(at) {
            Some(run) if at < run.end() => Some(at),
            _ => self.runs.range(at..).next().map(|(&start, _)| start),
        }
    }

    /// Returns the number of mapped blocks.
    pub(crate) fn block_count(&self) -> u64 {
        self.runs.values().fold(0, |sum, run| sum.saturating_add(run.length))
    }

    /// Makes an extent tree of the runs, with the blocks it takes, in `area`.
    pub(crate) fn write_tree(
        &mut self,
        editor: &mut Editor,
        area: &mut [u8; 60],
        checksum_seed: Option<u32>,
    ) -> Result<()> {
        let mut entries: Vec<[u8; ENTRY_BYTES]> = Vec::new();
        let mut starts: Vec<FileBlock> = Vec::new();
        for run in joined(self.runs.values()) {
            split(run, &mut starts, &mut entries);
        }
        let block_bytes = editor.geometry().block_size.len();
        let room = (block_bytes - size_of::<RawExtentHeader>()) / ENTRY_BYTES;
        let mut spare: Vec<FsBlock> =
            std::mem::take(&mut self.nodes).into_iter().map(|(_, block)| block).collect();
        let mut depth = 0u16;
        while entries.len() > ROOT_ENTRIES {
            let (mut upper, mut upper_starts) = (Vec::new(), Vec::new());
            for (entries, starts) in entries.chunks(room).zip(starts.chunks(room)) {
                let block = editor.take_block(&mut spare)?;
                self.nodes.push((starts[0], block));
                let mut bytes = vec![0; block_bytes].into_boxed_slice();
                write_node(&mut bytes, room, depth, entries);
                extent::seal(&mut bytes, checksum_seed);
                editor.blocks.replace(block, bytes)?;
                let entry = RawExtentIndex {
                    block: (starts[0].0 as u32).into(),
                    leaf_lo: (block.0 as u32).into(),
                    leaf_hi: ((block.0 >> 32) as u16).into(),
                    unused: 0.into(),
                };
                upper.push(zerocopy::transmute!(entry));
                upper_starts.push(starts[0]);
            }
            (entries, starts) = (upper, upper_starts);
            depth += 1;
        }
        area.fill(0);
        write_node(area, ROOT_ENTRIES, depth, &entries);
        Ok(())
    }
}

/// The root of an extent tree without extents.
pub(crate) fn write_empty_tree(area: &mut [u8; 60]) {
    area.fill(0);
    write_node(area, ROOT_ENTRIES, 0, &[]);
}

fn write_node(bytes: &mut [u8], room: usize, depth: u16, entries: &[[u8; ENTRY_BYTES]]) {
    let header = RawExtentHeader {
        magic: MAGIC.into(),
        // Both are at most the entries of a block of 64 KiB.
        entries: (entries.len() as u16).into(),
        max: (room as u16).into(),
        depth: depth.into(),
        generation: 0.into(),
    };
    let (head, rest) = bytes.split_at_mut(size_of_val(&header));
    head.copy_from_slice(header.as_bytes());
    let table = entries.as_flattened();
    rest[..table.len()].copy_from_slice(table);
}

fn joined<'r>(runs: impl Iterator<Item = &'r Run>) -> Vec<Run> {
    let mut joined = Vec::new();
    runs.for_each(|run| run.push_onto(&mut joined));
    joined
}

/// The leaf entries of a run, none longer than an entry can say.
fn split(run: Run, starts: &mut Vec<FileBlock>, entries: &mut Vec<[u8; ENTRY_BYTES]>) {
    let most = u64::from(if run.unwritten { WRITTEN_MAX - 1 } else { WRITTEN_MAX });
    let mut done = 0;
    while done < run.length {
        let length = most.min(run.length - done);
        let (start, block) = (FileBlock(run.start.0 + done), run.block.0 + done);
        let mark = if run.unwritten { WRITTEN_MAX } else { 0 };
        let entry = RawExtent {
            block: (start.0 as u32).into(),
            len: (length as u16 + mark).into(),
            start_hi: ((block >> 32) as u16).into(),
            start_lo: (block as u32).into(),
        };
        entries.push(zerocopy::transmute!(entry));
        starts.push(start);
        done += length;
    }
}

/// A pointer of a block map: the level of its target (0 for data) and the target's first file block.
#[derive(Clone, Copy)]
struct Pointer {
    block: FsBlock,
    level: u32,
    start: FileBlock,
}

/// File blocks below a pointer of a level.
fn blocks_below(geometry: &Geometry, level: u32) -> u64 {
    (u64::from(geometry.block_size.bytes()) / 4).pow(level)
}

/// Returns the pointers in a block map's root.
fn root_pointers(geometry: &Geometry, area: &[u8; 60]) -> Vec<Pointer> {
    let mut start = 0;
    let words = area.chunks_exact(4).enumerate();
    words
        .map(|(slot, word)| {
            let level = slot.saturating_sub(DIRECT - 1) as u32;
            let pointer = Pointer { block: word_at(word), level, start: FileBlock(start) };
            start += blocks_below(geometry, level);
            pointer
        })
        .collect()
}

fn word_at(word: &[u8]) -> FsBlock {
    FsBlock(word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

fn read_pointers(
    volume: &Volume,
    record: &InodeRecord,
    map: &mut FileMap,
    entries_max: usize,
) -> Result<()> {
    const STRUCTURE: &str = "indirect block";
    let geometry = volume.geometry();
    let mut blocks = volume.block_validity(record.number).checker();
    let mut seen = HashSet::new();
    let mut ahead = root_pointers(geometry, &record.block_area);
    ahead.reverse();
    while let Some(pointer) = ahead.pop() {
        if pointer.block.0 == 0 || pointer.start.0 >= FILE_BLOCKS_MAX {
            continue;
        }
        map.check_entries(entries_max)?;
        let location =
            Location::inode(record.number).at_file_block(pointer.start).at_block(pointer.block);
        blocks.check(STRUCTURE, location, pointer.block, 1)?;
        if pointer.level == 0 {
            let (start, block) = (pointer.start, pointer.block);
            map.push(Run { start, length: 1, block, unwritten: false });
            continue;
        }
        // A block of pointers named twice would make the work exponential.
        if !seen.insert(pointer.block) {
            return Err(Error::corrupt(STRUCTURE, location, Problem::Cycle));
        }
        map.nodes.push((pointer.start, pointer.block));
        let buffer = volume.read_metadata(pointer.block, STRUCTURE, location)?;
        let level = pointer.level - 1;
        let step = blocks_below(geometry, level);
        let first = ahead.len();
        let pointers = buffer.chunks_exact(4).enumerate().map(|(slot, word)| Pointer {
            block: word_at(word),
            level,
            start: FileBlock(pointer.start.0 + slot as u64 * step),
        });
        ahead.extend(pointers.filter(|pointer| pointer.block.0 != 0));
        ahead[first..].reverse();
    }
    Ok(())
}

/// Truncates the map of a file to the file blocks before `end`: in `area` and in its nodes, in place, so that it
/// takes no other blocks than before. `map` is the map that was read before, and is truncated, too.
pub(crate) fn truncate(
    editor: &mut Editor,
    record: &InodeRecord,
    map: &mut FileMap,
    area: &mut [u8; 60],
    end: FileBlock,
) -> Result<()> {
    let mut truncater = Truncater {
        geometry: editor.volume.geometry(),
        blocks: &mut editor.blocks,
        end,
        checksum_seed: record.checksum_seed,
        inode: Location::inode(record.number),
        emptied: HashSet::new(),
    };
    if record.flags.contains(InodeFlags::EXTENTS) {
        truncater.node(area, None)?;
    } else {
        let roots = root_pointers(truncater.geometry, area);
        for (word, pointer) in area.chunks_exact_mut(4).zip(roots) {
            truncater.pointer(word, pointer)?;
        }
    }
    let emptied = truncater.emptied;
    map.nodes.retain(|(start, block)| *start < end && !emptied.contains(block));
    map.remove(end, FileBlock(FILE_BLOCKS_MAX));
    Ok(())
}

/// Truncates a map that was read as a whole before, so that all its entries are known to be valid.
/// Of each level only one node straddles the end: the depth bounds the work.
struct Truncater<'a> {
    geometry: &'a Geometry,
    blocks: &'a mut Blocks,
    end: FileBlock,
    checksum_seed: Option<u32>,
    inode: Location,
    /// Nodes that began before the end but had nothing before it.
    emptied: HashSet<FsBlock>,
}

impl Truncater<'_> {
    /// Truncates an extent node and those below it. Returns true if it is empty then. `depth` is the depth
    /// that its parent promises: a change made since the map was read can have hit a node, on a
    /// volume where blocks serve two purposes.
    fn node(&mut self, bytes: &mut [u8], depth: Option<u16>) -> Result<bool> {
        let (head, table) = bytes.split_at_mut(size_of::<RawExtentHeader>());
        let header = RawExtentHeader::mut_from_bytes(head).expect("the size is the layout's");
        let found = header.depth.get();
        if found != depth.unwrap_or(found) {
            let (found, expected) = (found.into(), depth.unwrap_or_default().into());
            let problem = Problem::Mismatch { field: "depth", found, expected };
            return Err(Error::corrupt("extent node", self.inode, problem));
        }
        let below = found.checked_sub(1);
        let mut kept = 0;
        for entry in table.chunks_exact_mut(ENTRY_BYTES).take(header.entries.get().into()) {
            let stays = match below {
                None => self.extent(entry),
                Some(depth) => self.child(entry, depth)?,
            };
            if !stays {
                break;
            }
            kept += 1;
        }
        header.entries = kept.into();
        if kept == 0 {
            header.depth = 0.into();
        }
        Ok(kept == 0)
    }

    /// Truncates an entry of a leaf. Returns false if nothing of it remains.
    fn extent(&self, entry: &mut [u8]) -> bool {
        let entry = RawExtent::mut_from_bytes(entry).expect("the size is the layout's");
        let start = u64::from(entry.block.get());
        if start >= self.end.0 {
            return false;
        }
        let length = entry.len.get();
        let mark = if length > WRITTEN_MAX { WRITTEN_MAX } else { 0 };
        // Not longer than before, so 16 bits hold it.
        let length = u64::from(length - mark).min(self.end.0 - start) as u16;
        entry.len = (length + mark).into();
        true
    }

    /// Truncates the node of `depth` below an entry of an inner node. Returns false if nothing of
    /// it remains.
    fn child(&mut self, entry: &mut [u8], depth: u16) -> Result<bool> {
        const STRUCTURE: &str = "extent node";
        let entry = RawExtentIndex::mut_from_bytes(entry).expect("the size is the layout's");
        let start = FileBlock(entry.block.get().into());
        if start >= self.end {
            return Ok(false);
        }
        let block = FsBlock(u64::from(entry.leaf_hi.get()) << 32 | u64::from(entry.leaf_lo.get()));
        let location = self.inode.at_file_block(start).at_block(block);
        let mut bytes = self.blocks.read(block, STRUCTURE, location)?;
        let before = bytes.clone();
        if self.node(&mut bytes, Some(depth))? {
            self.emptied.insert(block);
            return Ok(false);
        }
        if bytes != before {
            extent::seal(&mut bytes, self.checksum_seed);
            self.blocks.replace(block, bytes)?;
        }
        Ok(true)
    }

    /// Clears `word`, which holds `pointer`, if nothing below it remains; otherwise truncates the blocks below it.
    fn pointer(&mut self, word: &mut [u8], pointer: Pointer) -> Result<()> {
        if pointer.block.0 == 0 {
            return Ok(());
        }
        if pointer.start >= self.end {
            word.fill(0);
            return Ok(());
        }
        let below = blocks_below(self.geometry, pointer.level);
        if pointer.level == 0 || pointer.start.0 + below <= self.end.0 {
            return Ok(());
        }
        let location = self.inode.at_file_block(pointer.start).at_block(pointer.block);
        let mut bytes = self.blocks.read(pointer.block, "indirect block", location)?;
        let level = pointer.level - 1;
        let step = blocks_below(self.geometry, level);
        for (slot, word) in bytes.chunks_exact_mut(4).enumerate() {
            let start = FileBlock(pointer.start.0 + slot as u64 * step);
            let block = word_at(word);
            self.pointer(word, Pointer { block, level, start })?;
        }
        if bytes.iter().all(|&byte| byte == 0) {
            self.emptied.insert(pointer.block);
            word.fill(0);
            return Ok(());
        }
        self.blocks.replace(pointer.block, bytes)
    }
}
