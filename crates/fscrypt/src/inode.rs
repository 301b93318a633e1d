//! The ciphers of an inode, and the names that are shown for stored ones.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use base::{Error, InodeNumber, Result, Unsupported};

use crate::{Contents, Names, NoKeyName, stored_target};

/// The ciphers of an encrypted inode, which are kept from their first use on. They are never set
/// without the key.
#[derive(Debug, Default)]
pub struct Ciphers {
    contents: OnceLock<Arc<Contents>>,
    names: OnceLock<Names>,
}

impl Ciphers {
    /// Returns the cipher of the contents of the file `inode`, which `find` returns at first.
    /// Errors: `Unsupported` without the key; those of `find`.
    pub fn contents(
        &self,
        inode: InodeNumber,
        find: impl FnOnce() -> Result<Option<Contents>>,
    ) -> Result<&Arc<Contents>> {
        if let Some(cipher) = self.contents.get() {
            return Ok(cipher);
        }
        let cipher = find()?.ok_or(Unsupported::Encrypted(inode))?;
        Ok(self.contents.get_or_init(|| Arc::new(cipher)))
    }

    /// Returns the cipher of the names in a directory, or of the target of a symbolic link, which
    /// `find` returns at first; `None` without the key. Errors: those of `find`.
    pub fn names(&self, find: impl FnOnce() -> Result<Option<Names>>) -> Result<Option<&Names>> {
        if let Some(cipher) = self.names.get() {
            return Ok(Some(cipher));
        }
        Ok(find()?.map(|cipher| self.names.get_or_init(|| cipher)))
    }
}

/// A name as it is stored in an encrypted directory, or the part of it that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoredName {
    /// The encrypted name.
    Encrypted(Vec<u8>),
    /// The name without the key.
    NoKey(NoKeyName),
}

impl StoredName {
    /// Returns what the name `shown`, which is not "." or "..", is stored as. `names` is the cipher
    /// of its directory, with the key. Errors: `NotFound` if no name is shown like that;
    /// `NameTooLong`.
    pub fn of(shown: &[u8], names: Option<&Names>) -> Result<Self> {
        match names {
            Some(names) => names.encrypt(shown).map(Self::Encrypted),
            None => NoKeyName::decode(shown).map(Self::NoKey).ok_or(Error::NotFound),
        }
    }
}

/// The form in which the names of a directory are shown.
#[derive(Clone, Copy, Debug)]
pub enum ShownNames<'d> {
    /// As they are stored.
    Plain,
    /// Decrypted.
    Decrypted(&'d Names),
    /// Without the key.
    NoKey,
}

impl<'d> ShownNames<'d> {
    /// Returns the form for an encrypted directory with this cipher.
    pub fn encrypted(names: Option<&'d Names>) -> Self {
        names.map_or(Self::NoKey, Self::Decrypted)
    }

    /// Returns the name that is shown for `stored`. `dirhash` returns the major and minor hashes by
    /// which the directory orders the entry, or zeroes. Errors: `Corrupt`.
    pub fn name<'n>(
        &self,
        stored: &'n [u8],
        dirhash: impl FnOnce() -> [u32; 2],
    ) -> Result<Cow<'n, [u8]>> {
        match self {
            _ if matches!(stored, b"." | b"..") => Ok(Cow::Borrowed(stored)),
            Self::Plain => Ok(Cow::Borrowed(stored)),
            Self::Decrypted(names) => names.decrypt(stored).map(Cow::Owned),
            Self::NoKey => Ok(Cow::Owned(NoKeyName::new(dirhash(), stored).encode().into_bytes())),
        }
    }
}

/// Returns the target that is shown for the symbolic link `inode`, whose stored form begins
/// `stored`. `names` is its cipher, with the key. Errors: `Corrupt`.
pub fn shown_target(stored: &[u8], names: Option<&Names>, inode: InodeNumber) -> Result<Vec<u8>> {
    match names {
        Some(names) => names.decrypt_target(stored),
        None => {
            let target = stored_target(stored, inode)?;
            Ok(NoKeyName::new([0; 2], target).encode().into_bytes())
        }
    }
}

/// The attribute whose value is the encryption context, by the name after its prefix. ext4 and f2fs
/// have the same.
pub const CONTEXT_NAME: &[u8] = b"c";
