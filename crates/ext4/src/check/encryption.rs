//! The check of encryption: contexts of inodes, and the inodes and names of encrypted directories.

use base::attributes::FileType;
use base::{Error, InodeNumber, Location, Problem};
use fscrypt::Policy;

use super::Check;
use crate::dir::block::Slot;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;

const ENTRY: &str = "directory entry";
/// The minimum length of an encrypted name (kernel documentation, `filesystems/fscrypt`).
const NAME_BYTES_MIN: usize = 16;

/// The encryption of a directory's names.
#[derive(Clone, Copy, Debug)]
pub(super) enum NameEncryption {
    /// Names are not encrypted.
    Plain,
    /// Names are encrypted by a policy, which is unknown if it is damaged or not supported.
    Encrypted(Option<Policy>),
}

impl NameEncryption {
    /// Returns the encryption of the names in a directory. Damage is reported with the inode.
    pub(super) fn of(directory: &Inode) -> Self {
        if directory.has(InodeFlags::ENCRYPTED) {
            Self::Encrypted(directory.encryption_context().ok().map(|context| context.policy))
        } else {
            Self::Plain
        }
    }

    /// Returns whether names are stored as they are shown.
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Self::Plain)
    }
}

/// Returns whether inodes of this type are encrypted in encrypted directories.
fn is_encryptable(kind: FileType) -> bool {
    matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink)
}

impl Check<'_> {
    /// Checks the encryption context of an inode. Policies that are not supported are not checked.
    pub(super) fn check_encryption(&mut self, inode: &Inode) {
        if inode.has(InodeFlags::ENCRYPTED) {
            if let Err(error @ Error::Corrupt(_)) = inode.encryption_context() {
                self.report.add(error);
            }
        }
    }

    /// Checks the name of an entry in an encrypted directory, and that its inode, of type `kind`,
    /// has the same policy.
    pub(super) fn check_encrypted_entry(
        &mut self,
        policy: Option<Policy>,
        slot: &Slot<'_>,
        (target, kind): (InodeNumber, FileType),
        location: Location,
    ) {
        if slot.name.len() < NAME_BYTES_MIN {
            let (needed, available) = (NAME_BYTES_MIN as u64, slot.name.len() as u64);
            self.report.corrupt(ENTRY, location, Problem::Truncated { needed, available });
        }
        if !is_encryptable(kind) {
            return;
        }
        // An inode that cannot be read was reported.
        let Ok(inode) = self.volume.special_inode(target) else { return };
        let is_same = match inode.encryption_context() {
            _ if !inode.has(InodeFlags::ENCRYPTED) => false,
            Ok(context) => policy.is_none_or(|policy| policy == context.policy),
            // Reported with the inode, or not supported.
            Err(_) => true,
        };
        if !is_same {
            let problem = Problem::Missing("the directory's encryption policy in the inode");
            self.report.corrupt(ENTRY, location, problem);
        }
    }
}
