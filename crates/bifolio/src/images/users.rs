//! Lookup of the mount or process that uses a locked image.
//! Not here: loop devices of the host, which do not lock images (`related.rs`).

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fuse::MountEntry;

use crate::console::failure::Failure;
use crate::format::text;

/// The user of an image that cannot be opened, as far as it is known before the lookup.
#[derive(Debug)]
pub enum InUse {
    /// The file or device at this path is locked or claimed.
    Locked(PathBuf),
    /// A loop device has the bytes of the image.
    Loop {
        /// The image.
        image: PathBuf,
        /// The node of the loop device.
        device: PathBuf,
    },
}

impl InUse {
    /// Returns the file or device that is in use.
    pub fn path(&self) -> &Path {
        let (Self::Locked(path) | Self::Loop { device: path, .. }) = self;
        path
    }

    /// Returns the failure to open the image, with the mount or process that uses it.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Locked(path) => in_use(&path),
            Self::Loop { image, device } => {
                let mut text = format!("is in use by the loop device {}", device.display());
                if let Some(mount) = fuse::mounts_of(&device).first() {
                    text.push_str(&format!(", which is mounted on {}", directory_of(mount)));
                }
                Failure::new(image.as_path(), text).advise("unmount or detach it first")
            }
        }
    }
}

/// Returns the failure to open an image that is in use, with the mount or process that uses it.
pub fn in_use(image: &Path) -> Failure {
    if let Some(mount) = fuse::mounts_of(image).first() {
        let directory = directory_of(mount);
        let failure = Failure::new(image, format!("is in use: it is mounted on {directory}"));
        return failure.advise("use the mount, or unmount it");
    }
    locked(image)
}

/// Returns the directory of a mount, for messages.
fn directory_of(mount: &MountEntry) -> String {
    text::escape(mount.mount_point.as_os_str().as_encoded_bytes()).into_owned()
}

/// Returns the failure to open an image that another process uses.
pub fn locked(image: &Path) -> Failure {
    match locker_of(image) {
        Some(locker) => Failure::new(image, format!("is in use by {locker}, which has locked it"))
            .advise("try again when this process has ended"),
        None => Failure::new(image, "is in use by another program, or mounted")
            .advise("unmount it, or try again later"),
    }
}

/// Returns the warning that an image is read while another program has locked it for writing.
pub fn written_elsewhere(image: &Path) -> Failure {
    let locker = locker_of(image).unwrap_or_else(|| "another program".to_owned());
    let text =
        format!("{locker} has it open for writing: its contents may change while they are read");
    Failure::new(image, text)
}

/// Returns the name and the id of a process that has locked the image. `None` if there is none
/// whose files this user may see.
fn locker_of(image: &Path) -> Option<String> {
    let (process, name) = locker(&fs::metadata(image).ok()?)?;
    Some(format!("{} (process {process})", text::escape(name.as_bytes())))
}

/// Finds a process that has an open file with a lock of the image, other than this one and its
/// children. Locks of open files have no process in /proc/locks, and the devices there are not
/// those of stat(2) on every file system, so the files of the processes are compared.
fn locker(image: &Metadata) -> Option<(u32, String)> {
    let own = std::process::id();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = ids.filter(|id| *id != own && parent(*id) != Some(own));
    let found = others.into_iter().find(|id| has_lock(*id, image))?;
    let name = fs::read_to_string(format!("/proc/{found}/comm")).ok()?;
    Some((found, name.trim_end().to_owned()))
}

/// Returns the parent of a process.
fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Returns whether a process has an open file with a lock of the image.
fn has_lock(process: u32, image: &Metadata) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    files.flatten().any(|file| {
        let is_image = fs::metadata(file.path())
            .is_ok_and(|opened| (opened.dev(), opened.ino()) == (image.dev(), image.ino()));
        let number = file.file_name().into_string().unwrap_or_default();
        is_image
            && fs::read_to_string(format!("/proc/{process}/fdinfo/{number}"))
                .is_ok_and(|text| text.lines().any(|line| line.starts_with("lock:")))
    })
}
