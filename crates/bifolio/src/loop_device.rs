//! Whether the host itself uses an image: through a loop device, which no file lock keeps out.
//! Not here: block devices, which the host opens only once to be written.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A loop device over `image` that is mounted or otherwise claimed. Where it may not be asked
/// whether it is, that it is there counts.
pub fn in_use(image: &Metadata) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices
        .flatten()
        .filter(|device| device.file_name().as_bytes().starts_with(b"loop"))
        .filter(|device| is_over(&device.path(), image))
        .map(|device| (Path::new("/dev").join(device.file_name()), device.path()))
        // It may have been let go, and claimed for another image, in between.
        .find(|(node, device)| is_claimed(node) && is_over(device, image))
        .map(|(node, _)| node)
}

fn is_over(device: &Path, image: &Metadata) -> bool {
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
