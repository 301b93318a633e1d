//! Detection of images that the host uses through a loop device, which file locks do not exclude.
//! Not here: block devices, which the host opens exclusively.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The loop devices that [`find_claimed`] leaves out.
static LEFT_OUT: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Leaves out loop devices of mounts whose servers have died. As long as programs have files open on such a mount, the kernel
/// keeps its device claimed, but nothing can access the image through it. Only the first call has an effect.
pub fn leave_out(devices: Vec<PathBuf>) {
    let _ = LEFT_OUT.set(devices);
}

fn is_left_out(device: &Path) -> bool {
    LEFT_OUT.get().is_some_and(|devices| devices.iter().any(|known| known == device))
}

/// Returns a loop device of `image` that is mounted or otherwise claimed. A loop device that this user may not open
/// counts as claimed.
pub fn find_claimed(image: &Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices
        .flatten()
        .filter(|device| device.file_name().as_bytes().starts_with(b"loop"))
        .filter(|device| is_backed_by(&device.path(), image))
        .map(|device| (Path::new("/dev").join(device.file_name()), device.path()))
        .filter(|(node, _)| !is_left_out(node))
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
