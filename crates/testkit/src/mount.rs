//! Loop mounts in mount namespaces that end with their thread, so that nothing stays mounted,
//! however a test ends.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use crate::command::run;
use crate::must;

/// How long a mount may stay busy after its last use.
const BUSY_TIME_MAX: Duration = Duration::from_secs(20);

/// Gives the calling thread, and the threads and programs that it starts from now on, mounts of
/// their own. Whatever is mounted then is seen by nobody else and goes with the thread.
pub fn private_mounts() {
    assert!(rustix::process::geteuid().is_root(), "this test mounts file systems: run it as root");
    // SAFETY: the flags touch only this thread's working directory, umask and mounts; no file
    // descriptor table is split, so no other thread's I/O safety is affected.
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
    /// Mounts `image` as `format` with further mount options, in the thread's own namespace
    /// ([`private_mounts`] must have been called).
    pub fn new(image: &Path, format: &str, options: &str) -> Self {
        let folder = must(TempDir::new(), "a folder to mount on");
        let wants_writes = options.split(',').all(|option| option != "ro");
        let options = format!("loop,noatime,{options}");
        run(Command::new("mount")
            .args(["-t", format, "-o", &options])
            .arg(image)
            .arg(folder.path()));
        // `blockdev --setro` outlives the image that a loop device had: mount(8) then mounts read-only.
        let flags = must(rustix::fs::statvfs(folder.path()), "a mount to look at").f_flag;
        let is_read_only = flags.contains(rustix::fs::StatVfsMountFlags::RDONLY);
        assert!(!(wants_writes && is_read_only), "the loop device is write-protected");
        Self { folder }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts, so that everything is in the image.
    pub fn unmount(self) {
        // The drop does it, and panics when it fails.
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Another thread that is starting a program holds copies of our open files for a moment.
        let deadline = Instant::now() + BUSY_TIME_MAX;
        loop {
            let output = crate::command::output(Command::new("umount").arg(self.folder.path()));
            if output.status.success() {
                return;
            }
            if Instant::now() > deadline {
                // A second panic would hide the first; the namespace's end cleans up.
                assert!(std::thread::panicking(), "umount: {}", output.text());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
