//! Attempts of a program to escape from its confinement: the ones that all programs make, and what
//! the tests give them. A test starts itself as this program. Not here: what only commands or only
//! servers could do.
#![allow(unsafe_code)]
#![allow(clippy::print_stderr, reason = "the program tells the test so what it could do")]

use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

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
    /// A process of the same user: a [`Victim`].
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

    /// Returns a standard input for the program: a socket from which messages could go to any
    /// address.
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

/// A process of the host that a program would trace and end. It is killed at the end.
pub struct Victim(Child);

impl Victim {
    /// Starts a process of `user`, or of root, that waits. A host that lets a process trace only
    /// its children (Yama) makes an exception for it.
    pub fn start(user: Option<u32>) -> Self {
        let mut command = as_user(user, Path::new("sleep"));
        command.arg("600");
        let allow = || {
            // SAFETY: the call takes numbers. It fails without Yama.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
            Ok(())
        };
        // SAFETY: between fork and exec, this only makes a system call.
        unsafe { command.pre_exec(allow) };
        Self(command.spawn().unwrap())
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Checks that the program has ended the process, or has not.
    #[track_caller]
    pub fn check(&mut self, has_ended: bool) {
        if has_ended {
            let status = self.0.wait().unwrap();
            assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
        } else {
            assert_eq!(self.0.try_wait().unwrap(), None);
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
    #[cfg(target_arch = "x86_64")]
    ("start a process by vfork", |_| wait_for(vfork()?)),
    ("start a process by clone3", |_| {
        // SAFETY: the call takes no arguments that the kernel would accept.
        let called = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0) };
        reached(result(called), libc::EINVAL)
    }),
    ("start a process that shares memory", |_| {
        wait_for(clone(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD)?)
    }),
    ("start a thread in another user namespace", |_| {
        clone_thread(THREAD_FLAGS | libc::CLONE_NEWUSER)
    }),
    ("start a thread in another network namespace", |_| {
        // The host may allow that, or not.
        let called = clone(THREAD_FLAGS | libc::CLONE_NEWNET).map(i64::from);
        reached(called, libc::EPERM)
    }),
    ("start a thread without CLONE_VM", clone_without::<{ libc::CLONE_VM }>),
    ("start a thread without CLONE_FS", clone_without::<{ libc::CLONE_FS }>),
    ("start a thread without CLONE_FILES", clone_without::<{ libc::CLONE_FILES }>),
    ("start a thread without CLONE_SIGHAND", clone_without::<{ libc::CLONE_SIGHAND }>),
    ("start a thread without CLONE_THREAD", clone_without::<{ libc::CLONE_THREAD }>),
    ("start a thread without CLONE_SYSVSEM", clone_without::<{ libc::CLONE_SYSVSEM }>),
    ("trace a process", |facts| {
        let trace = |request| {
            let none = std::ptr::null::<u8>();
            // SAFETY: these requests read and store nothing.
            let called = unsafe { libc::ptrace(request, facts.process, none, none) };
            result(called).map(drop)
        };
        trace(libc::PTRACE_SEIZE)?;
        // Only a process that is stopped can be left again.
        trace(libc::PTRACE_INTERRUPT)?;
        // SAFETY: the call stores no status.
        let stopped = unsafe { libc::waitpid(facts.process, std::ptr::null_mut(), libc::__WALL) };
        result(stopped.into())?;
        trace(libc::PTRACE_DETACH)
    }),
    ("let a file send signals to a process", |facts| {
        // SAFETY: the command takes a number.
        result(unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_SETOWN, facts.process) }.into())
            .map(drop)
    }),
    ("choose the signal of a file", |_| {
        // One that the process ignores.
        // SAFETY: the command takes a number.
        result(unsafe { libc::fcntl(libc::STDERR_FILENO, F_SETSIG, libc::SIGURG) }.into()).map(drop)
    }),
    ("make a file send signals", |_| {
        change_flags(libc::STDERR_FILENO, |flags| flags | libc::O_ASYNC)?;
        change_flags(libc::STDERR_FILENO, |flags| flags & !libc::O_ASYNC)
    }),
    ("overwrite a log", |_| {
        change_flags(libc::STDOUT_FILENO, |flags| flags & !libc::O_APPEND)?;
        change_flags(libc::STDOUT_FILENO, |flags| flags | libc::O_APPEND)
    }),
    // The last one that needs the process.
    (END, |facts| {
        // SAFETY: the call takes numbers.
        result(unsafe { libc::kill(facts.process, libc::SIGTERM) }.into()).map(drop)
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

/// The attempt to end the [`Victim`].
pub const END: &str = "end a process";

/// `F_SETSIG`, which not all C libraries have.
const F_SETSIG: i32 = 10;

/// The flags of clone(2) with which a C library starts a thread.
const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Starts a thread, or a process, without one of the flags of threads.
fn clone_without<const FLAG: i32>(_: &Facts) -> io::Result<()> {
    clone_thread(THREAD_FLAGS & !FLAG)
}

/// Starts a thread, or a process if the flags say so. The kernel may refuse the combination of
/// flags.
fn clone_thread(flags: i32) -> io::Result<()> {
    reached(clone(flags).map(i64::from), libc::EINVAL)
}

/// Starts a thread or a process that ends at once. Returns its number.
fn clone(flags: i32) -> io::Result<i32> {
    /// The size of a stack, and of the memory that a thread library would have.
    const BYTES: usize = 64 << 10;
    extern "C" fn end(_: *mut libc::c_void) -> i32 {
        0
    }
    // They last until the program ends, since the thread may.
    let stack = Box::leak(vec![0_u128; BYTES / size_of::<u128>()].into_boxed_slice());
    let local = Box::leak(vec![0_u128; BYTES / size_of::<u128>()].into_boxed_slice());
    let (_, local) = local.split_at_mut(BYTES / size_of::<u128>() / 2);
    let number = Box::leak(Box::new(0_i32));
    // SAFETY: the function uses nothing but its stack, which nothing else uses. Behind the middle
    // of its local memory, and before it, is the memory that a C library may look at. The kernel
    // stores to `number`.
    result(i64::from(unsafe {
        libc::clone(
            end,
            stack.as_mut_ptr_range().end.cast(),
            flags,
            std::ptr::null_mut(),
            &raw mut *number,
            local.as_mut_ptr(),
            &raw mut *number,
        )
    }))
    .map(|number| number as i32)
}

/// Starts a process by vfork(2) that ends at once. Returns its number.
#[cfg(target_arch = "x86_64")]
fn vfork() -> io::Result<i32> {
    let returned: i64;
    // SAFETY: the child, which has the memory and the stack of this process, only ends. Until then,
    // this process waits.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "2:",
            exit = const libc::SYS_exit,
            inout("rax") libc::SYS_vfork => returned,
            out("rdi") _,
            out("rcx") _,
            out("r11") _,
        );
    }
    if returned < 0 {
        Err(io::Error::from_raw_os_error(-returned as i32))
    } else {
        Ok(returned as i32)
    }
}

/// Waits for the end of a child.
fn wait_for(child: i32) -> io::Result<()> {
    // SAFETY: the call stores no status.
    result(unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) }.into()).map(drop)
}

/// Changes the flags of an open file.
fn change_flags(file: RawFd, change: impl FnOnce(i32) -> i32) -> io::Result<()> {
    // SAFETY: the commands take and return numbers.
    let flags = result(unsafe { libc::fcntl(file, libc::F_GETFL) }.into())? as i32;
    // SAFETY: as above.
    result(unsafe { libc::fcntl(file, libc::F_SETFL, change(flags)) }.into()).map(drop)
}

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
