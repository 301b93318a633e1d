//! Encrypted names, and targets of symbolic links.

use std::fmt;

use base::{Error, InodeNumber, Location, Problem, Result};
use siphasher::sip::SipHasher24;

use crate::cipher::{BLOCK_BYTES, Cipher};
use crate::iv::Iv;

/// The longest name in bytes, encrypted or not.
pub const NAME_BYTES_MAX: usize = 255;

/// The bytes before an encrypted target: its length.
const TARGET_HEADER_BYTES: usize = 2;

/// The cipher of the names in a directory, or of the target of a symbolic link.
pub struct Names {
    cipher: Cipher,
    iv: Iv,
    padding: usize,
    hasher: Option<SipHasher24>,
    inode: InodeNumber,
}

impl fmt::Debug for Names {
    /// Does not show the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("inode", &self.inode).finish_non_exhaustive()
    }
}

impl Names {
    pub(crate) fn new(
        cipher: Cipher,
        iv: Iv,
        padding: usize,
        hasher: Option<SipHasher24>,
        inode: InodeNumber,
    ) -> Self {
        Self { cipher, iv, padding, hasher, inode }
    }

    /// Returns the name whose stored form is `stored`, which is not that of "." or "..". Errors:
    /// `Corrupt` if it cannot be a name.
    pub fn decrypt(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let name = self.decrypt_padded(stored, "encrypted name")?;
        if name.contains(&b'/') || matches!(&name[..], b"." | b"..") {
            let problem = Problem::Invalid { field: "decrypted name", found: name.len() as u64 };
            return Err(Error::corrupt("encrypted name", Location::inode(self.inode), problem));
        }
        Ok(name)
    }

    /// Returns the stored form of `name`, which is not "." or "..". Errors: `NameTooLong`.
    pub fn encrypt(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.encrypt_padded(name, NAME_BYTES_MAX)
    }

    /// Returns the target of a symbolic link whose stored form, with its length, begins `stored`.
    /// Errors: `Corrupt`.
    pub fn decrypt_target(&self, stored: &[u8]) -> Result<Vec<u8>> {
        self.decrypt_padded(stored_target(stored, self.inode)?, "encrypted symbolic link")
    }

    /// Returns the stored form of the target of a symbolic link, with its length. It has at most
    /// `max` bytes. Errors: `NameTooLong`.
    pub fn encrypt_target(&self, target: &[u8], max: usize) -> Result<Vec<u8>> {
        let max = max.min(TARGET_HEADER_BYTES + usize::from(u16::MAX));
        let encrypted = self.encrypt_padded(target, max.saturating_sub(TARGET_HEADER_BYTES))?;
        let length = u16::try_from(encrypted.len()).map_err(|_| Error::NameTooLong)?;
        Ok([&length.to_le_bytes()[..], &encrypted].concat())
    }

    /// Returns the hash of a name, by which directories with case folding and encryption order
    /// their entries. The caller has folded the name. Returns `None` for policies of version 1,
    /// which such directories cannot have.
    pub fn dirhash(&self, name: &[u8]) -> Option<u64> {
        self.hasher.as_ref().map(|hasher| hasher.hash(name))
    }

    fn decrypt_padded(&self, stored: &[u8], structure: &'static str) -> Result<Vec<u8>> {
        check_length(stored, structure, self.inode)?;
        let mut plain = stored.to_vec();
        self.cipher.decrypt(&self.iv, &mut plain);
        let length = plain.iter().position(|&byte| byte == 0).unwrap_or(plain.len());
        plain.truncate(length);
        if plain.is_empty() {
            let problem = Problem::Missing("text");
            return Err(Error::corrupt(structure, Location::inode(self.inode), problem));
        }
        Ok(plain)
    }

    fn encrypt_padded(&self, plain: &[u8], max: usize) -> Result<Vec<u8>> {
        if plain.len() > max || max < BLOCK_BYTES {
            return Err(Error::NameTooLong);
        }
        let length = plain.len().max(BLOCK_BYTES).next_multiple_of(self.padding).min(max);
        let mut stored = plain.to_vec();
        stored.resize(length, 0);
        self.cipher.encrypt(&self.iv, &mut stored);
        Ok(stored)
    }
}

/// Returns the encrypted target of the symbolic link `inode`, without its length, which begins
/// `stored`. Errors: `Corrupt`.
pub fn stored_target(stored: &[u8], inode: InodeNumber) -> Result<&[u8]> {
    let truncated = |needed: usize| {
        let (needed, available) = (needed as u64, stored.len() as u64);
        let problem = Problem::Truncated { needed, available };
        Error::corrupt("encrypted symbolic link", Location::inode(inode), problem)
    };
    let Some((&length, rest)) = stored.split_first_chunk() else {
        return Err(truncated(TARGET_HEADER_BYTES));
    };
    let length: usize = u16::from_le_bytes(length).into();
    let target = rest.get(..length).ok_or_else(|| truncated(TARGET_HEADER_BYTES + length))?;
    check_length(target, "encrypted symbolic link", inode)?;
    Ok(target)
}

/// Checks that `stored` has a length that encryption can give.
fn check_length(stored: &[u8], structure: &'static str, inode: InodeNumber) -> Result<()> {
    if stored.len() >= BLOCK_BYTES {
        return Ok(());
    }
    let (needed, available) = (BLOCK_BYTES as u64, stored.len() as u64);
    let problem = Problem::Truncated { needed, available };
    Err(Error::corrupt(structure, Location::inode(inode), problem))
}
