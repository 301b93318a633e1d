//! Places to mount on, mounts that go away with their test, and the processes behind them.
//!
//! Test binaries whose name ends with `_ring` mount with io_uring wherever the host can, all others
//! without it.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod other_ways;
mod ring;
pub mod side_by_side;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::{Gid, Uid};
use rustix::process::{Pid, RawGid, RawUid, Signal};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use tempfile::TempDir;
use testkit::command::{Output, output, run};
use testkit::{Mke2fs, wait_until};

/// An ordinary user.
pub const NOBODY: u32 = 65_534;

/// By how much the long random tests are to be longer than they usually are.
pub fn soak_factor() -> u64 {
    std::env::var("BIFOLIO_SOAK_FACTOR").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The command under test.
pub fn bifolio(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifolio"));
    command.arg(subcommand);
    command
}

/// A program run by a user.
pub fn as_user(user: u32, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    command.arg("--clear-groups").arg(program).current_dir("/");
    command
}

/// Does something on a thread of another user.
pub fn act_as<T: Send>(uid: RawUid, gid: RawGid, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            set_thread_groups(&[]).unwrap();
            set_thread_gid(Gid::from_raw(gid)).unwrap();
            set_thread_uid(Uid::from_raw(uid)).unwrap();
            act()
        });
        acting.join().unwrap()
    })
}

/// The line of the mount table for what is mounted on `path`.
pub fn mount_entry(path: &Path) -> Option<String> {
    // The thread's own table: tests have mount namespaces of their own.
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let path = format!(" {} ", path.display().to_string().replace(' ', "\\040"));
    table.lines().rfind(|line| line.contains(&path)).map(str::to_owned)
}

/// Unmounts with `attempt`. The mount can be busy for a moment after its last use: while another
/// test starts a program, that has copies of all open files.
pub fn soon(mut attempt: impl FnMut() -> Output) {
    wait_until("unmounting", || {
        let output = attempt();
        let busy = output.text().contains("busy");
        assert!(busy || output.status.success(), "{}", output.text());
        !busy
    });
}

/// A folder with an image and a directory to mount it on.
pub struct Location {
    pub folder: TempDir,
    pub image: PathBuf,
    pub directory: PathBuf,
}

impl Location {
    /// No image yet.
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().canonicalize().unwrap();
        let directory = path.join("mounted here");
        fs::create_dir(&directory).unwrap();
        Self { image: path.join("volume.img"), directory, folder }
    }

    /// With a small image made from a small tree.
    pub fn with_tree() -> Self {
        let place = Self::new();
        let source = place.source();
        fs::create_dir(&source).unwrap();
        fs::write(source.join("small"), b"a few bytes\n").unwrap();
        fs::write(source.join("big"), testkit::tree::contents(1, 5_000_001)).unwrap();
        for (name, mode) in [("secret", 0o600), ("secret-but-for-nobody", 0o600)] {
            fs::write(source.join(name), b"hidden\n").unwrap();
            fs::set_permissions(source.join(name), Permissions::from_mode(mode)).unwrap();
        }
        run(Command::new("setfacl")
            .args(["-m", &format!("u:{NOBODY}:r")])
            .arg(source.join("secret-but-for-nobody")));
        let mut image = Mke2fs::new("ext4", 4096);
        image.size = 64 << 20;
        image.make(&place.image, Some(&source));
        place
    }

    /// What the image was made from.
    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Lets the ordinary user mount here. In the thread's own mounts, /dev/fuse becomes what it is
    /// on a desktop: anybody's to open.
    pub fn give_to_nobody(&self) {
        let devices = self.folder.path().join("devices");
        fs::create_dir(&devices).unwrap();
        let script = "mount -t tmpfs -o mode=755 none . && mknod -m 666 fuse c 10 229 \
                      && mount --bind fuse /dev/fuse";
        run(Command::new("sh").args(["-c", script]).current_dir(&devices));
        fs::set_permissions(&self.image, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::chown(&self.directory, Some(NOBODY), Some(NOBODY)).unwrap();
    }

    /// Mounts in the background.
    pub fn mount(&self, arguments: &[&str]) -> Mount<'_> {
        let (_offer, way) = ring::way();
        let mut command = bifolio("mount");
        command.args(["-o", way]).args(arguments).arg(&self.image).arg(&self.directory);
        let output = output(&mut command);
        assert!(output.status.success(), "{}", output.text());
        self.mounted()
    }

    /// Mounts as a user.
    pub fn mount_as(&self, user: u32, arguments: &[&str]) -> Mount<'_> {
        let output = self.try_mount_as(user, arguments);
        assert!(output.status.success(), "{}", output.text());
        self.mounted()
    }

    /// Tries to.
    pub fn try_mount_as(&self, user: u32, arguments: &[&str]) -> Output {
        let (_offer, way) = ring::way();
        let mut command = as_user(user, env!("CARGO_BIN_EXE_bifolio"));
        command.args(["mount", "-o", way]).args(arguments).arg(&self.image).arg(&self.directory);
        output(&mut command)
    }

    /// Mounts in vain.
    pub fn mount_fails(&self, arguments: &[&str], status: i32, complaint: &str) {
        let before = mount_entry(&self.directory);
        let output = output(bifolio("mount").args(arguments).arg(&self.image).arg(&self.directory));
        assert_eq!(output.status.code(), Some(status), "{}", output.text());
        assert!(output.text().contains(complaint), "{}", output.text());
        assert_eq!(mount_entry(&self.directory), before);
    }

    /// Mounts in the foreground; returns when the mount is there.
    pub fn mount_in_foreground(&self) -> Foreground {
        let (_offer, way) = ring::way();
        let mut command = bifolio("mount");
        command.args(["-o", way, "-f"]).arg(&self.image).arg(&self.directory).stdin(Stdio::null());
        let mut foreground = Foreground(command.spawn().unwrap());
        wait_until("the mount", || {
            assert_eq!(foreground.0.try_wait().unwrap(), None);
            mount_entry(&self.directory).is_some() && self.directory.join("small").exists()
        });
        foreground
    }

    /// What is mounted here, to go with the result.
    pub fn mounted(&self) -> Mount<'_> {
        let (guard, server) = self.processes();
        Mount { place: self, guard, server, owned: true }
    }

    /// What is mounted here, owned by somebody else.
    pub fn mounted_elsewhere(&self) -> Mount<'_> {
        let (guard, server) = self.processes();
        Mount { place: self, guard, server, owned: false }
    }

    /// Tries to unmount.
    pub fn try_umount(&self) -> Output {
        output(bifolio("umount").arg(&self.directory))
    }

    /// Unmounts.
    pub fn umount(&self) {
        soon(|| self.try_umount());
    }

    /// Unmounts as a user.
    pub fn umount_as(&self, user: u32) {
        soon(|| {
            let mut command = as_user(user, env!("CARGO_BIN_EXE_bifolio"));
            output(command.arg("umount").arg(&self.directory))
        });
    }

    /// The guard and the server of the mount: those whose command line names the directory.
    fn processes(&self) -> (i32, i32) {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let program = line.split(|&byte| byte == 0).next().unwrap_or_default();
            let names = String::from_utf8_lossy(&line);
            if is_ours(program) && names.contains(&*self.directory.to_string_lossy()) {
                found.push((pid, parent(pid)));
            }
        }
        let is_found = |pid: i32| found.iter().any(|(other, _)| *other == pid);
        let server = found.iter().find(|(_, parent)| is_found(*parent));
        let (server, guard) = server.unwrap_or_else(|| panic!("no processes: {found:?}"));
        (*guard, *server)
    }
}

fn parent(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0)
}

/// A mount and its processes. Ends them when dropped.
pub struct Mount<'a> {
    place: &'a Location,
    guard: i32,
    server: i32,
    owned: bool,
}

impl Mount<'_> {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.place.directory
    }

    /// The process that serves.
    pub fn server(&self) -> i32 {
        self.server
    }

    /// The abstract names of the sockets that the guard listens on.
    pub fn names_of_guard(&self) -> Vec<String> {
        let held = fs::read_dir(format!("/proc/{}/fd", self.guard)).unwrap();
        let held: Vec<PathBuf> =
            held.map(|held| fs::read_link(held.unwrap().path()).unwrap()).collect();
        let table = fs::read_to_string("/proc/net/unix").unwrap();
        let sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let named = sockets.filter_map(|fields| {
            Some((*fields.get(6)?, fields.get(7)?.strip_prefix('@')?.to_owned()))
        });
        let is_held = |inode: &str| held.contains(&format!("socket:[{inode}]").into());
        named.filter(|(inode, _)| is_held(inode)).map(|(_, name)| name).collect()
    }

    /// For how long, in nanoseconds, each of the server's threads has run whose names begin so.
    pub fn threads(&self, prefix: &str) -> Vec<u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.server)).unwrap();
        let tasks = tasks.map(|task| task.unwrap().path());
        let chosen =
            tasks.filter(|task| fs::read_to_string(task.join("comm")).unwrap().starts_with(prefix));
        let time = |task: PathBuf| {
            let times = fs::read_to_string(task.join("schedstat")).unwrap();
            times.split(' ').next().unwrap().parse().unwrap()
        };
        chosen.map(time).collect()
    }

    /// For how long they have run together.
    pub fn ran(&self, prefix: &str) -> u64 {
        self.threads(prefix).iter().sum()
    }

    /// Sends a signal to the process that guards the mount.
    pub fn signal_guard(&self, signal: Signal) {
        kill(self.guard, signal);
    }

    /// Sends a signal to the process that serves.
    pub fn signal_server(&self, signal: Signal) {
        kill(self.server, signal);
    }

    /// Whether the process that guards the mount is there.
    pub fn has_guard(&self) -> bool {
        alive(self.guard)
    }

    /// Whether the process that serves is there.
    pub fn has_server(&self) -> bool {
        alive(self.server)
    }

    /// Both processes end, and nothing is mounted.
    pub fn assert_gone(&self) {
        wait_until("the end of guard and server", || !alive(self.guard) && !alive(self.server));
        assert_eq!(mount_entry(self.path()), None);
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        if std::thread::panicking() {
            // Even a mount in use goes with its guard's end.
            for process in [self.guard, self.server] {
                if alive(process) {
                    kill(process, Signal::TERM);
                }
            }
        } else if mount_entry(self.path()).is_some() {
            self.place.umount();
        }
    }
}

/// A command that mounted in the foreground. Killed when dropped.
pub struct Foreground(Child);

impl Foreground {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.0.id() as i32, signal);
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the command", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            // Orderly, so that the mount goes, too.
            self.signal(Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

fn kill(process: i32, signal: Signal) {
    let process = Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

fn alive(process: i32) -> bool {
    // A zombie's command line is empty; its number may have been given to another process since.
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).next().is_some_and(is_ours)
}

/// Whether a program is the command, under its own name or as a helper of mount(8).
fn is_ours(program: &[u8]) -> bool {
    program.ends_with(b"/bifolio") || program.ends_with(b".bifolio")
}

/// A loop device over an image.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    pub fn new(image: &Path) -> Self {
        Self::with(image, &[])
    }

    /// That may have partitions.
    pub fn with_partitions(image: &Path) -> Self {
        Self::with(image, &["--partscan"])
    }

    fn with(image: &Path, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().chain(&["--find", "--show", "--"]);
        let name = run(Command::new("losetup").args(arguments).arg(image));
        Self(PathBuf::from(String::from_utf8(name).unwrap().trim()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let output = output(Command::new("losetup").arg("--detach").arg(&self.0));
        assert!(std::thread::panicking() || output.status.success(), "{}", output.text());
    }
}
