//! The check of addresses of data: in the main area, of one owner only, and with their summaries.

use base::{FileBlock, FsBlock, Location, Problem};
use smallvec::SmallVec;

use super::Check;
use super::inodes::File;
use super::nodes::VersionedNode;
use super::owners::Owner;
use crate::compress::Cluster;
use crate::ondisk::node::{COMPRESS_ADDRESS, NEW_ADDRESS, NULL_ADDRESS};
use crate::summaries::BlockKind;

const STRUCTURE: &str = "block map";

/// A slot of a node with the address of data.
#[derive(Clone, Copy)]
struct Slot {
    nid: u32,
    version: u8,
    index: u32,
    location: Location,
}

impl Check<'_> {
    /// Checks `count` addresses of a node from byte `at` on. The first one is that of block `start` of the file. Reports the
    /// first invalid address of the node.
    pub(super) fn check_addresses(
        &mut self,
        file: &mut File<'_>,
        read: &VersionedNode,
        at: usize,
        count: u32,
        start: u64,
    ) {
        let (node, version) = (&read.node, read.version);
        let mut is_reported = false;
        // The first block of the last compressed cluster.
        let mut cluster = None;
        for (index, address) in (0..count).zip(node.words(at, 0, count)) {
            if address == NULL_ADDRESS {
                continue;
            }
            if self.report.has_ended {
                return;
            }
            let block = FileBlock(start + u64::from(index));
            let location = node.location().at_file_block(block);
            let slot = Slot { nid: node.nid.0, version, index, location };
            match address {
                COMPRESS_ADDRESS => {
                    let slots: SmallVec<[u32; 16]> = match file.record.compression {
                        Some(compression) => {
                            node.words(at, index, compression.cluster_size.blocks()).collect()
                        }
                        None => SmallVec::new(),
                    };
                    if self.check_cluster(file, block, &slots, location) {
                        cluster = Some(block);
                    }
                }
                NEW_ADDRESS => {
                    file.blocks += 1;
                    self.counts.blocks += 1;
                    let size = file.record.compression.map(|compression| compression.cluster_size);
                    let of_cluster = size.map(|size| size.first_block(block));
                    if cluster.is_some() && of_cluster == cluster && !file.is_released {
                        file.saved_blocks += 1;
                    }
                }
                address => {
                    file.extent.see(block, FsBlock(address.into()));
                    match self.geometry().main_block(address, STRUCTURE, location) {
                        Ok(address) => self.check_data_block(file, block, address, slot),
                        Err(error) if !is_reported => {
                            self.report.add(error);
                            is_reported = true;
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }

    /// Checks a compressed cluster with these addresses, which begins at `first`. Returns false if it is not one.
    fn check_cluster(
        &mut self,
        file: &mut File<'_>,
        first: FileBlock,
        slots: &[u32],
        location: Location,
    ) -> bool {
        let size = file.record.compression.map(|compression| compression.cluster_size);
        if size.map(|size| size.first_block(first)) != Some(first) {
            let found = COMPRESS_ADDRESS.into();
            let problem = Problem::Invalid { field: "address", found };
            self.report.corrupt(STRUCTURE, location, problem);
            return false;
        }
        let main = &self.geometry().main;
        self.report.ok(Cluster::parse(slots, first, main, location));
        if !file.is_released {
            file.blocks += 1;
            file.saved_blocks += 1;
            self.counts.blocks += 1;
        }
        true
    }

    fn check_data_block(
        &mut self,
        file: &mut File<'_>,
        block: FileBlock,
        address: FsBlock,
        slot: Slot,
    ) {
        let Slot { nid, version, index, location } = slot;
        let location = location.at_block(address);
        file.blocks += 1;
        self.quota.see_block(file.number(), block, address);
        let is_new = self.claim_block(address, BlockKind::Data, location);
        let owner = Owner { kind: BlockKind::Data, nid, version, index };
        self.check_owner(address, owner, location);
        // A block of several owners is read once.
        if is_new && file.directory.is_some() {
            let read = self.volume.metadata().read(address, "directory block", location);
            if let Some(buffer) = self.report.ok(read) {
                self.check_dentries(file, &buffer, location, Some(block));
            }
        }
    }
}
