//! Where the structures of an f2fs image are, for changes of single fields, and their checksums.
//! Independent of the reader under test. Not here: checks, since the images are valid.

use std::collections::HashSet;
use std::ops::Range;

use super::BLOCK_SIZE;

/// The usual size of a block in bytes.
pub(super) const BLOCK: usize = BLOCK_SIZE as usize;
/// The offset of the first superblock. That of the second one is larger by a block.
pub(super) const SUPERBLOCK: usize = 1024;
/// The offset of the checksum in an inode that has one.
const INODE_CHECKSUM: usize = 368;
/// The size of the extra attributes of an inode that has one.
const CHECKED_BYTES: usize = 12;
/// The size of an entry of the node address table.
pub(super) const NODE_ENTRY: usize = 9;
/// The number of blocks in a segment.
pub(super) const SEGMENT: usize = 512;
/// The offset of the checksum in a superblock.
const SUPERBLOCK_CHECKSUM: usize = 3068;
/// The offset of an inode's addresses, before the extra attributes.
pub(super) const ADDRESSES: usize = 360;
/// The flags in a footer that precede the position of the node.
pub(super) const FLAG_BITS: u32 = 3;
/// The position of nodes with extended attributes.
pub(super) const XATTR_POSITION: u32 = u32::MAX >> FLAG_BITS;
/// The size of the footer of a node.
const FOOTER_BYTES: usize = 24;
/// The offset of the footer in a node of the usual size.
pub(super) const FOOTER: usize = BLOCK - FOOTER_BYTES;

/// Returns two bytes at `at`.
pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns four bytes at `at`.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

pub(super) fn double_word(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

pub(super) fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Continues a CRC-32 with the reflected polynomial of IEEE 802.3, without inversions.
fn crc(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xEDB8_8320))
    })
}

/// The seed of all checksums but that of inodes: the magic number.
const SEED: u32 = 0xF2F5_2010;

/// The offsets of an image's areas, in bytes.
#[derive(Debug)]
pub(super) struct Layout {
    /// The size of a block.
    pub block: usize,
    pub checkpoints: usize,
    pub segment_table: Range<usize>,
    pub node_table: Range<usize>,
    pub summaries: Range<usize>,
    pub main: Range<usize>,
    features: u32,
    /// The seed of the checksums of inodes.
    inode_seed: u32,
}

impl Layout {
    /// Returns the layout of a valid image.
    pub fn of(image: &[u8]) -> Self {
        let superblock = &image[SUPERBLOCK..];
        let block = 1 << word(superblock, 16);
        let area = |at: usize| word(superblock, at) as usize * block;
        let segments = |at: usize| word(superblock, at) as usize * SEGMENT * block;
        let range = |start: usize, size: usize| area(start)..area(start) + segments(size);
        Self {
            block,
            checkpoints: area(76),
            segment_table: range(80, 56),
            node_table: range(84, 60),
            summaries: range(88, 64),
            main: range(92, 68),
            features: word(superblock, 2180),
            inode_seed: crc(u32::MAX, &superblock[108..124]),
        }
    }

    /// Returns the offsets of both superblocks.
    pub fn superblocks(&self) -> [usize; 2] {
        [SUPERBLOCK, self.block + SUPERBLOCK]
    }

    /// Returns the offset of the footer in a node.
    pub fn footer(&self) -> usize {
        self.block - FOOTER_BYTES
    }

    /// Returns whether a node is an inode.
    pub fn is_inode(&self, node: &[u8]) -> bool {
        word(node, self.footer()) == word(node, self.footer() + 4)
    }

    /// Returns the offset of the current checkpoint pack.
    pub fn checkpoint(&self, image: &[u8]) -> usize {
        let packs = [self.checkpoints, self.checkpoints + SEGMENT * self.block];
        let version = |pack: &usize| {
            let head = &image[*pack..*pack + self.block];
            if checkpoint_checksum(head) == word(head, checksum_offset(head)) {
                double_word(head, 0)
            } else {
                0
            }
        };
        packs.into_iter().max_by_key(version).unwrap_or(self.checkpoints)
    }

    /// Returns the offsets of all nodes of the main area that checkpoints up to now may refer to.
    pub fn nodes(&self, image: &[u8]) -> Vec<usize> {
        let checkpoint = self.checkpoint(image);
        let version = word(image, checkpoint);
        let listed = self.listed_nodes(image);
        let is_node = |at: &usize| {
            let footer = &image[at + self.footer()..at + self.block];
            let [number, inode, flags] = [0, 4, 8].map(|at| word(footer, at));
            // The other half of a version is a checksum, or zero. mkfs.f2fs writes version 1.
            let age = version.wrapping_sub(word(footer, 12));
            // Bifolio writes version 0, and has all of its nodes in the table.
            let is_recent = match word(footer, 12) {
                0 => listed.contains(&((at / self.block) as u32)),
                version => age < 1000 || version == 1,
            };
            let are_numbers = [number, inode].iter().all(|number| (1..1 << 24).contains(number));
            let is_position = flags < 1 << 28 || flags >> FLAG_BITS == XATTR_POSITION;
            are_numbers && is_position && is_recent
        };
        self.main.clone().step_by(self.block).filter(is_node).collect()
    }

    /// Returns the blocks in the entries of the node address table, in both copies.
    fn listed_nodes(&self, image: &[u8]) -> HashSet<u32> {
        let blocks = image[self.node_table.clone()].chunks(self.block);
        let entries = blocks.flat_map(|block| block.chunks_exact(NODE_ENTRY));
        entries.map(|entry| word(entry, 5)).filter(|block| *block != 0).collect()
    }

    /// Returns the offsets of directory blocks, of directories with blocks that their inodes map.
    pub fn directory_blocks(&self, image: &[u8], nodes: &[usize]) -> Vec<usize> {
        let mut blocks = Vec::new();
        for &at in nodes {
            let node = &image[at..at + self.block];
            let is_directory = self.is_inode(node) && half(node, 0) & 0xF000 == 0x4000;
            let has_blocks = node[3] & INLINE_DENTRIES == 0;
            if !is_directory || !has_blocks {
                continue;
            }
            let first = ADDRESSES + extra_bytes(node);
            let addresses =
                (first..first + 400).step_by(4).map(|at| word(node, at) as usize * self.block);
            blocks.extend(addresses.filter(|address| self.main.contains(address)));
        }
        blocks
    }

    /// Returns the offsets of the first two blocks of each quota file.
    pub fn quota_files(&self, image: &[u8], nodes: &[usize]) -> Vec<[usize; 2]> {
        let numbers = [2745, 2749, 2753].map(|at| word(image, SUPERBLOCK + at));
        let mut files = Vec::new();
        for number in numbers.into_iter().filter(|number| *number != 0) {
            let own = nodes.iter().copied().filter(|at| {
                self.is_inode(&image[*at..at + self.block])
                    && word(image, at + self.footer()) == number
            });
            // The block that was written last.
            files.extend(own.max_by_key(|at| word(image, at + self.footer() + 12)).map(|at| {
                let first = at + ADDRESSES + extra_bytes(&image[at..]);
                [0, 4].map(|word_at| word(image, first + word_at) as usize * self.block)
            }));
        }
        files
    }

    /// Corrects the checksums of the superblock at `at`, if it has one.
    pub fn mend_superblock(&self, image: &mut [u8], at: usize) {
        const SB_CHECKSUM: u32 = 0x800;
        if self.features & SB_CHECKSUM != 0 {
            let sum = crc(SEED, &image[at..at + SUPERBLOCK_CHECKSUM]);
            set_word(image, at + SUPERBLOCK_CHECKSUM, sum);
        }
    }

    /// Changes the inode of the file with this name, of which the volume has one, and corrects its
    /// checksum. Older versions of the inode may be among the nodes. They are changed, too.
    pub fn change_inodes(&self, image: &mut [u8], name: &[u8], change: impl Fn(&mut [u8])) {
        let mut found = false;
        for at in self.nodes(image) {
            let node = &mut image[at..at + self.block];
            let has_name =
                word(node, NAME) as usize == name.len() && node[NAME + 4..].starts_with(name);
            if self.is_inode(node) && has_name {
                found = true;
                change(node);
                self.mend_node(image, at);
            }
        }
        assert!(found, "a file with this name");
    }

    fn has_checked_inodes(&self) -> bool {
        const CHECKED_INODES: u32 = 0x20;
        self.features & CHECKED_INODES != 0
    }

    /// Returns whether an inode has no checksum although those of the volume have one.
    pub fn lacks_checksum(&self, inode: &[u8]) -> bool {
        let size = usize::from(half(inode, ADDRESSES));
        let has_checksum = inode[3] & EXTRA_ATTRIBUTES != 0
            && (CHECKED_BYTES..=EXTRA_BYTES_MAX).contains(&size)
            && size % 4 == 0;
        self.has_checked_inodes() && !has_checksum
    }

    /// Corrects the checksum of the node at `at`, if it is an inode that has one.
    pub fn mend_node(&self, image: &mut [u8], at: usize) {
        let node = &mut image[at..at + self.block];
        if !self.has_checked_inodes() || !self.is_inode(node) || extra_bytes(node) < CHECKED_BYTES {
            return;
        }
        set_word(node, INODE_CHECKSUM, 0);
        let number = crc(self.inode_seed, &node[self.footer() + 4..self.footer() + 8]);
        let generation = crc(number, &node[68..72]);
        let sum = crc(generation, node);
        set_word(node, INODE_CHECKSUM, sum);
    }
}

/// The offset of a file's size in its inode.
pub(super) const SIZE: usize = 16;
/// The offset of the length of a file's name. The name follows.
const NAME: usize = 88;
/// The bit of an inode whose directory entries are in it.
pub(super) const INLINE_DENTRIES: u8 = 4;
/// The bit of an inode with extra attributes.
const EXTRA_ATTRIBUTES: u8 = 0x20;
/// The maximum size of extra attributes in bytes.
const EXTRA_BYTES_MAX: usize = 36;

/// Returns the size of an inode's extra attributes in bytes.
pub(super) fn extra_bytes(inode: &[u8]) -> usize {
    let size = usize::from(half(inode, ADDRESSES)).min(EXTRA_BYTES_MAX);
    if inode[3] & EXTRA_ATTRIBUTES == 0 { 0 } else { size }
}

/// Returns the offset of the checksum in the head of a checkpoint.
fn checksum_offset(head: &[u8]) -> usize {
    (word(head, 164) as usize).clamp(192, head.len() - 4)
}

fn checkpoint_checksum(head: &[u8]) -> u32 {
    let at = checksum_offset(head);
    crc(crc(SEED, &head[..at]), &head[at + 4..])
}

/// Corrects the checksum of the head of a checkpoint.
pub(super) fn mend_checkpoint(head: &mut [u8]) {
    let sum = checkpoint_checksum(head);
    let at = checksum_offset(head);
    set_word(head, at, sum);
}

#[cfg(test)]
mod tests {
    use vfs::{Credentials, Privileges, VolumeOptions, XattrMode};

    use super::*;
    use crate::f2fs::Kind;
    use crate::must;

    #[test]
    fn the_checksum_is_that_of_the_standard_without_inversions() {
        assert_eq!(!crc(u32::MAX, b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn checksums_are_those_of_mkfs() {
        let folder = must(tempfile::TempDir::new(), "a folder");
        let path = folder.path().join("image");
        Kind::named("attributes").make(&path, 64);
        let image = must(std::fs::read(&path), path.display());
        let layout = Layout::of(&image);
        let nodes = layout.nodes(&image);
        assert!(!nodes.is_empty());
        let mut mended = image.clone();
        // Each checksum must be restored, not only kept.
        for at in layout.superblocks() {
            mended[at + SUPERBLOCK_CHECKSUM] ^= 1;
            layout.mend_superblock(&mut mended, at);
        }
        for at in nodes {
            mended[at + INODE_CHECKSUM] ^= 1;
            layout.mend_node(&mut mended, at);
        }
        let head = layout.checkpoint(&image);
        let sum = head + checksum_offset(&image[head..]);
        mended[sum] ^= 1;
        mend_checkpoint(&mut mended[head..head + BLOCK]);
        assert!(mended == image, "a checksum is not that of mkfs.f2fs");
    }

    #[test]
    fn nodes_with_extended_attributes_are_among_all() {
        let folder = must(tempfile::TempDir::new(), "a folder");
        let path = folder.path().join("image");
        Kind::named("plain").make(&path, 64);
        let volume = must(VolumeOptions::new().writable(true).open(&path), path.display());
        let file = must(volume.create_file(b"/file", 0o644, &Credentials::ROOT), "a file");
        let set = file.set_xattr(b"user.large", &[1; 3000], XattrMode::Either, Privileges::Keep);
        must(set, "an attribute");
        must(volume.close(), "closing");
        let image = must(std::fs::read(&path), path.display());
        let layout = Layout::of(&image);
        let position = |at: usize| word(&image, at + layout.footer() + 8) >> FLAG_BITS;
        let nodes = layout.nodes(&image);
        assert_eq!(nodes.into_iter().filter(|at| position(*at) == XATTR_POSITION).count(), 1);
    }
}
