//! The hash algorithms.

use sha2::{Digest, Sha256, Sha512};

/// The largest length of a hash in bytes.
pub(crate) const HASH_BYTES_MAX: usize = 64;

/// A hash. Bytes past its algorithm's length are zeroes.
pub(crate) type Hash = [u8; HASH_BYTES_MAX];

/// A hash algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HashAlgorithm {
    Sha256,
    Sha512,
}

impl HashAlgorithm {
    /// Returns the algorithm with a number of the descriptor.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Returns the name, as in file digests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the length of a hash in bytes.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Returns the length of the algorithm's input block in bytes, to which a salt is padded.
    fn input_block_len(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    /// Returns the hash of the padded salt, if there is one, and of `bytes`.
    pub(crate) fn hash(self, salt: &[u8], bytes: &[u8]) -> Hash {
        let padding = [0; 128];
        let padding = match salt.is_empty() {
            true => &[][..],
            false => &padding[..self.input_block_len().saturating_sub(salt.len())],
        };
        let mut hash = [0; HASH_BYTES_MAX];
        let parts = [salt, padding, bytes];
        match self {
            Self::Sha256 => hash[..32].copy_from_slice(&digest::<Sha256>(&parts)),
            Self::Sha512 => hash.copy_from_slice(&digest::<Sha512>(&parts)),
        }
        hash
    }
}

fn digest<D: Digest>(parts: &[&[u8]]) -> sha2::digest::Output<D> {
    let mut state = D::new();
    parts.iter().for_each(|part| state.update(part));
    state.finalize()
}
