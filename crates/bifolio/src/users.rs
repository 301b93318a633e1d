//! Lookup of the mount or process that uses a locked image.
//! Not here: loop devices of the host, which do not lock images (`loop_device.rs`).

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::Failure;
use crate::format::text;

/// Returns the failure to open an image that is in use, with the mount or process that uses it.
pub fn in_use(image: &Path) -> Failure {
    let found = fs::metadata(image).ok();
    if let Some(mount) = fuse::mounts_of(image).first() {
        let directory = text::escape(mount.mount_point.as_os_str().as_encoded_bytes()).into_owned();
        let failure = Failure::new(image, format!("is in use: it is mounted on {directory}"));
        return failure.advise("use the mount, or unmount it");
    }
    match found.as_ref().and_then(locker) {
        Some((process, name)) => {
            let name = text::escape(name.as_bytes()).into_owned();
            Failure::new(image, format!("is in use by {name} (process {process})"))
                .advise("try again when this process has ended")
        }
        None => Failure::new(image, "is in use by another program, or mounted")
            .advise("unmount it, or try again later"),
    }
}

/// Returns the id and the name of the process that has locked the image.
fn locker(image: &Metadata) -> Option<(u32, String)> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(image.dev()), rustix::fs::minor(image.dev()));
    let process = find_locker(&locks, &format!("{major:02x}:{minor:02x}:{}", image.ino()))?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some((process, name.trim_end().to_owned()))
}

/// Finds the process that has locked `file` in the text of /proc/locks. A line is `number: FLOCK ADVISORY READ|WRITE
/// process device:inode start end`. A waiting process has `->` before FLOCK.
fn find_locker(locks: &str, file: &str) -> Option<u32> {
    let owner = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, process, locked, ..] if locked == file => process.parse().ok(),
            _ => None,
        }
    };
    locks.lines().find_map(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_lock_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 fe:00:99 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 13 fe:00:98 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 fe:00:99 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 15 fe:00:99 0 EOF\nnonsense\n";
        assert_eq!(find_locker(locks, "fe:00:99"), Some(15));
        assert_eq!(find_locker(locks, "fe:00:9"), None);
    }
}
