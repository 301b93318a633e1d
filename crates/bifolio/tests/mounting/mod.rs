//! Fixtures for mount tests: images, mount points, mounts and their processes. Dropping a mount
//! unmounts it.
//!
//! Test programs with names that end with `_ring` mount with io_uring if the host supports it, and
//! all others without it.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod direct_and_mapped;
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
use testkit::{Format, Mke2fs, thread_state, wait_until};

/// Formats with different ways to make changes durable.
pub const FORMATS: [Format; 3] = [Format::Ext4(4096), Format::F2fs, Format::LargeF2fs];

/// User id of an ordinary user.
pub const NOBODY: u32 = 65_534;

/// Returns a call of a subcommand of bifolio.
pub fn bifolio(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifolio"));
    command.arg(subcommand);
    command
}

/// Returns a call of a program as another user.
pub fn as_user(user: u32, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    command.arg("--clear-groups").arg(program).current_dir("/");
    command
}

/// Calls `work` on a thread with another user and group.
pub fn run_as<T: Send>(uid: RawUid, gid: RawGid, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_groups(&[]).unwrap();
            set_thread_gid(Gid::from_raw(gid)).unwrap();
            set_thread_uid(Uid::from_raw(uid)).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// Returns the line of the mount table for the mount on `path`.
pub fn mount_entry(path: &Path) -> Option<String> {
    // The table of the thread, because each test has its own mount namespace.
    let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let path = format!(" {} ", path.display().to_string().replace(' ', "\\040"));
    table.lines().rfind(|line| line.contains(&path)).map(str::to_owned)
}

/// Unmounts with `attempt`, and retries while the mount is busy: a program that another test starts
/// has copies of all open files for a moment.
pub fn retry_while_busy(mut attempt: impl FnMut() -> Output) {
    wait_until("unmounting", || {
        let output = attempt();
        let is_busy = output.text().contains("busy");
        assert!(is_busy || output.status.success(), "{}", output.text());
        !is_busy
    });
}

/// A folder with an image and a mount point.
pub struct Fixture {
    pub folder: TempDir,
    pub image: PathBuf,
    pub directory: PathBuf,
    pub format: Format,
}

impl Fixture {
    /// Creates the folder and the mount point without an image.
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().canonicalize().unwrap();
        let directory = path.join("mounted here");
        fs::create_dir(&directory).unwrap();
        let format = Format::Ext4(4096);
        Self { image: path.join("volume.img"), directory, folder, format }
    }

    /// Also creates an empty volume.
    pub fn with_volume(format: Format) -> Self {
        let fixture = Self { format, ..Self::new() };
        let megabytes = match format {
            Format::Ext4(_) => 64,
            Format::F2fs => 128,
            Format::LargeF2fs => 256,
        };
        format.make(&fixture.image, megabytes);
        fixture
    }

    /// Also creates a small image with a few files.
    pub fn with_tree() -> Self {
        let fixture = Self::new();
        let source = fixture.source();
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
        image.make(&fixture.image, Some(&source));
        fixture
    }

    /// Checks the image by the format's own program, or if it cannot read the image, by the
    /// library.
    #[track_caller]
    pub fn check(&self) {
        self.format.check(&self.image);
    }

    /// Returns the folder with the files of the image.
    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Lets the ordinary user mount the image. Makes /dev/fuse accessible for all users in the
    /// mount namespace of the thread, as on a desktop.
    pub fn allow_nobody(&self) {
        self.share_device();
        fs::set_permissions(&self.image, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::chown(&self.directory, Some(NOBODY), Some(NOBODY)).unwrap();
    }

    /// Makes /dev/fuse accessible for all users in the mount namespace of the test, as it is on
    /// most hosts. Without it, a mount of an ordinary user that needs io_uring fails early.
    pub fn share_device(&self) {
        let devices = self.folder.path().join("devices");
        if devices.exists() {
            return;
        }
        fs::create_dir(&devices).unwrap();
        let script = "mount -t tmpfs -o mode=755 none . && mknod -m 666 fuse c 10 229 \
                      && mount --bind fuse /dev/fuse";
        run(Command::new("sh").args(["-c", script]).current_dir(&devices));
    }

    /// Mounts in the background.
    pub fn mount(&self, arguments: &[&str]) -> Mount<'_> {
        let (_offer, transport) = ring::transport();
        let mut command = bifolio("mount");
        command.args(["-o", transport]).args(arguments).arg(&self.image).arg(&self.directory);
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

    /// Tries to mount as a user.
    pub fn try_mount_as(&self, user: u32, arguments: &[&str]) -> Output {
        let (_offer, transport) = ring::transport();
        let mut command = as_user(user, env!("CARGO_BIN_EXE_bifolio"));
        command
            .args(["mount", "-o", transport])
            .args(arguments)
            .arg(&self.image)
            .arg(&self.directory);
        output(&mut command)
    }

    /// Checks that mounting fails with this exit status and message.
    pub fn mount_fails(&self, arguments: &[&str], status: i32, message: &str) {
        let before = mount_entry(&self.directory);
        let output = output(bifolio("mount").args(arguments).arg(&self.image).arg(&self.directory));
        assert_eq!(output.status.code(), Some(status), "{}", output.text());
        assert!(output.text().contains(message), "{}", output.text());
        assert_eq!(mount_entry(&self.directory), before);
    }

    /// Mounts in the foreground. Returns when the image is mounted.
    pub fn mount_in_foreground(&self) -> Foreground {
        let (_offer, transport) = ring::transport();
        let mut command = bifolio("mount");
        command
            .args(["-o", transport, "-f"])
            .arg(&self.image)
            .arg(&self.directory)
            .stdin(Stdio::null());
        let mut foreground = Foreground(command.spawn().unwrap());
        wait_until("the mount", || {
            assert_eq!(foreground.0.try_wait().unwrap(), None);
            mount_entry(&self.directory).is_some() && self.directory.join("small").exists()
        });
        foreground
    }

    /// Returns the current mount. Dropping it unmounts.
    pub fn mounted(&self) -> Mount<'_> {
        let (guard, server) = self.processes();
        Mount { fixture: self, guard, server, is_owned: true }
    }

    /// Returns the current mount. Dropping it does not unmount.
    pub fn borrow_mount(&self) -> Mount<'_> {
        let (guard, server) = self.processes();
        Mount { fixture: self, guard, server, is_owned: false }
    }

    /// Tries to unmount with `bifolio umount`.
    pub fn try_umount(&self) -> Output {
        output(bifolio("umount").arg(&self.directory))
    }

    /// Unmounts with `bifolio umount`.
    pub fn umount(&self) {
        retry_while_busy(|| self.try_umount());
    }

    /// Unmounts as a user.
    pub fn umount_as(&self, user: u32) {
        retry_while_busy(|| {
            let mut command = as_user(user, env!("CARGO_BIN_EXE_bifolio"));
            output(command.arg("umount").arg(&self.directory))
        });
    }

    /// Returns the process ids of the guard and the server. Their command lines contain the mount
    /// point.
    fn processes(&self) -> (i32, i32) {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let program = line.split(|&byte| byte == 0).next().unwrap_or_default();
            let names = String::from_utf8_lossy(&line);
            if is_bifolio(program) && names.contains(&*self.directory.to_string_lossy()) {
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

/// A mount and its processes. Dropping it unmounts.
pub struct Mount<'a> {
    fixture: &'a Fixture,
    guard: i32,
    server: i32,
    is_owned: bool,
}

impl Mount<'_> {
    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.fixture.directory
    }

    /// Returns the process id of the server.
    pub fn server(&self) -> i32 {
        self.server
    }

    pub fn guard(&self) -> i32 {
        self.guard
    }

    /// Returns the run times, in nanoseconds, of the server's threads with names that begin with
    /// `prefix`.
    pub fn thread_run_times(&self, prefix: &str) -> Vec<u64> {
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

    /// Returns the total run time of these threads.
    pub fn total_run_time(&self, prefix: &str) -> u64 {
        self.thread_run_times(prefix).iter().sum()
    }

    /// Stops the guard, and waits until it is stopped.
    pub fn stop_guard(&self) {
        stop(self.guard);
    }

    /// Stops the server, and waits until all of its threads are stopped.
    pub fn stop_server(&self) {
        stop(self.server);
    }

    /// Sends a signal to the guard.
    pub fn signal_guard(&self, signal: Signal) {
        kill(self.guard, signal);
    }

    /// Sends a signal to the server.
    pub fn signal_server(&self, signal: Signal) {
        kill(self.server, signal);
    }

    /// Returns whether the guard is running.
    pub fn has_guard(&self) -> bool {
        is_alive(self.guard)
    }

    /// Returns whether the server is running.
    pub fn has_server(&self) -> bool {
        is_alive(self.server)
    }

    /// Waits for the end of both processes. Asserts that nothing is mounted.
    pub fn assert_gone(&self) {
        wait_until("the end of guard and server", || {
            !is_alive(self.guard) && !is_alive(self.server)
        });
        assert_eq!(mount_entry(self.path()), None);
    }

    /// Checks that the mount of a server that was killed has stayed, and that accesses to it fail.
    /// Unmounts it.
    pub fn unmount_dead(&self) {
        wait_until("the end of guard and server", || {
            !is_alive(self.guard) && !is_alive(self.server)
        });
        // NOTCONN, or CONNABORTED if the connection has rings, which the kernel takes down after
        // the end of the server.
        wait_until("an error", || rustix::fs::statfs(self.path()).is_err());
        run(Command::new("umount").arg("-l").arg(self.path()));
        assert_eq!(mount_entry(self.path()), None);
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if !self.is_owned {
            return;
        }
        if std::thread::panicking() {
            // A signal unmounts even a mount in use.
            for process in [self.guard, self.server] {
                if is_alive(process) {
                    kill(process, Signal::TERM);
                }
            }
        } else if mount_entry(self.path()).is_some() {
            self.fixture.umount();
        }
    }
}

/// A mount command in the foreground. Dropping it ends the command.
pub struct Foreground(Child);

impl Foreground {
    /// Sends a signal to the command.
    pub fn signal(&self, signal: Signal) {
        kill(self.0.id() as i32, signal);
    }

    /// Waits for the end of the command.
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
            // SIGTERM, so that the command unmounts.
            self.signal(Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

fn kill(process: i32, signal: Signal) {
    let process = Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

/// Stops a process. Its threads stop once one of them has taken the signal. Until then, they go on
/// working.
fn stop(process: i32) {
    kill(process, Signal::STOP);
    wait_until("the stop of all threads", || {
        let mut threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        threads.all(|thread| matches!(thread_state(&thread.unwrap().path()), Some('T') | None))
    });
}

fn is_alive(process: i32) -> bool {
    // The command line of a zombie is empty, and another process may have the same id now.
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).next().is_some_and(is_bifolio)
}

/// Returns whether a program is bifolio, by its own name or as a helper of mount(8).
fn is_bifolio(program: &[u8]) -> bool {
    program == b"bifolio" || program.ends_with(b"/bifolio") || program.ends_with(b".bifolio")
}

/// A loop device of an image. Dropping it detaches the device.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    pub fn new(image: &Path) -> Self {
        Self::with(image, &[])
    }

    /// Creates a loop device with partitions.
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
