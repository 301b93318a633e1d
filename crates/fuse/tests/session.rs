//! Tests of sessions whose servers misbehave, on real mounts. This program is also the one that
//! mounts, if its environment says so.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use fuse::{Confinement, Inherited, MountOptions, Plan, SessionError, Upgrade};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::net::{SendFlags, Shutdown, SocketType, send, shutdown, sockopt};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::memory::MemoryFileSystem;
use testkit::toy::{BLOCK_BYTES, Content, Data, Hook, ROOT, Toy};
use testkit::{private_mounts, wait_until};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use vfs::{Volume, VolumeOptions};

/// The time limit for all waits of the tests.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The variable with the name of the case: what the server does.
const CASE: &str = "BIFOLIO_TEST_SESSION";
/// The variable with the mount point.
const DIRECTORY: &str = "BIFOLIO_TEST_DIRECTORY";
/// The variable with the folder that has a file of the name [`STOP_NAME`] while the device hangs.
const STOPS_PATH: &str = "BIFOLIO_TEST_STOPS";
const STOP_NAME: &str = "stop";
/// The variable that is set for a session in the background.
const BACKGROUND: &str = "BIFOLIO_TEST_BACKGROUND";
/// The prefix of cases that mount for writing.
const WRITABLE: &str = "writable-";
/// The message of the server when its writable volume was closed.
const CLOSED: &str = "the volume was closed";
/// F_SETSIG: sets the signal of an open file (linux/fcntl.h).
const F_SETSIG: i32 = 10;
/// The case with an invalid message of a server whose mount is in use.
const LATER: &str = "later";
/// The case with a confined server.
const SIGNALS: &str = "signals";

/// The folder at [`STOPS_PATH`], opened, since the server cannot find it by its path.
static STOPS: OnceLock<OwnedFd> = OnceLock::new();

fn main() -> ExitCode {
    if let (Some(case), Some(directory)) = (std::env::var_os(CASE), std::env::var_os(DIRECTORY)) {
        return mount(case, directory.into());
    }
    let trials = vec![
        Trial::test("a_server_that_panics_at_init_is_reported_and_leaves_no_mount", || {
            fails_at_init("panic", 1, "failed at the kernel's first request")
        }),
        Trial::test("a_server_that_dies_at_init_is_reported_and_leaves_no_mount", || {
            fails_at_init("abort", 1, "killed by signal 6")
        }),
        Trial::test("a_server_that_hangs_at_init_ends_with_a_signal", hangs_at_init),
        Trial::test("a_server_that_sends_an_invalid_message_is_killed", || is_killed("invalid")),
        Trial::test("a_server_that_sends_an_invalid_message_later_leaves_its_mount", || {
            is_killed(LATER)
        }),
        Trial::test("a_server_that_closes_its_socket_and_goes_on_is_killed", || {
            is_killed("hang-up")
        }),
        Trial::test("a_server_that_keeps_requesting_the_end_is_killed", || is_killed("repeat")),
        Trial::test("a_confined_server_cannot_make_the_kernel_send_signals", cannot_send_signals),
        Trial::test("a_volume_whose_service_never_starts_is_closed", is_closed),
        Trial::test("a_device_that_hangs_delays_only_requests_that_wait_for_it", device_hangs),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Runs this program as the one that mounts: mounts a toy.
fn mount(case: OsString, directory: PathBuf) -> ExitCode {
    let case = case.into_string().unwrap_or_default();
    let writable = case.starts_with(WRITABLE);
    let case = case.strip_prefix(WRITABLE).unwrap_or(&case).to_owned();
    let stops = std::env::var_os(STOPS_PATH).unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let _ = STOPS.set(rustix::fs::open(stops, flags, Mode::empty()).unwrap());
    let options = MountOptions { writable, ..MountOptions::default() };
    let file_system = MemoryFileSystem::new();
    let plan = Plan {
        source: "toy".into(),
        directory,
        claim: None,
        options,
        foreground: std::env::var_os(BACKGROUND).is_none(),
        system_log: Arc::default(),
        upgrade: Upgrade::never("it is a test"),
        confinement: if case == SIGNALS { Confinement::FULL } else { Confinement::NONE },
        memory_max: 4 << 30,
        inherited: Inherited::default(),
        threads: const { NonZeroUsize::new(4).unwrap() },
    };
    let open = |()| {
        let at_init = match &*case {
            "panic" => || panic!("as the test wants"),
            "abort" => || std::process::abort(),
            "hang" => hang,
            "invalid" => || {
                send_to_guard(b"x");
                hang();
            },
            "hang-up" => || {
                with_sockets(|socket| shutdown(socket, Shutdown::Both).unwrap());
                hang();
            },
            "repeat" => || {
                send_to_guard(b"s");
                loop {
                    send_to_guard(b"a");
                }
            },
            LATER => || {
                send_to_guard(b"s");
                send_to_guard(b"x");
                hang();
            },
            SIGNALS => try_to_send_signals,
            "stop" => wait_while_stopped,
            _ => || (),
        };
        let _ = tracing::subscriber::set_global_default(AtInit(at_init));
        if !writable {
            return Ok(Arc::new(toy().volume(16)));
        }
        let mut options = VolumeOptions::default();
        options.cache.bytes_max = 1 << 20;
        let cache = iomap::PageCache::new(options.cache)?;
        Volume::with_file_system(Arc::clone(&file_system) as _, cache, &options).map(Arc::new)
    };
    let outcome = fuse::run(&plan, || Ok::<_, base::Error>(()), open);
    if file_system.is_closed() {
        // In the server's process.
        eprintln!("{CLOSED}");
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(SessionError::Reported(status)) => status.into(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn hang() {
    std::thread::sleep(TIMEOUT * 10);
}

/// Calls `act` with each socket that preserves message boundaries. Those are the sockets to the
/// guard.
fn with_sockets(act: impl Fn(BorrowedFd<'_>)) {
    // The server sees no /proc.
    for number in 0..256 {
        // SAFETY: the sockets are not closed while the server runs, and of other descriptors only
        // the type is read.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        if sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET) {
            act(socket);
        }
    }
}

/// Sends a message to the guard.
fn send_to_guard(message: &[u8]) {
    with_sockets(|socket| {
        // The other ends of some sockets may be closed.
        let _ = send(socket, message, SendFlags::NOSIGNAL);
    });
}

/// Aborts if the kernel would let this process send signals to the guard, or another process, by
/// way of an open file.
fn try_to_send_signals() {
    for command in [libc::F_SETOWN, F_SETSIG, libc::F_SETLEASE] {
        // SAFETY: the commands take numbers.
        if unsafe { libc::fcntl(2, command, 0) } == 0 {
            std::process::abort();
        }
        let errno = std::io::Error::last_os_error().raw_os_error();
        if errno != Some(libc::ENOSYS) {
            std::process::abort();
        }
    }
}

fn wait_while_stopped() {
    let folder = STOPS.get().expect("opened by `mount`");
    while rustix::fs::accessat(folder, STOP_NAME, Access::EXISTS, AtFlags::empty()).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn toy() -> Arc<Toy> {
    let file = Data { size: 12, blocks: [(0, 0)].into(), ..Data::default() };
    let before_use = Hook::new(|| {
        base::waiting::about_to_wait();
        wait_while_stopped();
    });
    let slow = Data { before_use, ..file.clone() };
    let root = Content::directory(&[(".", ROOT), ("..", ROOT), ("file", 11), ("slow", 12)]);
    let inodes = [(ROOT, root), (11, Content::Regular(file)), (12, Content::Regular(slow))];
    Toy::new(vec![b'x'; BLOCK_BYTES as usize], inodes)
}

/// A subscriber that calls a function when the server logs INIT.
struct AtInit(fn());

impl Subscriber for AtInit {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.starts_with("INIT") {
            self.0();
        }
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// A running session. Dropping this value ends it.
struct Session {
    child: Child,
    folder: TempDir,
    stops: TempDir,
}

impl Session {
    fn start(case: &str, background: bool) -> Self {
        private_mounts();
        let folder = TempDir::new().unwrap();
        let stops = TempDir::new().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(CASE, case).env(DIRECTORY, folder.path().canonicalize().unwrap());
        let stop = stops.path().join(STOP_NAME);
        if case.ends_with("stop") {
            fs::write(&stop, "").unwrap();
        }
        command.env(STOPS_PATH, stops.path());
        if background {
            command.env(BACKGROUND, "yes");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), folder, stops }
    }

    fn is_mounted(&self) -> bool {
        let path = self.folder.path().canonicalize().unwrap_or_default();
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        table.contains(&format!(" {} ", path.display()))
    }

    /// Waits for the end. Returns the exit status and the messages.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until("the end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut messages = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        (status.unwrap().code(), messages)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = Command::new("umount").arg("-lq").arg(self.folder.path()).status();
    }
}

fn fails_at_init(case: &str, status: i32, expected: &str) -> Result<(), Failed> {
    for background in [false, true] {
        let mut session = Session::start(case, background);
        let (found, messages) = session.end();
        assert_eq!(found, Some(status), "{messages}");
        assert!(messages.contains(expected), "{messages}");
        assert!(!session.is_mounted());
    }
    Ok(())
}

fn hangs_at_init() -> Result<(), Failed> {
    let mut session = Session::start("hang", false);
    wait_until("the mount", || session.is_mounted());
    let guard = Pid::from_raw(session.child.id() as i32).unwrap();
    rustix::process::kill_process(guard, Signal::TERM).unwrap();
    let (status, messages) = session.end();
    assert_eq!(status, Some(1), "{messages}");
    assert!(messages.contains("interrupted"), "{messages}");
    assert!(!session.is_mounted());
    Ok(())
}

fn is_killed(case: &str) -> Result<(), Failed> {
    let mut session = Session::start(case, false);
    let (status, messages) = session.end();
    assert_eq!(status, Some(1), "{messages}");
    assert!(messages.contains("killed by signal 9"), "{messages}");
    // Programs may use the mount from the time on at which it is ready, and must not go on in the
    // directory below.
    assert_eq!(session.is_mounted(), case == LATER);
    Ok(())
}

fn cannot_send_signals() -> Result<(), Failed> {
    let mut session = Session::start(SIGNALS, false);
    let file = session.folder.path().join("file");
    wait_until("the mount or its end", || {
        file.exists() || session.child.try_wait().unwrap().is_some()
    });
    assert!(file.exists(), "{:?}", session.end());
    let guard = Pid::from_raw(session.child.id() as i32).unwrap();
    rustix::process::kill_process(guard, Signal::TERM).unwrap();
    let (status, messages) = session.end();
    assert_eq!(status, Some(0), "{messages}");
    Ok(())
}

fn is_closed() -> Result<(), Failed> {
    // The server fails.
    let mut session = Session::start("writable-panic", false);
    let (status, messages) = session.end();
    assert_eq!(status, Some(1), "{messages}");
    assert!(messages.contains(CLOSED), "{messages}");
    // The guard ends the service after a signal, or the server finds that the mount has ended.
    for signal in [Signal::TERM, Signal::KILL] {
        let mut session = Session::start("writable-stop", false);
        let stop = session.stops.path().join(STOP_NAME);
        wait_until("the mount", || session.is_mounted());
        let guard = Pid::from_raw(session.child.id() as i32).unwrap();
        rustix::process::kill_process(guard, signal).unwrap();
        if signal == Signal::TERM {
            wait_until("the mount's end", || !session.is_mounted());
        }
        fs::remove_file(&stop).unwrap();
        if signal == Signal::KILL {
            let _ = Command::new("umount").arg(session.folder.path()).status();
        }
        let (_, messages) = session.end();
        assert!(messages.contains(CLOSED), "{signal:?}: {messages}");
        assert!(!session.is_mounted());
    }
    Ok(())
}

/// Reads a file without the kernel's cache.
fn read(path: &Path) -> Vec<u8> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(direct).open(path).unwrap();
    let mut data = vec![0; 4096];
    let length = file.read_at(&mut data, 0).unwrap();
    data.truncate(length);
    data
}

fn device_hangs() -> Result<(), Failed> {
    let mut session = Session::start("", false);
    let [file, slow] = ["file", "slow"].map(|name| session.folder.path().join(name));
    wait_until("the mount", || session.is_mounted() && file.exists());
    for _ in 0..200 {
        assert_eq!(read(&slow), b"xxxxxxxxxxxx");
    }
    let stop = session.stops.path().join(STOP_NAME);
    fs::write(&stop, "").unwrap();
    std::thread::scope(|scope| {
        // Three of the four threads hang.
        let hanging: Vec<_> = (0..3).map(|_| scope.spawn(|| read(&slow))).collect();
        let (sender, done) = mpsc::channel();
        let file = &file;
        let other = scope.spawn(move || {
            for _ in 0..50 {
                assert_eq!(read(file), b"xxxxxxxxxxxx");
                std::thread::sleep(Duration::from_millis(1));
            }
            sender.send(()).unwrap();
        });
        let outcome = done.recv_timeout(TIMEOUT);
        let still_hanging = hanging.iter().filter(|reader| !reader.is_finished()).count();
        fs::remove_file(&stop).unwrap();
        other.join().unwrap();
        assert_eq!((outcome, still_hanging), (Ok(()), 3));
        for reader in hanging {
            assert_eq!(reader.join().unwrap(), b"xxxxxxxxxxxx");
        }
    });
    let guard = Pid::from_raw(session.child.id() as i32).unwrap();
    rustix::process::kill_process(guard, Signal::TERM).unwrap();
    let (status, messages) = session.end();
    assert_eq!(status, Some(0), "{messages}");
    Ok(())
}
