//! Damage to one field of a small f2fs image, with correct checksums, so that only checks of the field find it. Not here:
//! the use of the damaged images.

use std::path::{Path, PathBuf};

use f2fs::ondisk::dentry::{DentryLayout, RawDentry, SLOT_NAME_BYTES};

use super::layout::{
    ADDRESSES, INLINE_DENTRIES, Layout, NODE_ENTRY, SEGMENT, SUPERBLOCK, extra_bytes, half,
    mend_checkpoint, word,
};
use super::{Kind, fill};
use crate::guest::Job;
use crate::{Random, must};

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

/// The fields of the superblock, by offset and size.
const SUPERBLOCK_FIELDS: &[(usize, usize)] = &[
    (0, 4),
    (4, 2),
    (6, 2),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 8),
    (44, 4),
    (48, 4),
    (52, 4),
    (56, 4),
    (60, 4),
    (64, 4),
    (68, 4),
    (72, 4),
    (76, 4),
    (80, 4),
    (84, 4),
    (88, 4),
    (92, 4),
    (96, 4),
    (100, 4),
    (104, 4),
    (1148, 4),
    (1664, 4),
    (2180, 4),
    (2184, 1),
    (2201, 1),
    (2745, 4),
    (2749, 4),
    (2753, 4),
    (2757, 1),
    (2758, 2),
    (2760, 2),
];
/// The fields of the head of a checkpoint, by offset and size.
const CHECKPOINT_FIELDS: &[(usize, usize)] = &[
    (0, 8),
    (8, 8),
    (16, 8),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 4),
    (40, 4),
    (44, 4),
    (68, 2),
    (70, 2),
    (72, 2),
    (84, 4),
    (88, 4),
    (92, 4),
    (116, 2),
    (118, 2),
    (120, 2),
    (132, 4),
    (136, 4),
    (140, 4),
    (144, 4),
    (148, 4),
    (152, 4),
    (156, 4),
    (160, 4),
    (164, 4),
    (168, 8),
    (176, 1),
    (179, 1),
    (192, 4),
    (200, 4),
];
/// The fields of an inode before its addresses, and of its extra attributes, by offset and size.
const INODE_FIELDS: &[(usize, usize)] = &[
    (0, 2),
    (2, 1),
    (3, 1),
    (4, 4),
    (12, 4),
    (16, 8),
    (24, 8),
    (32, 8),
    (56, 4),
    (72, 4),
    (76, 4),
    (80, 4),
    (84, 4),
    (88, 4),
    (347, 1),
    (348, 4),
    (352, 4),
    (356, 4),
    (360, 2),
    (362, 2),
    (364, 4),
    (372, 8),
    (384, 8),
    (392, 1),
    (393, 1),
    (394, 2),
];

/// The fields of the header of a quota file, and of its first entry, by offset and size: the version and the number of blocks;
/// the id, the number of inodes, and the space.
const QUOTA_FIELDS: &[(usize, usize)] =
    &[(4, 4), (20, 4), (QUOTA_ENTRY, 4), (QUOTA_ENTRY + 24, 8), (QUOTA_ENTRY + 48, 8)];
/// The offset of the first entry of a quota file as mkfs.f2fs makes it: in its sixth block of 1 KiB.
const QUOTA_ENTRY: usize = 5 * 1024 + 16;

/// The sizes of entries in bytes.
const SEGMENT_ENTRY: usize = 74;
const SUMMARY_ENTRY: usize = 7;
/// The size of the footer of a summary.
const SUMMARY_FOOTER: usize = 5;

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
    structure != Structure::QuotaFile || !Layout::of(image).quota_files(image).is_empty()
}

/// A change of one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The offset of the field in its structure, or in the block for structures that are whole blocks.
    pub field: usize,
    /// The values of the field before and after.
    pub values: [u64; 2],
    /// The change in words.
    pub description: String,
}

/// Changes one field, chosen by `seed`, of one structure of a valid image.
pub fn damage(image: &mut [u8], structure: Structure, seed: u64) -> Damage {
    let layout = Layout::of(image);
    let mut random = Random(seed);
    let places = places(image, &layout, structure, &mut random);
    let (first, size) = places[0];
    let old = image[first..first + size].to_vec();
    let new = other_value(&old, &mut random);
    for (at, size) in places {
        image[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
    }
    mend(image, &layout, structure, first);
    let old = number(&old);
    let field = field(&layout, structure, first);
    let description = format!(
        "{structure:?}: {size} bytes of field {field} at {first:#x} were {old:#x}, are {new:#x}"
    );
    Damage { field, values: [old, new], description }
}

/// Changes fields of an inode that say which features it has, to values that have a meaning. The choice is by `seed`.
pub fn damage_features(image: &mut [u8], seed: u64) -> String {
    let layout = Layout::of(image);
    let mut random = Random(seed);
    let at = node(image, &layout, &mut random, |node| layout.is_inode(node));
    let mut changes = Vec::new();
    for _ in 0..=random.below(3) {
        let (field, value): (usize, Vec<u8>) = match random.below(11) {
            // The features that are stored in the inode, as bits.
            0 => (2, vec![image[at + 2] ^ 1 << random.below(8)]),
            1 => (3, vec![image[at + 3] ^ 1 << random.below(8)]),
            2 => (80, vec![image[at + 80] ^ 4]),
            3 => {
                let bit = random.pick(&[2, 4, 5, 10, 11, 20, 29, 30]).copied().unwrap_or_default();
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
    format!("Features of the inode at {at:#x}: {}", changes.join(", "))
}

/// Changes a word of the orphan blocks of the current checkpoint pack. Returns `None` if it has none.
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
    layout: &Layout,
    structure: Structure,
    random: &mut Random,
) -> Vec<(usize, usize)> {
    let pack = layout.checkpoint(image);
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
            let start = pack + word(image, pack + 140) as usize * layout.block;
            vec![(start + word_in_use(&image[start..last_head(image, layout, pack)], random), 4)]
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
            let inode = node(image, layout, random, |node| layout.is_inode(node));
            let (at, size) = pick(random, INODE_FIELDS);
            vec![(inode + at, size)]
        }
        Structure::Addresses => {
            let inode = node(image, layout, random, |node| layout.is_inode(node));
            let first = ADDRESSES + extra_bytes(&image[inode..]);
            vec![(
                inode + first + word_in_use(&image[inode + first..inode + layout.footer()], random),
                4,
            )]
        }
        Structure::Node => {
            let other = node(image, layout, random, |node| !layout.is_inode(node));
            vec![(other + word_in_use(&image[other..other + layout.footer()], random), 4)]
        }
        Structure::Footer => {
            let any = node(image, layout, random, |_| true);
            let (at, size) = pick(random, &[(0, 4), (4, 4), (8, 4), (12, 8), (20, 4)]);
            vec![(any + layout.footer() + at, size)]
        }
        Structure::QuotaFile => {
            let (at, size) = pick(random, QUOTA_FIELDS);
            let blocks = *random.pick(&layout.quota_files(image)).expect("a quota file");
            vec![(blocks[at / layout.block] + at % layout.block, size)]
        }
        Structure::DirectoryEntry => vec![directory_field(image, layout, random)],
    }
}

/// Corrects the checksums of the structure that has the changed byte `at`.
fn mend(image: &mut [u8], layout: &Layout, structure: Structure, at: usize) {
    match structure {
        Structure::Superblock => {
            for superblock in layout.superblocks() {
                layout.mend_superblock(image, superblock);
            }
        }
        Structure::Checkpoint => {
            // The number of blocks may have changed, so that the last head is no longer where it was.
            let pack = at / layout.block * layout.block;
            mend_checkpoint(&mut image[pack..pack + layout.block]);
            let head = image[pack..pack + layout.block].to_vec();
            let last =
                last_head(image, layout, pack).min(layout.segment_table.start - layout.block);
            image[last..last + layout.block].copy_from_slice(&head);
        }
        Structure::Inode | Structure::Addresses | Structure::Footer | Structure::DirectoryEntry
            if layout.main.contains(&at) =>
        {
            let block = at / layout.block * layout.block;
            if layout.nodes(image).contains(&block) {
                layout.mend_node(image, block);
            }
        }
        _ => {}
    }
}

fn pick(random: &mut Random, fields: &[(usize, usize)]) -> (usize, usize) {
    fields[random.below(fields.len() as u64) as usize]
}

/// Returns the offset of the second head of the pack at `pack`.
fn last_head(image: &[u8], layout: &Layout, pack: usize) -> usize {
    pack + (word(image, pack + 136) as usize).clamp(1, SEGMENT) * layout.block - layout.block
}

/// Returns the offset of a node that `is_wanted`.
fn node(
    image: &[u8],
    layout: &Layout,
    random: &mut Random,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> usize {
    let mut nodes = layout.nodes(image);
    nodes.retain(|at| is_wanted(&image[*at..at + layout.block]));
    *random.pick(&nodes).expect("a node of this type")
}

/// Returns the offset of a word, most often of one that is not zero.
fn word_in_use(bytes: &[u8], random: &mut Random) -> usize {
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
fn directory_field(image: &[u8], layout: &Layout, random: &mut Random) -> (usize, usize) {
    let is_small = |node: &[u8]| {
        layout.is_inode(node) && half(node, 0) & 0xF000 == 0x4000 && node[3] & INLINE_DENTRIES != 0
    };
    let blocks = layout.directory_blocks(image);
    let mut inodes = layout.nodes(image);
    inodes.retain(|at| is_small(&image[*at..at + layout.block]));
    if blocks.is_empty() || !inodes.is_empty() && random.below(3) == 0 {
        let inode = *random.pick(&inodes).expect("a small directory");
        let first = inode + ADDRESSES + extra_bytes(&image[inode..]) + 4;
        return (first + word_in_use(&image[first..inode + layout.footer() - 20], random), 4);
    }
    let block = *random.pick(&blocks).expect("a block of a directory");
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
fn summary_in_use(image: &[u8], layout: &Layout, random: &mut Random) -> usize {
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
fn other_value(old: &[u8], random: &mut Random) -> u64 {
    let size = old.len();
    let old = number(old);
    let mask = u64::MAX >> (64 - 8 * size);
    for _ in 0..100 {
        let new = match random.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => old ^ 1 << random.below(32),
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
