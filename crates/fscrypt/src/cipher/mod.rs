//! The ciphers of the encryption modes. All encrypt in place and keep the length.

mod adiantum;
mod cbc;
mod hctr2;
#[cfg(test)]
mod tests;
mod xts;

use aes::{Aes128, Aes256};

use crate::Mode;
use crate::iv::Iv;

use adiantum::Adiantum;
use cbc::{CbcEssiv, Cts};
use hctr2::Hctr2;
use xts::Xts;

/// The length of a cipher block in bytes, and of the shortest data of each mode.
pub const BLOCK_BYTES: usize = 16;

/// A mode with its key, which is erased on drop. The variants are large tables, or boxes of them.
pub enum Cipher {
    /// [`Mode::Aes256Xts`].
    Aes256Xts(Box<Xts>),
    /// [`Mode::Aes256Cts`].
    Aes256Cts(Box<Cts<Aes256>>),
    /// [`Mode::Aes128CbcEssiv`].
    Aes128CbcEssiv(Box<CbcEssiv>),
    /// [`Mode::Aes128Cts`].
    Aes128Cts(Box<Cts<Aes128>>),
    /// [`Mode::Adiantum`].
    Adiantum(Box<Adiantum>),
    /// [`Mode::Aes256Hctr2`].
    Aes256Hctr2(Box<Hctr2>),
}

impl Cipher {
    /// Returns the cipher of `mode` with `key`.
    ///
    /// Panics if the key has not the mode's length.
    pub fn new(mode: Mode, key: &[u8]) -> Self {
        assert_eq!(key.len(), mode.key_bytes(), "keys have the length of their mode");
        match mode {
            Mode::Aes256Xts => Self::Aes256Xts(Box::new(Xts::new(key))),
            Mode::Aes256Cts => Self::Aes256Cts(Box::new(Cts::new(key))),
            Mode::Aes128CbcEssiv => Self::Aes128CbcEssiv(Box::new(CbcEssiv::new(key))),
            Mode::Aes128Cts => Self::Aes128Cts(Box::new(Cts::new(key))),
            Mode::Adiantum => Self::Adiantum(Box::new(Adiantum::new(key))),
            Mode::Aes256Hctr2 => Self::Aes256Hctr2(Box::new(Hctr2::new(key))),
        }
    }

    /// Encrypts `data`.
    ///
    /// Panics if the data is shorter than a cipher block, or for modes of contents, is not whole
    /// blocks.
    pub fn encrypt(&self, iv: &Iv, data: &mut [u8]) {
        match self {
            Self::Aes256Xts(cipher) => cipher.encrypt(start(iv), data),
            Self::Aes256Cts(cipher) => cipher.encrypt(start(iv), data),
            Self::Aes128CbcEssiv(cipher) => cipher.encrypt(start(iv), data),
            Self::Aes128Cts(cipher) => cipher.encrypt(start(iv), data),
            Self::Adiantum(cipher) => cipher.encrypt(iv, data),
            Self::Aes256Hctr2(cipher) => cipher.encrypt(iv, data),
        }
    }

    /// Decrypts `data`.
    ///
    /// Panics as [`encrypt`](Self::encrypt) does.
    pub fn decrypt(&self, iv: &Iv, data: &mut [u8]) {
        match self {
            Self::Aes256Xts(cipher) => cipher.decrypt(start(iv), data),
            Self::Aes256Cts(cipher) => cipher.decrypt(start(iv), data),
            Self::Aes128CbcEssiv(cipher) => cipher.decrypt(start(iv), data),
            Self::Aes128Cts(cipher) => cipher.decrypt(start(iv), data),
            Self::Adiantum(cipher) => cipher.decrypt(iv, data),
            Self::Aes256Hctr2(cipher) => cipher.decrypt(iv, data),
        }
    }
}

/// Returns the initialization vector of modes with short ones, as a number.
fn start(iv: &Iv) -> u128 {
    let (start, _) = iv.split_first_chunk().expect("an initialization vector is longer");
    u128::from_le_bytes(*start)
}

/// Returns the 16 bytes of `block` as a number.
fn number(block: &[u8]) -> u128 {
    u128::from_le_bytes(block.try_into().expect("a cipher block"))
}

/// Adds each bit of `other` to that of `data`, as far as the shorter one goes.
fn xor(data: &mut [u8], other: &[u8]) {
    for (byte, other) in data.iter_mut().zip(other) {
        *byte ^= other;
    }
}
