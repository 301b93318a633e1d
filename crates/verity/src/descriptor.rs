//! The parsed descriptor of a file, and its digest.

use std::fmt::Write as _;

use base::{Error, Location, Problem, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::hash::{Hash, HashAlgorithm};
use crate::ondisk::RawDescriptor;

/// The maximum length of a descriptor with its signature, in bytes.
pub const DESCRIPTOR_BYTES_MAX: u32 = 16384;

const STRUCTURE: &str = "verity descriptor";

/// The descriptor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    pub(crate) algorithm: HashAlgorithm,
    /// log2 of the size of blocks of data and of the tree, in bytes: 10 to 16.
    pub(crate) block_shift: u32,
    /// The size of the file in bytes, less than 2^63.
    pub(crate) data_size: u64,
    pub(crate) root_hash: Hash,
    salt: [u8; 32],
    salt_len: usize,
    file_hash: Hash,
}

impl Descriptor {
    /// Parses a descriptor with its signature, which is ignored, of a file of `size` bytes. Errors:
    /// `Corrupt`.
    pub fn parse(bytes: &[u8], size: u64, location: Location) -> Result<Self> {
        let corrupt = |problem| Err(Error::corrupt(STRUCTURE, location, problem));
        let available = bytes.len() as u64;
        if available > DESCRIPTOR_BYTES_MAX.into() {
            let max = DESCRIPTOR_BYTES_MAX.into();
            return corrupt(Problem::Range { field: "length", found: available, min: 256, max });
        }
        let Ok((raw, signature)) = RawDescriptor::ref_from_prefix(bytes) else {
            return corrupt(Problem::Truncated { needed: 256, available });
        };
        let invalid = |field, found| corrupt(Problem::Invalid { field, found });
        if raw.version != 1 {
            return invalid("version", raw.version.into());
        }
        let Some(algorithm) = HashAlgorithm::from_number(raw.hash_algorithm) else {
            return invalid("hash algorithm", raw.hash_algorithm.into());
        };
        let block_shift = u32::from(raw.log_blocksize);
        if !(10..=16).contains(&block_shift) {
            return invalid("block size", block_shift.into());
        }
        let Some(salt) = raw.salt.get(..usize::from(raw.salt_size)) else {
            return invalid("salt length", raw.salt_size.into());
        };
        if u64::from(raw.sig_size.get()) > signature.len() as u64 {
            let needed = 256 + u64::from(raw.sig_size.get());
            return corrupt(Problem::Truncated { needed, available });
        }
        if let Some(byte) = raw.reserved.iter().find(|byte| **byte != 0) {
            return invalid("reserved field", (*byte).into());
        }
        let data_size = raw.data_size.get();
        if data_size != size {
            let problem =
                Problem::Mismatch { field: "data size", found: data_size, expected: size };
            return corrupt(problem);
        }
        if data_size > i64::MAX as u64 {
            return invalid("data size", data_size);
        }
        // As in the kernel, the bytes behind a shorter hash have no meaning.
        let mut root_hash = [0; 64];
        root_hash[..algorithm.len()].copy_from_slice(&raw.root_hash[..algorithm.len()]);
        let mut unsigned = raw.clone();
        unsigned.sig_size = 0.into();
        Ok(Self {
            algorithm,
            block_shift,
            data_size,
            root_hash,
            salt: raw.salt,
            salt_len: salt.len(),
            file_hash: algorithm.hash(&[], unsigned.as_bytes()),
        })
    }

    /// Returns the file digest in the form of `fsverity digest`, such as `sha256:` and hexadecimal
    /// digits. It stands for the contents of the file, which are compared with it only when they
    /// are read.
    pub fn file_digest(&self) -> String {
        let mut digest = format!("{}:", self.algorithm.name());
        for byte in &self.file_hash[..self.algorithm.len()] {
            // Writing to a string does not fail.
            let _ = write!(digest, "{byte:02x}");
        }
        digest
    }

    /// Returns the size of blocks of data and of the tree, in bytes.
    pub fn block_bytes(&self) -> usize {
        1 << self.block_shift
    }

    /// Returns the number of blocks of data.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.data_size.div_ceil(1 << self.block_shift)
    }

    /// Returns the hash of a block.
    pub(crate) fn hash(&self, block: &[u8]) -> Hash {
        self.algorithm.hash(&self.salt[..self.salt_len], block)
    }
}
