//! Mounts on a device of which one write or flush fails with EIO while threads write, sync and rename.
//! Every fsync tells of what was lost or has made all durable, who has a file open hears of it once,
//! and the image has what was promised. This program is also the one that mounts, when it is told to by
//! its environment.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{DeviceOffset, IoError, IoOperation, Result};
use bifolio::{Follow, SharedDevice, VolumeOptions};
use device::{Bio, BioOperation, FileDevice};
use fuse::{MountOptions, Plan, SessionError};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::command::output;
use testkit::{DeviceHooks, HookedDevice, Mke2fs, check_by_e2fsck, private_mounts};

const EIO: i32 = Errno::IO.raw_os_error();
const EROFS: i32 = Errno::ROFS.raw_os_error();
const PATIENCE: Duration = Duration::from_secs(60);
/// The folder with the image and the directory to mount it on; the mount options; and which request
/// fails: `w` or `f`, and its number.
const FOLDER: &str = "BIFOLIO_TEST_FOLDER";
const OPTIONS: &str = "BIFOLIO_TEST_OPTIONS";
const FAULT: &str = "BIFOLIO_TEST_FAULT";
const THREADS: usize = 3;
const FILES: usize = 5;

/// Hooks by which one request fails. Notes each request in a file, by a letter, which is a capital for the one
/// that fails.
#[derive(Debug)]
struct Failing {
    fault: Option<(u8, u64)>,
    log: Mutex<([u64; 2], File)>,
}

impl Failing {
    fn fails(&self, kind: u8) -> bool {
        let mut log = self.log.lock().unwrap();
        let count = &mut log.0[usize::from(kind == b'f')];
        let fails = self.fault == Some((kind, *count));
        *count += 1;
        let letter = if fails { kind.to_ascii_uppercase() } else { kind };
        log.1.write_all(&[letter]).unwrap();
        fails
    }
}

impl DeviceHooks for Failing {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let mut sound = Vec::with_capacity(batch.len());
        for bio in batch {
            match bio.operation() == BioOperation::Write && self.fails(b'w') {
                true => bio.end(Err(EIO)),
                false => sound.push(bio),
            }
        }
        device.submit(sound);
    }

    fn flush(&self, device: &SharedDevice) -> Result<()> {
        if self.fails(b'f') {
            let (operation, offset) = (IoOperation::Flush, DeviceOffset(0));
            return Err(IoError { operation, offset, length: device.size(), errno: EIO }.into());
        }
        device.flush()
    }
}

fn main() -> ExitCode {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return mount(folder.into());
    }
    let trial = |name, options| Trial::test(name, move || check(options));
    let trials = vec![
        trial("errors_of_the_device_are_told_and_lose_nothing_durable", "rw,nowriteback"),
        trial("errors_of_the_device_are_told_when_the_kernel_collects_writes", "rw,writeback"),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The program's other part.
fn mount(folder: PathBuf) -> ExitCode {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let mut options = MountOptions::default();
    options.add(&variable(OPTIONS)).unwrap();
    let plan = Plan {
        source: "failing".into(),
        directory: folder.join("mount"),
        claim: None,
        options,
        foreground: true,
        confine: false,
        threads: const { NonZeroUsize::new(4).unwrap() },
    };
    let prepare = || {
        let inner: SharedDevice = Arc::new(FileDevice::open(&folder.join("image"), false)?);
        Ok::<_, base::Error>((inner, File::create(folder.join("log")).unwrap()))
    };
    let open = |(inner, log)| {
        let fault = variable(FAULT);
        let fault = fault.split_at_checked(1);
        let fault = fault.map(|(kind, number)| (kind.as_bytes()[0], number.parse().unwrap()));
        let log = Mutex::new(([0; 2], log));
        let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
        options.cache.bytes_max = 16 << 20;
        let device = Arc::new(HookedDevice::new(inner, Failing { fault, log }));
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

/// A mount that was started, and ends with this.
struct Session {
    child: Child,
    folder: TempDir,
}

impl Session {
    /// `None` if the volume cannot be opened or mounted.
    fn start(image: &[u8], options: &str, fault: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("image"), image).unwrap();
        fs::create_dir(folder.path().join("mount")).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(FOLDER, folder.path().canonicalize().unwrap());
        command.env(OPTIONS, format!("{options},io_uring=off")).env(FAULT, fault);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut session = Self { child: command.spawn().unwrap(), folder };
        let deadline = Instant::now() + PATIENCE;
        while !session.path("mount/lost+found").exists() {
            if session.child.try_wait().unwrap().is_some() {
                return None;
            }
            assert!(Instant::now() < deadline, "no mount");
            std::thread::sleep(Duration::from_millis(2));
        }
        Some(session)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Ends the mount; what the device was asked for.
    fn end(&mut self) -> String {
        let guard = Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(guard, Signal::TERM).unwrap();
        self.child.wait().unwrap();
        fs::read_to_string(self.path("log")).unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = Command::new("umount").arg("-lq").arg(self.path("mount")).status();
        }
    }
}

/// A file that an fsync has promised: the names that it may have, and what is in it.
struct Promised {
    names: [String; 2],
    data: Vec<u8>,
}

/// What a thread saw.
#[derive(Default)]
struct Seen {
    promised: Vec<Promised>,
    /// Errors that came.
    told: usize,
}

/// The number of an error, or 0.
fn number<T>(result: &io::Result<T>) -> i32 {
    result.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
}

fn work(top: &Path, thread: usize, shut: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    for index in 0..FILES {
        let names = ["", "-moved"].map(|end| format!("{thread}-{index}{end}"));
        let data = vec![(thread * FILES + index + 1) as u8; 3000 + index * 5000];
        let (told, is_promised) = write_file(top, &names, &data, shut);
        seen.told += told;
        if is_promised {
            seen.promised.push(Promised { names, data });
        }
    }
    seen
}

/// Makes a file durable and moves it; how many errors were told, and whether it is promised.
fn write_file(top: &Path, names: &[String; 2], data: &[u8], shut: &AtomicBool) -> (usize, bool) {
    let (path, was_shut) = (top.join(&names[0]), shut.load(Ordering::Acquire));
    let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let (first, second) = match (open(), open()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => {
            assert!([EIO, EROFS].contains(&error.raw_os_error().unwrap()), "{error}");
            shut.fetch_or(error.raw_os_error() == Some(EROFS), Ordering::AcqRel);
            return (1, false);
        }
    };
    assert!(!was_shut, "a file is made on a volume that is shut");
    let written = number(&first.write_all_at(data, 0));
    let told = [&first, &second].map(|file| [0; 2].map(|_| number(&file.sync_all())));
    let all = told.concat();
    let all_known = all.iter().chain([&written]).all(|number| [0, EIO, EROFS].contains(number));
    assert!(all_known, "{written} {told:?}");
    // Either the data is lost, of which each hears once, or all has ended, of which nobody stops hearing.
    let goes_on = told == [[0, 0]; 2] || told == [[EIO, 0]; 2];
    let has_ended = all.iter().skip_while(|number| **number == 0).all(|number| *number != 0);
    assert!(goes_on || has_ended, "{told:?}");
    let moved = number(&fs::rename(&path, top.join(&names[1])));
    assert!(moved == 0 || goes_on || moved == EROFS || moved == EIO, "{moved}");
    shut.fetch_or(moved == EROFS, Ordering::AcqRel);
    let errors = all.iter().chain([&written, &moved]).filter(|number| **number != 0).count();
    (errors, written == 0 && told[0][0] == 0)
}

fn check(options: &str) -> Result<(), Failed> {
    private_mounts();
    let folder = TempDir::new()?;
    let image = folder.path().join("image");
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&image, None);
    let image = fs::read(image)?;
    let undisturbed = look(&image, options, "");
    let count = |letter| undisturbed.0.bytes().filter(|byte| *byte == letter).count();
    assert_eq!(undisturbed.1, 0);
    let (mut came, mut told) = (0, 0);
    for (kind, runs) in [('w', 9), ('f', 5)] {
        let count = count(kind as u8);
        assert!(count > runs, "{count} of {kind}");
        for index in 0..runs {
            // From the middle of each part on: the first requests are those of opening the volume.
            let fault = format!("{kind}{}", (2 * index + 1) * count / (2 * runs));
            let (log, errors) = look(&image, options, &fault);
            let has_come = log.contains(kind.to_ascii_uppercase());
            came += usize::from(has_come);
            told += usize::from(errors > 0);
            assert!(has_come || errors == 0, "{fault}: {errors} errors without any");
        }
    }
    assert!(came > 7 && told > 4, "{came} faults, {told} of them told");
    Ok(())
}

/// Mounts an image, has threads work on it, ends the mount and looks at what is left. What the device
/// was asked for, and how many errors were told.
fn look(image: &[u8], options: &str, fault: &str) -> (String, usize) {
    let Some(mut session) = Session::start(image, options, fault) else {
        return (fault.to_uppercase(), 1);
    };
    let (top, shut) = (session.path("mount"), AtomicBool::new(false));
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let (top, shut) = (&top, &shut);
        let all: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(top, thread, shut))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let log = session.end();
    let image = session.path("image");
    let mended = output(Command::new("e2fsck").arg("-fy").arg(&image));
    assert!(mended.status.code().is_some_and(|code| code <= 1), "{fault}: {}", mended.text());
    check_by_e2fsck(&image);
    let volume = VolumeOptions::new().open(&image).unwrap();
    for promised in seen.iter().flat_map(|seen| &seen.promised) {
        let found = promised
            .names
            .iter()
            .find_map(|name| volume.resolve(format!("/{name}").as_bytes(), Follow::No).ok());
        let found = found.unwrap_or_else(|| panic!("{fault}: {:?} are not there", promised.names));
        let mut data = vec![0; promised.data.len() + 1];
        let length = found.open().unwrap().read_at(&mut data, 0).unwrap();
        assert!(data[..length] == promised.data, "{fault}: {:?}: {length} bytes", promised.names);
    }
    (log, seen.iter().map(|seen| seen.told).sum())
}
