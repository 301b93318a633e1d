//! Encrypted inodes: their contexts and ciphers.
//! Not here: the ciphers, their keys, and the names that are shown for stored ones (`fscrypt`).

use std::sync::Arc;

use base::{Error, Location, Problem, Result, Unsupported};
use fs::xattr::NameIndex;
use fscrypt::{CONTEXT_NAME, Contents, Context, Names, Owner};

use super::Inode;

impl Inode {
    /// Checks that the data of this file can be read. Errors: `Unsupported` for encrypted files without the key;
    /// `Corrupt` if the encryption context is damaged.
    pub(crate) fn check_readable(&self) -> Result<()> {
        self.contents_cipher().map(|_| ())
    }

    /// Returns the cipher of the contents of this file; `None` if it is not an encrypted file. Errors: `Unsupported`
    /// without the key; `Corrupt`.
    pub(super) fn contents_cipher(&self) -> Result<Option<&Arc<Contents>>> {
        if !self.record().is_encrypted || !self.attributes().is_file() {
            return Ok(None);
        }
        let cipher = self.ciphers.contents(self.number(), || {
            if self.record().inline_area.is_some() {
                let feature = "encrypted inline data";
                return Err(Unsupported::Inode { inode: self.number(), feature }.into());
            }
            self.volume().keys().contents(&self.encryption_context()?, &self.encryption_owner())
        });
        cipher.map(Some)
    }

    /// Returns the cipher of the names in this encrypted directory, or of the target of this encrypted symbolic link;
    /// `None` without the key. Errors: `Corrupt`; `Unsupported`.
    pub(super) fn names_cipher(&self) -> Result<Option<&Names>> {
        self.ciphers.names(|| {
            self.volume().keys().names(&self.encryption_context()?, &self.encryption_owner())
        })
    }

    fn encryption_context(&self) -> Result<Context> {
        let context = self.stored_xattr(NameIndex::ENCRYPTION, CONTEXT_NAME)?.ok_or_else(|| {
            let problem = Problem::Missing("encryption context");
            Error::corrupt("encrypted inode", Location::inode(self.number()), problem)
        })?;
        Context::parse(&context, self.number())
    }

    fn encryption_owner(&self) -> Owner {
        let geometry = self.volume().geometry();
        Owner { inode: self.number(), uuid: geometry.uuid, block_size: geometry.block_size }
    }
}
