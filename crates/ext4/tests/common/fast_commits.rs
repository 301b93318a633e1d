//! Fast commits that are encoded by hand, and written to the journal of an image.

use std::fs::File;
use std::os::unix::fs::FileExt;

use base::checksum::crc32c;
use ext4::InodeFlags;
use ext4::fast_commit::ondisk as tags;
use ext4::jbd2::ondisk::RawSuperblock;
use ext4::ondisk::inode::{RawInode, RawInodeExtra};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::Image;

/// The transaction that the fast commits belong to.
const TRANSACTION: u32 = 7;
/// The bit of `fast_commit` in the journal's incompatible features.
const FAST_COMMIT: u32 = 1 << 5;

/// The modes of inodes.
pub const REGULAR: u16 = 0o100_644;
pub const DIRECTORY: u16 = 0o040_755;

/// The area of an image's journal that holds fast commits.
pub struct FastCommits {
    block_bytes: usize,
    area: Vec<u8>,
    /// The checksum of the tags since the last end of a commit.
    checksum: u32,
}

impl FastCommits {
    /// Begins the area of a volume with blocks of this size.
    pub fn new(block_bytes: usize) -> Self {
        let mut commits = Self { block_bytes, area: Vec::new(), checksum: 0 };
        commits.tag(tags::TAG_HEAD, &[[0; 4], TRANSACTION.to_le_bytes()].concat());
        commits
    }

    fn left(&self) -> usize {
        self.block_bytes - self.area.len() % self.block_bytes
    }

    fn append(&mut self, kind: u16, length: usize, value: &[u8]) -> usize {
        let at = self.area.len();
        self.area.extend(kind.to_le_bytes());
        self.area.extend((length as u16).to_le_bytes());
        self.area.extend(value);
        at
    }

    /// Adds a tag, in the next block if it does not fit into this one.
    pub fn tag(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // There must be room for the header of the padding, too.
        if self.left() < 4 + value.len() + 4 {
            let padding = self.left() - 4;
            let at = self.append(tags::TAG_PAD, padding, &vec![0; padding]);
            self.checksum = crc32c(self.checksum, &self.area[at..]);
        }
        let at = self.append(kind, value.len(), value);
        self.checksum = crc32c(self.checksum, &self.area[at..]);
        self
    }

    /// Maps blocks of a file.
    pub fn add_range(&mut self, inode: u64, start: u32, block: u64, length: u16) -> &mut Self {
        let mut value = (inode as u32).to_le_bytes().to_vec();
        value.extend(start.to_le_bytes());
        value.extend(length.to_le_bytes());
        value.extend(((block >> 32) as u16).to_le_bytes());
        value.extend((block as u32).to_le_bytes());
        self.tag(tags::TAG_ADD_RANGE, &value)
    }

    /// Unmaps blocks of a file.
    pub fn delete_range(&mut self, inode: u64, start: u32, length: u32) -> &mut Self {
        let words = [inode as u32, start, length];
        self.tag(tags::TAG_DEL_RANGE, &words.map(u32::to_le_bytes).concat())
    }

    /// Adds a tag for a name: `TAG_CREATE`, `TAG_LINK` or `TAG_UNLINK`.
    pub fn name(&mut self, kind: u16, parent: u64, inode: u64, name: &str) -> &mut Self {
        let numbers = [parent as u32, inode as u32].map(u32::to_le_bytes).concat();
        self.tag(kind, &[&numbers, name.as_bytes()].concat())
    }

    /// Adds the fields of an inode.
    pub fn inode(&mut self, inode: u64, image: &[u8]) -> &mut Self {
        self.tag(tags::TAG_INODE, &[&(inode as u32).to_le_bytes(), image].concat())
    }

    /// Ends a fast commit.
    pub fn commit(&mut self) -> &mut Self {
        let length = self.left() - 4;
        let at = self.append(tags::TAG_TAIL, length, &TRANSACTION.to_le_bytes());
        let checksum = crc32c(self.checksum, &self.area[at..]);
        self.area.extend(checksum.to_le_bytes());
        self.area.resize(self.area.len().next_multiple_of(self.block_bytes), 0);
        self.checksum = 0;
        self
    }

    /// Writes these commits to an image's journal, after a log without transactions, and marks the
    /// volume as one that needs recovery.
    pub fn leave_in(&self, image: &Image) {
        let block =
            |at: u32| -> u64 { image.debugfs(&format!("bmap <8> {at}")).trim().parse().unwrap() };
        let file = File::options().read(true).write(true).open(&image.path).unwrap();
        let offset = |at: u32| block(at) * self.block_bytes as u64;
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, offset(0)).unwrap();
        let raw = RawSuperblock::mut_from_bytes(&mut bytes).unwrap();
        assert_eq!(raw.s_checksum_type, 0, "mke2fs leaves journals without checksums");
        raw.s_feature_incompat = (raw.s_feature_incompat.get() | FAST_COMMIT).into();
        raw.s_sequence = TRANSACTION.into();
        raw.s_start = raw.s_first;
        let (first, blocks) = (raw.s_first.get(), raw.s_maxlen.get());
        let reserved = match raw.s_num_fc_blks.get() {
            0 => 256,
            given => given,
        };
        file.write_all_at(&bytes, offset(0)).unwrap();
        file.write_all_at(&vec![0; self.block_bytes], offset(first)).unwrap();
        for (number, contents) in (blocks - reserved + 1..).zip(self.area.chunks(self.block_bytes))
        {
            assert!(number < blocks, "the area is full");
            file.write_all_at(contents, offset(number)).unwrap();
        }
        image.debugfs_write("feature needs_recovery\n");
    }
}

/// Returns the numbers of free blocks or inodes that a debugfs command prints.
pub fn free(image: &Image, command: &str) -> Vec<u64> {
    let text = image.debugfs(command);
    let (_, numbers) = text.split_once(':').unwrap();
    numbers.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Returns an inode as a fast commit stores it. Its map is ignored there.
pub fn image_of(mode: u16, size: u64, generation: u32, flags: u32) -> Vec<u8> {
    let mut raw = RawInode::new_zeroed();
    raw.mode = mode.into();
    raw.size_lo = (size as u32).into();
    raw.links_count = 1.into();
    raw.mtime = 1_700_000_000.into();
    raw.generation = generation.into();
    raw.flags = (flags | InodeFlags::EXTENTS.0).into();
    raw.uid = 1234.into();
    let extra = RawInodeExtra { extra_isize: 32.into(), ..RawInodeExtra::default() };
    [raw.as_bytes(), extra.as_bytes()].concat()
}
