//! The first files of a volume: the root directory, and lost+found in it. Their nodes, and their
//! blocks with entries.

use base::checksum::crc32_le;
use f2fs::Feature;
use f2fs::dir::hash::name_hash;
use f2fs::ondisk::dentry::{DentryLayout, RawDentry, SLOT_NAME_BYTES};
use f2fs::ondisk::node::{RawExtraAttributes, RawInode, RawNodeFooter};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::areas::Areas;
use super::{HOT_DATA, HOT_NODES, MakeOptions};

/// The number of the root directory.
const ROOT: u32 = 3;
/// The number of lost+found.
const LOST_FOUND: u32 = ROOT + 1;
/// The code of a directory in entries.
const DIRECTORY: u8 = 2;
/// The bit of inodes with extra attributes.
const EXTRA_ATTRIBUTES: u8 = 0x20;
/// The words for extended attributes in each inode, unless the volume has inodes with different
/// numbers.
const INLINE_XATTR_WORDS: u16 = 50;

/// The first directories. Directory `n` has node number `3 + n`, block `n` of the log of hot nodes,
/// and block `n` of the log of hot data.
pub(super) struct Files {
    /// Addresses and contents of the blocks.
    blocks: Vec<(u32, Vec<u8>)>,
    /// Node numbers and addresses of the inodes.
    inodes: Vec<(u32, u32)>,
}

impl Files {
    pub fn new(options: &MakeOptions, areas: &Areas) -> Self {
        let mut files = Self { blocks: Vec::new(), inodes: Vec::new() };
        let has_lost_found = options.has(Feature::LostFound);
        let lost_found = has_lost_found.then_some((&b"lost+found"[..], LOST_FOUND));
        let in_root = lost_found.as_slice();
        files.add(
            options,
            areas,
            Directory { number: ROOT, name: b"/", mode: 0o755, entries: in_root },
        );
        if let Some((name, number)) = lost_found {
            files.add(options, areas, Directory { number, name, mode: 0o700, entries: &[] });
        }
        files
    }

    fn add(&mut self, options: &MakeOptions, areas: &Areas, directory: Directory<'_>) {
        let offset = self.inodes.len() as u32;
        let data = areas.block(areas.log_segments[HOT_DATA], offset);
        let node = areas.block(areas.log_segments[HOT_NODES], offset);
        self.blocks.push((data, directory.block(options)));
        self.blocks.push((node, directory.inode(options, data, node + 1)));
        self.inodes.push((directory.number, node));
    }

    /// Returns addresses and contents of the blocks.
    pub fn blocks(&self) -> &[(u32, Vec<u8>)] {
        &self.blocks
    }

    /// Returns node numbers and addresses of the inodes.
    pub fn inodes(&self) -> &[(u32, u32)] {
        &self.inodes
    }

    /// Returns the number of blocks that are in use in a log.
    pub fn blocks_in(&self, log: usize) -> u16 {
        if [HOT_DATA, HOT_NODES].contains(&log) { self.inodes.len() as u16 } else { 0 }
    }
}

/// A directory in the root directory, or that itself.
struct Directory<'a> {
    number: u32,
    name: &'a [u8],
    mode: u16,
    /// Names and node numbers of the directories in it.
    entries: &'a [(&'a [u8], u32)],
}

impl Directory<'_> {
    /// Returns the block with the entries.
    fn block(&self, options: &MakeOptions) -> Vec<u8> {
        let mut block = vec![0; options.block_size.len()];
        let layout = DentryLayout::of(block.len());
        let fixed = [(&b"."[..], self.number), (b"..", ROOT)];
        let mut slot = 0;
        for (name, number) in fixed.iter().chain(self.entries) {
            let entry = RawDentry {
                hash_code: name_hash(name).into(),
                ino: (*number).into(),
                name_len: (name.len() as u16).into(),
                file_type: DIRECTORY,
            };
            let at = layout.entries_at + slot * size_of::<RawDentry>();
            block[at..at + size_of::<RawDentry>()].copy_from_slice(entry.as_bytes());
            let at = layout.names_at + slot * SLOT_NAME_BYTES;
            block[at..at + name.len()].copy_from_slice(name);
            for _ in 0..name.len().div_ceil(SLOT_NAME_BYTES) {
                block[slot / 8] |= 1 << (slot % 8);
                slot += 1;
            }
        }
        block
    }

    /// Returns the inode, whose contents are in the block `data`, and after which the log continues
    /// at `next`.
    fn inode(&self, options: &MakeOptions, data: u32, next: u32) -> Vec<u8> {
        let time = U64::new(options.seconds);
        let mut raw = RawInode::new_zeroed();
        raw.mode = U16::new(0o040_000 | self.mode);
        raw.links = U32::new(2 + self.entries.len() as u32);
        raw.size = U64::new(options.block_size.bytes().into());
        raw.blocks = U64::new(2);
        raw.atime = time;
        raw.ctime = time;
        raw.mtime = time;
        raw.current_depth = U32::new(1);
        raw.parent = U32::new(ROOT);
        raw.name_length = U32::new(self.name.len() as u32);
        raw.name[..self.name.len()].copy_from_slice(self.name);
        raw.extent = [U32::ZERO, U32::new(data), U32::new(1)];
        let extra = extra_attributes(options);
        let extra_bytes = extra.as_ref().map_or(&[][..], |extra| extra.as_bytes());
        if extra.is_some() {
            raw.inline |= EXTRA_ATTRIBUTES;
        }
        let footer = RawNodeFooter {
            nid: self.number.into(),
            inode: self.number.into(),
            flags: U32::ZERO,
            checkpoint_version: options.version().into(),
            next_block: next.into(),
        };
        let mut inode = raw.as_bytes().to_vec();
        inode.extend_from_slice(extra_bytes);
        inode.extend_from_slice(&data.to_le_bytes());
        inode.resize(options.block_size.len() - size_of::<RawNodeFooter>(), 0);
        inode.extend_from_slice(footer.as_bytes());
        if options.has(Feature::InodeChecksum) && extra.is_some() {
            let checksum = checksum(options, self.number, &inode);
            let at = size_of::<RawInode>() + std::mem::offset_of!(RawExtraAttributes, checksum);
            inode[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        inode
    }
}

fn extra_attributes(options: &MakeOptions) -> Option<RawExtraAttributes> {
    if !options.has(Feature::ExtraAttributes) {
        return None;
    }
    let mut extra = RawExtraAttributes::new_zeroed();
    extra.size = U16::new(size_of::<RawExtraAttributes>() as u16);
    if options.has(Feature::FlexibleInlineXattr) {
        extra.inline_xattr_words = U16::new(INLINE_XATTR_WORDS);
    }
    if options.has(Feature::InodeCreationTime) {
        extra.created = U64::new(options.seconds);
    }
    Some(extra)
}

/// Returns the checksum of an inode with a checksum of zero.
fn checksum(options: &MakeOptions, number: u32, inode: &[u8]) -> u32 {
    // The generation is zero.
    let seeds = [&options.uuid[..], &number.to_le_bytes(), &[0; 4]];
    let seed = seeds.into_iter().fold(u32::MAX, crc32_le);
    crc32_le(seed, inode)
}
