//! Where the structures of an f2fs image are, for changes of single fields, and their checksums. Independent of the
//! reader under test. Not here: checks, since the images are valid.

use std::ops::Range;

use super::BLOCK_SIZE;

/// The size of a block in bytes.
pub(super) const BLOCK: usize = BLOCK_SIZE as usize;
/// The offsets of both superblocks.
pub(super) const SUPERBLOCKS: [usize; 2] = [1024, BLOCK + 1024];
/// The offset of the checksum in an inode that has one.
const INODE_CHECKSUM: usize = 368;
/// The number of blocks in a segment.
pub(super) const SEGMENT: usize = 512;
/// The offset of the checksum in a superblock.
const SUPERBLOCK_CHECKSUM: usize = 3068;
/// The offset of an inode's addresses, before the extra attributes.
pub(super) const ADDRESSES: usize = 360;
/// The offset of the footer in a node.
pub(super) const FOOTER: usize = BLOCK - 24;

/// Returns two bytes at `at`.
pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns four bytes at `at`.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

fn double_word(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
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
pub(super) struct Layout {
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
        let superblock = &image[SUPERBLOCKS[0]..];
        let area = |at: usize| word(superblock, at) as usize * BLOCK;
        let segments = |at: usize| word(superblock, at) as usize * SEGMENT * BLOCK;
        let range = |start: usize, size: usize| area(start)..area(start) + segments(size);
        Self {
            checkpoints: area(76),
            segment_table: range(80, 56),
            node_table: range(84, 60),
            summaries: range(88, 64),
            main: range(92, 68),
            features: word(superblock, 2180),
            inode_seed: crc(u32::MAX, &superblock[108..124]),
        }
    }

    /// Returns the offset of the current checkpoint pack.
    pub fn checkpoint(&self, image: &[u8]) -> usize {
        let packs = [self.checkpoints, self.checkpoints + SEGMENT * BLOCK];
        let version = |pack: &usize| {
            let head = &image[*pack..*pack + BLOCK];
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
        let is_node = |at: &usize| {
            let footer = &image[at + FOOTER..at + BLOCK];
            let [number, inode, flags] = [0, 4, 8].map(|at| word(footer, at));
            // The other half of a version is a checksum, or zero. mkfs.f2fs writes version 1.
            let age = version.wrapping_sub(word(footer, 12));
            let is_recent = age < 1000 || word(footer, 12) == 1;
            let are_numbers = [number, inode].iter().all(|number| (1..1 << 24).contains(number));
            are_numbers && flags < 1 << 28 && is_recent
        };
        self.main.clone().step_by(BLOCK).filter(is_node).collect()
    }

    /// Returns the offsets of directory blocks, of directories with blocks that their inodes map.
    pub fn directory_blocks(&self, image: &[u8]) -> Vec<usize> {
        let mut blocks = Vec::new();
        for at in self.nodes(image) {
            let node = &image[at..at + BLOCK];
            let is_directory = is_inode(node) && half(node, 0) & 0xF000 == 0x4000;
            let has_blocks = node[3] & INLINE_DENTRIES == 0;
            if !is_directory || !has_blocks {
                continue;
            }
            let first = ADDRESSES + extra_bytes(node);
            let addresses =
                (first..first + 400).step_by(4).map(|at| word(node, at) as usize * BLOCK);
            blocks.extend(addresses.filter(|address| self.main.contains(address)));
        }
        blocks
    }

    /// Returns the offsets of the first two blocks of each quota file.
    pub fn quota_files(&self, image: &[u8]) -> Vec<[usize; 2]> {
        let numbers = [2745, 2749, 2753].map(|at| word(image, SUPERBLOCKS[0] + at));
        let mut files = Vec::new();
        for number in numbers.into_iter().filter(|number| *number != 0) {
            let nodes = self.nodes(image);
            let own = nodes.into_iter().filter(|at| {
                is_inode(&image[*at..at + BLOCK]) && word(image, at + FOOTER) == number
            });
            // The block that was written last.
            files.extend(own.max_by_key(|at| word(image, at + FOOTER + 12)).map(|at| {
                let first = at + ADDRESSES + extra_bytes(&image[at..]);
                [0, 4].map(|word_at| word(image, first + word_at) as usize * BLOCK)
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

    /// Corrects the checksum of the node at `at`, if it is an inode that has one.
    pub fn mend_node(&self, image: &mut [u8], at: usize) {
        const CHECKED_INODES: u32 = 0x20;
        let node = &mut image[at..at + BLOCK];
        if self.features & CHECKED_INODES == 0 || !is_inode(node) || extra_bytes(node) < 12 {
            return;
        }
        set_word(node, INODE_CHECKSUM, 0);
        let number = crc(self.inode_seed, &node[FOOTER + 4..FOOTER + 8]);
        let generation = crc(number, &node[68..72]);
        let sum = crc(generation, node);
        set_word(node, INODE_CHECKSUM, sum);
    }
}

/// The bit of an inode whose directory entries are in it.
pub(super) const INLINE_DENTRIES: u8 = 4;
/// The bit of an inode with extra attributes.
const EXTRA_ATTRIBUTES: u8 = 0x20;

/// Returns whether a node is an inode.
pub(super) fn is_inode(node: &[u8]) -> bool {
    word(node, FOOTER) == word(node, FOOTER + 4)
}

/// Returns the size of an inode's extra attributes in bytes.
pub(super) fn extra_bytes(inode: &[u8]) -> usize {
    if inode[3] & EXTRA_ATTRIBUTES == 0 { 0 } else { usize::from(half(inode, ADDRESSES)).min(36) }
}

/// Returns the offset of the checksum in the head of a checkpoint.
fn checksum_offset(head: &[u8]) -> usize {
    (word(head, 164) as usize).clamp(192, BLOCK - 4)
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
        for at in SUPERBLOCKS {
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
}
