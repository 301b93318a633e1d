//! Encryption policies: the modes, the padding of names, and the rules for initialization vectors.

use std::fmt;

use base::{Error, InodeNumber, Location, Problem, Result, Unsupported};
use data_encoding::HEXLOWER;

use crate::Mode;
use crate::ondisk::{FLAG_DIRECT_KEY, FLAG_IV_INO_LBLK_32, FLAG_IV_INO_LBLK_64, FLAGS_PADDING};

/// The name of a master key in policies. Its kind is also the version of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyId {
    /// Version 1: a name that user space chose.
    Descriptor([u8; 8]),
    /// Version 2: a hash of the key.
    Identifier([u8; 16]),
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(bytes) => f.write_str(&HEXLOWER.encode(bytes)),
            Self::Identifier(bytes) => f.write_str(&HEXLOWER.encode(bytes)),
        }
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor(_) => write!(f, "Descriptor({self})"),
            Self::Identifier(_) => write!(f, "Identifier({self})"),
        }
    }
}

/// The rule for initialization vectors, which also decides which files share a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IvRule {
    /// The index of the data unit. Each file has its own key.
    PerFileKey,
    /// The index of the data unit and the file's nonce. All files with a mode share a key.
    DirectKey,
    /// The index of the data unit and the inode number, in 64 bits. All files of a volume share a
    /// key.
    InodeLblk64,
    /// The index of the data unit plus a hash of the inode number, in 32 bits. All files of a
    /// volume share a key.
    InodeLblk32,
}

/// An encryption policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The master key.
    pub key: KeyId,
    /// The mode of file contents.
    pub contents: Mode,
    /// The mode of names and of targets of symbolic links.
    pub names: Mode,
    /// The rule for initialization vectors.
    pub iv: IvRule,
    /// The number of bytes to a multiple of which names are padded: 4, 8, 16 or 32.
    pub name_padding: usize,
    /// The binary logarithm of the size of data units in bytes, if it is not the block size.
    pub log2_data_unit_size: Option<u8>,
}

impl Policy {
    /// Returns the rule and the padding of `flags`, which are the flags of a context of `inode`.
    /// Errors: `Corrupt` for rules that exclude each other, `Unsupported` for unknown flags.
    pub(crate) fn parse_flags(flags: u8, inode: InodeNumber) -> Result<(IvRule, usize)> {
        let name_padding = 4 << (flags & FLAGS_PADDING);
        let iv = match flags & !FLAGS_PADDING {
            0 => IvRule::PerFileKey,
            FLAG_DIRECT_KEY => IvRule::DirectKey,
            FLAG_IV_INO_LBLK_64 => IvRule::InodeLblk64,
            FLAG_IV_INO_LBLK_32 => IvRule::InodeLblk32,
            other if other & 0xe0 != 0 => {
                let feature = "unknown encryption flags";
                return Err(Unsupported::Inode { inode, feature }.into());
            }
            _ => {
                let problem = Problem::Invalid { field: "flags", found: flags.into() };
                return Err(Error::corrupt("encryption context", Location::inode(inode), problem));
            }
        };
        Ok((iv, name_padding))
    }

    /// Returns the flags of a context.
    pub(crate) fn flags(&self) -> u8 {
        let padding = match self.name_padding {
            4 => 0,
            8 => 1,
            16 => 2,
            _ => 3,
        };
        let rule = match self.iv {
            IvRule::PerFileKey => 0,
            IvRule::DirectKey => FLAG_DIRECT_KEY,
            IvRule::InodeLblk64 => FLAG_IV_INO_LBLK_64,
            IvRule::InodeLblk32 => FLAG_IV_INO_LBLK_32,
        };
        rule | padding
    }

    /// Checks that kernels accept the policy. Errors: `Unsupported`.
    pub(crate) fn check(&self, inode: InodeNumber) -> Result<()> {
        let is_version_2 = matches!(self.key, KeyId::Identifier(_));
        let modes_match = match (self.contents, self.names) {
            (Mode::Aes256Xts, Mode::Aes256Cts)
            | (Mode::Aes128CbcEssiv, Mode::Aes128Cts)
            | (Mode::Adiantum, Mode::Adiantum) => true,
            (Mode::Aes256Xts, Mode::Aes256Hctr2) => is_version_2,
            _ => false,
        };
        let rule_matches = match self.iv {
            IvRule::PerFileKey => true,
            IvRule::DirectKey => self.contents == self.names && self.contents.has_long_iv(),
            IvRule::InodeLblk64 | IvRule::InodeLblk32 => {
                is_version_2 && self.contents == Mode::Aes256Xts
            }
        };
        let feature = match (modes_match, rule_matches) {
            (true, true) => return Ok(()),
            (false, _) => "an unknown pair of encryption modes",
            (true, false) => "encryption flags that do not fit the encryption modes",
        };
        Err(Unsupported::Inode { inode, feature }.into())
    }
}
