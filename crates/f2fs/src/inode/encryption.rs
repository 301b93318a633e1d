//! Encrypted inodes: their contexts and ciphers.
//! Not here: the ciphers, their keys, and the names that are shown for stored ones (`fscrypt`).

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, InodeNumber, Location, Problem, Result, Unsupported};
use fs::xattr::NameIndex;
use fscrypt::{CONTEXT_NAME, Contents, Context, Names, Owner};

use super::Inode;
use crate::geometry::Geometry;

impl Inode {
    /// Takes the ciphers of `before`, which is this inode before a change. An inode keeps its
    /// encryption context, and a cipher that was found once is never missing when data is written
    /// back.
    pub(crate) fn keep_ciphers(&mut self, before: &Self) {
        self.ciphers = Arc::clone(&before.ciphers);
    }

    /// Returns the encryption context that a new inode of this directory gets. `None` if it is not
    /// encrypted. Errors: `Unsupported` without the key; `Corrupt`.
    pub(crate) fn new_context(&self, kind: FileType) -> Result<Option<Context>> {
        self.check_has_key()?;
        let is_encrypted = self.record().is_encrypted && can_be_encrypted(kind);
        let policy = |context: Context| context.policy;
        let policy = is_encrypted.then(|| self.encryption_context().map(policy)).transpose()?;
        Ok(policy.map(Context::new))
    }

    /// Checks that names can be added to this directory. Errors: `Unsupported` for encrypted
    /// directories without the key; `Corrupt`.
    pub(crate) fn check_has_key(&self) -> Result<()> {
        if self.record().is_encrypted && self.names_cipher()?.is_none() {
            return Err(Unsupported::Encrypted(self.number()).into());
        }
        Ok(())
    }

    /// Checks that `inode` may have a name in this directory: all inodes of an encrypted tree have
    /// one policy. Errors: `OtherPolicy`, `Corrupt`.
    pub(crate) fn check_policy_of(&self, inode: &Self) -> Result<()> {
        if !self.record().is_encrypted || !can_be_encrypted(inode.attributes().kind) {
            return Ok(());
        }
        let is_equal = inode.record().is_encrypted
            && inode.encryption_context()?.policy == self.encryption_context()?.policy;
        if is_equal { Ok(()) } else { Err(Error::OtherPolicy) }
    }

    /// Checks that the data of this file can be read. Errors: `Unsupported` for encrypted files
    /// without the key; `Corrupt` if the encryption context is damaged.
    pub(crate) fn check_readable(&self) -> Result<()> {
        self.contents_cipher().map(|_| ())
    }

    /// Returns the cipher of the contents of this file; `None` if it is not an encrypted file.
    /// Errors: `Unsupported` without the key; `Corrupt`.
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

    /// Returns the cipher of the names in this encrypted directory, or of the target of this
    /// encrypted symbolic link; `None` without the key. Errors: `Corrupt`; `Unsupported`.
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
        encryption_owner(self.volume().geometry(), self.number())
    }
}

/// Returns what the keys of an inode depend on besides its context.
pub(crate) fn encryption_owner(geometry: &Geometry, inode: InodeNumber) -> Owner {
    Owner { inode, uuid: geometry.uuid, block_size: geometry.block_size }
}

/// Returns whether inodes of a type are encrypted in an encrypted directory.
fn can_be_encrypted(kind: FileType) -> bool {
    matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
}
