//! Encrypted inodes: their ciphers, and the names that are shown for stored ones.
//! Not here: the ciphers, and their keys (`fscrypt`).

use std::sync::{Arc, OnceLock};

use base::attributes::FileType;
use base::{Error, Location, Problem, Result, Unsupported};
use fscrypt::{Contents, Context, Names, NoKeyName, Owner};

use crate::dir::hash::NameHasher;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::xattr::name::NameIndex;

/// The name, after its prefix, of the attribute with the encryption context.
const CONTEXT_NAME: &[u8] = b"c";

/// The ciphers of an inode, which are kept from their first use on. They are never set without the key.
#[derive(Default)]
pub(crate) struct Ciphers {
    contents: OnceLock<Arc<Contents>>,
    names: OnceLock<Names>,
}

/// A name in a directory as it is stored, or the part of it that is known.
pub(crate) enum Stored<'n> {
    /// The name.
    Plain(&'n [u8]),
    /// The encrypted name.
    Encrypted(Vec<u8>),
    /// A name that is too long for its form without the key.
    Long(NoKeyName),
}

/// The names that are shown for the stored names of a directory.
pub(crate) enum Shown<'d> {
    /// The stored names.
    Plain,
    /// The decrypted names.
    Decrypted(&'d Names),
    /// The names without the key. They contain hashes if the directory has an order by hash.
    NoKey(Option<NameHasher>),
}

impl Shown<'_> {
    /// Returns the name that is shown for `stored`, which is not "." or "..". Errors: `Corrupt`.
    pub(crate) fn name(&self, stored: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Plain => Ok(stored.to_vec()),
            Self::Decrypted(names) => names.decrypt(stored),
            Self::NoKey(hasher) => {
                let hash = hasher.map(|hasher| hasher.hash(stored));
                let dirhash = hash.map_or([0; 2], |hash| [hash.major, hash.minor]);
                Ok(NoKeyName::new(dirhash, stored).encode().into_bytes())
            }
        }
    }
}

impl Inode {
    /// Returns whether names and targets have to be decrypted. A recovery uses them as they are stored.
    pub(crate) fn has_encrypted_names(&self) -> bool {
        self.has(InodeFlags::ENCRYPTED) && !self.volume().is_recovering()
    }

    /// Returns the cipher of the contents of this encrypted file. Errors: `Unsupported` without the key; `Corrupt`.
    pub(crate) fn contents_cipher(&self) -> Result<&Arc<Contents>> {
        let ciphers = &self.ciphers.contents;
        if let Some(cipher) = ciphers.get() {
            return Ok(cipher);
        }
        if self.has(InodeFlags::INLINE_DATA) {
            let feature = "encrypted inline data";
            return Err(Unsupported::Inode { inode: self.number(), feature }.into());
        }
        let keys = self.volume().keys();
        match keys.contents(&self.encryption_context()?, &self.encryption_owner())? {
            Some(cipher) => Ok(ciphers.get_or_init(|| Arc::new(cipher))),
            None => Err(Unsupported::Encrypted(self.number()).into()),
        }
    }

    /// Returns the cipher of the names in this encrypted directory, or of the target of this encrypted symbolic link;
    /// `None` without the key. Errors: `Corrupt`; `Unsupported`.
    pub(crate) fn names_cipher(&self) -> Result<Option<&Names>> {
        let ciphers = &self.ciphers.names;
        if let Some(cipher) = ciphers.get() {
            return Ok(Some(cipher));
        }
        let keys = self.volume().keys();
        let cipher = keys.names(&self.encryption_context()?, &self.encryption_owner())?;
        Ok(cipher.map(|cipher| ciphers.get_or_init(|| cipher)))
    }

    /// Returns what the name `shown` in this directory is stored as. Errors: `NotFound` if no name is shown like that;
    /// `NameTooLong`; those of [`names_cipher`](Self::names_cipher).
    pub(crate) fn stored_name<'n>(&self, shown: &'n [u8]) -> Result<Stored<'n>> {
        if !self.has_encrypted_names() || matches!(shown, b"." | b"..") {
            return Ok(Stored::Plain(shown));
        }
        if let Some(names) = self.names_cipher()? {
            return names.encrypt(shown).map(Stored::Encrypted);
        }
        let name = NoKeyName::decode(shown).ok_or(Error::NotFound)?;
        Ok(match name.stored() {
            Some(stored) => Stored::Encrypted(stored.to_vec()),
            None => Stored::Long(name),
        })
    }

    /// Returns the target of this symbolic link, whose stored form is `stored`; without the key, the form that is
    /// shown. Errors: `Corrupt`; `Unsupported`.
    pub(crate) fn shown_target(&self, stored: &[u8]) -> Result<Vec<u8>> {
        if let Some(names) = self.names_cipher()? {
            return names.decrypt_target(stored);
        }
        let target = fscrypt::stored_target(stored, self.number())?;
        Ok(NoKeyName::new([0; 2], target).encode().into_bytes())
    }

    /// Returns whether the data of this file has to be decrypted.
    pub(crate) fn has_encrypted_contents(&self) -> bool {
        self.kind() == FileType::Regular && self.has(InodeFlags::ENCRYPTED)
    }

    fn encryption_context(&self) -> Result<Context> {
        let context = self.stored_attribute(NameIndex::ENCRYPTION, CONTEXT_NAME);
        let context = context.map_err(|error| match error {
            Error::NoAttribute => {
                let problem = Problem::Missing("encryption context");
                Error::corrupt("encrypted inode", Location::inode(self.number()), problem)
            }
            error => error,
        })?;
        Context::parse(&context, self.number())
    }

    fn encryption_owner(&self) -> Owner {
        let superblock = self.volume().superblock();
        let block_size = superblock.geometry.block_size;
        Owner { inode: self.number(), uuid: superblock.geometry.uuid, block_size }
    }
}
