//! Files with fs-verity: the position of the descriptor, and reads of the Merkle tree, both past
//! the end of the file. Not here: the descriptor and the tree themselves (the crate `verity`).
//!
//! Source: <https://docs.kernel.org/filesystems/fsverity.html#ext4>.

use ::verity::{DESCRIPTOR_BYTES_MAX, Descriptor, PastEnd, TREE_ALIGNMENT, Verifier};
use base::{Error, FileBlock, FileOffset, Location, Problem, Result};
use fs::Piece;

use super::Inode;
use crate::inode::record::InodeFlags;

impl Inode {
    /// Returns the digest of a file with fs-verity, in the form of `fsverity digest`; `None` for
    /// other files. Errors: `Corrupt` if the descriptor is invalid.
    pub fn verity_digest(&self) -> Result<Option<String>> {
        match self.has(InodeFlags::VERITY) {
            true => self.verifier().map(|verifier| Some(verifier.descriptor().file_digest())),
            false => Ok(None),
        }
    }

    /// Verifies whole blocks from byte `at` on.
    pub(super) fn verify_data(&self, at: FileOffset, data: &[u8]) -> Result<()> {
        self.verifier()?.verify(at, data, &|at, into| self.past_end().read(at, into))
    }

    /// Returns the verifier, which is loaded once. An error is not kept.
    fn verifier(&self) -> Result<&Verifier> {
        if let Some(verifier) = self.verifier.get() {
            return Ok(verifier);
        }
        let descriptor = self.load_descriptor()?;
        let block_size = self.volume.geometry().block_size;
        let verifier = Verifier::new(descriptor, self.number, block_size)?;
        Ok(self.verifier.get_or_init(|| Box::new(verifier)))
    }

    /// Reads the descriptor, whose length is in the last four bytes of the file's last block.
    fn load_descriptor(&self) -> Result<Descriptor> {
        let location = Location::inode(self.number);
        let corrupt = |problem| Err(Error::corrupt("verity descriptor", location, problem));
        if !self.has(InodeFlags::EXTENTS) {
            return corrupt(Problem::Missing("extent tree"));
        }
        let last = FileBlock(self.map_end().0.saturating_sub(1));
        let Piece::Hole { start: end, .. } = self.piece_at(last, last)? else {
            return corrupt(Problem::Invalid { field: "last block", found: last.0 });
        };
        // No overflow: file blocks have 32 bits.
        let block_size = self.volume.geometry().block_size;
        let end = end.0 << block_size.shift();
        let first = self.size().checked_next_multiple_of(TREE_ALIGNMENT).unwrap_or(u64::MAX);
        let Some(available) = end.checked_sub(first).filter(|bytes| *bytes > 4) else {
            return corrupt(Problem::Missing("block after the end of the file"));
        };
        let mut length = [0; 4];
        self.past_end().read(FileOffset(end - 4), &mut length)?;
        let length = u32::from_le_bytes(length);
        if length > DESCRIPTOR_BYTES_MAX || u64::from(length) > available - 4 {
            let max = u64::from(DESCRIPTOR_BYTES_MAX).min(available - 4);
            let found = length.into();
            return corrupt(Problem::Range { field: "length", found, min: 0, max });
        }
        let block = u64::from(block_size.bytes());
        let start = (end - 4 - u64::from(length)) / block * block;
        let mut bytes = vec![0; length as usize];
        self.past_end().read(FileOffset(start), &mut bytes)?;
        Descriptor::parse(&bytes, self.size(), location)
    }

    fn past_end(&self) -> PastEnd<'_> {
        PastEnd {
            inode: self.number,
            mapper: self,
            device: self.volume.device(),
            block_size: self.volume.geometry().block_size,
        }
    }
}
