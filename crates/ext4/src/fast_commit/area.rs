//! Reads the fast-commit area: which changes were committed to it after the last transaction.
//! Not here: making the changes.

use base::checksum::crc32c;
use base::{FileBlock, FsBlock, InodeNumber, Result, TransactionId, Unsupported};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::ondisk::{
    self, RawAddRange, RawDelRange, RawHead, RawInodeImage, RawName, RawTagHeader, RawTail,
};
use crate::jbd2::Journal;

/// Bytes in a name, at most.
const NAME_MAX: usize = 255;
/// Bytes in an inode, at least.
const INODE_BYTES_MIN: usize = 128;
/// `ee_len` above this marks an unwritten extent.
const WRITTEN_MAX: u16 = 1 << 15;

/// A state that a fast commit establishes. Establishing it again changes nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Blocks of a file are mapped.
    AddRange {
        /// The file.
        inode: InodeNumber,
        /// The first block in the file.
        start: FileBlock,
        /// The first block in the volume.
        block: FsBlock,
        /// The number of blocks, at most 2^15.
        length: u16,
        /// Whether they hold no data yet.
        unwritten: bool,
    },
    /// Blocks of a file are not mapped.
    DeleteRange {
        /// The file.
        inode: InodeNumber,
        /// The first block in the file.
        start: FileBlock,
        /// The number of blocks.
        length: u32,
    },
    /// An inode has a name.
    Link {
        /// The directory.
        parent: InodeNumber,
        /// The inode.
        inode: InodeNumber,
        /// The name: 1 to 255 bytes.
        name: Vec<u8>,
        /// Whether the inode was new.
        created: bool,
    },
    /// An inode does not have a name.
    Unlink {
        /// The directory.
        parent: InodeNumber,
        /// The inode.
        inode: InodeNumber,
        /// The name: 1 to 255 bytes.
        name: Vec<u8>,
    },
    /// An inode's fields. Those of the block map, and the count of blocks, are not to be taken.
    Inode {
        /// The inode.
        inode: InodeNumber,
        /// Its bytes: at least 128, and up to the end of the extra fields.
        image: Vec<u8>,
    },
}

/// The fast commits in the area of `journal` that followed the transactions before `running`, in
/// order: the changes in each. Those of earlier transactions, and one cut off by a crash, are
/// left over in the area and do not count.
pub fn read_commits(journal: &Journal, running: TransactionId) -> Result<Vec<Vec<Change>>> {
    let mut reader = Reader { running, checksum: 0, changes: Vec::new(), commits: Vec::new() };
    let mut buffer = vec![0; journal.blocks().block_size().len()];
    for block in journal.superblock().fast_commit.clone() {
        journal.read(block, &mut buffer)?;
        if block == journal.superblock().fast_commit.start && !begins_with_head(&buffer) {
            break;
        }
        if !reader.block(&buffer)? {
            break;
        }
    }
    Ok(reader.commits)
}

fn begins_with_head(block: &[u8]) -> bool {
    let header = RawTagHeader::ref_from_prefix(block).ok();
    header.is_some_and(|(header, _)| header.fc_tag.get() == ondisk::TAG_HEAD)
}

struct Reader {
    running: TransactionId,
    /// Of the tags since the last tail.
    checksum: u32,
    /// The changes since then.
    changes: Vec<Change>,
    commits: Vec<Vec<Change>>,
}

impl Reader {
    /// Reads the tags of one block. False where the commits end.
    fn block(&mut self, block: &[u8]) -> Result<bool> {
        let mut rest = block;
        while let Ok((header, behind)) = RawTagHeader::ref_from_prefix(rest) {
            let Some(value) = behind.get(..usize::from(header.fc_len.get())) else {
                return Ok(false);
            };
            let Some(covered) = rest.get(..size_of::<RawTagHeader>() + value.len()) else {
                return Ok(false);
            };
            if !self.tag(header.fc_tag.get(), value, covered)? {
                return Ok(false);
            }
            rest = behind.get(value.len()..).unwrap_or_default();
        }
        Ok(true)
    }

    fn tag(&mut self, tag: u16, value: &[u8], covered: &[u8]) -> Result<bool> {
        match tag {
            ondisk::TAG_TAIL => return Ok(self.tail(value, covered)),
            ondisk::TAG_HEAD => {
                let Some(head) = exactly::<RawHead>(value) else { return Ok(false) };
                if head.fc_tid.get() != self.running.0 {
                    return Ok(false);
                }
                let features = head.fc_features.get();
                if features != 0 {
                    let names = vec![format!("fast commit {features:#x}")];
                    return Err(Unsupported::Features { names }.into());
                }
            }
            ondisk::TAG_PAD => {}
            _ => {
                let Some(change) = parse_change(tag, value) else { return Ok(false) };
                self.changes.push(change);
            }
        }
        self.checksum = crc32c(self.checksum, covered);
        Ok(true)
    }

    fn tail(&mut self, value: &[u8], covered: &[u8]) -> bool {
        let Ok((tail, _)) = RawTail::ref_from_prefix(value) else { return false };
        let without_checksum = size_of::<RawTagHeader>() + size_of_val(&tail.fc_tid);
        let covered = covered.get(..without_checksum).unwrap_or_default();
        let checksum = crc32c(self.checksum, covered);
        if tail.fc_tid.get() != self.running.0 || tail.fc_crc.get() != checksum {
            return false;
        }
        self.commits.push(std::mem::take(&mut self.changes));
        self.checksum = 0;
        true
    }
}

fn exactly<T: FromBytes + KnownLayout + Immutable + Unaligned>(value: &[u8]) -> Option<&T> {
    T::ref_from_bytes(value).ok()
}

/// The change that a tag stands for, if it is known and its value has a length that it can have.
fn parse_change(tag: u16, value: &[u8]) -> Option<Change> {
    let inode = |number: zerocopy::little_endian::U32| InodeNumber(number.get().into());
    match tag {
        ondisk::TAG_ADD_RANGE => {
            let raw: &RawAddRange = exactly(value)?;
            let [b0, b1, b2, b3, l0, l1, h0, h1, s0, s1, s2, s3] = raw.fc_ex;
            let length = u16::from_le_bytes([l0, l1]);
            let unwritten = length > WRITTEN_MAX;
            Some(Change::AddRange {
                inode: inode(raw.fc_ino),
                start: FileBlock(u32::from_le_bytes([b0, b1, b2, b3]).into()),
                block: FsBlock(
                    u64::from(u16::from_le_bytes([h0, h1])) << 32
                        | u64::from(u32::from_le_bytes([s0, s1, s2, s3])),
                ),
                length: if unwritten { length - WRITTEN_MAX } else { length },
                unwritten,
            })
        }
        ondisk::TAG_DEL_RANGE => {
            let raw: &RawDelRange = exactly(value)?;
            Some(Change::DeleteRange {
                inode: inode(raw.fc_ino),
                start: FileBlock(raw.fc_lblk.get().into()),
                length: raw.fc_len.get(),
            })
        }
        ondisk::TAG_CREATE | ondisk::TAG_LINK | ondisk::TAG_UNLINK => {
            let (raw, name) = RawName::ref_from_prefix(value).ok()?;
            if name.is_empty() || name.len() > NAME_MAX {
                return None;
            }
            let (parent, inode, name) =
                (inode(raw.fc_parent_ino), inode(raw.fc_ino), name.to_vec());
            Some(match tag {
                ondisk::TAG_UNLINK => Change::Unlink { parent, inode, name },
                _ => Change::Link { parent, inode, name, created: tag == ondisk::TAG_CREATE },
            })
        }
        ondisk::TAG_INODE => {
            let (raw, image) = RawInodeImage::ref_from_prefix(value).ok()?;
            let long_enough = image.len() >= INODE_BYTES_MIN;
            long_enough.then(|| Change::Inode { inode: inode(raw.fc_ino), image: image.to_vec() })
        }
        _ => None,
    }
}
