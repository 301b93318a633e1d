//! Attempts of a program to escape from its confinement: the ones that all programs make, and what the tests give them. A
//! test starts itself as this program. Not here: what only commands or only servers could do.
#![allow(unsafe_code)]
#![allow(clippy::print_stderr, reason = "the program tells the test so what it could do")]

use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable with the facts, separated by spaces, in the order of [`Facts`].
const FACTS: &str = "BIFOLIO_TEST_ESCAPES";
/// The memory that the program may map.
pub const MEMORY_MAX: u64 = 4 << 30;

/// What the program knows.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What it is for.
    pub kind: String,
    /// Whether it confines itself.
    pub is_confined: bool,
    /// The test's folder.
    pub folder: PathBuf,
    /// A port of the host, for TCP and UDP.
    pub port: u16,
    /// The name of an abstract socket.
    pub socket: String,
    /// An inherited file.
    pub inherited: RawFd,
    /// A process of the same user.
    pub process: i32,
}

impl Facts {
    /// Returns the facts, if the calling process is the program.
    pub fn of_program() -> Option<Self> {
        let text = std::env::var(FACTS).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        Some(Self {
            kind: words[0].to_owned(),
            is_confined: words[1] == "true",
            folder: words[2].into(),
            port: words[3].parse().unwrap(),
            socket: words[4].to_owned(),
            inherited: words[5].parse().unwrap(),
            process: words[6].parse().unwrap(),
        })
    }

    /// Makes `command` the program.
    pub fn give(&self, command: &mut Command) {
        let Self { kind, is_confined, folder, port, socket, inherited, process } = self;
        let folder = folder.display();
        let text = format!("{kind} {is_confined} {folder} {port} {socket} {inherited} {process}");
        command.env(FACTS, text).current_dir("/");
    }
}

/// What the host has, and the program must not reach.
pub struct Host {
    listener: TcpListener,
    /// A socket that has no connection.
    datagrams: UdpSocket,
    name: String,
    _abstract: UnixListener,
    inherited: OwnedFd,
}

impl Host {
    /// Creates sockets, one of which has the name `name`, and a file that programs inherit.
    pub fn new(name: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("bifolio-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        // A number that the program gives to no file of its own.
        let passwd = File::open("/etc/passwd").unwrap();
        let inherited = rustix::io::fcntl_dupfd_cloexec(&passwd, 300).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        Self {
            listener,
            datagrams: UdpSocket::bind("127.0.0.1:0").unwrap(),
            name,
            _abstract: UnixListener::bind_addr(&address).unwrap(),
            inherited,
        }
    }

    /// Returns a standard input for the program: a socket from which messages could go to any address.
    pub fn input(&self) -> OwnedFd {
        self.datagrams.try_clone().unwrap().into()
    }

    /// Returns the facts for a program.
    pub fn facts(&self, kind: &str, is_confined: bool, folder: &Path, process: u32) -> Facts {
        Facts {
            kind: kind.to_owned(),
            is_confined,
            folder: folder.into(),
            port: self.listener.local_addr().unwrap().port(),
            socket: self.name.clone(),
            inherited: self.inherited.as_raw_fd(),
            process: process as i32,
        }
    }
}

/// Tells the test the outcome of an attempt.
pub fn say(name: &str, outcome: io::Result<()>) {
    match outcome {
        Ok(()) => eprintln!("{name}: done"),
        Err(error) => eprintln!("{name}: refused: {error}"),
    }
}

/// Returns whether an attempt has succeeded, according to the program's messages.
pub fn is_done(messages: &str, name: &str) -> bool {
    let line = messages.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or_else(|| panic!("{name} was not tried: {messages}")) == "done"
}

/// The attempt that only root's programs can make.
pub const MOUNT: &str = "mount";
/// The attempt that a host may refuse to all programs.
pub const RINGS: &str = "create a ring";

/// An attempt, and its name.
pub type Attempt<T> = (&'static str, fn(&T) -> io::Result<()>);

/// The attempts of all programs.
pub const ATTEMPTS: &[Attempt<Facts>] = &[
    ("start a process", |_| {
        // SAFETY: the child only ends.
        let child = result(i64::from(unsafe { libc::fork() }))?;
        if child == 0 {
            // SAFETY: this ends the child.
            unsafe { libc::_exit(0) };
        }
        let child = rustix::process::Pid::from_raw(child as i32).unwrap();
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
        reached(called, libc::EBADF)
    }),
    ("signal a process", |facts| {
        // SAFETY: the signal 0 only checks the right to send others.
        result(unsafe { libc::kill(facts.process, 0) }.into()).map(drop)
    }),
    ("trace a process", |_| {
        // SAFETY: the call finds no process 0.
        reached(
            result(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, 0, 0, 0) }),
            libc::ESRCH,
        )
    }),
    ("use an inherited file", |facts| {
        // SAFETY: the command takes no argument.
        result(unsafe { libc::fcntl(facts.inherited, libc::F_GETFD) }.into()).map(drop)
    }),
    ("connect by TCP", |facts| TcpStream::connect(("127.0.0.1", facts.port)).map(drop)),
    ("connect to an abstract socket", |facts| {
        let address = SocketAddr::from_abstract_name(&facts.socket)?;
        UnixStream::connect_addr(&address).map(drop)
    }),
    ("create a socket", |_| {
        // SAFETY: the call takes numbers.
        result(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) }.into()).map(drop)
    }),
    ("send a descriptor", |_| {
        // SAFETY: there is no such socket, so nothing is read.
        let called = unsafe { libc::sendmsg(-1, std::ptr::null(), 0) };
        reached(result(called as i64), libc::EBADF)
    }),
    ("send to an address", |facts| {
        // SAFETY: an address is plain numbers.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as _;
        address.sin_port = facts.port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        let length = size_of::<libc::sockaddr_in>() as u32;
        let (socket, from, flags) = (libc::STDIN_FILENO, c"x".as_ptr().cast(), libc::MSG_NOSIGNAL);
        // SAFETY: the kernel reads one byte, and an address of this length.
        let sent = result(unsafe {
            libc::sendto(socket, from, 1, flags, (&raw const address).cast(), length) as i64
        });
        // If standard input is no socket, the kernel has seen that.
        reached(sent, libc::ENOTSOCK)
    }),
    ("execute own memory", |_| map(4096, libc::PROT_READ | libc::PROT_EXEC)),
    ("take much memory", |_| map(MEMORY_MAX + (1 << 30), libc::PROT_NONE)),
    ("make memory of the host fail", |_| {
        // SAFETY: the range is empty.
        let called = unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_HWPOISON) };
        // The kernel may be built without it.
        reached(result(called.into()), libc::EINVAL)
    }),
    (RINGS, |_| {
        let mut parameters = [0_u8; 120];
        // SAFETY: the kernel's structure has 120 bytes.
        result(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
            .map(drop)
    }),
    (MOUNT, |_| {
        let kind = c"tmpfs".as_ptr();
        // SAFETY: the strings live until the end of the call.
        result(unsafe { libc::mount(kind, c"/".as_ptr(), kind, 0, std::ptr::null()) }.into())
            .map(drop)
    }),
];

/// Returns the result of a system call, or its error.
pub fn result(returned: i64) -> io::Result<i64> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Returns whether a system call has reached the kernel, which then may fail with `expected`.
pub fn reached(called: io::Result<i64>, expected: i32) -> io::Result<()> {
    called.map(drop).or_else(|error| match error.raw_os_error() {
        Some(errno) if errno == expected => Ok(()),
        _ => Err(error),
    })
}

fn map(length: u64, protection: i32) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let none = std::ptr::null_mut();
    // SAFETY: the kernel chooses an address that is not in use.
    let mapped = unsafe { libc::mmap(none, length as usize, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns a call of `program` as `user`, or as root.
pub fn as_user(user: Option<u32>, program: &Path) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    command.arg("--clear-groups").arg(program);
    command
}
