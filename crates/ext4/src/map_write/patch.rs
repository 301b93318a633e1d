//! In-place changes of a few extents of one leaf that change no other node: the usual case in large
//! trees. Not here: the choice of extents (`leaf.rs`), and all other changes (`tree.rs`).

use std::ops::Range;

use base::{FileBlock, FsBlock, Result};
use fs::Run;
use zerocopy::FromBytes;

use super::node::{self, Entry, ROOT_ENTRIES};
use super::tree::{NodeStore, Tree};
use crate::extent::{self, ENTRY_BYTES, Expected, HEADER_BYTES, NodeSearch, Part};
use crate::ondisk::extent::RawExtentHeader;

impl Tree<'_> {
    /// Changes the extents in `range` and their neighbours by `change`, which may split, merge and
    /// mark extents, in the leaf that contains the range's first block. Returns the result of
    /// `change`, and the end of that leaf. Returns `None`, without a change, if the leaf is the
    /// root, or would overflow or become nearly empty. In that case, `change` may have been called
    /// without an effect.
    pub(super) fn patch<S: NodeStore, R>(
        &self,
        store: &mut S,
        range: &Range<FileBlock>,
        change: impl FnOnce(&mut Vec<Run>) -> R,
    ) -> Result<Option<(R, FileBlock)>> {
        let Some((block, leaf)) = self.leaf_at(store, range.start)? else { return Ok(None) };
        let (bytes, location) = self.read(store, block, &leaf)?;
        let (_, table) = extent::verify_header(&bytes, &leaf, location)?;
        let first = extent::entries_until(table, range.start).saturating_sub(2);
        let last = extent::entries_before(table, range.end) + 1;
        let part = Part::new(table, first..last.max(first), &leaf, location)?;
        part.check_contains(range.start)?;
        part.check_contains(FileBlock(range.end.min(leaf.range.end).0.saturating_sub(1)))?;
        let mut old = Vec::with_capacity(part.entries.len() + 2);
        part.verify_leaf(self.validity, |run| old.push(run))?;
        let mut new = old.clone();
        let result = change(&mut new);
        if new == old {
            return Ok(Some((result, leaf.range.end)));
        }
        let count = table.len() / ENTRY_BYTES - old.len() + new.len();
        let start = |runs: &[Run]| runs.first().map(|run| run.start);
        debug_assert_eq!(start(&new), start(&old), "a leaf keeps its start");
        if count > room_within(&bytes) || count <= ROOT_ENTRIES {
            return Ok(None);
        }
        let entries = part.entries;
        // A change would copy the bytes while they are referenced.
        drop(bytes);
        let seed = self.checksum_seed;
        store.edit(block, location, |bytes| {
            replace_entries(bytes, &entries, &new, count);
            extent::seal(bytes, seed);
        })?;
        Ok(Some((result, leaf.range.end)))
    }

    /// Returns the leaf that covers `at`, if it is not the root.
    fn leaf_at(
        &self,
        store: &impl NodeStore,
        at: FileBlock,
    ) -> Result<Option<(FsBlock, Expected)>> {
        let root = Expected::of_root();
        let location = self.root_location();
        let mut search = match extent::verify_header(&self.area, &root, location)? {
            (0, _) => return Ok(None),
            _ => extent::find(&self.area, self.validity, &root, location, at)?,
        };
        // The depth falls by one in each iteration, and is bounded in the root.
        loop {
            match search {
                NodeSearch::Found(_) => return Ok(None),
                NodeSearch::Child { block, expected } if expected.depth == Some(0) => {
                    return Ok(Some((block, expected)));
                }
                NodeSearch::Child { block, expected } => {
                    let (bytes, location) = self.read(store, block, &expected)?;
                    search = extent::find(&bytes, self.validity, &expected, location, at)?;
                }
            }
        }
    }
}

/// Returns the number of entries that fit according to the node's header, at most as many as really
/// fit.
fn room_within(bytes: &[u8]) -> usize {
    let stated = RawExtentHeader::ref_from_prefix(bytes).map_or(0, |(header, _)| header.max.get());
    usize::from(stated).min(node::room(bytes.len()))
}

/// Replaces the entries `entries` of a node by extents. The node has `count` entries afterwards.
fn replace_entries(bytes: &mut [u8], entries: &Range<usize>, extents: &[Run], count: usize) {
    let (header, table) = bytes.split_at_mut(HEADER_BYTES);
    let count_before = count + entries.len() - extents.len();
    let end = entries.start + extents.len();
    let at = |index: usize| index * ENTRY_BYTES;
    table.copy_within(at(entries.end)..at(count_before), at(end));
    for (slot, run) in table[at(entries.start)..at(end)].chunks_exact_mut(ENTRY_BYTES).zip(extents)
    {
        slot.copy_from_slice(&Entry::of_extent(run).0);
    }
    // Erases the entries that remain at the end.
    table[at(count)..at(count_before).max(at(count))].fill(0);
    if let Ok((header, _)) = RawExtentHeader::mut_from_prefix(header) {
        header.entries = (count as u16).into();
    }
}
