//! Loop mounts in mount namespaces that end with their thread, so that no mount remains after any
//! end of a test.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use crate::host::command::run;
use crate::must;

/// The time for which a mount may be busy after its last use.
const BUSY_TIME_MAX: Duration = Duration::from_secs(20);

/// Moves the calling thread, and the threads and programs that it starts from now on, to a new
/// mount namespace. Later mounts are invisible to other threads, and end with the thread.
pub fn private_mounts() {
    assert!(rustix::process::geteuid().is_root(), "this test mounts file systems: run it as root");
    // SAFETY: the flag affects only this thread's working directory, umask and mounts. The file
    // descriptor table stays shared, so the I/O safety of other threads is not affected.
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    must(unshared, "a mount namespace for this thread");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    must(rustix::mount::mount_change("/", private), "making mounts private");
}

/// An image mounted by the running kernel.
pub struct LoopMount {
    folder: TempDir,
}

impl LoopMount {
    /// Mounts `image`, a file or a block device, as `format` with further mount options. The caller
    /// has called [`private_mounts`].
    ///
    /// Panics with the name of the loop device if it is write-protected and the options do not
    /// contain `ro`. A loop device stays write-protected after `blockdev --setro`, even with
    /// another image, and without `--rw`, mount(8) would mount it read-only.
    pub fn new(image: &Path, format: &str, options: &str) -> Self {
        let folder = must(TempDir::new(), "a folder to mount on");
        let mut command = Command::new("mount");
        if options.split(',').all(|option| option != "ro") {
            command.arg("--rw");
        }
        let is_device = must(image.metadata(), image.display()).file_type().is_block_device();
        let options = format!("{}noatime,{options}", if is_device { "" } else { "loop," });
        run(command.args(["-t", format, "-o", &options]).arg(image).arg(folder.path()));
        Self { folder }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts, so that all data is in the image. Panics on failure.
    pub fn unmount(self) {
        // The drop unmounts.
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Another thread that starts a program has copies of this process's open files for a
        // moment.
        let deadline = Instant::now() + BUSY_TIME_MAX;
        loop {
            let output =
                crate::host::command::output(Command::new("umount").arg(self.folder.path()));
            if output.status.success() {
                return;
            }
            if Instant::now() > deadline {
                // During a panic, do not panic again. The end of the namespace unmounts.
                assert!(std::thread::panicking(), "umount: {}", output.text());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mke2fs;

    /// A write-protected loop device.
    struct Protected(String);

    impl Protected {
        fn new(image: &Path) -> Self {
            let arguments = ["--read-only", "--find", "--show"];
            let name = run(Command::new("losetup").args(arguments).arg(image));
            Self(String::from_utf8_lossy(&name).trim().to_owned())
        }
    }

    impl Drop for Protected {
        fn drop(&mut self) {
            let _ =
                crate::host::command::output(Command::new("losetup").args(["--detach", &self.0]));
        }
    }

    #[test]
    fn a_write_protected_loop_device_is_an_error_that_names_it() {
        private_mounts();
        let folder = must(TempDir::new(), "a folder");
        let image = folder.path().join("image");
        Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
        let protected = Protected::new(&image);
        let path = Path::new(&protected.0);
        LoopMount::new(path, "ext4", "ro,noload").unmount();
        let refused = std::panic::catch_unwind(|| LoopMount::new(path, "ext4", "rw"));
        let refused = refused.err().expect("a write-protected device cannot be mounted");
        let message = refused.downcast::<String>().expect("a message");
        let names_it = message.contains("/dev/loop") && message.contains("write-protected");
        assert!(names_it, "{message}");
    }
}
