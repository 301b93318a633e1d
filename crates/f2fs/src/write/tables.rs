//! Writing of the segment information table and the node address table. A block with changes goes to its other copy,
//! and the checkpoint's version bitmap then names that one.

use std::collections::BTreeMap;

use base::view::view_at;
use base::{DeviceOffset, FsBlock, InodeNumber, Location, Result};
use zerocopy::IntoBytes;

use crate::checkpoint::{VersionBitmap, read_block};
use crate::geometry::SEGMENT_BLOCKS;
use crate::nat::{Nid, entry_position};
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::sit::RawSitEntry;
use crate::sit::entries_per_block;
use crate::volume::Volume;

/// Changed entries of the node address table.
pub(crate) type NodeTable = BTreeMap<u32, RawNatEntry>;

/// Returns the entry of a node number, which may be free.
pub(crate) fn read_nat_entry(volume: &Volume, nid: Nid) -> Result<RawNatEntry> {
    if let Some(entry) = volume.checkpoint().nat_journal.get(&nid.0) {
        return Ok(entry.clone());
    }
    let (block, byte) = entry_position(volume.geometry(), &volume.checkpoint(), nid);
    let location = Location::inode(InodeNumber(nid.0.into())).at_block(block);
    let buffer = volume.metadata().read(block, "NAT block", location)?;
    Ok(view_at::<RawNatEntry>(&buffer, byte, "NAT entry", location)?.clone())
}

/// Writes entries of the segment information table. Returns the version bitmap that names them.
pub(crate) fn write_segments(
    volume: &Volume,
    entries: &BTreeMap<u32, RawSitEntry>,
) -> Result<VersionBitmap> {
    let checkpoint = volume.checkpoint();
    let geometry = volume.geometry();
    let per_block = entries_per_block(geometry);
    let copies = |number: u64| {
        let first = FsBlock(geometry.sit.start.0 + number);
        [first, FsBlock(first.0 + geometry.sit_blocks())]
    };
    let versions = &checkpoint.sit_versions;
    write(volume, entries, per_block, versions, copies)
}

/// Writes entries of the node address table. Returns the version bitmap that names them.
pub(crate) fn write_nodes(volume: &Volume, entries: &NodeTable) -> Result<VersionBitmap> {
    let checkpoint = volume.checkpoint();
    let geometry = volume.geometry();
    let copies = |number: u64| {
        // The two copies alternate, a segment of each.
        let in_area = number / SEGMENT_BLOCKS * 2 * SEGMENT_BLOCKS + number % SEGMENT_BLOCKS;
        let first = FsBlock(geometry.nat.start.0 + in_area);
        [first, FsBlock(first.0 + SEGMENT_BLOCKS)]
    };
    let versions = &checkpoint.nat_versions;
    write(volume, entries, geometry.nat_entries_per_block(), versions, copies)
}

/// Writes the entries of a table with `per_block` entries in a block. `copies` returns both places of a block.
fn write<E: IntoBytes + zerocopy::Immutable>(
    volume: &Volume,
    entries: &BTreeMap<u32, E>,
    per_block: u32,
    versions: &VersionBitmap,
    copies: impl Fn(u64) -> [FsBlock; 2],
) -> Result<VersionBitmap> {
    let geometry = volume.geometry();
    let mut new_versions = versions.clone();
    let mut rest = entries.iter().peekable();
    while let Some(&(&first, _)) = rest.peek() {
        let number = u64::from(first / per_block);
        let places = copies(number);
        let [old, new] = if versions.is_second(number) { [places[1], places[0]] } else { places };
        let mut block = read_block(volume.device(), geometry, old)?;
        let is_in_block = |(index, _): &(&u32, &E)| u64::from(**index / per_block) == number;
        while let Some((index, entry)) = rest.next_if(is_in_block) {
            let at = (index % per_block) as usize * size_of::<E>();
            block[at..at + size_of::<E>()].copy_from_slice(entry.as_bytes());
        }
        volume.device().write_at(DeviceOffset(new.0 << geometry.block_size.shift()), &block)?;
        volume.metadata().discard(new);
        new_versions.flip(number);
    }
    Ok(new_versions)
}
