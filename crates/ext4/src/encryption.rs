//! Encrypted inodes: their contexts and ciphers.
//! Not here: the ciphers, their keys, and the names that are shown for stored ones (`fscrypt`).

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Location, Problem, Result, Unsupported};
use fs::xattr::NameIndex;
use fscrypt::{CONTEXT_NAME, Contents, Context, Names, Owner};

use crate::inode::Inode;
use crate::inode::record::InodeFlags;

impl Inode {
    /// Returns whether names and targets have to be decrypted. A recovery uses them as they are
    /// stored.
    pub(crate) fn has_encrypted_names(&self) -> bool {
        self.has(InodeFlags::ENCRYPTED) && !self.volume().is_recovering()
    }

    /// Returns whether the data of this file has to be decrypted.
    pub(crate) fn has_encrypted_contents(&self) -> bool {
        self.kind() == FileType::Regular && self.has(InodeFlags::ENCRYPTED)
    }

    /// Returns the cipher of the contents of this encrypted file. Errors: `Unsupported` without the
    /// key; `Corrupt`.
    pub(crate) fn contents_cipher(&self) -> Result<&Arc<Contents>> {
        self.ciphers.contents(self.number(), || {
            if self.has(InodeFlags::INLINE_DATA) {
                let feature = "encrypted inline data";
                return Err(Unsupported::Inode { inode: self.number(), feature }.into());
            }
            let context = self.encryption_context()?;
            self.volume().keys().contents(&context, &self.encryption_owner())
        })
    }

    /// Returns the cipher of the names in this encrypted directory, or of the target of this
    /// encrypted symbolic link; `None` without the key. Errors: `Corrupt`; `Unsupported`.
    pub(crate) fn names_cipher(&self) -> Result<Option<&Names>> {
        self.ciphers.names(|| {
            let context = self.encryption_context()?;
            self.volume().keys().names(&context, &self.encryption_owner())
        })
    }

    /// Returns the encryption context of this encrypted inode. Errors: `Corrupt`; `Unsupported`.
    pub(crate) fn encryption_context(&self) -> Result<Context> {
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
        let geometry = &self.volume().superblock().geometry;
        Owner { inode: self.number(), uuid: geometry.uuid, block_size: geometry.block_size }
    }
}
