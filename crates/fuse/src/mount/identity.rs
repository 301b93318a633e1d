//! Identities of mounts. The kernel reuses device numbers and mount ids as soon as they are free.
//! Only 64-bit mount ids (from Linux 6.8 on) are never reused.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::table::{self, MountEntry};

/// STATX_MNT_ID_UNIQUE.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
/// The number of statmount(2), the same on every architecture.
const STATMOUNT: libc::c_long = 457;
/// The number of listmount(2), the same on every architecture.
const LISTMOUNT: libc::c_long = 458;
/// STATMOUNT_MNT_BASIC: requests the ids of the mount from statmount(2).
const STATMOUNT_MNT_BASIC: u64 = 2;
/// LSMT_ROOT: requests all mounts from listmount(2).
const LSMT_ROOT: u64 = u64::MAX;
/// The maximum number of mounts that one call of listmount(2) returns.
const PAGE: usize = 128;
/// The maximum number of attempts to read the mounts on a directory, which may change during an
/// attempt.
const ATTEMPTS: usize = 8;

/// The identity of a mount. No other mount at the time has the same one, and no later mount either
/// if the kernel has 64-bit ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountId {
    /// The 64-bit id.
    unique: Option<u64>,
    /// The reusable id.
    id: u32,
    /// The device number, "major:minor".
    pub device: String,
}

impl MountId {
    /// Returns the topmost mount on `path`, and its entry in the mount table.
    pub fn find(path: &Path) -> Option<(Self, MountEntry)> {
        for _ in 0..ATTEMPTS {
            let entry = table::find(path)?;
            let found = Self::of_entry(entry.clone());
            if table::find(path).as_ref() == Some(&entry) {
                return Some((found, entry));
            }
        }
        None
    }

    /// Returns the other mounts of the same device in this mount namespace.
    pub fn others(&self) -> Vec<Self> {
        self.other_entries().map(Self::of_entry).collect()
    }

    /// Returns the other mounts of the same device that are the topmost ones on their mount points,
    /// with these.
    pub fn further(&self) -> Vec<(PathBuf, Self)> {
        let others =
            self.other_entries().map(|entry| (entry.mount_point.clone(), Self::of_entry(entry)));
        let is_topmost =
            |(path, id): &(PathBuf, Self)| Self::find(path).is_some_and(|(found, _)| found == *id);
        others.filter(is_topmost).collect()
    }

    fn other_entries(&self) -> impl Iterator<Item = MountEntry> {
        let entries = table::ours().into_iter();
        entries.filter(|entry| entry.device == self.device && entry.id != self.id)
    }

    fn of_entry(entry: MountEntry) -> Self {
        Self { unique: find_unique(entry.id), id: entry.id, device: entry.device }
    }

    /// Returns the mount of an open file or directory (O_PATH is enough).
    pub fn of(opened: &OwnedFd) -> Option<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let mask = StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE);
        // The mask requests no attribute that the kernel would have to get from the server.
        let found = rustix::fs::statx(opened, "", flags, mask).ok()?;
        let is_unique = found.stx_mask & STATX_MNT_ID_UNIQUE != 0;
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        Some(Self {
            unique: is_unique.then_some(found.stx_mnt_id),
            id: id.trim().parse().ok()?,
            device: format!("{}:{}", found.stx_dev_major, found.stx_dev_minor),
        })
    }

    fn is_of(&self, entry: &MountEntry) -> bool {
        (self.id, &self.device) == (entry.id, &entry.device)
    }

    /// Returns whether the mount is still attached, or `None` if the kernel does not support this.
    pub fn exists(&self) -> Option<bool> {
        match stat(self.unique?) {
            Ok(_) => Some(true),
            Err(Errno::NOENT) => Some(false),
            Err(_) => None,
        }
    }

    /// Returns whether the mount is still attached, by its reusable id if the kernel has no other.
    pub fn is_attached(&self) -> bool {
        self.exists().unwrap_or_else(|| table::ours().iter().any(|entry| self.is_of(entry)))
    }

    /// Returns a name for all mounts of a block device, which no other file system has while it is
    /// mounted.
    pub fn name_of_device(&self) -> String {
        format!("device-{}", self.device)
    }

    /// Returns a name for the mount. For kernels without 64-bit ids, the name depends on the
    /// mount's `source` in the mount table.
    pub fn name(&self, source: &std::ffi::OsStr) -> String {
        match self.unique {
            Some(unique) => format!("id-{unique}"),
            None => {
                let mut hasher = DefaultHasher::new();
                source.hash(&mut hasher);
                format!("{}-{}-{:x}", self.id, self.device, hasher.finish())
            }
        }
    }
}

/// Opens the root of a mount with `access`, which may be `PATH`. Fails with ESTALE if another mount
/// covers it, since its path leads to that one.
pub fn open_mount(mount: &MountEntry, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(&mount.mount_point, flags, Mode::empty())?;
    let is_it = MountId::of(&root).is_some_and(|id| id.is_of(mount));
    if is_it { Ok(root) } else { Err(Errno::STALE) }
}

/// `struct mnt_id_req`.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    parameter: u64,
}

/// The beginning of `struct statmount`, and room for the rest.
#[repr(C)]
struct Stat {
    size: u32,
    options: u32,
    mask: u64,
    device: [u32; 2],
    magic: u64,
    flags: u32,
    kind: u32,
    id: u64,
    parent: u64,
    old_id: u32,
    old_parent: u32,
    rest: [u64; 56],
}
const _: () = assert!(size_of::<Stat>() == 512);

/// Returns the 64-bit id of the mount with the reusable `id`.
fn find_unique(id: u32) -> Option<u64> {
    let mut last = 0;
    loop {
        let mut page = [0; PAGE];
        let count = list(last, &mut page).ok()?;
        for &mount in &page[..count] {
            if stat(mount) == Ok(id) {
                return Some(mount);
            }
        }
        if count < PAGE {
            return None;
        }
        last = page[PAGE - 1];
    }
}

/// Stores the 64-bit ids of mounts above `last` in `page`, in ascending order. Returns their
/// number.
fn list(last: u64, page: &mut [u64; PAGE]) -> Result<usize, Errno> {
    let size = size_of::<Request>() as u32;
    let request = Request { size, spare: 0, mount: LSMT_ROOT, parameter: last };
    // SAFETY: the kernel reads the request and stores at most as many ids as the page has room for.
    let count = unsafe { libc::syscall(LISTMOUNT, &raw const request, page.as_mut_ptr(), PAGE, 0) };
    usize::try_from(count).map_err(|_| last_error())
}

/// Returns the reusable id of the mount with a 64-bit id.
fn stat(unique: u64) -> Result<u32, Errno> {
    let size = size_of::<Request>() as u32;
    let request = Request { size, spare: 0, mount: unique, parameter: STATMOUNT_MNT_BASIC };
    let mut found = std::mem::MaybeUninit::<Stat>::zeroed();
    // SAFETY: the kernel reads the request and stores at most as many bytes as a `Stat` has.
    let done = unsafe {
        libc::syscall(STATMOUNT, &raw const request, found.as_mut_ptr(), size_of::<Stat>(), 0)
    };
    if done < 0 {
        return Err(last_error());
    }
    // SAFETY: a `Stat` consists of integers, which are initialised with zeroes at least.
    let found = unsafe { found.assume_init() };
    if found.mask & STATMOUNT_MNT_BASIC == 0 { Err(Errno::NOSYS) } else { Ok(found.old_id) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_has_one_identity_by_its_path_and_by_an_open_file() {
        // The test needs a mount, which /proc is.
        let (found, entry) = MountId::find(Path::new("/proc")).unwrap();
        let opened = open_mount(&entry, OFlags::PATH).unwrap();
        assert_eq!(MountId::of(&opened), Some(found.clone()));
        assert_eq!(found.name(&entry.source), MountId::of(&opened).unwrap().name(&entry.source));
        assert_ne!(found.exists(), Some(false));
        let ended = MountId { unique: Some(u64::MAX - 1), ..found };
        assert_ne!(ended.exists(), Some(true));
        let covered = MountEntry { id: u32::MAX, ..entry };
        assert_eq!(open_mount(&covered, OFlags::PATH).unwrap_err(), Errno::STALE);
    }
}
