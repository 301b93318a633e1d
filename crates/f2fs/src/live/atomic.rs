//! Atomic writes: a file gets the data that is written meanwhile all at once, or not at all.
//!
//! While a file has an atomic write, its data goes to new blocks as always, but the end of a write
//! stores their addresses in memory, and not in nodes. Readers look there first. The commit stores
//! all addresses, and the size, in nodes by one change, and makes the nodes durable by one chain,
//! whose only mark is in its last node, or by one checkpoint. So a crash shows the file from before
//! or from after the commit:
//!
//! ```text
//! start      data to new blocks (pending)      all addresses to nodes ── data flushed ── nodes ── flushed
//!            ── checkpoints write the old nodes ──┤                      └─ a crash here: no mark, the old nodes
//! ```
//!
//! On the device, this is what Linux leaves: there, the pending blocks belong to an orphan, and
//! here to nothing.
//!
//! A pending block is counted as reserved, also where the file has a block already, since both
//! exist until the commit. Space that the write does not find is missed when data comes into the
//! cache, and never by the commit.
//!
//! Not here: the data in the cache, the order of calls, and who may call (the vfs).

use std::collections::BTreeMap;
use std::ops::Range;

use base::{FileBlock, FileOffset, FsBlock, Result};
use fs::AtomicWrite;
use iomap::{Iomap, IomapKind, MapFlags, MapRead};

use super::{LiveInode, NODES_MAX};
use crate::edit::Editor;
use crate::inode::map::END;
use crate::ondisk::node::advise;
use crate::write::{Demand, Placed, Reserved};

/// An atomic write of a file.
#[derive(Debug)]
pub(super) struct Pending {
    kind: AtomicWrite,
    /// The blocks with data of the write that is on the device, by the blocks of the file.
    blocks: BTreeMap<FileBlock, FsBlock>,
    /// The number of reserved blocks that `blocks` have used up. They stay reserved until the
    /// commit.
    reserved: u64,
}

/// Blocks of a file that has an atomic write.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Around {
    /// They are pending, in adjacent blocks of the device from this one on.
    Pending(Range<FileBlock>, FsBlock),
    /// Nothing was written to them.
    Old(Range<FileBlock>),
}

/// Pending blocks that are adjacent in the file and on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    at: FileBlock,
    blocks: Range<FsBlock>,
}

impl Run {
    fn end(&self) -> FileBlock {
        FileBlock(self.at.0 + (self.blocks.end.0 - self.blocks.start.0))
    }
}

impl Pending {
    fn new(kind: AtomicWrite) -> Self {
        Self { kind, blocks: BTreeMap::new(), reserved: 0 }
    }

    /// Returns the blocks around `at` that are in the same state, of pending ones those from `at`
    /// on and before `end`.
    fn around(&self, at: FileBlock, end: FileBlock) -> Around {
        let Some(first) = self.blocks.get(&at) else {
            let before = self.blocks.range(..at).next_back();
            let start = before.map_or(0, |(block, _)| block.0 + 1);
            let next = self.blocks.range(at..).next().map_or(END.max(end), |(block, _)| *block);
            return Around::Old(FileBlock(start)..next);
        };
        let mut last = at.0 + 1;
        for (block, address) in self.blocks.range(FileBlock(last)..end.max(FileBlock(last))) {
            if block.0 != last || address.0 != first.0 + (last - at.0) {
                break;
            }
            last += 1;
        }
        Around::Pending(at..FileBlock(last), *first)
    }

    /// Returns all pending blocks as runs, in the order of the file.
    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (&at, &block) in &self.blocks {
            let next = block..FsBlock(block.0 + 1);
            match runs.last_mut() {
                Some(run) if run.end() == at && run.blocks.end == block => {
                    run.blocks.end = next.end
                }
                _ => runs.push(Run { at, blocks: next }),
            }
        }
        runs
    }
}

/// Returns the number of nodes that have the addresses of `runs` at most, which are in the order of
/// the file.
fn nodes_of(runs: &[Run], addresses_per_node: u64) -> u64 {
    // Each part of a file with as many blocks as a node has addresses is in two nodes at most.
    let (mut parts, mut next) = (0, 0);
    for run in runs {
        let end = run.end().0.div_ceil(addresses_per_node);
        parts += end - (run.at.0 / addresses_per_node).clamp(next, end);
        next = end;
    }
    2 * parts
}

impl LiveInode {
    /// Starts an atomic write. The cache has no dirty data, and none is in flight.
    pub(crate) fn start_atomic_write(&self, kind: AtomicWrite) -> Result<()> {
        self.check_changeable()?;
        self.check_uncompressed()?;
        self.check_unpinned()?;
        self.convert_inline()?;
        // Of data that was lost: no other is delayed now.
        self.drop_delayed(&(FileBlock(0)..END))?;
        *self.atomic.lock() = Some(Pending::new(kind));
        self.map_changed();
        Ok(())
    }

    /// Commits the atomic write, durably: the file has its data, and `size` bytes. The cache has no
    /// dirty data, and none is in flight.
    ///
    /// # Errors
    ///
    /// Before the commit, the atomic write goes on. If the device fails after it, the volume is
    /// shut down, and a recovery finds the old or the new file.
    pub(crate) fn commit_atomic_write(&self, size: u64) -> Result<()> {
        let pending = {
            let atomic = self.atomic.lock();
            atomic.as_ref().map(|pending| (pending.kind, pending.runs(), pending.reserved))
        };
        let Some((kind, runs, used)) = pending else { return Ok(()) };
        debug_assert_eq!(self.delayed.lock().reserved(), 0, "data was not written back");
        let addresses_per_node = self.volume.geometry().addresses_per_node().into();
        let replaced = match kind {
            AtomicWrite::Update => 0,
            AtomicWrite::Replace => self.nodes_between(FileBlock(0), END),
        };
        let nodes = nodes_of(&runs, addresses_per_node) + replaced + NODES_MAX;
        let demand = Demand::Changes(nodes);
        let commit = |editor: &mut Editor<'_>, reserved: &mut Reserved<'_>| {
            let mut at = FileBlock(0);
            for run in &runs {
                if kind == AtomicWrite::Replace {
                    editor.free_blocks(self.number, at..run.at)?;
                }
                editor.set_addresses(self.number, run.at, run.blocks.clone())?;
                at = run.end();
            }
            if kind == AtomicWrite::Replace {
                editor.free_blocks(self.number, at..END)?;
                let end = self.volume.geometry().block_size.blocks_for(size);
                editor.truncate(self.number, FileBlock(end))?;
            }
            self.update(editor, |raw| {
                raw.size.set(size);
                if kind == AtomicWrite::Replace {
                    raw.advise &= !advise::KEEP_SIZE;
                }
            })?;
            reserved.remove(used);
            runs.iter().for_each(|run| reserved.commit_pending(&run.blocks));
            Ok(())
        };
        self.change_or_take_back(demand, &[], commit, |reserved| {
            runs.iter().for_each(|run| reserved.keep_pending(&run.blocks));
        })?;
        // In this order: readers find the new addresses in both places.
        *self.atomic.lock() = None;
        self.map_changed();
        let writer = self.volume.writer()?;
        let _suspended = base::cancellation::suspend();
        self.sync(false).inspect_err(|error| {
            // A later checkpoint would have the new data, which the caller takes for refused.
            writer.health().fail(error.clone());
        })
    }

    /// Ends the atomic write, and drops its data. The cache has no dirty data, and none is in
    /// flight.
    pub(crate) fn abort_atomic_write(&self) {
        let pending = self.atomic.lock().take();
        let Some(pending) = pending else { return };
        self.map_changed();
        let delayed = self.delayed.lock().remove(&(FileBlock(0)..END), 0);
        if let Ok(writer) = self.volume.writer() {
            let blocks = pending.blocks.values().copied();
            writer.drop_pending(self.volume.core(), blocks, pending.reserved + delayed);
        }
    }

    pub(super) fn has_atomic_write(&self) -> bool {
        self.atomic.lock().is_some()
    }

    /// Returns the end of the blocks from `at` on, before `end`, that have a pending block, or have
    /// none. Returns `None` if there is no atomic write.
    pub(super) fn pending_until(&self, at: FileBlock, end: FileBlock) -> Option<(bool, FileBlock)> {
        match self.atomic.lock().as_ref()?.around(at, end) {
            Around::Pending(blocks, _) => Some((true, blocks.end)),
            Around::Old(blocks) => Some((false, blocks.end.min(end))),
        }
    }

    /// Makes the blocks of a placement, whose data is on the device, pending. Returns false if
    /// there is no atomic write.
    pub(super) fn make_pending(&self, placed: &Placed, reserved: &mut Reserved<'_>) -> bool {
        let mut atomic = self.atomic.lock();
        let Some(pending) = &mut *atomic else { return false };
        reserved.keep_pending(&placed.range);
        for (at, block) in (placed.at.0..).zip(placed.range.start.0..placed.range.end.0) {
            if let Some(replaced) = pending.blocks.insert(FileBlock(at), FsBlock(block)) {
                // No reader needs the block: its data is in the cache since before it was replaced.
                reserved.drop_pending(self.volume.core(), replaced);
            }
        }
        true
    }

    /// Records that pending blocks have used up reserved ones.
    pub(super) fn keep_reserved(&self, blocks: u64) {
        if let Some(pending) = &mut *self.atomic.lock() {
            pending.reserved += blocks;
        }
    }

    /// Returns the range that contains byte `at`, as [`MapRead::map_read`] does, with pending
    /// blocks, and without delayed ones.
    pub(super) fn map_with_pending(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let block_size = self.volume.geometry().block_size;
        let bytes = |block: FileBlock| block.0.saturating_mul(block_size.bytes().into());
        let block = block_size.file_block(at);
        let end = FileBlock(block_size.blocks_for(at.0.saturating_add(length)));
        let around = {
            let atomic = self.atomic.lock();
            atomic.as_ref().map(|pending| (pending.kind, pending.around(block, end)))
        };
        let Some((kind, around)) = around else { return self.current().map_read(at, length) };
        let encoded = self.current().record().is_encrypted;
        let flags = MapFlags { encoded, ..MapFlags::default() };
        match around {
            Around::Pending(blocks, first) => Ok(Iomap {
                offset: FileOffset(bytes(blocks.start)),
                length: bytes(blocks.end) - bytes(blocks.start),
                kind: IomapKind::Mapped,
                address: block_size.device_offset(first),
                flags,
            }),
            Around::Old(blocks) => {
                let mut map = match kind {
                    AtomicWrite::Update => self.current().map_read(at, length)?,
                    AtomicWrite::Replace => Iomap {
                        offset: FileOffset(0),
                        length: bytes(END),
                        kind: IomapKind::Hole,
                        address: None,
                        flags: MapFlags { last: true, ..flags },
                    },
                };
                let start = bytes(blocks.start).max(map.offset.0);
                let end = bytes(blocks.end).min(map.end());
                if let Some(address) = &mut map.address {
                    address.0 += start - map.offset.0;
                }
                map.flags.last &= end == map.end();
                (map.offset, map.length) = (FileOffset(start), end - start);
                Ok(map)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an atomic write with these blocks of the file, each in this block of the device.
    fn pending(blocks: &[(u64, u64)]) -> Pending {
        let blocks = blocks.iter().map(|(at, block)| (FileBlock(*at), FsBlock(*block))).collect();
        Pending { blocks, ..Pending::new(AtomicWrite::Update) }
    }

    fn old(range: Range<u64>) -> Around {
        Around::Old(FileBlock(range.start)..FileBlock(range.end))
    }

    fn run(range: Range<u64>, first: u64) -> Around {
        Around::Pending(FileBlock(range.start)..FileBlock(range.end), FsBlock(first))
    }

    #[test]
    fn blocks_are_pending_in_runs_that_are_adjacent_on_the_device_too() {
        let pending = pending(&[(3, 100), (4, 101), (5, 200), (9, 202), (10, 203), (11, 203)]);
        let end = END.0;
        for (at, wanted_end, expected) in [
            (0, end, old(0..3)),
            (3, end, run(3..5, 100)),
            (3, 4, run(3..4, 100)),
            (4, end, run(4..5, 101)),
            (5, end, run(5..6, 200)),
            (6, end, old(6..9)),
            (8, end, old(6..9)),
            (9, 9, run(9..10, 202)),
            (10, end, run(10..11, 203)),
            (11, end, run(11..12, 203)),
            (12, 20, old(12..end)),
        ] {
            assert_eq!(pending.around(FileBlock(at), FileBlock(wanted_end)), expected, "{at}");
        }
        let runs: Vec<(u64, u64, u64)> =
            pending.runs().iter().map(|run| (run.at.0, run.end().0, run.blocks.start.0)).collect();
        assert_eq!(runs, [(3, 5, 100), (5, 6, 200), (9, 11, 202), (11, 12, 203)]);
        for (addresses_per_node, nodes) in [(12, 2), (10, 4), (5, 6), (4, 6), (1, 12)] {
            assert_eq!(nodes_of(&pending.runs(), addresses_per_node), nodes);
        }
    }
}
