//! Allocation of blocks for holes of a file.
//! Not here: how a map stores them.

use base::{Error, FileBlock, FsBlock, Location, Problem, Result};
use fs::{Piece, Run};

use super::edit::{Map, MapBlocks, MapEdit};
use super::leaf::length_max;
use super::pointers;
use super::tree::Tree;
use crate::alloc::{Preallocation, Purpose};
use crate::indirect;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::journal::Handle;
use crate::layout::geometry::FILE_BLOCKS_MAX;

/// The bounds of a preallocation, in bytes. Within these, it is as large as the file.
const PREALLOCATED_BYTES_MIN: u64 = 64 << 10;
const PREALLOCATED_BYTES_MAX: u64 = 8 << 20;

/// A request for blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlocks {
    /// The first file block.
    pub at: FileBlock,
    /// The number of blocks, at least one. Fewer may be mapped.
    pub wanted: u64,
    /// Whether the blocks read as zeroes until they are marked as written. Not possible in block
    /// maps.
    pub unwritten: bool,
    /// The purpose of the blocks.
    pub purpose: Purpose,
}

/// The mapping that begins at the request's first file block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapped {
    /// At the first file block that was asked for.
    pub run: Run,
    /// Whether this call allocated the run. If it did, and the run is not unwritten, the blocks
    /// have undefined contents.
    pub is_new: bool,
}

impl Inode {
    /// Allocates blocks, or returns the existing mapping. Does not change the inode's size. Errors:
    /// `NoSpace`; `FileTooLarge` past the limits of the map, or of the count of blocks.
    pub(crate) fn map_new_blocks(
        &self,
        handle: &mut Handle<'_>,
        request: NewBlocks,
    ) -> Result<Mapped> {
        self.map_prepared_blocks(handle, request, &mut |_| Ok(()))?
    }

    /// Like [`map_new_blocks`](Self::map_new_blocks), but calls `prepare` to initialise new blocks
    /// before they are added to the map. The inner error is that of `prepare`; nothing has changed
    /// then.
    pub(crate) fn map_prepared_blocks(
        &self,
        handle: &mut Handle<'_>,
        request: NewBlocks,
        prepare: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<Result<Mapped>> {
        // Space for the data was reserved, so the change must not fail for lack of a node. Blocks
        // are reserved for the blocks of pointers that it needs, too (`data/pointer_reserve.rs`).
        let nodes = match request.purpose {
            Purpose::ReservedData if self.has(InodeFlags::EXTENTS) => Purpose::EndOfIo,
            Purpose::ReservedData => Purpose::ReservedData,
            _ => Purpose::Metadata,
        };
        self.edit_map(handle, nodes, |edit| edit.map_new(request, prepare))
    }

    /// Adds a block to the end of a directory, or of another file of metadata blocks, and extends
    /// its size. The caller writes the contents. Errors: `Corrupt` if a block is mapped there
    /// already, as in Linux: it may belong to another file. Size and map change in one transaction,
    /// so a power cut leaves no such block on a volume with a journal.
    pub(crate) fn append_block(&self, handle: &mut Handle<'_>) -> Result<(FileBlock, FsBlock)> {
        self.edit_map(handle, Purpose::Metadata, |edit| {
            let block_size = edit.geometry().block_size;
            let at = FileBlock(block_size.blocks_for(edit.record.size));
            let (wanted, purpose) = (1, Purpose::Metadata);
            let request = NewBlocks { at, wanted, unwritten: false, purpose };
            let mapped = edit.map_new(request, &mut |_| Ok(()))??;
            // An interrupted replay of fast commits by Linux may have mapped the block, but not
            // written the inode.
            let may_exist = edit.blocks.volume.is_recovering() && !mapped.run.unwritten;
            if !mapped.is_new && !may_exist {
                let location = Location::inode(self.number()).at_file_block(at);
                let (found, expected) = (at.0, mapped.run.end().0);
                let problem = Problem::Mismatch { field: "size in blocks", found, expected };
                return Err(Error::corrupt("directory", location, problem));
            }
            edit.size = Some((at.0 + 1) << block_size.shift());
            Ok((at, mapped.run.block))
        })
    }
}

impl Inode {
    /// Returns the request for a preallocation behind new blocks. It is as large as the file up to
    /// there, if the file is open for writing and grows for the second time at least. So small
    /// files that are written at once get adjacent blocks.
    fn preallocation(&self, request: &NewBlocks, continues: bool) -> Option<Preallocation> {
        if request.purpose != Purpose::ReservedData {
            return None;
        }
        let shift = self.volume().geometry().block_size.shift();
        let [min, max] =
            [PREALLOCATED_BYTES_MIN, PREALLOCATED_BYTES_MAX].map(|bytes| (bytes >> shift).max(1));
        let grows = continues && self.has_writers();
        let blocks = if grows { (request.at.0 + request.wanted).clamp(min, max) } else { 0 };
        Some(Preallocation { inode: self.number(), blocks })
    }
}

/// The blocks for a run.
struct Found {
    run: Run,
    /// The blocks that were allocated for the run; `None` if the run is in a cluster that the file
    /// already had.
    allocated: Option<(FsBlock, u64)>,
}

impl MapEdit<'_, '_, '_> {
    /// See [`Inode::map_prepared_blocks`].
    fn map_new(
        &mut self,
        request: NewBlocks,
        prepare: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<Result<Mapped>> {
        let left = self.inode.map_end().0.saturating_sub(request.at.0);
        let clusters = self.clusters_left();
        // At most one extent, so that one entry is added.
        let wanted = request
            .wanted
            .min(left)
            .min(length_max(request.unwritten))
            .min(clusters << self.geometry().cluster_shift);
        if wanted == 0 {
            return Err(Error::FileTooLarge);
        }
        let request = NewBlocks { wanted, ..request };
        let mapped = match &self.map {
            Map::Extents(_) => self.map_extent(request, prepare),
            Map::Pointers(_) => self.map_pointers(request, prepare),
        }?;
        if let Ok(Mapped { run, is_new: true }) = mapped {
            self.change.record(run.start, run.end(), Some(run));
        }
        Ok(mapped)
    }

    fn map_extent(
        &mut self,
        request: NewBlocks,
        prepare: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<Result<Mapped>> {
        let Map::Extents(tree) = &mut self.map else { unreachable!("the caller looked") };
        let at = request.at;
        let path = tree.path(&self.blocks, at)?;
        let extents = path.extents();
        let index = extents.partition_point(|extent| extent.end() <= at);
        let (before, next) =
            (index.checked_sub(1).and_then(|index| extents.get(index)), extents.get(index));
        let wanted = at..FileBlock(at.0 + request.wanted);
        if let Some(run) = next.and_then(|next| next.within(&(at..wanted.end))) {
            if run.start == at {
                return Ok(Ok(Mapped { run, is_new: false }));
            }
        }
        let end = wanted.end.min(next.map_or(path.range().end, |next| next.start));
        let goal = match (before, next) {
            (Some(run), _) => FsBlock(run.block.0 + (at.0 - run.start.0)),
            (None, Some(run)) => FsBlock(run.block.0.saturating_sub(run.start.0 - at.0)),
            (None, None) => self.blocks.volume.allocator()?.goal_of_inode(self.record.number)?,
        };
        let goal = within_volume(goal, &self.blocks);
        let is_last = next.is_none() && path.range().end >= FileBlock(FILE_BLOCKS_MAX);
        let continues = before.is_some_and(|before| is_last && before.end() == at);
        let preallocation = self.inode.preallocation(&request, continues);
        let found = find_blocks(tree, &mut self.blocks, request, end, goal, preallocation)?;
        if let Err(error) = prepare(found.run) {
            if let Some((start, count)) = found.allocated {
                self.blocks.undo_allocation(start, count, request.purpose)?;
            }
            return Ok(Err(error));
        }
        if let Err(error) = tree.insert(&mut self.blocks, path, found.run) {
            if let (Some((start, count)), false) = (found.allocated, self.blocks.is_touched) {
                self.blocks.undo_allocation(start, count, request.purpose)?;
            }
            return Err(error);
        }
        Ok(Ok(Mapped { run: found.run, is_new: true }))
    }

    fn map_pointers(
        &mut self,
        request: NewBlocks,
        prepare: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<Result<Mapped>> {
        let Map::Pointers(map) = &mut self.map else { unreachable!("the caller looked") };
        map.check_clusters()?;
        let (at, volume) = (request.at, self.blocks.volume);
        let span = indirect::load_span(volume, &self.record, at)?;
        let wanted = at..FileBlock(at.0 + request.wanted);
        let end = match span.piece_at(at) {
            Piece::Run(run) => {
                let run = run.within(&wanted).expect("the run lies there");
                return Ok(Ok(Mapped { run, is_new: false }));
            }
            Piece::Hole { end, .. } => end.min(wanted.end),
        };
        // Only pointers in one block are changed.
        let end = end.min(pointers::leaf_of(map.geometry(), at).end);
        let before = span.runs.iter().rev().find(|run| run.end() <= at);
        let goal = match before {
            Some(run) => FsBlock(run.block.0 + (at.0 - run.start.0)),
            None => self.preceding_block(at)?,
        };
        let goal = within_volume(goal, &self.blocks);
        let continues = before.is_some_and(|before| before.end() == at);
        let preallocation = self.inode.preallocation(&request, continues);
        let (block, count) =
            self.blocks.allocate(goal, end.0 - at.0, request.purpose, preallocation)?;
        let Map::Pointers(map) = &mut self.map else { unreachable!("the caller looked") };
        let run = Run { start: at, length: count, block, unwritten: false };
        if let Err(error) = prepare(run) {
            self.blocks.undo_allocation(block, count, request.purpose)?;
            return Ok(Err(error));
        }
        if let Err(error) = map.insert(&mut self.blocks, run) {
            if !self.blocks.is_touched {
                self.blocks.undo_allocation(block, count, request.purpose)?;
            }
            return Err(error);
        }
        Ok(Ok(Mapped { run, is_new: true }))
    }

    /// Returns the goal for a block of a file with a block map, if no block before it is mapped in
    /// the same block of pointers: after the preceding block of the file, or in the inode's group.
    fn preceding_block(&self, at: FileBlock) -> Result<FsBlock> {
        let volume = self.blocks.volume;
        if let Some(before) = at.0.checked_sub(1) {
            let span = indirect::load_span(volume, &self.record, FileBlock(before))?;
            if let Piece::Run(run) = span.piece_at(FileBlock(before)) {
                return Ok(FsBlock(run.block.0 + run.length));
            }
        }
        volume.allocator()?.goal_of_inode(self.record.number)
    }
}

/// Returns the goal, limited to blocks of the volume.
fn within_volume(goal: FsBlock, blocks: &MapBlocks<'_, '_, '_>) -> FsBlock {
    let geometry = blocks.volume.geometry();
    goal.clamp(geometry.first_data_block, FsBlock(geometry.block_count - 1))
}

/// Finds or allocates blocks for the hole from `request.at` to `end`, which lies in one leaf. The
/// blocks behind them may be preallocated for the file.
fn find_blocks(
    tree: &Tree<'_>,
    blocks: &mut MapBlocks<'_, '_, '_>,
    request: NewBlocks,
    end: FileBlock,
    goal: FsBlock,
    preallocation: Option<Preallocation>,
) -> Result<Found> {
    let NewBlocks { at, unwritten, purpose, .. } = request;
    let run = |block, length| Run { start: at, length, block, unwritten };
    if tree.geometry().cluster_shift == 0 {
        let (block, count) = blocks.allocate(goal, end.0 - at.0, purpose, preallocation)?;
        return Ok(Found { run: run(block, count), allocated: Some((block, count)) });
    }
    // The offset of a file block in its cluster equals that of its volume block.
    let cluster_blocks = u64::from(tree.geometry().blocks_per_cluster());
    let start = FileBlock(at.0 - at.0 % cluster_blocks);
    let cluster_end = FileBlock(start.0 + cluster_blocks);
    let next = tree.extent_from(blocks, at)?;
    let before = tree.extent_before(blocks, at)?.map(|(run, _)| run);
    let neighbour = before.filter(|before| before.end() > start);
    let neighbour = neighbour.or(next.filter(|next| next.start < cluster_end));
    if let Some(neighbour) = neighbour {
        // The file already has the cluster.
        let block = block_beside(neighbour, at, cluster_blocks);
        // The volume may end within its last cluster.
        let left = tree.geometry().block_count.saturating_sub(block.0);
        let length = (end.min(cluster_end).0 - at.0).min(left);
        if length == 0 {
            return Err(Error::NoSpace);
        }
        // A hostile extent may lie beside the format's own blocks.
        let location = tree.root_location().at_file_block(at);
        tree.validity.check("extent in a cluster", location, block, length)?;
        return Ok(Found { run: run(block, length), allocated: None });
    }
    let end = match next {
        // The last cluster is allocated: it is shared with the next extent.
        Some(next) if next.start < round_up(end, cluster_blocks) => {
            FileBlock(next.start.0 - next.start.0 % cluster_blocks)
        }
        _ => end,
    };
    let goal = FsBlock(goal.0.saturating_sub(at.0 - start.0));
    let wanted = round_up(end, cluster_blocks).0 - start.0;
    let (block, count) = blocks.allocate(goal, wanted, purpose, preallocation)?;
    let skipped = at.0 - start.0;
    if count <= skipped {
        // The volume's last cluster, which is shorter than others.
        blocks.undo_allocation(block, count, purpose)?;
        return Err(Error::NoSpace);
    }
    let length = (count - skipped).min(end.0 - at.0);
    Ok(Found { run: run(FsBlock(block.0 + skipped), length), allocated: Some((block, count)) })
}

/// Returns the block for `at`, if `neighbour` has another block of the same cluster.
pub(crate) fn block_beside(neighbour: Run, at: FileBlock, cluster_blocks: u64) -> FsBlock {
    let offset = at.0 % cluster_blocks;
    let shared = neighbour.start.0.max(at.0 - offset);
    let block = neighbour.block.0 + (shared - neighbour.start.0);
    FsBlock(block - block % cluster_blocks + offset)
}

fn round_up(block: FileBlock, to: u64) -> FileBlock {
    FileBlock(block.0.next_multiple_of(to))
}
