//! The stored form of inodes of an ext4 image, which debugfs locates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::command::run;

const BLOCK_BYTES: usize = 4096;
/// The offset of the size in an inode, and of the block map.
const SIZE_AT: usize = 4;
const MAP_AT: usize = 40;
/// The number of bytes of a block map, which a short symbolic link fills.
const MAP_BYTES: usize = 60;

/// An image with blocks of 4096 bytes, and its contents.
pub struct RawVolume {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl RawVolume {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), bytes: fs::read(path).expect("an image") }
    }

    /// Returns the numbers in what debugfs prints for `request`.
    fn debugfs(&self, request: &str) -> Vec<usize> {
        let printed = run(Command::new("debugfs").args(["-R", request]).arg(&self.path));
        let printed = String::from_utf8(printed).expect("text");
        let words = printed.split(|c: char| c.is_whitespace() || c == ',').filter_map(|word| {
            word.strip_prefix("0x")
                .map_or_else(|| word.parse().ok(), |digits| usize::from_str_radix(digits, 16).ok())
        });
        words.collect()
    }

    /// Returns the 256 bytes of an inode.
    fn inode(&self, number: u64) -> &[u8] {
        // "Inode NUMBER is part of block group GROUP", "located at block BLOCK, offset 0xOFFSET".
        let numbers = self.debugfs(&format!("imap <{number}>"));
        let [.., block, offset] = numbers[..] else { panic!("no inode {number}") };
        let at = block * BLOCK_BYTES + offset;
        &self.bytes[at..at + 256]
    }

    /// Returns the first `length` bytes of what begins with `start` in an inode.
    pub fn find(&self, number: u64, start: &[u8], length: usize) -> Vec<u8> {
        let inode = self.inode(number);
        let at = inode.windows(length).position(|window| window.starts_with(start));
        let at = at.unwrap_or_else(|| panic!("inode {number} has no such context"));
        inode[at..at + length].to_vec()
    }

    /// Returns the blocks of a file with at most four extents.
    pub fn blocks(&self, number: u64) -> Vec<u8> {
        let blocks = self.debugfs(&format!("blocks <{number}>"));
        let block = |&block: &usize| &self.bytes[block * BLOCK_BYTES..][..BLOCK_BYTES];
        blocks.iter().flat_map(block).copied().collect()
    }

    /// Returns the stored form of the target of a symbolic link.
    pub fn target(&self, number: u64) -> Vec<u8> {
        let inode = self.inode(number);
        let size = u32::from_le_bytes(inode[SIZE_AT..SIZE_AT + 4].try_into().expect("4 bytes"));
        let size = size as usize;
        if size < MAP_BYTES {
            return inode[MAP_AT..MAP_AT + size].to_vec();
        }
        self.blocks(number)[..size].to_vec()
    }

    /// Returns the inode numbers and names in a directory without checksums of blocks, other than
    /// "." and "..".
    pub fn entries(&self, number: u64) -> Vec<(u64, Vec<u8>)> {
        let blocks = self.blocks(number);
        let mut entries = Vec::new();
        let mut rest = &blocks[..];
        while let [a, b, c, d, low, high, name_length, _, after @ ..] = rest {
            let inode = u32::from_le_bytes([*a, *b, *c, *d]);
            let name = &after[..usize::from(*name_length)];
            if inode != 0 && name != b"." && name != b".." {
                entries.push((inode.into(), name.to_vec()));
            }
            rest = &rest[usize::from(u16::from_le_bytes([*low, *high]))..];
        }
        entries
    }
}
