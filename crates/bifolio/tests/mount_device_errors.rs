//! Mounts on a device on which one write or flush fails with EIO while threads write, sync and
//! rename.
//!
//! Every fsync either reports lost data or makes all data durable, each open file gets an error
//! once, and the image has all data of successful fsyncs, whether the volume is closed then or the
//! server is killed. This program is also the server of the mounts, if the environment variable is
//! set.
#![allow(clippy::print_stderr, reason = "this is also a program")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{DeviceOffset, IoError, IoOperation, Result};
use bifolio::{Follow, SharedDevice, VolumeOptions};
use device::{Bio, BioOperation, FileDevice};
use fuse::{Confinement, Inherited, MountOptions, Plan, SessionError, Upgrade};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::command::run;
use testkit::{DeviceHooks, Format, HookedDevice, private_mounts};

const EIO: i32 = Errno::IO.raw_os_error();
const EROFS: i32 = Errno::ROFS.raw_os_error();
const TIME_MAX: Duration = Duration::from_secs(60);
/// Variable for the folder with the image and the mount point. If it is set, this program mounts
/// the image.
const FOLDER: &str = "BIFOLIO_TEST_FOLDER";
/// Variable for the mount options.
const OPTIONS: &str = "BIFOLIO_TEST_OPTIONS";
/// Variable for the request that fails: `w` or `f`, and its number.
const FAULT: &str = "BIFOLIO_TEST_FAULT";
const THREADS: usize = 3;
const FILES: usize = 5;

/// Hooks that fail one request. They log each request as a letter, which is upper case for the
/// failing request.
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
    let formats = [
        ("ext4", Format::Ext4(1024), 16),
        ("f2fs", Format::F2fs, 64),
        ("f2fs_with_blocks_of_16_kib", Format::LargeF2fs, 256),
    ];
    let trials = formats.into_iter().flat_map(|(name, format, megabytes)| {
        let trial = |what, options| {
            let name = format!("device_errors_are_reported_{what}_{name}");
            Trial::test(name, move || check(format, megabytes, options))
        };
        [
            trial("and_durable_data_is_kept_on", "rw,nowriteback"),
            trial("with_the_writeback_cache_on", "rw,writeback"),
        ]
    });
    let trials = trials.collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Mounts the image in `folder`.
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
        system_log: Arc::default(),
        upgrade: Upgrade::never("it is a test"),
        confinement: Confinement::NONE,
        memory_max: 4 << 30,
        inherited: Inherited::default(),
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

/// An end of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// The server closes the volume.
    Close,
    /// The server is killed, so that only what was synced is durable.
    KillServer,
}

/// A mount. Dropping it ends the mount.
struct Session {
    child: Child,
    folder: TempDir,
}

impl Session {
    /// Mounts a copy of an image. Returns `None` if the volume cannot be opened or mounted.
    fn start(image: &Path, options: &str, fault: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        run(Command::new("cp").arg("--sparse=always").arg(image).arg(folder.path().join("image")));
        fs::create_dir(folder.path().join("mount")).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(FOLDER, folder.path().canonicalize().unwrap());
        command.env(OPTIONS, format!("{options},io_uring=off")).env(FAULT, fault);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut session = Self { child: command.spawn().unwrap(), folder };
        let deadline = Instant::now() + TIME_MAX;
        let device = |name| fs::metadata(session.folder.path().join(name)).unwrap().dev();
        while device("mount") == device("") {
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

    /// Ends the mount. Returns the log of the requests to the device.
    fn end(&mut self, ending: Ending) -> String {
        let guard = self.child.id();
        let (process, signal) = match ending {
            Ending::Close => (guard, Signal::TERM),
            Ending::KillServer => {
                let children = format!("/proc/{guard}/task/{guard}/children");
                let server = fs::read_to_string(children).unwrap();
                (server.trim().parse().unwrap(), Signal::KILL)
            }
        };
        let process = Pid::from_raw(process as i32).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
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

/// Data of a file after a successful fsync.
struct Durable {
    /// The possible names of the file.
    names: [String; 2],
    at: u64,
    data: Vec<u8>,
    /// Whether the file has no other data.
    is_whole: bool,
}

/// Results of a thread.
#[derive(Default)]
struct Seen {
    durable: Vec<Durable>,
    /// The number of reported errors.
    errors: usize,
}

/// Returns the error number of a result. 0 for success.
fn error_number<T>(result: &io::Result<T>) -> i32 {
    result.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(-1), |_| 0)
}

/// Changes files until `ends` returns true.
fn work(top: &Path, thread: usize, shut: &AtomicBool, ends: &dyn Fn() -> bool) -> Seen {
    let mut seen = Seen::default();
    let mut write = |names: [String; 2], at, data: Vec<u8>| {
        if ends() {
            return;
        }
        let is_whole = names[0] != names[1];
        let (errors, is_durable) = write_file(top, &names, at, &data, shut);
        seen.errors += errors;
        if is_durable {
            seen.durable.push(Durable { names, at, data, is_whole });
        }
    };
    for index in 0..FILES {
        let names = ["", "-moved"].map(|end| format!("{thread}-{index}{end}"));
        let byte = (thread * FILES + index + 1) as u8;
        write(names, 0, vec![byte; 3000 + index * 5000]);
        // f2fs makes a file durable by its nodes if its name is durable already.
        for turn in [0, 1] {
            let names = [(); 2].map(|()| format!("{thread}-grows"));
            write(names, 5000 * (2 * index + turn) as u64, vec![byte; 5000]);
        }
    }
    seen
}

/// Writes to a file at `at`, syncs it, and renames it if it has two names. Returns the number of
/// reported errors, and whether the data is durable.
fn write_file(
    top: &Path,
    names: &[String; 2],
    at: u64,
    data: &[u8],
    shut: &AtomicBool,
) -> (usize, bool) {
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
    assert!(!was_shut || at > 0, "a file was created on a volume that is shut down");
    let written = error_number(&first.write_all_at(data, at));
    let syncs = [&first, &second].map(|file| [0; 2].map(|_| error_number(&file.sync_all())));
    let all = syncs.concat();
    let all_known = all.iter().chain([&written]).all(|number| [0, EIO, EROFS].contains(number));
    assert!(all_known, "{written} {syncs:?}");
    // Either the data is lost, which each open file reports once, or the volume is shut down, which
    // is reported forever.
    let is_data_loss = syncs == [[0, 0]; 2] || syncs == [[EIO, 0]; 2];
    let is_shut_down = all.iter().skip_while(|number| **number == 0).all(|number| *number != 0);
    assert!(is_data_loss || is_shut_down, "{syncs:?}");
    let moved = match names[0] == names[1] {
        true => 0,
        false => error_number(&fs::rename(&path, top.join(&names[1]))),
    };
    assert!(moved == 0 || is_data_loss || moved == EROFS || moved == EIO, "{moved}");
    shut.fetch_or(moved == EROFS, Ordering::AcqRel);
    let errors = all.iter().chain([&written, &moved]).filter(|number| **number != 0).count();
    (errors, written == 0 && syncs[0][0] == 0)
}

fn check(format: Format, megabytes: u64, options: &str) -> Result<(), Failed> {
    private_mounts();
    let folder = TempDir::new()?;
    let image = folder.path().join("image");
    format.make(&image, megabytes);
    let run_session = |fault: &str, ending| run_session(format, &image, options, fault, ending);
    let undisturbed = run_session("", Ending::Close);
    let count = |letter| undisturbed.0.bytes().filter(|byte| *byte == letter).count();
    assert_eq!(undisturbed.1, 0);
    let mut came = 0;
    let mut reported = 0;
    for (kind, runs) in [('w', 10), ('f', 5)] {
        let count = count(kind as u8);
        assert!(count > runs, "{count} of {kind}");
        for index in 0..runs {
            // In the middle of each part, because the first requests are those of opening the
            // volume.
            let fault = format!("{kind}{}", (2 * index + 1) * count / (2 * runs));
            let ending = [Ending::Close, Ending::KillServer][index % 2];
            let (log, errors) = run_session(&fault, ending);
            let has_failed = log.contains(kind.to_ascii_uppercase());
            came += usize::from(has_failed);
            reported += usize::from(errors > 0);
            assert!(has_failed || errors == 0, "{fault}: {errors} errors without a fault");
            // It is unknown which writes a failed flush has lost. The last flushes are those of
            // closing the volume.
            let must_report = has_failed && kind == 'f' && index <= runs / 2;
            assert!(
                !must_report || errors > 0,
                "{fault} of {count}: the failed flush is not reported"
            );
        }
    }
    assert!(came > 7 && reported > 4, "{came} faults, {reported} of them reported");
    Ok(())
}

/// Mounts an image, runs threads that change it, ends the mount and checks the image. Returns the
/// log of the requests to the device, and the number of reported errors.
fn run_session(
    format: Format,
    image: &Path,
    options: &str,
    fault: &str,
    ending: Ending,
) -> (String, usize) {
    let Some(mut session) = Session::start(image, options, fault) else {
        return (fault.to_uppercase(), 1);
    };
    let (top, shut) = (session.path("mount"), AtomicBool::new(false));
    // A later checkpoint or commit would make durable what the fault has lost.
    let log = session.path("log");
    let has_failed = || fs::read(&log).unwrap().iter().any(u8::is_ascii_uppercase);
    let ends = || ending == Ending::KillServer && has_failed();
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let (top, shut, ends) = (&top, &shut, &ends);
        let work = |thread| scope.spawn(move || work(top, thread, shut, ends));
        let all: Vec<_> = (0..THREADS).map(work).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let log = session.end(ending);
    let image = session.path("image");
    let durable: Vec<_> = seen.iter().flat_map(|seen| &seen.durable).collect();
    // A recovery in memory, and then one in place.
    check_data(&image, &durable, fault);
    format.recover(&image);
    check_data(&image, &durable, fault);
    (log, seen.iter().map(|seen| seen.errors).sum())
}

/// Checks that an image has the data of these files.
fn check_data(image: &Path, files: &[&Durable], fault: &str) {
    let volume = VolumeOptions::new().open(image).unwrap();
    for file in files {
        let found = file
            .names
            .iter()
            .find_map(|name| volume.resolve(format!("/{name}").as_bytes(), Follow::No).ok());
        let found = found.unwrap_or_else(|| panic!("{fault}: {:?} do not exist", file.names));
        let mut data = vec![0; file.data.len() + usize::from(file.is_whole)];
        let length = found.open().unwrap().read_at(&mut data, file.at).unwrap();
        assert!(data[..length] == file.data, "{fault}: {:?}: {length} bytes", file.names);
    }
}
