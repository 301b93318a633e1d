//! The contents of encrypted files.

use std::fmt;

use base::{Error, FileOffset, Result};
use iomap::Transform;

use crate::cipher::Cipher;
use crate::iv::Ivs;

/// The cipher of a file's contents. It converts data units, which are blocks or equal parts of
/// them.
pub struct Contents {
    cipher: Cipher,
    ivs: Ivs,
    unit_shift: u32,
}

impl fmt::Debug for Contents {
    /// Does not show the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("unit_bytes", &self.unit_bytes()).finish_non_exhaustive()
    }
}

impl Contents {
    pub(crate) fn new(cipher: Cipher, ivs: Ivs, unit_shift: u32) -> Self {
        Self { cipher, ivs, unit_shift }
    }

    /// Returns the length of data units in bytes.
    pub fn unit_bytes(&self) -> usize {
        1 << self.unit_shift
    }

    /// Encrypts whole data units, from byte `at` of the file on. Errors: `FileTooLarge`.
    ///
    /// Panics if `at` or the length is not a multiple of the size of data units.
    pub fn encrypt(&self, at: FileOffset, data: &mut [u8]) -> Result<()> {
        let index = self.index(at, data)?;
        for (index, unit) in (index..).zip(data.chunks_exact_mut(self.unit_bytes())) {
            self.cipher.encrypt(&self.ivs.at(index), unit);
        }
        Ok(())
    }

    /// Decrypts whole data units, from byte `at` of the file on. Errors: `FileTooLarge`.
    ///
    /// Panics if `at` or the length is not a multiple of the size of data units.
    pub fn decrypt(&self, at: FileOffset, data: &mut [u8]) -> Result<()> {
        let index = self.index(at, data)?;
        for (index, unit) in (index..).zip(data.chunks_exact_mut(self.unit_bytes())) {
            self.cipher.decrypt(&self.ivs.at(index), unit);
        }
        Ok(())
    }

    /// Returns the index of the first data unit.
    fn index(&self, at: FileOffset, data: &[u8]) -> Result<u64> {
        let bytes = self.unit_bytes() as u64;
        let length = data.len() as u64;
        assert!(at.0 % bytes == 0 && length % bytes == 0, "whole data units");
        let end = at.checked_add(length).ok_or(Error::FileTooLarge)?;
        // Indexes are below 2^64 in any case, since data units have at least 512 bytes.
        if (end.0 >> self.unit_shift).saturating_sub(1) > self.ivs.index_max() {
            return Err(Error::FileTooLarge);
        }
        Ok(at.0 >> self.unit_shift)
    }
}

impl Transform for Contents {
    fn store(&self, at: FileOffset, data: &[u8], stored: &mut [u8]) -> Result<()> {
        stored.copy_from_slice(data);
        self.encrypt(at, stored)
    }

    fn load(&self, at: FileOffset, stored: &mut [u8]) -> Result<()> {
        self.decrypt(at, stored)
    }
}
