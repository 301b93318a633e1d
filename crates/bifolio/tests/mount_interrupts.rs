//! Programs that receive signals while they wait for a commit of another program, and servers that
//! are killed, on a mount with a device that does not complete requests. This program is also the
//! server of the mount and the waiting program, if environment variables are set.
#![allow(clippy::print_stderr, reason = "this is also a program")]

use std::fs::{self, File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bifolio::{Follow, SharedDevice, VolumeOptions};
use device::{Bio, BioOperation, FileDevice};
use fuse::{Confinement, Inherited, MountOptions, Plan, SessionError, Upgrade};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::{
    DeviceHooks, HookedDevice, Mke2fs, RingOffer, check_by_e2fsck, private_mounts, wait_until,
};

/// Variable for the folder with the image, the mount point and the switch. If it is set, this
/// program mounts the image.
const FOLDER: &str = "BIFOLIO_TEST_FOLDER";
/// Variable for the mount options.
const OPTIONS: &str = "BIFOLIO_TEST_OPTIONS";
/// Variable for a file. If it is set, this program syncs the file.
const SYNCED: &str = "BIFOLIO_TEST_SYNCED";

/// Hooks that block requests while the first byte of a file is their kind. A blocked request sets
/// the second byte to 1.
#[derive(Debug)]
struct Blocked(File);

/// The kinds of blocked requests.
const WRITES: u8 = b'w';
const READS: u8 = b'r';

impl Blocked {
    fn wait_until_open(&self, kind: u8) {
        let mut byte = [0];
        while self.0.read_at(&mut byte, 0).is_ok() && byte == [kind] {
            self.0.write_all_at(b"1", 1).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl DeviceHooks for Blocked {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for (operation, kind) in [(BioOperation::Write, WRITES), (BioOperation::Read, READS)] {
            if batch.iter().any(|bio| bio.operation() == operation) {
                self.wait_until_open(kind);
            }
        }
        device.submit(batch);
    }
}

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return mount(folder.into());
    }
    if let Some(path) = std::env::var_os(SYNCED) {
        return sync(Path::new(&path));
    }
    let trial = |name, uses_rings| Trial::test(name, move || check(uses_rings));
    let trials = vec![
        trial("only_killed_programs_stop_waiting_for_a_commit", false),
        trial("only_killed_programs_stop_waiting_through_io_uring", true),
        Trial::test("a_server_that_was_killed_during_an_invalidation_ends", check_killed_server),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Mounts the image in `folder` with a confined server.
fn mount(folder: PathBuf) -> ExitCode {
    let mut options = MountOptions::default();
    options.add(&std::env::var(OPTIONS).unwrap()).unwrap();
    let plan = Plan {
        source: "stuck".into(),
        directory: folder.join("mount"),
        claim: None,
        options,
        foreground: true,
        system_log: Arc::default(),
        upgrade: Upgrade::never("it is a test"),
        confinement: Confinement::FULL,
        memory_max: 4 << 30,
        inherited: Inherited::default(),
        threads: const { NonZeroUsize::new(8).unwrap() },
    };
    let prepare = || {
        let inner: SharedDevice = Arc::new(FileDevice::open(&folder.join("image"), false)?);
        let switch = OpenOptions::new().read(true).write(true).open(folder.join("switch"));
        Ok::<_, base::Error>(Arc::new(HookedDevice::new(inner, Blocked(switch.unwrap()))))
    };
    let open = |device: Arc<HookedDevice<Blocked>>| {
        let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
        vfs::Volume::open_device(device, &options).map(Arc::new)
    };
    match fuse::run(&plan, prepare, open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(SessionError::Reported(status)) => status.into(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Installs a handler for SIGUSR1 and syncs a file. Exits with the error number.
fn sync(path: &Path) -> ExitCode {
    let is_received = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, is_received).unwrap();
    let file = File::open(path).unwrap();
    // SAFETY: the call has no memory arguments. The standard library would repeat it after EINTR.
    match unsafe { libc::fsync(file.as_raw_fd()) } {
        0 => ExitCode::SUCCESS,
        _ => std::io::Error::last_os_error().raw_os_error().map_or(1, |errno| errno as u8).into(),
    }
}

/// A process. Dropping it kills the process.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    fn wait(&mut self, name: &str) -> ExitStatus {
        let mut status = None;
        wait_until(name, || {
            status = self.ended();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Process {
    /// Does not wait for the end of the process, which may be blocked by the device.
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// File that blocks requests to the device. Dropping it unblocks them.
struct Switch(PathBuf);

impl Switch {
    fn set(&self, byte: u8) {
        let file = OpenOptions::new().write(true).open(&self.0).unwrap();
        file.write_all_at(&[byte], 0).unwrap();
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.set(b'0');
    }
}

fn this_program(variables: &[(&str, &Path)]) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process(command.spawn().unwrap())
}

/// Mounts the image in `folder`, on a device that can block requests.
fn start_session(folder: &Path, options: &str) -> (Process, Switch) {
    let directory = folder.join("mount");
    fs::create_dir(&directory).unwrap();
    let switch = Switch(folder.join("switch"));
    fs::write(&switch.0, "00").unwrap();
    let session = this_program(&[(FOLDER, folder), (OPTIONS, Path::new(options))]);
    wait_until("the mount", || directory.join("lost+found").exists());
    (session, switch)
}

/// Starts a program that syncs a file, and waits until it is in fsync.
fn start_sync(path: &Path) -> Process {
    let process = this_program(&[(SYNCED, path)]);
    let call = format!("{} ", libc::SYS_fsync);
    let current = format!("/proc/{}/syscall", process.0.id());
    wait_until("fsync", || fs::read_to_string(&current).is_ok_and(|text| text.starts_with(&call)));
    process
}

fn check(uses_rings: bool) -> Result<(), Failed> {
    private_mounts();
    let offer = RingOffer::put(uses_rings);
    let io_uring = if uses_rings && offer.is_some() { "io_uring=on" } else { "io_uring=off" };
    let folder = TempDir::new()?;
    let path = folder.path().canonicalize()?;
    let (image, directory) = (path.join("image"), path.join("mount"));
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&image, None);
    let (mut session, switch) = start_session(&path, &format!("rw,{io_uring}"));
    drop(offer);

    // The first program commits, and the other programs wait for this commit.
    fs::write(directory.join("first"), "")?;
    switch.set(WRITES);
    let mut first = start_sync(&directory.join("first"));
    wait_until("a write to the device", || fs::read(&switch.0).unwrap() == b"w1");
    for name in ["waiting", "killed"] {
        fs::write(directory.join(name), "")?;
    }
    let mut waiting = start_sync(&directory.join("waiting"));
    let mut killed = start_sync(&directory.join("killed"));
    waiting.signal(Signal::USR1);
    killed.signal(Signal::TERM);
    assert_eq!(killed.wait("the end of the killed program").code(), None);
    assert!(first.ended().is_none() && waiting.ended().is_none(), "the device completed a write");

    switch.set(b'0');
    assert!(first.wait("the first program").success());
    assert_eq!(waiting.wait("a program with a handler").code(), Some(0), "EINTR from fsync");
    session.signal(Signal::TERM);
    assert!(session.wait("the session").success());
    check_by_e2fsck(&image);
    let volume = VolumeOptions::new().open(&image)?;
    for name in ["/first", "/waiting", "/killed"] {
        assert!(volume.resolve(name.as_bytes(), Follow::No).is_ok(), "{name} was lost");
    }
    Ok(())
}

/// Returns whether a thread of the process makes the kernel invalidate data, and waits in a way
/// that cannot be interrupted.
fn is_invalidating(process: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let mut stats = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")));
    stats.any(|stat| stat.is_ok_and(|stat| stat.contains("(fuse-wait-") && stat.contains(") D ")))
}

/// A killed server whose thread waits in the kernel for a page, while another thread was to answer
/// the read of this page.
fn check_killed_server() -> Result<(), Failed> {
    /// A place in the file that is not read ahead with its beginning.
    const FAR: u64 = 24 << 20;
    private_mounts();
    let folder = TempDir::new()?;
    let path = folder.path().canonicalize()?;
    let (image, directory) = (path.join("image"), path.join("mount"));
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let volume = VolumeOptions::new().writable(true).open(&image)?;
    volume.write("/file", vec![1; 32 << 20])?;
    volume.close()?;
    drop(volume);
    let (mut session, switch) = start_session(&path, "rw,io_uring=off");
    let file = File::open(directory.join("file"))?;
    file.read_exact_at(&mut [0], 0)?;
    switch.set(READS);
    let reader = std::thread::spawn(move || file.read_exact_at(&mut [0], FAR));
    wait_until("a read of the device", || fs::read(&switch.0).unwrap() == b"r1");
    // The server makes the kernel invalidate 64 KiB around this write, and so waits for the read.
    // The kernel itself has invalidated the write's own page only.
    let file = OpenOptions::new().write(true).open(directory.join("file"))?;
    let writer = std::thread::spawn(move || file.write_all_at(&[2], FAR + (32 << 10)));
    let children = format!("/proc/{0}/task/{0}/children", session.0.id());
    let server = fs::read_to_string(children)?.trim().parse().expect("a server");
    wait_until("an invalidation", || is_invalidating(server));
    rustix::process::kill_process(Pid::from_raw(server).expect("a server"), Signal::KILL)?;
    assert!(!session.wait("the session").success());
    assert!(reader.join().unwrap().is_err());
    assert!(writer.join().unwrap().is_err());
    // The mount stays, and fails.
    assert!(File::open(directory.join("file")).is_err());
    Ok(())
}
