//! Encoding of a transaction as blocks of a log. Not here: where in the log they are written, and
//! when.
//!
//! Source: Linux kernel documentation, filesystems/ext4/journal.rst.

use std::time::Duration;

use base::checksum::crc32c;
use base::{BlockSize, FsBlock, TransactionId};
use iomap::BlockContents;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::ondisk::{self, RawCommit, RawHeader, RawRevokeHeader, RawTag, RawTag3};
use super::superblock::{JournalFeatures, JournalSuperblock};

/// The length of the UUID that follows the first tag of a descriptor block.
const UUID_BYTES: usize = 16;

/// The encoder of transactions for the log of one journal.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    features: JournalFeatures,
    block_bytes: usize,
    uuid: [u8; UUID_BYTES],
    seed: u32,
}

/// The log blocks of a transaction.
pub(super) struct Encoded {
    /// Revoke blocks, descriptor blocks and copies, in order.
    pub body: Vec<BlockContents>,
    /// The commit block, which makes the transaction complete.
    pub commit: BlockContents,
}

impl Encoder {
    pub(super) fn new(superblock: &JournalSuperblock, block_size: BlockSize) -> Self {
        Self {
            features: superblock.features,
            block_bytes: block_size.len(),
            uuid: superblock.uuid,
            seed: superblock.checksum_seed,
        }
    }

    /// Encodes transaction `id`, which changes `blocks` and revokes `revoked`. `time` is the time
    /// since 1970.
    pub(super) fn encode(
        &self,
        id: TransactionId,
        blocks: &[(FsBlock, BlockContents)],
        revoked: &[FsBlock],
        time: Duration,
    ) -> Encoded {
        let mut body = Vec::with_capacity(self.length(blocks.len(), revoked.len()));
        for part in revoked.chunks(self.revokes_per_block()) {
            body.push(self.revoke_block(id, part));
        }
        for part in blocks.chunks(self.tags_per_block()) {
            let copies: Vec<(FsBlock, BlockContents, bool)> =
                part.iter().map(|(block, contents)| escape(*block, contents)).collect();
            body.push(self.descriptor_block(id, &copies));
            body.extend(copies.into_iter().map(|(_, contents, _)| contents));
        }
        Encoded { body, commit: self.commit_block(id, time) }
    }

    /// Returns the number of log blocks of a transaction, including its commit block.
    pub(super) fn length(&self, blocks: usize, revoked: usize) -> usize {
        let descriptors = blocks.div_ceil(self.tags_per_block());
        blocks + descriptors + revoked.div_ceil(self.revokes_per_block()) + 1
    }

    fn tail_bytes(&self) -> usize {
        if self.features.has_block_checksums() { ondisk::BLOCK_TAIL_BYTES } else { 0 }
    }

    fn tag_bytes(&self) -> usize {
        if self.features.checksum_v3 {
            return size_of::<RawTag3>();
        }
        let high = if self.features.block_numbers_64 { 4 } else { 0 };
        let padding = if self.features.checksum_v2 { 2 } else { 0 };
        size_of::<RawTag>() + high + padding
    }

    fn tags_per_block(&self) -> usize {
        let room = self.block_bytes - size_of::<RawHeader>() - self.tail_bytes() - UUID_BYTES;
        room / self.tag_bytes()
    }

    fn revoke_bytes(&self) -> usize {
        if self.features.block_numbers_64 { 8 } else { 4 }
    }

    fn revokes_per_block(&self) -> usize {
        let room = self.block_bytes - size_of::<RawRevokeHeader>() - self.tail_bytes();
        room / self.revoke_bytes()
    }

    fn header(&self, kind: u32, id: TransactionId) -> RawHeader {
        RawHeader {
            h_magic: ondisk::MAGIC.into(),
            h_blocktype: kind.into(),
            h_sequence: id.0.into(),
        }
    }

    fn revoke_block(&self, id: TransactionId, revoked: &[FsBlock]) -> BlockContents {
        let mut bytes = Vec::with_capacity(self.block_bytes);
        let used = size_of::<RawRevokeHeader>() + revoked.len() * self.revoke_bytes();
        let header = RawRevokeHeader {
            r_header: self.header(ondisk::BLOCK_REVOKE, id),
            // A block has at most 64 KiB.
            r_count: (used as u32).into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        for block in revoked {
            if self.features.block_numbers_64 {
                bytes.extend_from_slice(U64::new(block.0).as_bytes());
            } else {
                bytes.extend_from_slice(U32::new(block.0 as u32).as_bytes());
            }
        }
        self.seal(bytes)
    }

    fn descriptor_block(
        &self,
        id: TransactionId,
        copies: &[(FsBlock, BlockContents, bool)],
    ) -> BlockContents {
        let mut bytes = Vec::with_capacity(self.block_bytes);
        bytes.extend_from_slice(self.header(ondisk::BLOCK_DESCRIPTOR, id).as_bytes());
        let seed = crc32c(self.seed, &id.0.to_be_bytes());
        for (index, (block, contents, escaped)) in copies.iter().enumerate() {
            let mut flags = 0;
            for (set, flag) in [
                (*escaped, ondisk::TAG_ESCAPED),
                (index > 0, ondisk::TAG_SAME_UUID),
                (index + 1 == copies.len(), ondisk::TAG_LAST),
            ] {
                flags |= if set { flag } else { 0 };
            }
            let checksum =
                if self.features.has_block_checksums() { crc32c(seed, contents) } else { 0 };
            self.push_tag(&mut bytes, *block, flags, checksum);
            if index == 0 {
                bytes.extend_from_slice(&self.uuid);
            }
        }
        self.seal(bytes)
    }

    fn push_tag(&self, bytes: &mut Vec<u8>, block: FsBlock, flags: u16, checksum: u32) {
        let wide = self.features.block_numbers_64;
        let (low, high) = (block.0 as u32, (block.0 >> 32) as u32);
        if self.features.checksum_v3 {
            let tag = RawTag3 {
                t_blocknr: low.into(),
                t_flags: u32::from(flags).into(),
                t_blocknr_high: if wide { high } else { 0 }.into(),
                t_checksum: checksum.into(),
            };
            return bytes.extend_from_slice(tag.as_bytes());
        }
        let tag = RawTag {
            t_blocknr: low.into(),
            t_checksum: (checksum as u16).into(),
            t_flags: flags.into(),
        };
        let end = bytes.len() + self.tag_bytes();
        bytes.extend_from_slice(tag.as_bytes());
        if wide {
            bytes.extend_from_slice(U32::new(high).as_bytes());
        }
        bytes.resize(end, 0);
    }

    fn commit_block(&self, id: TransactionId, time: Duration) -> BlockContents {
        let mut raw = RawCommit::new_zeroed();
        raw.h_header = self.header(ondisk::BLOCK_COMMIT, id);
        raw.h_commit_sec = time.as_secs().into();
        raw.h_commit_nsec = time.subsec_nanos().into();
        let mut bytes = vec![0; self.block_bytes];
        bytes[..size_of::<RawCommit>()].copy_from_slice(raw.as_bytes());
        if self.features.has_block_checksums() {
            let at = std::mem::offset_of!(RawCommit, h_chksum);
            let checksum = crc32c(self.seed, &bytes);
            bytes[at..at + 4].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes.into()
    }

    /// Completes a descriptor or revoke block with zeroes, and with its checksum at the end.
    fn seal(&self, mut bytes: Vec<u8>) -> BlockContents {
        bytes.resize(self.block_bytes, 0);
        if self.features.has_block_checksums() {
            let checksum = crc32c(self.seed, &bytes);
            let at = self.block_bytes - ondisk::BLOCK_TAIL_BYTES;
            bytes[at..].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes.into()
    }
}

/// Returns the copy of a block for the log, and whether it is escaped. In the log, only control
/// blocks begin with the magic number, so a copy that begins with it is escaped: the number is
/// replaced by zeroes.
fn escape(block: FsBlock, contents: &BlockContents) -> (FsBlock, BlockContents, bool) {
    let magic = ondisk::MAGIC.to_be_bytes();
    if !contents.starts_with(&magic) {
        return (block, contents.clone(), false);
    }
    let mut copy = contents.to_vec();
    copy[..magic.len()].fill(0);
    (block, copy.into(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_do_not_begin_with_the_magic_number() {
        let mut contents = vec![7; 1024];
        contents[..4].copy_from_slice(&ondisk::MAGIC.to_be_bytes());
        let (_, copy, escaped) = escape(FsBlock(5), &contents.into());
        assert!(escaped && copy[..5] == [0, 0, 0, 0, 7]);
        let (_, copy, escaped) = escape(FsBlock(5), &vec![7; 1024].into());
        assert!(!escaped && copy[..] == [7; 1024]);
    }
}
