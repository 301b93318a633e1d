//! The encryption modes.

use base::{Error, InodeNumber, Result, Unsupported};

/// An encryption mode: a cipher for data units or names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// AES-256 in XTS mode, for contents.
    Aes256Xts,
    /// AES-256 in CBC mode with ciphertext stealing, for names.
    Aes256Cts,
    /// AES-128 in CBC mode with encrypted initialization vectors, for contents.
    Aes128CbcEssiv,
    /// AES-128 in CBC mode with ciphertext stealing, for names.
    Aes128Cts,
    /// Adiantum with XChaCha12 and AES-256, for contents and names.
    Adiantum,
    /// AES-256 in HCTR2 mode, for names.
    Aes256Hctr2,
}

impl Mode {
    /// Returns the mode with the number `number` in a context of `inode`. Errors: `Unsupported`.
    pub fn from_disk(number: u8, inode: InodeNumber) -> Result<Self> {
        let feature = match number {
            1 => return Ok(Self::Aes256Xts),
            4 => return Ok(Self::Aes256Cts),
            5 => return Ok(Self::Aes128CbcEssiv),
            6 => return Ok(Self::Aes128Cts),
            9 => return Ok(Self::Adiantum),
            10 => return Ok(Self::Aes256Hctr2),
            2 => "encryption mode AES-256-GCM",
            3 => "encryption mode AES-256-CBC",
            7 => "encryption mode SM4-XTS",
            8 => "encryption mode SM4-CBC-CTS",
            _ => "an unknown encryption mode",
        };
        Err(Error::Unsupported(Unsupported::Inode { inode, feature }))
    }

    /// Returns the number of the mode in contexts.
    pub fn to_disk(self) -> u8 {
        match self {
            Self::Aes256Xts => 1,
            Self::Aes256Cts => 4,
            Self::Aes128CbcEssiv => 5,
            Self::Aes128Cts => 6,
            Self::Adiantum => 9,
            Self::Aes256Hctr2 => 10,
        }
    }

    /// Returns the length of the mode's keys in bytes.
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Aes256Xts => 64,
            Self::Aes256Cts | Self::Adiantum | Self::Aes256Hctr2 => 32,
            Self::Aes128CbcEssiv | Self::Aes128Cts => 16,
        }
    }

    /// Returns the strength of the mode in bytes. The master keys of policies of version 2 are at
    /// least as long.
    pub(crate) fn strength_bytes(self) -> usize {
        self.key_bytes().min(32)
    }

    /// Returns whether initialization vectors have room for a nonce after the index.
    pub(crate) fn has_long_iv(self) -> bool {
        matches!(self, Self::Adiantum | Self::Aes256Hctr2)
    }
}
