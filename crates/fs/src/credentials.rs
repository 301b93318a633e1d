//! Credentials of the user on whose behalf an operation runs.

use base::attributes::Attributes;

/// The user on whose behalf an operation runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The owner of new inodes.
    pub uid: u32,
    /// The group of new inodes, unless they inherit the group of their directory.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// Whether ownership is not checked, since the caller is root or was checked before.
    pub privileged: bool,
}

impl Credentials {
    /// The credentials of root.
    pub const ROOT: Self = Self { uid: 0, gid: 0, groups: Vec::new(), privileged: true };

    /// Returns whether the user is in group `gid`.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns whether the user has the rights of the owner of an inode with `attributes`.
    pub fn owns(&self, attributes: &Attributes) -> bool {
        self.privileged || self.uid == attributes.uid
    }

    /// Returns whether the mark for mandatory locks (setgid without group execute) stays on files
    /// of group `gid` when this user changes their owner.
    pub fn keeps_mark_of(&self, gid: u32) -> bool {
        self.uid == 0 || self.is_in_group(gid)
    }

    /// Returns whether this user may set the setgid bit of files of group `gid`.
    pub fn may_set_gid_bit(&self, gid: u32) -> bool {
        self.privileged || self.is_in_group(gid)
    }
}
