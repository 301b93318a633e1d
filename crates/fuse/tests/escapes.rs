//! What a server that an image has taken over could do to its host: each attempt is refused to a confined server, and
//! succeeds without confinement. This program is also the one that mounts, if its environment says so.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use fuse::{Confinement, Inherited, MountOptions, Plan};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::private_mounts;
use testkit::toy::{BLOCK_BYTES, Content, ROOT, Toy};

/// The variable with the facts that the mounting program needs, separated by spaces: "confined" or "free", the mount
/// point, a port of the host, the name of an abstract socket, and an inherited descriptor.
const FACTS: &str = "BIFOLIO_TEST_ESCAPES";
/// The user id of an ordinary user.
const NOBODY: u32 = 65_534;
/// The memory that the server may map.
const MEMORY_MAX: u64 = 4 << 30;
/// Memory that is read from the guard, which has it at the same address.
static WORD: u64 = 7;

fn main() -> ExitCode {
    if let Ok(facts) = std::env::var(FACTS) {
        return mount(&Facts::parse(&facts));
    }
    let trials = vec![
        Trial::test("roots_server_cannot_reach_the_host", || check(None)),
        Trial::test("an_ordinary_users_server_cannot_reach_the_host", || check(Some(NOBODY))),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

#[derive(Clone, Debug)]
struct Facts {
    is_confined: bool,
    directory: PathBuf,
    port: u16,
    socket: String,
    inherited: RawFd,
}

impl Facts {
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        Self {
            is_confined: words[0] == "confined",
            directory: words[1].into(),
            port: words[2].parse().unwrap(),
            socket: words[3].to_owned(),
            inherited: words[4].parse().unwrap(),
        }
    }
}

/// Runs this program as the one that mounts. Its server tries everything before it serves.
fn mount(facts: &Facts) -> ExitCode {
    let is_confined = facts.is_confined;
    let inherited = if is_confined { Inherited::list() } else { Inherited::default() };
    let plan = Plan {
        source: "toy".into(),
        directory: facts.directory.clone(),
        claim: None,
        options: MountOptions::default(),
        foreground: true,
        confinement: if is_confined { Confinement::FULL } else { Confinement::NONE },
        memory_max: MEMORY_MAX,
        inherited,
        threads: const { NonZeroUsize::new(1).unwrap() },
    };
    let open = |()| {
        for (name, attempt) in ATTEMPTS {
            match attempt(facts) {
                Ok(()) => eprintln!("{name}: done"),
                Err(error) => eprintln!("{name}: refused: {error}"),
            }
        }
        eprintln!("end");
        let root = Content::directory(&[(".", ROOT), ("..", ROOT)]);
        let toy = Toy::new(vec![b'x'; BLOCK_BYTES as usize], [(ROOT, root)]);
        Ok(Arc::new(toy.volume(16)))
    };
    match fuse::run(&plan, || Ok::<_, base::Error>(()), open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Attempt = fn(&Facts) -> io::Result<()>;

/// All attempts, and their names.
const ATTEMPTS: &[(&str, Attempt)] = &[
    ("open a file", |_| File::open("/").map(drop)),
    ("connect by TCP", |facts| TcpStream::connect(("127.0.0.1", facts.port)).map(drop)),
    ("connect to an abstract socket", |facts| {
        let address = SocketAddr::from_abstract_name(&facts.socket)?;
        UnixStream::connect_addr(&address).map(drop)
    }),
    ("start a process", |_| {
        // SAFETY: the child only ends.
        let child = result(i64::from(unsafe { libc::fork() }))?;
        if child == 0 {
            // SAFETY: this ends the child.
            unsafe { libc::_exit(0) };
        }
        let child = Pid::from_raw(child as i32).unwrap();
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())?;
        Ok(())
    }),
    ("execute a program", |_| {
        let none = std::ptr::null::<libc::c_char>();
        // SAFETY: there is no such program: the call returns.
        let called = result(unsafe {
            libc::syscall(
                libc::SYS_execveat,
                -1,
                c"".as_ptr(),
                &raw const none,
                &raw const none,
                libc::AT_EMPTY_PATH,
            )
        });
        // The kernel has looked for it.
        called.map(drop).or_else(|error| match error.raw_os_error() {
            Some(libc::EBADF) => Ok(()),
            _ => Err(error),
        })
    }),
    ("read the guard's memory", |_| {
        let mut word = 0_u64;
        let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
        let remote = libc::iovec { iov_base: (&raw const WORD).cast_mut().cast(), ..local };
        // SAFETY: the call stores to `word` only.
        result(unsafe {
            libc::process_vm_readv(libc::getppid(), &raw const local, 1, &raw const remote, 1, 0)
                as i64
        })?;
        assert_eq!(word, WORD);
        Ok(())
    }),
    ("signal the guard", |_| {
        // SAFETY: the signal 0 only checks the right to send others.
        result(unsafe { libc::kill(libc::getppid(), 0) }.into()).map(drop)
    }),
    ("receive signals for a file", |_| {
        // SAFETY: the command takes a number.
        result(unsafe { libc::fcntl(2, libc::F_SETOWN, libc::getppid()) }.into()).map(drop)
    }),
    ("change the flags of a file", |_| {
        // SAFETY: the commands take and return numbers.
        let flags = result(unsafe { libc::fcntl(2, libc::F_GETFL) }.into())?;
        // SAFETY: as above.
        result(unsafe { libc::fcntl(2, libc::F_SETFL, flags) }.into()).map(drop)
    }),
    ("use an inherited file", |facts| {
        // SAFETY: the command takes no argument.
        result(unsafe { libc::fcntl(facts.inherited, libc::F_GETFD) }.into()).map(drop)
    }),
    ("take much memory", |_| map(MEMORY_MAX + (1 << 30), libc::PROT_NONE)),
    ("execute own memory", |_| map(4096, libc::PROT_READ | libc::PROT_EXEC)),
    ("create a socket", |_| {
        // SAFETY: the call takes numbers.
        result(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) }.into()).map(drop)
    }),
    (MOUNT, |_| {
        let kind = c"tmpfs".as_ptr();
        // SAFETY: the strings live until the end of the call.
        result(unsafe { libc::mount(kind, c"/".as_ptr(), kind, 0, std::ptr::null()) }.into())
            .map(drop)
    }),
    (RINGS, |_| {
        let mut parameters = [0_u8; 120];
        // SAFETY: the kernel's structure has 120 bytes.
        result(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
            .map(drop)
    }),
];

/// The attempt that only root's server can make.
const MOUNT: &str = "mount";
/// The attempt that a host may refuse to all programs.
const RINGS: &str = "create a ring";

fn result(returned: i64) -> io::Result<i64> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

fn map(length: u64, protection: i32) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let none = std::ptr::null_mut();
    // SAFETY: the kernel chooses an address that is not in use.
    let mapped = unsafe { libc::mmap(none, length as usize, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns what a server of `user` says about its attempts.
fn attempts_of(user: Option<u32>, is_confined: bool) -> String {
    private_mounts();
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = folder.path().canonicalize().unwrap().join("mount");
    fs::create_dir(&directory).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = format!("bifolio-escapes-{}-{is_confined}", std::process::id());
    let name = if user.is_some() { format!("{name}-user") } else { name };
    let _socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    // A number that the server gives to no file of its own.
    let passwd = File::open("/etc/passwd").unwrap();
    let inherited = rustix::io::fcntl_dupfd_cloexec(&passwd, 300).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let program = std::env::current_exe().unwrap();
    let mut command = match user {
        None => Command::new(program),
        Some(user) => {
            let script = "mount -t tmpfs -o mode=755 none . && mknod -m 666 fuse c 10 229 \
                          && mount --bind fuse /dev/fuse";
            let devices = folder.path().join("devices");
            fs::create_dir(&devices).unwrap();
            let made = Command::new("sh").args(["-c", script]).current_dir(&devices).status();
            assert!(made.unwrap().success());
            chown(&directory, Some(user), Some(user)).unwrap();
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
            command.arg("--clear-groups").arg(program);
            command
        }
    };
    let state = if is_confined { "confined" } else { "free" };
    let path = directory.display();
    command.env(FACTS, format!("{state} {path} {port} {name} {}", inherited.as_raw_fd()));
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    end_after_attempts(command.spawn().unwrap())
}

/// Ends the session once its server has made all attempts. Returns its messages.
fn end_after_attempts(mut child: Child) -> String {
    let mut messages = String::new();
    let mut lines = io::BufReader::new(child.stderr.take().unwrap());
    while !messages.ends_with("end\n") {
        let read = io::BufRead::read_line(&mut lines, &mut messages).unwrap();
        assert!(read > 0, "the server ended early: {messages}");
    }
    let guard = Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(guard, Signal::TERM).unwrap();
    child.wait().unwrap();
    messages
}

fn check(user: Option<u32>) -> Result<(), Failed> {
    let confined = attempts_of(user, true);
    let free = attempts_of(user, false);
    for (name, _) in ATTEMPTS {
        let is_done = |messages: &str| {
            let line = messages.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
            line.unwrap_or_else(|| panic!("{name} was not tried: {messages}")) == "done"
        };
        assert!(!is_done(&confined), "{name}, confined: {confined}");
        let is_refused_to_all = *name == RINGS || *name == MOUNT && user.is_some();
        assert!(is_done(&free) || is_refused_to_all, "{name}, not confined: {free}");
    }
    Ok(())
}
