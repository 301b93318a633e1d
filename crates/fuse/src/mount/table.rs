//! The mount table: /proc/self/mountinfo (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::mount::SUBTYPE;

/// A mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// The mount id. The kernel reuses it after the mount has ended.
    pub id: u32,
    /// The device number of the mounted file system, "major:minor". It is unique among mounted file
    /// systems.
    pub device: String,
    /// The directory of the mounted file system that the mount shows: `/`, unless it is a bind
    /// mount of another one.
    pub root: OsString,
    /// The directory with the mount.
    pub mount_point: PathBuf,
    /// The options of the mount, such as "rw,nosuid"; not those of its file system.
    pub options: String,
    /// The type of the file system, such as "fuse.bifolio".
    pub kind: String,
    /// The source.
    pub source: OsString,
    /// The options of the mounted file system, such as "rw,sync,user_id=0".
    pub super_options: String,
    /// The user who has mounted it, for FUSE mounts.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Returns whether the server has written everything when umount(2) returns: the kernel waits
    /// for it with mounts of block devices, and a read-only mount has nothing to write.
    pub fn is_written_by_unmounting(&self) -> bool {
        self.is_block_device() || has_option(&self.options, "ro")
    }

    /// Returns whether the source is a block device, which the mount claims.
    pub fn is_block_device(&self) -> bool {
        self.kind.starts_with("fuseblk")
    }

    /// Returns whether this is a bifolio mount.
    pub fn is_ours(&self) -> bool {
        self.kind
            .split_once('.')
            .is_some_and(|(fuse, subtype)| matches!(fuse, "fuse" | "fuseblk") && subtype == SUBTYPE)
    }
}

/// Returns whether a list of options contains one.
pub fn has_option(list: &str, option: &str) -> bool {
    list.split(',').any(|other| other == option)
}

/// Returns all bifolio mounts, later ones first.
pub fn ours() -> Vec<MountEntry> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let entries = table.split(|&byte| byte == b'\n').rev().filter_map(parse);
    entries.filter(MountEntry::is_ours).collect()
}

/// Returns the topmost mount on `path`.
pub fn find(path: &Path) -> Option<MountEntry> {
    // Not read as a string, since a mount point may not be valid UTF-8.
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    find_in(&table, path)
}

/// Returns the mount point of a mount below `path`, if there is any.
pub fn below(path: &Path) -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    below_in(&table, path)
}

fn below_in(table: &[u8], path: &Path) -> Option<PathBuf> {
    let points =
        table.split(|&byte| byte == b'\n').filter_map(parse).map(|entry| entry.mount_point);
    points.into_iter().find(|point| point != path && point.starts_with(path))
}

/// Returns the topmost mount on `path` in a mount table.
fn find_in(table: &[u8], path: &Path) -> Option<MountEntry> {
    // Later mounts come later in the table.
    table.split(|&byte| byte == b'\n').rev().filter_map(parse).find(|e| e.mount_point == path)
}

/// Parses a line:
/// `id parent major:minor root mount-point options [optional...] - type source super-options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let root = unescape(fields.next()?);
    let mount_point = PathBuf::from(unescape(fields.next()?));
    let options = text(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let kind = text(fields.next()?);
    let source = unescape(fields.next()?);
    let super_options = text(fields.next()?);
    let user = super_options.split(',').find_map(|option| option.strip_prefix("user_id="));
    let user = user.and_then(|user| user.parse().ok());
    Some(MountEntry { id, device, root, mount_point, options, kind, source, super_options, user })
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).into_owned()
}

/// Replaces the escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    OsString::from_vec(base::text::unescape(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
40 22 0:50 / /mnt/a\\040b ro,nosuid shared:2 master:1 - fuse.bifolio /images/x\\134y.img ro,user_id=1000,group_id=7\n\
41 22 0:51 / /mnt/two ro - fuse.sshfs host: rw\n\
42 22 0:52 / /mnt/two ro - fuseblk.bifolio /dev/loop0 rw\n";

    #[test]
    fn the_topmost_mount_is_found_by_its_unescaped_path() {
        let entry = find_in(TABLE, Path::new("/mnt/a b")).unwrap();
        assert_eq!(
            (entry.id, entry.device.as_str(), entry.source.to_str()),
            (40, "0:50", Some("/images/x\\y.img"))
        );
        assert!(entry.is_ours());
        assert_eq!(entry.user, Some(1000));
        let entry = find_in(TABLE, Path::new("/mnt/two")).unwrap();
        assert_eq!((entry.device.as_str(), entry.user), ("0:52", None));
        assert!(entry.is_ours());
        assert!(!find_in(TABLE, Path::new("/")).unwrap().is_ours());
        assert_eq!(find_in(TABLE, Path::new("/mnt")), None);
        assert_eq!(below_in(TABLE, Path::new("/mnt")), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(below_in(TABLE, Path::new("/mnt/two")), None);
        assert_eq!(find_in(b"garbage\n1 2 3\n", Path::new("/")), None);
    }
}
