//! Programs that receive signals while they wait for others' writes, on a mount whose device does not answer.
//! This program is also the one that mounts, and the one that waits, when it is told to by its environment.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

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
use fuse::{MountOptions, Plan, SessionError};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::{
    DeviceHooks, HookedDevice, Mke2fs, RingOffer, check_by_e2fsck, private_mounts, wait_until,
};

/// The folder with the image, the directory to mount it on, and the switch; and how to mount.
const FOLDER: &str = "BIFOLIO_TEST_FOLDER";
const OPTIONS: &str = "BIFOLIO_TEST_OPTIONS";
/// The file that this program is to sync.
const SYNCED: &str = "BIFOLIO_TEST_SYNCED";

/// The file by which the image's device is held: while its first byte is a 1, writes are not answered. Then its second
/// byte becomes a 1.
#[derive(Debug)]
struct Stuck(File);

impl Stuck {
    fn pass(&self) {
        let mut byte = [0];
        while self.0.read_at(&mut byte, 0).is_ok() && byte == *b"1" {
            self.0.write_all_at(b"1", 1).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl DeviceHooks for Stuck {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        if batch.iter().any(|bio| bio.operation() == BioOperation::Write) {
            self.pass();
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
    let trial = |name, through_rings| Trial::test(name, move || check(through_rings));
    let trials = vec![
        trial("only_programs_that_are_killed_do_not_wait_for_others_commits", false),
        trial("only_programs_that_are_killed_do_not_wait_through_io_uring", true),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Mounts the image, confined as always.
fn mount(folder: PathBuf) -> ExitCode {
    let mut options = MountOptions::default();
    options.add(&std::env::var(OPTIONS).unwrap()).unwrap();
    let plan = Plan {
        source: "stuck".into(),
        directory: folder.join("mount"),
        claim: None,
        options,
        foreground: true,
        confine: true,
        threads: const { NonZeroUsize::new(8).unwrap() },
    };
    let prepare = || {
        let inner: SharedDevice = Arc::new(FileDevice::open(&folder.join("image"), false)?);
        let switch = OpenOptions::new().read(true).write(true).open(folder.join("switch"));
        Ok::<_, base::Error>(Arc::new(HookedDevice::new(inner, Stuck(switch.unwrap()))))
    };
    let open = |device: Arc<HookedDevice<Stuck>>| {
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

/// Syncs a file, with a handler for SIGUSR1. Exits with the error number.
fn sync(path: &Path) -> ExitCode {
    let has_come = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, has_come).unwrap();
    let file = File::open(path).unwrap();
    // SAFETY: a system call without memory. The standard library would call it again after EINTR.
    match unsafe { libc::fsync(file.as_raw_fd()) } {
        0 => ExitCode::SUCCESS,
        _ => std::io::Error::last_os_error().raw_os_error().map_or(1, |errno| errno as u8).into(),
    }
}

/// A process, which ends with this.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    fn wait(&mut self, what: &str) -> ExitStatus {
        let mut status = None;
        wait_until(what, || {
            status = self.ended();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Process {
    /// Does not wait, since the process may wait for the device.
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// The file that tells the device not to answer. The device answers when this is dropped.
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

/// Starts a program that syncs a file, and waits until it is in fsync.
fn syncing(path: &Path) -> Process {
    let process = this_program(&[(SYNCED, path)]);
    let call = format!("{} ", libc::SYS_fsync);
    let current = format!("/proc/{}/syscall", process.0.id());
    wait_until("fsync", || fs::read_to_string(&current).is_ok_and(|text| text.starts_with(&call)));
    process
}

fn check(through_rings: bool) -> Result<(), Failed> {
    private_mounts();
    let offer = RingOffer::put(through_rings);
    let io_uring = if through_rings && offer.is_some() { "io_uring=on" } else { "io_uring=off" };
    let folder = TempDir::new()?;
    let path = folder.path().canonicalize()?;
    let (image, directory) = (path.join("image"), path.join("mount"));
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&image, None);
    fs::create_dir(&directory)?;
    let switch = Switch(path.join("switch"));
    fs::write(&switch.0, "00")?;
    let options = PathBuf::from(format!("rw,{io_uring}"));
    let mut session = this_program(&[(FOLDER, &path), (OPTIONS, &options)]);
    wait_until("the mount", || directory.join("lost+found").exists());
    drop(offer);

    // The first program commits, and the others wait for that.
    fs::write(directory.join("first"), "")?;
    switch.set(b'1');
    let mut first = syncing(&directory.join("first"));
    wait_until("a write to the device", || fs::read(&switch.0).unwrap() == b"11");
    for name in ["patient", "killed"] {
        fs::write(directory.join(name), "")?;
    }
    let mut patient = syncing(&directory.join("patient"));
    let mut killed = syncing(&directory.join("killed"));
    patient.signal(Signal::USR1);
    killed.signal(Signal::TERM);
    assert_eq!(killed.wait("the end of a program that was killed").code(), None);
    assert!(first.ended().is_none() && patient.ended().is_none(), "the device answers");

    switch.set(b'0');
    assert!(first.wait("the first program").success());
    assert_eq!(patient.wait("a program with a handler").code(), Some(0), "EINTR from fsync");
    session.signal(Signal::TERM);
    assert!(session.wait("the session").success());
    check_by_e2fsck(&image);
    let volume = VolumeOptions::new().open(&image)?;
    for name in ["/first", "/patient", "/killed"] {
        assert!(volume.resolve(name.as_bytes(), Follow::No).is_ok(), "{name} was lost");
    }
    Ok(())
}
