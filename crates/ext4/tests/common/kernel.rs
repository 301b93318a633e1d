//! Lets the running kernel change an image through a loop mount.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Image, Scratch};

/// A mounted image; unmounted when dropped.
struct Mount {
    folder: PathBuf,
    _scratch: Scratch,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.folder).status();
    }
}

impl Image {
    /// Mounts the image with these options, hands the folder to `work` and unmounts. Without the
    /// right to mount it says so and returns `None`.
    pub fn by_kernel<T>(&self, options: &str, work: impl FnOnce(&Path) -> T) -> Option<T> {
        let scratch = Scratch::new();
        let folder = scratch.path("mounted");
        std::fs::create_dir(&folder).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "ext4", "-o", &format!("loop,{options}")])
            .args([&self.path, &folder])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if !mounted.status.success() {
            eprintln!("SKIPPED, cannot mount: {}", String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        let mount = Mount { folder, _scratch: scratch };
        Some(work(&mount.folder))
    }
}
