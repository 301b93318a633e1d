//! The node address table: from node numbers to blocks.

use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use iomap::MetadataCache;

use crate::checkpoint::Checkpoint;
use crate::geometry::Geometry;
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS};

const STRUCTURE: &str = "NAT entry";

/// The number of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid(pub u32);

/// The address of a node in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    /// The inode of the node.
    pub inode: InodeNumber,
    /// The node's block.
    pub block: FsBlock,
    /// Version of the node number.
    pub version: u8,
}

/// Returns the block of the table with the entry of `nid`, and the entry's byte in the block.
pub(crate) fn entry_position(
    geometry: &Geometry,
    checkpoint: &Checkpoint,
    nid: Nid,
) -> (FsBlock, usize) {
    let per_block = geometry.nat_entries_per_block();
    let block = u64::from(nid.0 / per_block);
    let byte = (nid.0 % per_block) as usize * size_of::<RawNatEntry>();
    (checkpoint.nat_versions.current(block, geometry.nat_copies(block)), byte)
}

/// Returns the entry of a node number, which the table has. The number may be free.
pub(crate) fn read_entry(
    metadata: &MetadataCache,
    geometry: &Geometry,
    checkpoint: &Checkpoint,
    nid: Nid,
) -> Result<RawNatEntry> {
    if let Some(entry) = checkpoint.nat_journal.get(&nid.0) {
        return Ok(entry.clone());
    }
    let (block, byte) = entry_position(geometry, checkpoint, nid);
    let location = Location::inode(InodeNumber(nid.0.into()));
    let buffer = metadata.read(block, "NAT block", location)?;
    Ok(view_at::<RawNatEntry>(&buffer, byte, STRUCTURE, location.at_block(block))?.clone())
}

/// Checks the numbers of the nodes in the journal: the next checkpoint writes its entries to the
/// table. Lookups check the number that they are given, so reads need no check.
pub(crate) fn check_journal(geometry: &Geometry, checkpoint: &Checkpoint) -> Result<()> {
    let max = geometry.nid_count().saturating_sub(1);
    let last = checkpoint.nat_journal.last_key_value().map(|(nid, _)| u64::from(*nid));
    match last.filter(|nid| *nid > max) {
        Some(found) => {
            let problem = Problem::Range { field: "node number", found, min: 1, max };
            Err(Error::corrupt("NAT journal", Location::block(checkpoint.start), problem))
        }
        None => Ok(()),
    }
}

/// Returns the address of a node. Errors: `NotFound` if the number is free, `Corrupt` if it is
/// outside the table or its address outside the main area.
pub(crate) fn look_up(
    metadata: &MetadataCache,
    geometry: &Geometry,
    checkpoint: &Checkpoint,
    nid: Nid,
) -> Result<NodeAddress> {
    let max = geometry.nid_count().saturating_sub(1);
    let location = Location::inode(InodeNumber(nid.0.into()));
    if u64::from(nid.0) > max || nid.0 == 0 {
        let problem = Problem::Range { field: "node number", found: nid.0.into(), min: 1, max };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    let entry = read_entry(metadata, geometry, checkpoint, nid)?;
    match entry.block.get() {
        NULL_ADDRESS | NEW_ADDRESS => Err(Error::NotFound),
        block => Ok(NodeAddress {
            inode: InodeNumber(entry.inode.get().into()),
            block: geometry.main_block(block, STRUCTURE, location)?,
            version: entry.version,
        }),
    }
}
