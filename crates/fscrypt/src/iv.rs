//! Initialization vectors of data units.

use siphasher::sip::SipHasher24;

use crate::derive::{Purpose, derive_array};
use crate::{Context, IvRule};

/// The longest initialization vector. Modes with shorter ones use its start.
pub type Iv = [u8; 32];

/// The initialization vectors of one inode.
#[derive(Clone, Copy, Debug)]
pub enum Ivs {
    /// The index.
    Index,
    /// The index, then the nonce.
    IndexAndNonce([u8; 16]),
    /// The inode number above the 32 bits of the index.
    InodeAndIndex(u32),
    /// The sum of the index and the hash of the inode number, in 32 bits.
    HashPlusIndex(u32),
}

impl Ivs {
    /// Returns the vectors for an inode with `context` and the number `inode`, with the master key
    /// `raw`.
    pub fn new(context: &Context, inode: u32, raw: &[u8]) -> Self {
        match context.policy.iv {
            IvRule::PerFileKey => Self::Index,
            IvRule::DirectKey => Self::IndexAndNonce(context.nonce),
            IvRule::InodeLblk64 => Self::InodeAndIndex(inode),
            IvRule::InodeLblk32 => {
                let key = derive_array(raw, Purpose::InodeHash, &[]);
                let hash = SipHasher24::new_with_key(&key).hash(&u64::from(inode).to_le_bytes());
                Self::HashPlusIndex(hash as u32)
            }
        }
    }

    /// Returns the greatest index of a data unit for which there is a vector.
    pub fn index_max(&self) -> u64 {
        match self {
            Self::Index | Self::IndexAndNonce(_) => u64::MAX,
            Self::InodeAndIndex(_) | Self::HashPlusIndex(_) => u32::MAX.into(),
        }
    }

    /// Returns the vector of the data unit `index`, or of names if it is 0. The index is at most
    /// [`index_max`](Self::index_max).
    pub fn at(&self, index: u64) -> Iv {
        let mut iv = [0; 32];
        let number = match self {
            Self::Index => index,
            Self::IndexAndNonce(nonce) => {
                iv[8..24].copy_from_slice(nonce);
                index
            }
            Self::InodeAndIndex(inode) => u64::from(*inode) << 32 | index,
            Self::HashPlusIndex(hash) => hash.wrapping_add(index as u32).into(),
        };
        iv[..8].copy_from_slice(&number.to_le_bytes());
        iv
    }
}
