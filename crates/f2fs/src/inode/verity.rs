//! Files with fs-verity: the position of the descriptor. It lies past the end of the file, as the
//! Merkle tree does. Not here: the descriptor and the tree themselves (the crate `verity`).
//!
//! Source: <https://docs.kernel.org/filesystems/fsverity.html#f2fs>.

use ::verity::{DESCRIPTOR_BYTES_MAX, Descriptor, PastEnd, TREE_ALIGNMENT, Verifier};
use base::{Error, FileOffset, Location, Problem, Result};
use fs::xattr::NameIndex;
use zerocopy::FromBytes;

use super::Inode;
use super::record::flags;
use crate::ondisk::xattr::{RawVerityLocation, VERITY_LOCATION_VERSION};
use crate::xattr::VERITY_NAME;

const STRUCTURE: &str = "position of the verity descriptor";

impl Inode {
    /// Returns the digest of a file with fs-verity, in the form of `fsverity digest`; `None` for
    /// other files. Errors: `Corrupt` if the descriptor is invalid.
    pub fn verity_digest(&self) -> Result<Option<String>> {
        match self.has_verity() {
            true => self.verifier().map(|verifier| Some(verifier.descriptor().file_digest())),
            false => Ok(None),
        }
    }

    pub(super) fn has_verity(&self) -> bool {
        self.attributes().is_file() && self.record().has_flag(flags::VERITY)
    }

    /// Verifies whole blocks from byte `at` on.
    pub(super) fn verify_data(&self, at: FileOffset, data: &[u8]) -> Result<()> {
        self.verifier()?.verify(at, data, &|at, into| self.read_past_end(at, into))
    }

    /// Returns the verifier, which is loaded once. An error is not kept.
    fn verifier(&self) -> Result<&Verifier> {
        if let Some(verifier) = self.verifier.get() {
            return Ok(verifier);
        }
        let descriptor = self.load_descriptor()?;
        let block_size = self.volume().geometry().block_size;
        let verifier = Verifier::new(descriptor, self.number(), block_size)?;
        Ok(self.verifier.get_or_init(|| Box::new(verifier)))
    }

    fn load_descriptor(&self) -> Result<Descriptor> {
        let location = Location::inode(self.number());
        let corrupt = |problem| Error::corrupt(STRUCTURE, location, problem);
        let stored = self.stored_xattr(NameIndex::VERITY, VERITY_NAME)?;
        let stored = stored.ok_or_else(|| corrupt(Problem::Missing("extended attribute")))?;
        let position = RawVerityLocation::ref_from_bytes(&stored).map_err(|_| {
            let (found, expected) = (stored.len() as u64, size_of::<RawVerityLocation>() as u64);
            corrupt(Problem::Mismatch { field: "length", found, expected })
        })?;
        let version = position.version.get();
        if version != VERITY_LOCATION_VERSION {
            return Err(corrupt(Problem::Invalid { field: "version", found: version.into() }));
        }
        let at = position.position.get();
        let size = self.attributes().size;
        let min = size.checked_next_multiple_of(TREE_ALIGNMENT).unwrap_or(u64::MAX);
        if !(min..=i64::MAX as u64).contains(&at) {
            let max = i64::MAX as u64;
            return Err(corrupt(Problem::Range { field: "position", found: at, min, max }));
        }
        let length = position.size.get();
        if length > DESCRIPTOR_BYTES_MAX {
            let (found, max) = (length.into(), DESCRIPTOR_BYTES_MAX.into());
            return Err(corrupt(Problem::Range { field: "size", found, min: 0, max }));
        }
        let mut bytes = vec![0; length as usize];
        self.read_past_end(FileOffset(at), &mut bytes)?;
        Descriptor::parse(&bytes, size, location)
    }

    /// Reads from the tree or the descriptor.
    fn read_past_end(&self, at: FileOffset, into: &mut [u8]) -> Result<()> {
        self.volume().read_stably(|| self.past_end().read(at, into))
    }

    fn past_end(&self) -> PastEnd<'_> {
        PastEnd {
            inode: self.number(),
            mapper: self,
            device: self.volume().device(),
            block_size: self.volume().geometry().block_size,
        }
    }
}
