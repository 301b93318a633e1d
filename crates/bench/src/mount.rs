//! Mounts of images: by the running kernel, and by programs that serve FUSE.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::{LoopMount, RingOffer};

/// The maximum time for a program to mount or to end.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The programs that mount, always for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mounter {
    /// The running kernel, through a loop device.
    Kernel,
    /// e2fsprogs's fuse2fs.
    Fuse2fs,
    /// `bifolio mount`, built in the same folder as this program, with further mount options.
    Bifolio(&'static str),
}

/// Returns the measured ways of mounting, by their columns' names: bifolio over /dev/fuse, with the
/// options nolow_latency and writeback, and over io_uring if the host supports it.
pub fn mounters() -> Vec<(&'static str, Mounter)> {
    let mut all = vec![
        (KERNEL, Mounter::Kernel),
        (FUSE2FS, Mounter::Fuse2fs),
        (MOUNT, Mounter::Bifolio("rw,io_uring=off")),
        (NO_LOW_LATENCY, Mounter::Bifolio("rw,io_uring=off,nolow_latency")),
        (WRITEBACK, Mounter::Bifolio("rw,io_uring=off,writeback")),
    ];
    if RingOffer::put(true).is_some() {
        all.push((RINGS, Mounter::Bifolio("rw,io_uring=on")));
    }
    all
}

/// The column of the kernel's loop mount.
pub const KERNEL: &str = "kernel";
/// The column of fuse2fs.
pub const FUSE2FS: &str = "fuse2fs";
/// The column of bifolio's mount over /dev/fuse.
pub const MOUNT: &str = "mount";
/// The column of bifolio's mount with `nolow_latency`.
pub const NO_LOW_LATENCY: &str = "nolow-lat";
/// The column of bifolio's mount with `writeback`.
pub const WRITEBACK: &str = "writeback";
/// The column of bifolio's mount over io_uring.
pub const RINGS: &str = "io_uring";

/// The columns of bifolio's mounts. Aims apply to the best of them, which depends on the work.
pub const OUR_MOUNTS: [&str; 4] = [MOUNT, NO_LOW_LATENCY, WRITEBACK, RINGS];

/// A mounted image.
pub enum Mount {
    /// A mount by the running kernel.
    Loop(LoopMount),
    /// A mount by a program.
    Fuse(FuseMount),
}

impl Mount {
    /// Mounts an image for writing.
    pub fn new(image: &Path, mounter: Mounter) -> Self {
        match mounter {
            Mounter::Kernel => Self::Loop(LoopMount::new(image, "ext4", "rw")),
            Mounter::Fuse2fs => {
                let mut command = Command::new("fuse2fs");
                command.arg("-f");
                Self::Fuse(FuseMount::new(command, image))
            }
            Mounter::Bifolio(options) => {
                let _offer = RingOffer::put(true);
                let mut command = Command::new(bifolio());
                command.args(["mount", "-f", "-o", options]);
                let mount = FuseMount::new(command, image);
                // The switch must stay on until the rings exist. Before that, no request is
                // answered.
                rustix::fs::statfs(mount.folder.path()).expect("an answer");
                Self::Fuse(mount)
            }
        }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        match self {
            Self::Loop(mount) => mount.path(),
            Self::Fuse(mount) => mount.folder.path(),
        }
    }
}

/// Returns the path of the command, which was built in the same folder as this program.
pub fn bifolio() -> PathBuf {
    let own = std::env::current_exe().expect("this program's path");
    let path = own.with_file_name("bifolio");
    assert!(path.exists(), "build the command first: cargo build --release --package bifolio");
    path
}

/// A program that serves a mount in the foreground. Dropping this unmounts the image and waits for
/// the program's end.
pub struct FuseMount {
    server: Child,
    folder: TempDir,
}

impl FuseMount {
    fn new(mut command: Command, image: &Path) -> Self {
        let folder = TempDir::new().expect("a folder to mount on");
        command.arg(image).arg(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut mount = Self { server, folder };
        mount.wait_until("mounted", |mount| {
            let ended = mount.server.try_wait().expect("a child");
            assert!(ended.is_none(), "{command:?} ended: {ended:?}");
            mount.is_mounted()
        });
        mount
    }

    fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("/proc");
        table.contains(&format!(" {} ", self.folder.path().display()))
    }

    fn wait_until(&mut self, state: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !condition(self) {
            assert!(Instant::now() < deadline, "not {state} within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // After the server's end, the end of this program's mount namespace removes the mount.
            let _ = self.server.kill();
            let _ = self.server.wait();
            return;
        }
        self.wait_until("unmounted", |mount| {
            let command = &mut Command::new("umount");
            testkit::command::output(command.arg(mount.folder.path())).status.success()
        });
        // The image is complete when the server has ended.
        self.wait_until("ended", |mount| mount.server.try_wait().expect("a child").is_some());
    }
}
