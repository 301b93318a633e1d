//! The check of the node address table: which node numbers are in use, by which inodes, and at
//! which addresses.

use std::rc::Rc;

use base::view::view_at;
use base::{FsBlock, InodeNumber, Location, Problem, Result};

use super::Check;
use super::bits::Bits;
use crate::nat::{Nid, entry_position};
use crate::ondisk::nat::RawNatEntry;
use crate::ondisk::node::{NEW_ADDRESS, NULL_ADDRESS};

const STRUCTURE: &str = "NAT entry";
/// The numbers of the inodes that stand for nodes and for other metadata. They have no blocks, and
/// this address.
const INODES_WITHOUT_BLOCKS: [u32; 2] = [1, 2];
const NO_BLOCK: u32 = 1;
const ZEROES: [u8; 4096] = [0; 4096];

impl Check<'_> {
    pub(super) fn check_nat(&mut self) {
        let geometry = self.geometry();
        let per_block = geometry.nat_entries_per_block();
        let mut inodes = Bits::new(geometry.nid_count());
        for number in 0..geometry.nat_blocks() {
            if !self.report.advance("node numbers", number, geometry.nat_blocks()) {
                return;
            }
            // Node numbers have 32 bits.
            let Ok(first) = u32::try_from(number * u64::from(per_block)) else { break };
            let (block, _) = entry_position(geometry, &self.volume.checkpoint(), Nid(first));
            if self.holes.has(self.volume.metadata(), block) {
                continue;
            }
            let location = Location::block(block);
            let read = self.volume.metadata().read(block, "NAT block", location);
            let Some(buffer) = self.report.ok(read) else { continue };
            // Most blocks have no entries.
            if buffer.chunks(ZEROES.len()).all(|part| part == &ZEROES[..part.len()]) {
                continue;
            }
            let entries = buffer.chunks_exact(size_of::<RawNatEntry>());
            for (nid, bytes) in (first..).zip(entries) {
                if bytes != [0; size_of::<RawNatEntry>()] {
                    let byte = u64::from(nid - first) * size_of::<RawNatEntry>() as u64;
                    let entry = view_at::<RawNatEntry>(bytes, 0, STRUCTURE, location);
                    let Some(entry) = self.report.ok(entry) else { continue };
                    self.check_table_entry(nid, entry, location.at_byte(byte), &mut inodes);
                }
            }
        }
        for nid in INODES_WITHOUT_BLOCKS {
            self.check_inode_without_blocks(nid);
        }
        let journal = &self.volume.checkpoint().nat_journal;
        for (&nid, entry) in journal {
            let location = Location::block(self.pack()).in_inode(InodeNumber(nid.into()));
            let max = self.geometry().nid_count().saturating_sub(1);
            if u64::from(nid) > max {
                let problem =
                    Problem::Range { field: "node number", found: nid.into(), min: 1, max };
                self.report.corrupt("NAT journal", location, problem);
            } else if !INODES_WITHOUT_BLOCKS.contains(&nid) {
                self.check_nat_entry(nid, entry, location, &mut inodes);
            }
        }
        self.table_inodes = Rc::new(inodes);
    }

    fn check_table_entry(
        &mut self,
        nid: u32,
        entry: &RawNatEntry,
        location: Location,
        inodes: &mut Bits,
    ) {
        let is_overridden = self.volume.checkpoint().nat_journal.contains_key(&nid);
        if !is_overridden && !INODES_WITHOUT_BLOCKS.contains(&nid) {
            let location = location.in_inode(InodeNumber(nid.into()));
            self.check_nat_entry(nid, entry, location, inodes);
        }
    }

    fn check_nat_entry(
        &mut self,
        nid: u32,
        entry: &RawNatEntry,
        location: Location,
        inodes: &mut Bits,
    ) {
        let address = entry.block.get();
        if address == NULL_ADDRESS {
            return;
        }
        if nid == 0 || address == NEW_ADDRESS {
            let problem = Problem::Invalid { field: "block address", found: address.into() };
            return self.report.corrupt(STRUCTURE, location, problem);
        }
        let inode = entry.inode.get();
        let max = self.geometry().nid_count().saturating_sub(1);
        let min = self.geometry().root.0;
        if !(min..=max).contains(&inode.into()) {
            let problem = Problem::Range { field: "inode number", found: inode.into(), min, max };
            self.report.corrupt(STRUCTURE, location, problem);
        }
        let block = self.geometry().main_block(address, STRUCTURE, location);
        if self.report.ok(block).is_none() {
            self.has_unread_files = true;
            return;
        }
        self.table_nodes.insert(nid.into());
        if inode == nid {
            inodes.insert(nid.into());
        }
    }

    /// Checks the entry of an inode without blocks, which the journal does not have.
    fn check_inode_without_blocks(&mut self, nid: u32) {
        let (block, byte) = entry_position(self.geometry(), &self.volume.checkpoint(), Nid(nid));
        let location = Location::block(block).at_byte(byte as u64);
        let location = location.in_inode(InodeNumber(nid.into()));
        let entry = self.volume.metadata().read(block, STRUCTURE, location).and_then(|buffer| {
            Ok(view_at::<RawNatEntry>(&buffer, byte, STRUCTURE, location)?.clone())
        });
        let Some(entry) = self.report.ok(entry) else { return };
        let (found, expected) = (entry.block.get().into(), NO_BLOCK.into());
        self.report.compare(STRUCTURE, location, "block address", found, expected);
    }

    /// Returns the entry of a node number, from the journal or the table.
    pub(super) fn nat_entry(&self, nid: Nid, location: Location) -> Result<RawNatEntry> {
        if let Some(entry) = self.volume.checkpoint().nat_journal.get(&nid.0) {
            return Ok(entry.clone());
        }
        let (block, byte) = entry_position(self.geometry(), &self.volume.checkpoint(), nid);
        let buffer = self.volume.metadata().read(block, "NAT block", location)?;
        Ok(view_at::<RawNatEntry>(&buffer, byte, STRUCTURE, location)?.clone())
    }

    /// Reports nodes in use that their inodes do not refer to.
    pub(super) fn check_unreached_nodes(&mut self) {
        if self.has_unread_files {
            return;
        }
        for nid in self.table_nodes.without(&self.nodes) {
            if self.report.has_ended {
                return;
            }
            let nid = Nid(nid as u32);
            let location = Location::inode(InodeNumber(nid.0.into()));
            let entry = self.nat_entry(nid, location);
            if let Some(entry) = self.report.ok(entry) {
                let location = location.at_block(FsBlock(entry.block.get().into()));
                let problem = Problem::Missing("reference from its inode");
                self.report.corrupt(STRUCTURE, location, problem);
            }
        }
    }
}
