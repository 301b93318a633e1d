//! Detection of images that the host uses through a loop device, which file locks do not exclude.
//! Not here: block devices, which the host opens exclusively.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Returns a loop device of `image` that is mounted or otherwise claimed. A loop device that this user may not open
/// counts as claimed.
pub fn find_claimed(image: &Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices
        .flatten()
        .filter(|device| device.file_name().as_bytes().starts_with(b"loop"))
        .filter(|device| is_backed_by(&device.path(), image))
        .map(|device| (Path::new("/dev").join(device.file_name()), device.path()))
        // The second check is for a loop device that was attached to another image since the first check.
        .find(|(node, device)| is_claimed(node) && is_backed_by(device, image))
        .map(|(node, _)| node)
}

fn is_backed_by(device: &Path, image: &Metadata) -> bool {
    let Ok(backing) = fs::read(device.join("loop/backing_file")) else { return false };
    let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
    let backing = fs::metadata(OsStr::from_bytes(backing));
    backing.is_ok_and(|backing| (backing.dev(), backing.ino()) == (image.dev(), image.ino()))
}

fn is_claimed(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(device, flags, Mode::empty());
    matches!(opened, Err(Errno::BUSY | Errno::ACCESS | Errno::PERM))
}
