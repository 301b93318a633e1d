//! Mount options of the transport, their defaults and their conflicts. Not here: the list for `-o`
//! (`option_list`), the options' forms for the kernel (`system`) and for fusermount3 (`helper`),
//! and options of the volume.

use rustix::mount::MountAttrFlags;
use vfs::{AccessOptions, AccessTimes};

use super::option_list::OptionError;
use crate::owners::{IdMap, IdRange, Owners};

/// The use of a feature that only some hosts support.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// Use the feature if the host supports it.
    #[default]
    Auto,
    /// Do not use the feature.
    Off,
    /// Use the feature. Mounting fails without it.
    On,
}

/// Mount options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// Whether the volume can be written to.
    pub writable: bool,
    /// Whether users other than the mounting user have access, as far as modes and ACLs allow.
    pub allow_other: bool,
    /// Whether setuid and setgid bits have an effect. Off by default, since the image is not
    /// trusted.
    pub suid: bool,
    /// Whether device files can be opened. Off by default, since the image is not trusted.
    pub dev: bool,
    /// Whether programs can be executed.
    pub exec: bool,
    /// The source that the mount shows instead of the image's path.
    pub fsname: Option<String>,
    /// Whether requests come through io_uring.
    pub io_uring: Preference,
    /// Whether the kernel collects writes in its cache and sends them later.
    pub writeback: bool,
    /// Whether neither the kernel nor the volume caches file data. The caller passes this on to the
    /// volume.
    pub uncached: bool,
    /// Whether the mounting user is the image's root. Files of the image's root are then shown as
    /// files of that user.
    pub owner_mapped: bool,
    /// The ranges of user ids that are shown as other ids.
    pub users: Vec<IdRange>,
    /// The ranges of group ids that are shown as other ids.
    pub groups: Vec<IdRange>,
    /// Whether root can make idmapped mounts of this mount.
    pub idmapped: bool,
    /// Whether the host's processors are kept awake while requests follow each other closely and no
    /// other program needs the processors.
    pub low_latency: Preference,
    /// The updates of access times. The caller passes this on to the volume, and the mount table
    /// shows it.
    pub access: AccessOptions,
    /// Whether a loop device is attached to an image file that is mounted for writing, so that the
    /// kernel passes sync(2) on.
    pub loop_device: bool,
    /// Whether changes to files are durable before the call returns. The caller passes this on to
    /// the volume, and the kernel sends the data of a write before the write returns.
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
            if let Some((_, problem)) = others.into_iter().find(|(is_set, _)| *is_set) {
                return Err(OptionError::Value("owner=mapped".to_owned(), problem));
            }
        }
        Ok(())
    }

    /// Returns the translation of owners for a mount of the user `uid` with the group `gid`.
    pub fn owners(&self, uid: u32, gid: u32) -> Owners {
        if self.owner_mapped {
            return Owners {
                users: IdMap::root_as(uid),
                groups: IdMap::root_as(gid),
                caller_is_root: true,
            };
        }
        Owners {
            users: IdMap::new(self.users.clone()),
            groups: IdMap::new(self.groups.clone()),
            caller_is_root: false,
        }
    }

    /// Returns whether the kernel checks access by mode and ACL.
    pub fn checks_access(&self) -> bool {
        !self.owner_mapped
    }
}
