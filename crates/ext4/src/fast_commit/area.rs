//! The fast-commit area: the changes that were committed to it after the last transaction.
//! Not here: applying the changes.

use base::checksum::crc32c;
use base::{FileBlock, FsBlock, InodeNumber, Result, TransactionId, Unsupported};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::ondisk::{
    self, RawAddRange, RawDelRange, RawHead, RawInodeImage, RawName, RawTagHeader, RawTail,
};
use crate::jbd2::Journal;

/// The maximum number of bytes in a name.
const NAME_MAX: usize = 255;
/// The minimum number of bytes in an inode.
const INODE_BYTES_MIN: usize = 128;
/// The maximum number of tags. The size of the area is no bound, since a hostile journal's map can
/// refer to one block many times.
const TAGS_MAX: usize = 1 << 20;
/// The maximum size of the changes' values and of the padding, in bytes.
const VALUE_BYTES_MAX: usize = 64 << 20;
/// The maximum of `ee_len` for a written extent. Larger values mark an unwritten one.
const WRITTEN_MAX: u16 = 1 << 15;

/// A change in a fast commit. It describes the resulting state, so it can be applied several times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Blocks of a file are mapped.
    AddRange {
        /// The file.
        inode: InodeNumber,
        /// The first block in the file.
        start: FileBlock,
        /// The first block on the volume.
        block: FsBlock,
        /// The number of blocks, at most 2^15.
        length: u16,
        /// Whether the blocks are unwritten.
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
    /// An inode's fields. The block area and the block count are not valid.
    Inode {
        /// The inode.
        inode: InodeNumber,
        /// The inode's bytes, up to the end of the extra fields; at least 128.
        image: Vec<u8>,
    },
}

/// Returns the changes of each fast commit in the area of `journal`, in order. Returns only fast
/// commits that were made while the transaction `running` was running. The area may also contain
/// fast commits of earlier transactions, and one that a crash interrupted. These are ignored.
/// Errors: `Unsupported` if there are too many changes.
pub fn read_commits(journal: &Journal, running: TransactionId) -> Result<Vec<Vec<Change>>> {
    let mut reader = Reader::new(running);
    let mut buffer = vec![0; journal.blocks().block_size().len()];
    for block in journal.superblock().fast_commit.clone() {
        journal.read(block, &mut buffer)?;
        if block == journal.superblock().fast_commit.start && !begins_with_head(&buffer) {
            break;
        }
        if !reader.read_block(&buffer)? {
            break;
        }
    }
    Ok(reader.commits)
}

fn begins_with_head(block: &[u8]) -> bool {
    let header = RawTagHeader::ref_from_prefix(block).ok();
    header.is_some_and(|(header, _)| header.fc_tag.get() == ondisk::TAG_HEAD)
}

/// A reader of the tags in the area.
struct Reader {
    running: TransactionId,
    /// The checksum of the tags since the last tail.
    checksum: u32,
    /// The changes since the last tail.
    changes: Vec<Change>,
    commits: Vec<Vec<Change>>,
    /// The number of all tags so far.
    count: usize,
    /// The size of the values of all changes so far, and of the padding.
    value_bytes: usize,
}

impl Reader {
    fn new(running: TransactionId) -> Self {
        Self {
            running,
            checksum: 0,
            changes: Vec::new(),
            commits: Vec::new(),
            count: 0,
            value_bytes: 0,
        }
    }

    /// Counts a tag, and the size of its value. Errors: `Unsupported` beyond the limits.
    fn count(&mut self, value: &[u8]) -> Result<()> {
        self.count += 1;
        self.value_bytes += value.len();
        if self.count > TAGS_MAX || self.value_bytes > VALUE_BYTES_MAX {
            return Err(Unsupported::Operation("replaying so many fast-commit changes").into());
        }
        Ok(())
    }

    /// Reads the tags of one block. Returns false at the end of the valid fast commits.
    fn read_block(&mut self, block: &[u8]) -> Result<bool> {
        let mut rest = block;
        while let Ok((header, behind)) = RawTagHeader::ref_from_prefix(rest) {
            let Some(value) = behind.get(..usize::from(header.fc_len.get())) else {
                return Ok(false);
            };
            let Some(covered) = rest.get(..size_of::<RawTagHeader>() + value.len()) else {
                return Ok(false);
            };
            if !self.read_tag(header.fc_tag.get(), value, covered)? {
                return Ok(false);
            }
            rest = behind.get(value.len()..).unwrap_or_default();
        }
        Ok(true)
    }

    /// Reads one tag. `covered` is the header and the value. Returns false if the tag is not valid.
    fn read_tag(&mut self, tag: u16, value: &[u8], covered: &[u8]) -> Result<bool> {
        match tag {
            ondisk::TAG_TAIL => {
                self.count(&[])?;
                return Ok(self.read_tail(value, covered));
            }
            ondisk::TAG_HEAD => {
                self.count(value)?;
                let Some(head) = view_exactly::<RawHead>(value) else { return Ok(false) };
                if head.fc_tid.get() != self.running.0 {
                    return Ok(false);
                }
                let features = head.fc_features.get();
                if features != 0 {
                    let names = vec![format!("fast commit {features:#x}")];
                    return Err(Unsupported::Features { names }.into());
                }
            }
            // Otherwise an area with nothing but padding would take as long as the journal is
            // large.
            ondisk::TAG_PAD => self.count(value)?,
            _ => {
                let Some(change) = parse_change(tag, value) else { return Ok(false) };
                self.count(value)?;
                self.changes.push(change);
            }
        }
        self.checksum = crc32c(self.checksum, covered);
        Ok(true)
    }

    /// Ends a fast commit if its checksum is correct. Otherwise returns false.
    fn read_tail(&mut self, value: &[u8], covered: &[u8]) -> bool {
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

/// Views `value` as a `T`, if it has exactly the size of a `T`.
fn view_exactly<T: FromBytes + KnownLayout + Immutable + Unaligned>(value: &[u8]) -> Option<&T> {
    T::ref_from_bytes(value).ok()
}

/// Returns the change that a tag describes. `None` if the tag is unknown, or its value has an
/// invalid length.
fn parse_change(tag: u16, value: &[u8]) -> Option<Change> {
    let inode = |number: zerocopy::little_endian::U32| InodeNumber(number.get().into());
    match tag {
        ondisk::TAG_ADD_RANGE => {
            let raw: &RawAddRange = view_exactly(value)?;
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
            let raw: &RawDelRange = view_exactly(value)?;
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
            let is_long_enough = image.len() >= INODE_BYTES_MIN;
            is_long_enough
                .then(|| Change::Inode { inode: inode(raw.fc_ino), image: image.to_vec() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use base::Error;

    use super::*;

    /// Returns a block of 64 KiB that contains one fast commit, with as many tags as fit.
    fn block_of(tag: u16, value: &[u8]) -> Vec<u8> {
        let mut block = Vec::new();
        let append = |block: &mut Vec<u8>, tag: u16, length: usize, value: &[u8]| {
            block.extend(tag.to_le_bytes());
            block.extend((length as u16).to_le_bytes());
            block.extend(value);
        };
        append(&mut block, ondisk::TAG_HEAD, 8, &[0, 0, 0, 0, 7, 0, 0, 0]);
        while block.len() + 4 + value.len() + 12 <= 1 << 16 {
            append(&mut block, tag, value.len(), value);
        }
        let length = (1 << 16) - block.len() - 4;
        append(&mut block, ondisk::TAG_TAIL, length, &[7, 0, 0, 0]);
        block.extend(crc32c(0, &block).to_le_bytes());
        block.resize(1 << 16, 0);
        block
    }

    /// Reads a block repeatedly until the reader refuses it. Returns the number of accepted
    /// commits, and of their changes.
    fn read_until_refused(block: &[u8]) -> (usize, usize) {
        let mut reader = Reader::new(TransactionId(7));
        for commits in 0..=TAGS_MAX {
            match reader.read_block(block) {
                Ok(is_valid) => assert!(is_valid, "the commit must be valid"),
                Err(Error::Unsupported(_)) => {
                    let changes = reader.commits.iter().map(Vec::len).sum();
                    return (commits, changes);
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the reader has no limit");
    }

    #[test]
    fn the_number_of_changes_is_bounded() {
        let (commits, changes) = read_until_refused(&block_of(ondisk::TAG_DEL_RANGE, &[1; 12]));
        assert!(commits > 1 && commits + changes <= TAGS_MAX, "{commits}, {changes}");
        assert!(commits + changes > TAGS_MAX - (1 << 13), "{commits}, {changes}");
    }

    #[test]
    fn the_number_of_empty_commits_is_bounded() {
        // The tags before the end of the commit are its head and its padding.
        let block = block_of(ondisk::TAG_PAD, &[0; 60_000]);
        for (left, is_accepted) in [(3, true), (2, false)] {
            let count = TAGS_MAX - left;
            let mut reader = Reader { count, ..Reader::new(TransactionId(7)) };
            let read = reader.read_block(&block);
            assert_eq!(read.is_ok(), is_accepted, "{read:?}");
            assert_eq!(reader.commits.len(), usize::from(is_accepted));
        }
    }

    #[test]
    fn padding_is_bounded() {
        let mut reader = Reader::new(TransactionId(7));
        let block = [&[ondisk::TAG_PAD as u8, 0, 0xfc, 0xff][..], &[0; 0xfffc]].concat();
        let blocks = (0..).take_while(|_| reader.read_block(&block) == Ok(true)).count();
        assert_eq!(blocks, VALUE_BYTES_MAX / 0xfffc);
        assert!(matches!(reader.read_block(&block), Err(Error::Unsupported(_))));
    }

    #[test]
    fn the_size_of_changes_is_bounded() {
        let (commits, changes) = read_until_refused(&block_of(ondisk::TAG_INODE, &[1; 30_000]));
        assert!(commits > 1 && changes * 30_000 <= VALUE_BYTES_MAX, "{commits}, {changes}");
        assert!(changes < TAGS_MAX / 2, "{changes}");
    }
}
