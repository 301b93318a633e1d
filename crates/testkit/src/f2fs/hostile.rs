//! Damage to one field of a small f2fs image, with correct checksums, so that only checks of the
//! field find it. Not here: the use of the damaged images.

use std::ops::Range;
use std::path::{Path, PathBuf};

use f2fs::ondisk::dentry::{DentryLayout, RawDentry, SLOT_NAME_BYTES};

mod fields;
mod images;
mod stored;

pub use images::{UNCHECKED, Valid, empty, images, read_images, writing_image, writing_images};
pub use stored::{StoredInode, StoredTime, cut_chain, damage_chain, stored_inodes, stored_orphans};

use self::fields::{
    CHECKPOINT_FIELDS, INODE_FIELDS, NUMBERS, QUOTA_FIELDS, SEGMENT_ENTRY, SUMMARY_ENTRY,
    SUMMARY_FOOTER, SUPERBLOCK_FIELDS,
};
use super::layout::{
    ADDRESSES, INLINE_DENTRIES, Layout, NODE_ENTRY, SEGMENT, SUPERBLOCK, extra_bytes, half,
    mend_checkpoint, word,
};
use super::{Kind, fill};
use crate::guest::Job;
use crate::{Choose, Random, must};

/// A structure of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Structure {
    /// Both superblocks.
    Superblock,
    /// Both heads of the current checkpoint pack.
    Checkpoint,
    /// A word of the other blocks of the current checkpoint pack: journals, summaries.
    CheckpointBlocks,
    /// An entry of the node address table, in both copies.
    NodeTable,
    /// An entry of the segment information table, in both copies.
    SegmentTable,
    /// An entry or a footer of the segment summary area.
    Summary,
    /// A field of an inode before its addresses.
    Inode,
    /// An address in an inode, or data in its place.
    Addresses,
    /// A field of a node that is not an inode.
    Node,
    /// A node's footer.
    Footer,
    /// A field of a directory entry.
    DirectoryEntry,
    /// A field of the header or of an entry of a quota file. Images without quota files have none.
    QuotaFile,
}

/// All structures.
pub const STRUCTURES: &[Structure] = &[
    Structure::Superblock,
    Structure::Checkpoint,
    Structure::CheckpointBlocks,
    Structure::NodeTable,
    Structure::SegmentTable,
    Structure::Summary,
    Structure::Inode,
    Structure::Addresses,
    Structure::Node,
    Structure::Footer,
    Structure::DirectoryEntry,
    Structure::QuotaFile,
];

/// The size of a small image in MiB. mkfs.f2fs makes none that are much smaller.
const SMALL_MEGABYTES: u64 = 64;
/// The size of an image in MiB whose tree has files for features such as compression.
const FEATURES_MEGABYTES: u64 = 160;

/// Has guests fill small images of `kinds` in `folder`. Returns the contents of the images.
pub fn small_images(folder: &Path, kinds: &[&'static Kind]) -> Vec<Vec<u8>> {
    let path = |kind: &&'static Kind| (*kind, folder.join(format!("small_{}", kind.name)));
    let images: Vec<(&'static Kind, PathBuf)> = kinds.iter().map(path).collect();
    for (kind, image) in &images {
        let has_features = !kind.tree().features.is_empty();
        kind.make(image, if has_features { FEATURES_MEGABYTES } else { SMALL_MEGABYTES });
    }
    fill::run(&images, |kind, image| {
        let mut tree = kind.tree();
        tree.names = 200;
        tree.extents = 1000;
        kind.task(image, Job::Fill(tree))
    });
    images.iter().map(|(_, image)| must(std::fs::read(image), image.display())).collect()
}

/// Returns whether an image has the structure.
pub fn has(image: &[u8], structure: Structure) -> bool {
    structure != Structure::QuotaFile || !Specimen::of(image).quota_files.is_empty()
}

/// A change of one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The offset of the field in its structure, or in the block for structures that are whole
    /// blocks.
    pub field: usize,
    /// The values of the field before and after.
    pub values: [u64; 2],
    /// The change in words.
    pub description: String,
    /// The bytes that may have changed.
    pub changed: Vec<Range<usize>>,
}

/// The structures of a valid image.
#[derive(Debug)]
pub struct Specimen {
    layout: Layout,
    /// The current checkpoint pack, and its blocks between the payload and the last head.
    pack: usize,
    pack_blocks: Range<usize>,
    nodes: Vec<usize>,
    directory_blocks: Vec<usize>,
    /// The first two blocks of each quota file.
    quota_files: Vec<[usize; 2]>,
}

impl Specimen {
    /// Finds the structures of a valid image.
    pub fn of(image: &[u8]) -> Self {
        let layout = Layout::of(image);
        let nodes = layout.nodes(image);
        let directory_blocks = layout.directory_blocks(image, &nodes);
        let quota_files = layout.quota_files(image, &nodes);
        let pack = layout.checkpoint(image);
        let start = pack + word(image, pack + 140) as usize * layout.block;
        let pack_blocks = start..last_head(image, &layout, pack);
        Self { layout, pack, pack_blocks, nodes, directory_blocks, quota_files }
    }

    /// Returns whether the image has the structure.
    pub fn has(&self, structure: Structure) -> bool {
        structure != Structure::QuotaFile || !self.quota_files.is_empty()
    }

    /// Changes one field of one structure of the image, or of a copy whose other structures may be
    /// damaged.
    pub fn damage(
        &self,
        image: &mut [u8],
        structure: Structure,
        choose: &mut impl Choose,
    ) -> Damage {
        let layout = &self.layout;
        let places = places(image, self, structure, choose);
        let (first, size) = places[0];
        let old = image[first..first + size].to_vec();
        let is_address = matches!(structure, Structure::Addresses | Structure::Node);
        let new = match is_address && choose.below(4) == 0 {
            // Without its highest bits, the address is valid.
            true => number(&old) ^ 1 << (30 + choose.below(2)),
            false => other_value(&old, choose),
        };
        let block = |at: usize| at / layout.block * layout.block;
        let mut changed: Vec<usize> = places.iter().map(|(at, _)| block(*at)).collect();
        for (at, size) in places {
            image[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
        }
        changed.extend(mend(image, self, structure, first));
        let old = number(&old);
        let field = field(layout, structure, first);
        let description = format!(
            "{structure:?}: {size} bytes of field {field} at {first:#x} were {old:#x}, are {new:#x}"
        );
        // A field may be in two blocks.
        let changed = changed.into_iter().map(|at| at..(at + 2 * layout.block).min(image.len()));
        Damage { field, values: [old, new], description, changed: changed.collect() }
    }
}

/// Changes one field, chosen by `seed`, of one structure of a valid image.
pub fn damage(image: &mut [u8], structure: Structure, seed: u64) -> Damage {
    Specimen::of(image).damage(image, structure, &mut Random(seed))
}

/// Changes fields of an inode that say which features it has, to values that have a meaning. The
/// choice is by `seed`.
pub fn damage_features(image: &mut [u8], seed: u64) -> String {
    Specimen::of(image).damage_features(image, &mut Random(seed)).0
}

impl Specimen {
    /// Does the same in a copy whose other structures may be damaged. Also returns the bytes that
    /// may have changed.
    pub fn damage_features(
        &self,
        image: &mut [u8],
        random: &mut impl Choose,
    ) -> (String, Range<usize>) {
        let layout = &self.layout;
        let at = node(image, self, random, |node| layout.is_inode(node));
        let mut changes = Vec::new();
        for _ in 0..=random.below(3) {
            let (field, value): (usize, Vec<u8>) = match random.below(11) {
                // The features that are stored in the inode, as bits.
                0 => (2, vec![image[at + 2] ^ 1 << random.below(8)]),
                1 => (3, vec![image[at + 3] ^ 1 << random.below(8)]),
                2 => (80, vec![image[at + 80] ^ 4]),
                3 => {
                    let bit =
                        random.pick(&[2, 4, 5, 10, 11, 20, 29, 30]).copied().unwrap_or_default();
                    (80, (word(image, at + 80) ^ 1 << bit).to_le_bytes().to_vec())
                }
                // The size, up to the largest one of any type.
                4 => (16, (random.draw() >> (1 + random.below(63))).to_le_bytes().to_vec()),
                // The counted blocks, the depth and the pin failures.
                5 => (24, random.below(20).to_le_bytes().to_vec()),
                6 => (72, (random.below(70) as u32).to_le_bytes().to_vec()),
                // The extra attributes: sizes, saved blocks, algorithm and cluster size.
                7 => (360, ((random.below(12) * 4) as u16).to_le_bytes().to_vec()),
                8 => (362, (random.below(900) as u16).to_le_bytes().to_vec()),
                9 => (384, random.below(100).to_le_bytes().to_vec()),
                _ => (392, vec![random.below(5) as u8, 2 + random.below(7) as u8]),
            };
            changes.push(format!("{field} := {value:02x?}"));
            image[at + field..at + field + value.len()].copy_from_slice(&value);
        }
        layout.mend_node(image, at);
        (format!("Features of the inode at {at:#x}: {}", changes.join(", ")), at..at + layout.block)
    }
}

impl Specimen {
    /// Flips one bit, most often a high one, in some of an inode's numbers that programs see.
    /// Returns a description, and the bytes that may have changed.
    fn damage_bits(&self, image: &mut [u8], random: &mut impl Choose) -> (String, Range<usize>) {
        let layout = &self.layout;
        let at = node(image, self, random, |node| layout.is_inode(node));
        let mut changes = Vec::new();
        for _ in 0..=random.below(4) {
            let (field, size) = pick(random, NUMBERS);
            let bits = 8 * size as u64;
            let from_top = (0..3).map(|_| random.below(bits)).min().unwrap_or_default();
            let bit = (bits - 1 - from_top) as usize;
            image[at + field + bit / 8] ^= 1 << (bit % 8);
            changes.push(format!("bit {bit} of field {field}"));
        }
        layout.mend_node(image, at);
        (format!("Numbers of the inode at {at:#x}: {}", changes.join(", ")), at..at + layout.block)
    }
}

/// Changes a word of the orphan blocks of the current checkpoint pack. Returns `None` if it has
/// none.
pub fn damage_orphans(image: &mut [u8], seed: u64) -> Option<String> {
    let layout = Layout::of(image);
    let mut random = Random(seed);
    let pack = layout.checkpoint(image);
    let (first, end) = (1 + word(image, SUPERBLOCK + 1664), word(image, pack + 140));
    let block = pack + first as usize * layout.block;
    if first >= end {
        return None;
    }
    let at = match random.below(3) {
        0 => block + layout.block - 4 * (1 + random.below(4) as usize),
        _ => block + word_in_use(&image[block..block + layout.block], &mut random),
    };
    let new = match random.below(3) {
        0 => random.below(900),
        1 => random.below(12),
        _ => random.draw(),
    };
    image[at..at + 4].copy_from_slice(&(new as u32).to_le_bytes());
    Some(format!("orphan block: byte {} is {new:#x}", at - block))
}

/// Returns the offset in its structure of the field at `at`.
fn field(layout: &Layout, structure: Structure, at: usize) -> usize {
    match structure {
        Structure::Superblock => at - SUPERBLOCK,
        Structure::NodeTable => (at - layout.node_table.start) % layout.block % NODE_ENTRY,
        Structure::SegmentTable => (at - layout.segment_table.start) % layout.block % SEGMENT_ENTRY,
        Structure::Summary => (at - layout.summaries.start) % layout.block % SUMMARY_ENTRY,
        Structure::Footer => at % layout.block - layout.footer(),
        _ => at % layout.block,
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the offset and size of the field to be changed, in each of its copies.
fn places(
    image: &[u8],
    specimen: &Specimen,
    structure: Structure,
    random: &mut impl Choose,
) -> Vec<(usize, usize)> {
    let layout = &specimen.layout;
    let pack = specimen.pack;
    match structure {
        Structure::Superblock => {
            let (at, size) = pick(random, SUPERBLOCK_FIELDS);
            layout.superblocks().map(|superblock| (superblock + at, size)).into()
        }
        Structure::Checkpoint => {
            let (at, size) = pick(random, CHECKPOINT_FIELDS);
            [pack, last_head(image, layout, pack)].map(|head| (head + at, size)).into()
        }
        Structure::CheckpointBlocks => {
            let blocks = specimen.pack_blocks.clone();
            vec![(blocks.start + word_in_use(&image[blocks], random), 4)]
        }
        Structure::NodeTable => {
            let (at, size) = pick(random, &[(0, 1), (1, 4), (5, 4)]);
            // The tables of the small images begin with the numbers in use.
            let at = 9 * random.below(100) as usize + at;
            let start = layout.node_table.start;
            [start, start + SEGMENT * layout.block].map(|copy| (copy + at, size)).into()
        }
        Structure::SegmentTable => {
            let (at, size) = pick(random, &[(0, 2), (2, 4), (40, 8), (66, 8)]);
            let at = 74 * random.below(15) as usize + at;
            let copy = layout.segment_table.len() / 2;
            [0, copy].map(|copy| (layout.segment_table.start + copy + at, size)).into()
        }
        Structure::Summary => {
            let entry = summary_in_use(image, layout, random);
            // One in eight is the type in the footer.
            if random.below(8) == 0 {
                return vec![((entry / layout.block + 1) * layout.block - SUMMARY_FOOTER, 1)];
            }
            let (at, size) = pick(random, &[(0, 4), (4, 1), (5, 2)]);
            vec![(entry + at, size)]
        }
        Structure::Inode => {
            let inode = node(image, specimen, random, |node| layout.is_inode(node));
            let (at, size) = pick(random, INODE_FIELDS);
            vec![(inode + at, size)]
        }
        Structure::Addresses => {
            let inode = node(image, specimen, random, |node| layout.is_inode(node));
            let first = ADDRESSES + extra_bytes(&image[inode..]);
            vec![(
                inode + first + word_in_use(&image[inode + first..inode + layout.footer()], random),
                4,
            )]
        }
        Structure::Node => {
            let other = node(image, specimen, random, |node| !layout.is_inode(node));
            vec![(other + word_in_use(&image[other..other + layout.footer()], random), 4)]
        }
        Structure::Footer => {
            // Most nodes are inodes.
            let is_other = random.below(2) == 0;
            let any = node(image, specimen, random, |node| !(is_other && layout.is_inode(node)));
            let (at, size) = pick(random, &[(0, 4), (4, 4), (8, 4), (12, 8), (20, 4)]);
            vec![(any + layout.footer() + at, size)]
        }
        Structure::QuotaFile => {
            let (at, size) = pick(random, QUOTA_FIELDS);
            let blocks = *random.pick(&specimen.quota_files).expect("a quota file");
            vec![(blocks[at / layout.block] + at % layout.block, size)]
        }
        Structure::DirectoryEntry => vec![directory_field(image, specimen, random)],
    }
}

/// Corrects the checksums of the structure that has the changed byte `at`. Returns the blocks that
/// this may have changed, besides that of `at`.
fn mend(image: &mut [u8], specimen: &Specimen, structure: Structure, at: usize) -> Vec<usize> {
    let layout = &specimen.layout;
    match structure {
        Structure::Superblock => {
            for superblock in layout.superblocks() {
                layout.mend_superblock(image, superblock);
            }
        }
        Structure::Checkpoint => {
            // The number of blocks may have changed, so that the last head is no longer where it
            // was.
            let pack = at / layout.block * layout.block;
            mend_checkpoint(&mut image[pack..pack + layout.block]);
            let head = image[pack..pack + layout.block].to_vec();
            let last =
                last_head(image, layout, pack).min(layout.segment_table.start - layout.block);
            image[last..last + layout.block].copy_from_slice(&head);
            return vec![last];
        }
        Structure::Inode | Structure::Addresses | Structure::Footer | Structure::DirectoryEntry
            if layout.main.contains(&at) =>
        {
            let block = at / layout.block * layout.block;
            if specimen.nodes.contains(&block) {
                layout.mend_node(image, block);
            }
        }
        _ => {}
    }
    Vec::new()
}

fn pick(random: &mut impl Choose, fields: &[(usize, usize)]) -> (usize, usize) {
    fields[random.below(fields.len() as u64) as usize]
}

/// Returns the offset of the second head of the pack at `pack`.
fn last_head(image: &[u8], layout: &Layout, pack: usize) -> usize {
    pack + (word(image, pack + 136) as usize).clamp(1, SEGMENT) * layout.block - layout.block
}

/// Returns the offset of a node that `is_wanted`.
fn node(
    image: &[u8],
    specimen: &Specimen,
    random: &mut impl Choose,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut nodes = specimen.nodes.clone();
    nodes.retain(|at| is_wanted(&image[*at..at + specimen.layout.block]));
    // Other damage may have left none.
    *random.pick(&nodes).unwrap_or(&specimen.nodes[0])
}

/// Returns the offset of a word, most often of one that is not zero.
fn word_in_use(bytes: &[u8], random: &mut impl Choose) -> usize {
    let mut at = 0;
    for _ in 0..64 {
        at = random.below(bytes.len() as u64 / 4) as usize * 4;
        if word(bytes, at) != 0 {
            break;
        }
    }
    at
}

/// Returns the offset and size of a field of an entry in a block of a directory or in its inode.
fn directory_field(image: &[u8], specimen: &Specimen, random: &mut impl Choose) -> (usize, usize) {
    let layout = &specimen.layout;
    let is_small = |node: &[u8]| {
        layout.is_inode(node) && half(node, 0) & 0xF000 == 0x4000 && node[3] & INLINE_DENTRIES != 0
    };
    let blocks = &specimen.directory_blocks;
    let mut inodes = specimen.nodes.clone();
    inodes.retain(|at| is_small(&image[*at..at + layout.block]));
    if blocks.is_empty() || !inodes.is_empty() && random.below(3) == 0 {
        let inode = *random.pick(&inodes).expect("a small directory");
        let first = inode + ADDRESSES + extra_bytes(&image[inode..]) + 4;
        return (first + word_in_use(&image[first..inode + layout.footer() - 20], random), 4);
    }
    let block = *random.pick(blocks).expect("a block of a directory");
    let areas = DentryLayout::of(layout.block);
    let slot = random.below(30) as usize;
    let (at, size) = pick(random, &[(0, 4), (4, 4), (8, 2), (10, 1)]);
    match random.below(4) {
        0 => (block + random.below(areas.bitmap_bytes as u64) as usize, 1),
        1 => (block + areas.names_at + SLOT_NAME_BYTES * slot, SLOT_NAME_BYTES),
        _ => (block + areas.entries_at + size_of::<RawDentry>() * slot + at, size),
    }
}

/// Returns the offset of an entry of the summary area, most often of one with a node number.
fn summary_in_use(image: &[u8], layout: &Layout, random: &mut impl Choose) -> usize {
    let mut at = layout.summaries.start;
    for _ in 0..64 {
        let segment = layout.summaries.start + random.below(15) as usize * layout.block;
        at = segment + SUMMARY_ENTRY * random.below(SEGMENT as u64) as usize;
        if word(image, at) != 0 {
            break;
        }
    }
    at
}

/// Returns a value other than `old`.
fn other_value(old: &[u8], random: &mut impl Choose) -> u64 {
    let size = old.len();
    let old = number(old);
    let mask = u64::MAX >> (64 - 8 * size);
    for _ in 0..100 {
        let new = match random.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => old ^ 1 << random.below(8 * size as u64),
            3 => old.wrapping_add(1),
            4 => old.wrapping_sub(1),
            5 => random.below(1 << 16),
            6 => (1 << random.below(64)) - 1,
            _ => random.draw(),
        };
        if new & mask != old & mask {
            return new & mask;
        }
    }
    old ^ 1
}
