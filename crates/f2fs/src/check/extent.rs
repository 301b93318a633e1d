//! The check of an inode's cached extent: the file's addresses in its range are those of the
//! extent, and addresses of the extent are not outside of its range.

use base::{FileBlock, FsBlock, Problem};
use zerocopy::little_endian::U32;

/// A cached extent, and what was found of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtentCheck {
    /// First block of the file.
    file: FileBlock,
    /// First block of the volume.
    block: FsBlock,
    length: u64,
    /// The number of addresses in the range that are those of the extent.
    matching: u64,
    /// The first block of the file with another address.
    other: Option<FileBlock>,
}

impl ExtentCheck {
    pub(super) fn new(raw: &[U32; 3]) -> Self {
        let [file, block, length] = [0, 1, 2].map(|index| u64::from(raw[index].get()));
        let (file, block) = (FileBlock(file), FsBlock(block));
        Self { file, block, length, matching: 0, other: None }
    }

    /// Compares an address of the file with the extent.
    pub(super) fn see(&mut self, at: FileBlock, address: FsBlock) {
        let is_in_file = (self.file.0..self.file.0 + self.length).contains(&at.0);
        let is_in_extent = (self.block.0..self.block.0 + self.length).contains(&address.0);
        if is_in_file && address.0 == self.block.0 + (at.0 - self.file.0) {
            self.matching += 1;
        } else if is_in_file || is_in_extent {
            self.other.get_or_insert(at);
        }
    }

    /// Returns the problem of the extent, after all addresses were seen.
    pub(super) fn problem(&self, is_inline: bool) -> Option<Problem> {
        if self.length == 0 {
            return None;
        }
        if is_inline {
            return Some(Problem::Invalid { field: "length", found: self.length });
        }
        if let Some(other) = self.other {
            return Some(Problem::Invalid { field: "address of file block", found: other.0 });
        }
        let (field, found, expected) = ("length", self.length, self.matching);
        (found != expected).then_some(Problem::Mismatch { field, found, expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(extent: [u32; 3], addresses: &[u64], is_right: bool) {
        let mut check = ExtentCheck::new(&extent.map(U32::new));
        for (at, address) in (0..).zip(addresses) {
            if *address != 0 {
                check.see(FileBlock(at), FsBlock(*address));
            }
        }
        assert_eq!(check.problem(false).is_none(), is_right, "{:?}", check.problem(false));
    }

    #[test]
    fn every_address_of_an_extent_must_match() {
        let addresses = [0, 50, 51, 52, 9, 0, 70];
        check([1, 50, 3], &addresses, true);
        check([1, 50, 2], &addresses, true);
        check([2, 51, 2], &addresses, true);
        check([9, 9, 0], &addresses, true);
        check([1, 50, 4], &addresses, false);
        check([0, 49, 4], &addresses, false);
        check([2, 50, 3], &addresses, false);
        check([4, 9, 1], &addresses, true);
        check([u32::MAX, u32::MAX, u32::MAX], &addresses, false);
    }

    #[test]
    fn inline_contents_have_no_extent() {
        let extent = ExtentCheck::new(&[0, 50, 1].map(U32::new));
        assert!(extent.problem(true).is_some());
    }
}
