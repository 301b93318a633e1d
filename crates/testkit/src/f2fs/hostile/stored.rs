//! What the nodes of a damaged image say, for explanations of what another reader shows. Not here:
//! which of several nodes of an inode the volume uses.

use super::super::layout::{
    ADDRESSES, INLINE_DENTRIES, Layout, SUPERBLOCK, double_word, extra_bytes, word,
};
use super::Specimen;

/// Marks in the flags of a footer: the last node of a sync, and an inode whose name is recovered.
const SYNCED: u32 = 2;
const NAMED: u32 = 4;
/// The flag of inodes with data in them, and the usual size of extended attributes in them.
const INLINE_DATA: u8 = 2;
const XATTR_BYTES: usize = 200;
/// The offset of the version of the checkpoint in a footer.
const VERSION: usize = 12;

/// A time as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredTime {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// Nanoseconds. Damaged ones may be a second or more.
    pub nanoseconds: u32,
}

impl StoredTime {
    fn read(inode: &[u8], seconds_at: usize, nanoseconds_at: usize) -> Self {
        let seconds = double_word(inode, seconds_at) as i64;
        Self { seconds, nanoseconds: word(inode, nanoseconds_at) }
    }
}

/// The fields of an inode in one of its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredInode {
    /// Its number.
    pub number: u64,
    /// Whether the node is marked as synced.
    pub is_synced: bool,
    /// The directory to which a recovery adds its name, if it does.
    pub recovered_in: Option<u64>,
    /// Whether it has no checksum, although the volume's inodes have one.
    pub lacks_checksum: bool,
    /// The number of addresses that are more than its count of blocks.
    pub not_counted: u64,
    /// The time of the last access.
    pub accessed: StoredTime,
    /// The time of the last change.
    pub changed: StoredTime,
    /// The time of the last change of the contents.
    pub modified: StoredTime,
    /// The time at which it was created, in an inode with extra attributes.
    pub created: StoredTime,
}

impl StoredInode {
    fn read(layout: &Layout, node: &[u8]) -> Self {
        let flags = word(node, layout.footer() + 8);
        let is_recovered = flags & (SYNCED | NAMED) == SYNCED | NAMED;
        Self {
            number: word(node, layout.footer()).into(),
            is_synced: flags & SYNCED != 0,
            recovered_in: is_recovered.then(|| word(node, 84).into()),
            lacks_checksum: layout.lacks_checksum(node),
            not_counted: not_counted(layout, node),
            accessed: StoredTime::read(node, 32, 56),
            changed: StoredTime::read(node, 40, 60),
            modified: StoredTime::read(node, 48, 64),
            created: StoredTime::read(node, 372, 380),
        }
    }
}

/// Returns how many addresses an inode has that are more than its count of blocks.
fn not_counted(layout: &Layout, node: &[u8]) -> u64 {
    if node[3] & (INLINE_DATA | INLINE_DENTRIES) != 0 {
        return 0;
    }
    // Extended attributes may follow, and numbers of nodes follow.
    let addresses = ADDRESSES + extra_bytes(node)..layout.footer() - 20 - XATTR_BYTES;
    let count = addresses.step_by(4).filter(|at| word(node, *at) != 0).count();
    (count as u64).saturating_sub(double_word(node, 24).saturating_sub(1))
}

/// Returns the inodes in the nodes of `image`, a damaged copy of the image `valid`.
pub fn stored_inodes(valid: &[u8], image: &[u8]) -> Vec<StoredInode> {
    let Specimen { layout, nodes, .. } = Specimen::of(valid);
    let nodes = nodes.into_iter().map(|at| &image[at..at + layout.block]);
    nodes
        .filter(|node| layout.is_inode(node))
        .map(|node| StoredInode::read(&layout, node))
        .collect()
}

/// Returns the numbers of the inodes without a name in the current checkpoint of `image`.
pub fn stored_orphans(valid: &[u8], image: &[u8]) -> Vec<u64> {
    let Specimen { layout, pack, .. } = Specimen::of(valid);
    let first = 1 + word(image, SUPERBLOCK + 1664) as usize;
    let end = word(image, pack + 140) as usize;
    let mut orphans = Vec::new();
    for number in first..end.min(super::SEGMENT) {
        let block = &image[pack + number * layout.block..][..layout.block];
        // The last four words: reserved, the block's number, the number of entries, the checksum.
        let count = word(block, layout.block - 8) as usize;
        let listed = (0..count.min(layout.block / 4 - 4)).map(|index| word(block, 4 * index));
        orphans.extend(listed.map(u64::from));
    }
    orphans
}

/// Has the chain of synced nodes end before its first node, as if nothing was synced since the
/// checkpoint.
pub fn cut_chain(valid: &[u8], image: &mut [u8]) {
    let Specimen { layout, pack, nodes, .. } = Specimen::of(valid);
    let version = word(image, pack);
    for at in nodes {
        let footer = at + layout.footer();
        let is_synced = word(image, footer + VERSION) == version
            && word(image, footer + 8) & (SYNCED | NAMED) != 0;
        if is_synced {
            image[footer + VERSION..][..8].fill(0);
        }
    }
}

/// Gives one of the addresses in the nodes that were synced since the checkpoint a value that no
/// block has.
pub fn damage_chain(image: &mut [u8]) {
    let Specimen { layout, pack, nodes, .. } = Specimen::of(image);
    let version = word(image, pack);
    let is_synced = |at: &usize| {
        word(image, at + layout.footer() + VERSION) == version
            && !layout.is_inode(&image[*at..at + layout.block])
    };
    let direct = nodes.into_iter().find(is_synced).expect("a direct node");
    let first = (direct..direct + layout.footer()).step_by(4).find(|at| word(image, *at) != 0);
    image[first.expect("an address")..][..4].copy_from_slice(&1_u32.to_le_bytes());
}
