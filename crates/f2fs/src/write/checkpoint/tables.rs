//! Writing of the segment information table and the node address table. A block with changes goes
//! to its other copy, and the checkpoint's version bitmap then names that one.

use std::collections::BTreeMap;

use base::{FsBlock, Location, Result};
use zerocopy::IntoBytes;

use super::batch::Batch;
use crate::checkpoint::VersionBitmap;
use crate::core::Core;
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::sit::RawSitEntry;

/// Changed entries of the node address table.
pub(crate) type NodeTable = BTreeMap<u32, RawNatEntry>;

/// Writes entries of the segment information table. Returns the version bitmap that names them.
pub(crate) fn write_segments(
    volume: &Core,
    entries: &BTreeMap<u32, RawSitEntry>,
    batch: &mut Batch<'_>,
) -> Result<VersionBitmap> {
    let checkpoint = volume.checkpoint();
    let geometry = volume.geometry();
    let per_block = geometry.sit_entries_per_block();
    let layout = (per_block, &checkpoint.sit_versions);
    write(volume, entries, layout, |block| geometry.sit_copies(block), batch)
}

/// Writes entries of the node address table. Returns the version bitmap that names them.
pub(crate) fn write_nodes(
    volume: &Core,
    entries: &NodeTable,
    batch: &mut Batch<'_>,
) -> Result<VersionBitmap> {
    let checkpoint = volume.checkpoint();
    let geometry = volume.geometry();
    let layout = (geometry.nat_entries_per_block(), &checkpoint.nat_versions);
    write(volume, entries, layout, |block| geometry.nat_copies(block), batch)
}

/// Writes the entries of a table with `per_block` entries in a block. `versions` has the current
/// copies, and `copies` returns both places of a block.
fn write<E: IntoBytes + zerocopy::Immutable>(
    volume: &Core,
    entries: &BTreeMap<u32, E>,
    (per_block, versions): (u32, &VersionBitmap),
    copies: impl Fn(u64) -> [FsBlock; 2],
    batch: &mut Batch<'_>,
) -> Result<VersionBitmap> {
    let mut new_versions = versions.clone();
    let mut rest = entries.iter().peekable();
    while let Some(&(&first, _)) = rest.peek() {
        let number = u64::from(first / per_block);
        let places = copies(number);
        let [old, new] = if versions.is_second(number) { [places[1], places[0]] } else { places };
        let mut block = volume.metadata().read(old, "table block", Location::block(old))?.to_vec();
        let is_in_block = |(index, _): &(&u32, &E)| u64::from(**index / per_block) == number;
        while let Some((index, entry)) = rest.next_if(is_in_block) {
            let at = (index % per_block) as usize * size_of::<E>();
            block[at..at + size_of::<E>()].copy_from_slice(entry.as_bytes());
        }
        batch.add(new, block.into())?;
        new_versions.flip(number);
    }
    Ok(new_versions)
}
