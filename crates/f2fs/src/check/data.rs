//! The check of addresses of data: in the main area, of one owner only, and with their summaries.
//! Of compressed clusters, the headers are read.

use base::{FileBlock, FsBlock, Location, Problem};
use smallvec::SmallVec;

use super::Check;
use super::inodes::File;
use super::nodes::VersionedNode;
use super::owners::Owner;
use crate::compress::{Cluster, check_header};
use crate::ondisk::cluster::COMPRESS_CHECKSUM;
use crate::ondisk::node::{COMPRESS_ADDRESS, NEW_ADDRESS, NULL_ADDRESS};
use crate::summaries::BlockKind;

const STRUCTURE: &str = "block map";

/// A compressed cluster.
#[derive(Clone, Copy)]
struct Compressed {
    /// The first block of the file, whose slot has the mark.
    first: FileBlock,
    /// The number of blocks with compressed data, if the addresses are those of a cluster.
    stored: Option<u64>,
}

/// A slot of a node with the address of data.
#[derive(Clone, Copy)]
struct Slot {
    nid: u32,
    version: u8,
    index: u32,
    location: Location,
}

impl Check<'_> {
    /// Checks `count` addresses of a node from byte `at` on. The first one is that of block `start`
    /// of the file. Reports the first invalid address of the node.
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
        let mut cluster: Option<Compressed> = None;
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
                    cluster = self.check_cluster(file, block, &slots, location).or(cluster);
                }
                NEW_ADDRESS => {
                    file.blocks += 1;
                    self.counts.blocks += 1;
                    let size = file.record.compression.map(|compression| compression.cluster_size);
                    let of_cluster = size.map(|size| size.first_block(block));
                    let is_saved =
                        of_cluster.is_some() && of_cluster == cluster.map(|cluster| cluster.first);
                    if is_saved && !file.is_released {
                        file.saved_blocks += 1;
                    }
                }
                address => {
                    file.extent.see(block, FsBlock(address.into()));
                    match self.geometry().main_block(address, STRUCTURE, location) {
                        Ok(address) => {
                            if self.check_data_block(file, block, address, slot) {
                                self.check_header(file, cluster, block, address);
                            }
                        }
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

    /// Checks a compressed cluster with these addresses, which begins at `first`. Returns `None` if
    /// no cluster begins there.
    fn check_cluster(
        &mut self,
        file: &mut File<'_>,
        first: FileBlock,
        slots: &[u32],
        location: Location,
    ) -> Option<Compressed> {
        let size = file.record.compression.map(|compression| compression.cluster_size);
        if size.map(|size| size.first_block(first)) != Some(first) {
            let found = COMPRESS_ADDRESS.into();
            let problem = Problem::Invalid { field: "address", found };
            self.report.corrupt(STRUCTURE, location, problem);
            return None;
        }
        let main = &self.geometry().main;
        let stored = match self.report.ok(Cluster::parse(slots, first, main, location)) {
            Some(Cluster::Compressed(blocks)) => Some(blocks.len() as u64),
            _ => None,
        };
        if !file.is_released {
            file.blocks += 1;
            file.saved_blocks += 1;
            self.counts.blocks += 1;
        }
        Some(Compressed { first, stored })
    }

    /// Checks the header of a compressed cluster, if `block` of the file, at `address`, is the
    /// first one with its data.
    fn check_header(
        &mut self,
        file: &File<'_>,
        cluster: Option<Compressed>,
        block: FileBlock,
        address: FsBlock,
    ) {
        let Some(Compressed { first, stored: Some(stored) }) = cluster else { return };
        let Some(compression) = file.record.compression else { return };
        // The key of encrypted data is not needed for the check.
        if block.0 != first.0 + 1 || file.record.is_encrypted {
            return;
        }
        let block_size = self.geometry().block_size;
        let mut bytes = vec![0; block_size.len()];
        let read = self.volume.device().read_at(self.geometry().device_offset(address), &mut bytes);
        if self.report.ok(read).is_none() {
            return;
        }
        let has_checksums = compression.flags & COMPRESS_CHECKSUM != 0;
        let stored_bytes = stored << block_size.shift();
        if let Err(problem) = check_header(&bytes, stored_bytes, has_checksums) {
            let location = file.location().at_file_block(first).at_block(address);
            self.report.corrupt("compressed cluster", location, problem);
        }
    }

    /// Checks a block of data. Returns whether no other owner of it was found before.
    fn check_data_block(
        &mut self,
        file: &mut File<'_>,
        block: FileBlock,
        address: FsBlock,
        slot: Slot,
    ) -> bool {
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
        is_new
    }
}
