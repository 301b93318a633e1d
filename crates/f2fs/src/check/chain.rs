//! The check of the nodes that were synced after the checkpoint, and of the blocks that they refer
//! to. They are not recovered: their blocks must be free in the checkpoint, and their addresses in
//! the main area.

use base::view::view_at;
use base::{FsBlock, InodeNumber, Location};
use iomap::MetadataBuffer;

use super::Check;
use crate::features::Feature;
use crate::inode::record::InodeRecord;
use crate::nat::Nid;
use crate::node::{FLAG_BITS, Node, XATTR_POSITION, footer};
use crate::ondisk::node::{COMPRESS_ADDRESS, NEW_ADDRESS, NULL_ADDRESS, RawNodeFooter};
use crate::recovery::{self, ChainVersion};
use crate::summaries::BlockKind;

const STRUCTURE: &str = "synced node";

impl Check<'_> {
    /// Follows the chain of synced nodes, which ends at the first block that is none. Each block is
    /// claimed, so that a loop ends, too.
    pub(super) fn check_chain(&mut self) {
        // A volume that is never written has no log of warm nodes.
        if self.geometry().features.has(Feature::ReadOnly) {
            return;
        }
        let version = ChainVersion::of(&self.volume.checkpoint());
        let mut at = recovery::chain_start(self.volume);
        while self.geometry().main.contains(&at) && !self.report.has_ended {
            let location = Location::block(at);
            let read = self.volume.metadata().read(at, STRUCTURE, location);
            let Some(buffer) = self.report.ok(read) else { return };
            let Some(footer) = self.report.ok(footer(&buffer, location)).cloned() else { return };
            if !version.matches(footer.checkpoint_version.get())
                || recovery::is_torn(self.volume, &footer, &buffer)
            {
                return;
            }
            let location = location.in_inode(InodeNumber(footer.inode.get().into()));
            let blocks = self.counts.blocks;
            let is_new = self.claim_block(at, BlockKind::Node, location);
            // The checkpoint does not count it.
            self.counts.blocks = blocks;
            if !is_new {
                return;
            }
            self.check_synced_addresses(buffer, &footer, location);
            at = FsBlock(footer.next_block.get().into());
        }
    }

    fn check_synced_addresses(
        &mut self,
        buffer: MetadataBuffer,
        footer: &RawNodeFooter,
        location: Location,
    ) {
        let (nid, inode) = (footer.nid.get(), footer.inode.get());
        let position = footer.flags.get() >> FLAG_BITS;
        if position == XATTR_POSITION {
            return;
        }
        let mut area = (0, self.geometry().addresses_per_node());
        if nid == inode {
            let node = Node::new(buffer.clone(), Nid(nid), InodeNumber(inode.into()));
            let record = node.and_then(|node| InodeRecord::parse(&node, self.geometry()));
            let Some(record) = self.report.ok(record) else { return };
            if record.inline_area.is_some() || !record.attributes.is_file() {
                return;
            }
            area = (record.addresses_at, record.address_count);
        }
        let (start, count) = area;
        for index in 0..count as usize {
            let word = view_at::<zerocopy::little_endian::U32>(
                &buffer,
                start + index * 4,
                STRUCTURE,
                location,
            );
            let Some(address) = self.report.ok(word).map(|word| word.get()) else { return };
            if matches!(address, NULL_ADDRESS | NEW_ADDRESS | COMPRESS_ADDRESS) {
                continue;
            }
            let block = self.geometry().main_block(address, STRUCTURE, location);
            if self.report.ok(block).is_none() {
                return;
            }
        }
    }
}
