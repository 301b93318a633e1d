//! Changes of the inode flags that users may set, as by FS_IOC_SETFLAGS.
//! Not here: the effects of flags, and the permission to change them.

use base::attributes::Timestamp;
use base::{Error, Result, Unsupported};

use crate::inode::Inode;
use crate::inode::record::InodeFlags;

impl Inode {
    /// Sets or clears the flags that users may change, as in `flags` (numbered as by
    /// FS_IOC_GETFLAGS). Other flags that FS_IOC_GETFLAGS reports do not change. Errors:
    /// `Unsupported` for flags that it does not report, that this type of inode cannot have, or
    /// that change how the contents are stored. `NotPermitted` if an inode that stays immutable
    /// would change.
    pub fn set_flags(&self, flags: u32, time: Timestamp) -> Result<()> {
        let now = self.record().flags;
        let flags = now.changed_by_user(flags, self.kind())?;
        if flags == now {
            return Ok(());
        }
        if now.contains(InodeFlags::IMMUTABLE) && flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Error::NotPermitted("the file is immutable"));
        }
        self.volume().change(1, |handle| {
            self.update(handle, |record| {
                // The other flags may have changed since they were read, together with the
                // contents.
                let kept = record.flags.0 & !InodeFlags::CHANGEABLE;
                record.flags = InodeFlags(kept | flags.0 & InodeFlags::CHANGEABLE);
                record.changed = time;
            })
        })
    }
}

impl InodeFlags {
    /// Returns these flags, with the user's flags replaced by those in `wanted`.
    fn changed_by_user(self, wanted: u32, kind: base::attributes::FileType) -> Result<Self> {
        let refused = |what| -> Error { Unsupported::Operation(what).into() };
        if wanted & !Self::VISIBLE != 0 {
            return Err(refused("setting flags that users cannot read"));
        }
        let set = wanted & Self::CHANGEABLE;
        if set & !Self::possible_for(kind) != 0 {
            return Err(refused("setting flags that a file of this type cannot have"));
        }
        let changed = (self.0 ^ wanted) & Self::OF_CONTENTS;
        if changed != 0 {
            return Err(refused("changing how the contents of a file are stored"));
        }
        Ok(Self(self.0 & !Self::CHANGEABLE | set))
    }
}

#[cfg(test)]
mod tests {
    use base::attributes::FileType;

    use super::*;

    #[test]
    fn users_change_only_their_own_flags() {
        let now = InodeFlags(InodeFlags::EXTENTS.0 | InodeFlags::INDEX.0 | 0x40);
        let change = |wanted: u32, kind| now.changed_by_user(wanted, kind).map(|flags| flags.0);
        // As chattr does: all flags that were read are set again.
        assert_eq!(change(now.0 | 0x30, FileType::Directory).unwrap(), now.0 | 0x30);
        assert_eq!(change(now.0 & !0x40, FileType::Regular).unwrap(), now.0 & !0x40);
        // A flag that users can read, but not change.
        assert_eq!(change(now.0 & !0x1000, FileType::Directory).unwrap(), now.0);
        for (wanted, kind) in [
            (now.0 | 0x800_0000, FileType::Regular),
            (now.0 | 0x1_0000, FileType::Regular),
            (now.0 | 0x10, FileType::Fifo),
            (now.0 & !InodeFlags::EXTENTS.0, FileType::Regular),
            (now.0 | InodeFlags::JOURNAL_DATA.0, FileType::Regular),
            (now.0 | InodeFlags::CASEFOLD.0, FileType::Directory),
        ] {
            assert!(change(wanted, kind).is_err(), "{wanted:#x} {kind:?}");
        }
    }
}
