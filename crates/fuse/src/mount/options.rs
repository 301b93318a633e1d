//! Mount options that the transport obeys, their defaults and their conflicts. Not here: the `-o` list
//! (`option_list.rs`), passing the options to the kernel or fusermount3, and options that only the volume obeys.

use rustix::mount::MountAttrFlags;
use vfs::{AccessOptions, AccessTimes};

use super::option_list::OptionError;
use crate::owners::{IdMap, IdRange, Owners};

/// The use of a feature that not every host has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// If the host has it.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always: without it, mounting fails.
    On,
}

/// Mount options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// The volume can be written to.
    pub writable: bool,
    /// Users other than the one who mounts have access, as far as modes and ACLs allow.
    pub allow_other: bool,
    /// Setuid and setgid bits have an effect. Off by default, since the image is not trusted.
    pub suid: bool,
    /// Device files can be opened. Off by default.
    pub dev: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// The source that the mount shows instead of the image's path.
    pub fsname: Option<String>,
    /// Whether requests pass through io_uring.
    pub io_uring: Preference,
    /// The kernel collects writes, and sends them later.
    pub writeback: bool,
    /// Neither the kernel nor the volume caches file data. The caller passes this on to the volume.
    pub uncached: bool,
    /// The user who mounts is the image's root: files of the image's root are shown as that user's.
    pub owner_mapped: bool,
    /// Ranges of user ids that are shown as other ids.
    pub users: Vec<IdRange>,
    /// Ranges of group ids that are shown as other ids.
    pub groups: Vec<IdRange>,
    /// Root can make idmapped mounts of the mount.
    pub idmapped: bool,
    /// The host's processors are kept awake while requests follow each other closely and no other program needs them.
    pub low_latency: Preference,
    /// Updates of access times. The caller passes this on to the volume; the mount shows it.
    pub access: AccessOptions,
    /// A loop device is attached to an image file that is mounted for writing, so that the kernel passes
    /// sync(2) on.
    pub loop_device: bool,
    /// Changes to files are durable before the call returns. The caller passes this on to the volume; the kernel
    /// writes what it has collected of a write.
    pub sync: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            writable: false,
            allow_other: false,
            suid: false,
            dev: false,
            exec: true,
            fsname: None,
            io_uring: Preference::Auto,
            writeback: false,
            uncached: false,
            owner_mapped: false,
            users: Vec::new(),
            groups: Vec::new(),
            idmapped: false,
            low_latency: Preference::Auto,
            access: AccessOptions { times: AccessTimes::Relative, ..AccessOptions::default() },
            loop_device: true,
            sync: false,
        }
    }
}

impl MountOptions {
    /// Returns the mount attributes for access times.
    pub(super) fn access_attributes(&self) -> MountAttrFlags {
        let mut attributes = match self.access.times {
            AccessTimes::Never => MountAttrFlags::MOUNT_ATTR_NOATIME,
            AccessTimes::Relative => MountAttrFlags::MOUNT_ATTR_RELATIME,
            AccessTimes::Always => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        };
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODIRATIME, !self.access.directories);
        attributes
    }

    /// Fails for options that exclude each other.
    pub fn check(&self) -> Result<(), OptionError> {
        if self.uncached && self.writeback {
            return Err(OptionError::Value(
                "uncached".to_owned(),
                "cannot be combined with `writeback`",
            ));
        }
        if self.owner_mapped {
            let others = [
                (self.allow_other, "cannot be combined with `allow_other`"),
                (!self.users.is_empty(), "cannot be combined with `uidmap`"),
                (!self.groups.is_empty(), "cannot be combined with `gidmap`"),
                (self.idmapped, "cannot be combined with `idmap`"),
            ];
            if let Some((_, what)) = others.into_iter().find(|(is_set, _)| *is_set) {
                return Err(OptionError::Value("owner=mapped".to_owned(), what));
            }
        }
        Ok(())
    }

    /// Returns how owners are shown on a mount of the user `uid` with the group `gid`.
    pub fn owners(&self, uid: u32, gid: u32) -> Owners {
        match self.owner_mapped {
            true => Owners {
                users: IdMap::root_as(uid),
                groups: IdMap::root_as(gid),
                caller_is_root: true,
            },
            false => Owners {
                users: IdMap::new(self.users.clone()),
                groups: IdMap::new(self.groups.clone()),
                caller_is_root: false,
            },
        }
    }

    /// Returns whether the kernel checks access by mode and ACL.
    pub fn checks_access(&self) -> bool {
        !self.owner_mapped
    }
}
