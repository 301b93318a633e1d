//! What a command that an image has taken over could do to its host: each attempt is refused to a confined command, and
//! succeeds without confinement. This program is also the command, if its environment says so.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use confine::{Confinement, FILES_MAX, Inherited, Needs, Proof, Resources, Trees};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use tempfile::TempDir;
use testkit::private_mounts;

/// The variable with the facts that the command needs, separated by spaces, in the order of [`Facts`].
const FACTS: &str = "BIFOLIO_TEST_ESCAPES";
/// The user id of an ordinary user.
const NOBODY: u32 = 65_534;
/// The memory that a command may map.
const MEMORY_MAX: u64 = 4 << 30;

fn main() -> ExitCode {
    if let Ok(facts) = std::env::var(FACTS) {
        return run(&Facts::parse(&facts));
    }
    let mut trials = Vec::new();
    for kind in KINDS {
        for (whose, user) in [("roots", None), ("an_ordinary_users", Some(NOBODY))] {
            let name = format!("{whose}_command_that_{kind}_cannot_reach_the_host");
            trials.push(Trial::test(name, move || check(kind, user)));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// What the commands do: one only uses open files, one reads a tree, and one creates files in a tree.
const KINDS: [&str; 3] = ["opens_its_files", READS, CREATES];
const READS: &str = "reads_a_tree";
const CREATES: &str = "creates_a_tree";

#[derive(Clone, Debug)]
struct Facts {
    kind: String,
    is_confined: bool,
    /// The folder with the tree `inside`, and with `outside`.
    folder: PathBuf,
    /// A port of the host.
    port: u16,
    /// The name of an abstract socket.
    socket: String,
    /// An inherited file.
    inherited: RawFd,
    /// A process of the same user.
    process: i32,
    /// The user.
    user: u32,
}

impl Facts {
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        Self {
            kind: words[0].to_owned(),
            is_confined: words[1] == "confined",
            folder: words[2].into(),
            port: words[3].parse().unwrap(),
            socket: words[4].to_owned(),
            inherited: words[5].parse().unwrap(),
            process: words[6].parse().unwrap(),
            user: rustix::process::getuid().as_raw(),
        }
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.folder.join("outside").join(name)
    }
}

/// Confines this program as a command, and tries everything.
fn run(facts: &Facts) -> ExitCode {
    if facts.is_confined {
        Inherited::list().close();
    }
    let tree: OwnedFd = File::open(facts.folder.join("inside")).unwrap().into();
    let trees = match facts.kind.as_str() {
        READS => Trees::Read { trees: std::slice::from_ref(&tree), attributes: true },
        CREATES => Trees::Create { tree: tree.as_fd(), attributes: true, privileged: true },
        _ => Trees::None,
    };
    let resources = Resources { memory_max: MEMORY_MAX, files_max: FILES_MAX };
    let writable = facts.kind != CREATES;
    let needs = Needs { writable, output: true, rings: false, resources, trees };
    if facts.is_confined {
        confine::confine(Confinement::FULL, needs, &Proof::open()).unwrap();
    }
    let says = |name: &str, outcome: io::Result<()>| match outcome {
        Ok(()) => eprintln!("{name}: done"),
        Err(error) => eprintln!("{name}: refused: {error}"),
    };
    says(WORK, work(facts, &tree));
    for (name, attempt) in ATTEMPTS {
        says(name, attempt(facts));
    }
    eprintln!("end");
    ExitCode::SUCCESS
}

/// What a command is for, and may do.
const WORK: &str = "work";

fn work(facts: &Facts, tree: &OwnedFd) -> io::Result<()> {
    match facts.kind.as_str() {
        READS => {
            let inside = facts.folder.join("inside");
            let names = fs::read_dir(&inside)?.map(|entry| Ok(entry?.file_name()));
            assert_eq!(names.collect::<io::Result<Vec<_>>>()?, ["own"]);
            fs::symlink_metadata(inside.join("own"))?;
            assert_eq!(fs::read(inside.join("own"))?, b"own");
            rustix::fs::lgetxattr(inside.join("own"), c"user.x", &mut [0; 9][..])?;
        }
        CREATES => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = rustix::fs::openat(tree, "new", flags, Mode::RUSR)?;
            rustix::io::pwrite(&file, b"new", 0)?;
            rustix::fs::renameat(tree, "new", tree, "own")?;
            rustix::fs::mkdirat(tree, "folder", Mode::RWXU)?;
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(tree, "folder", flags, Mode::empty())?;
            rustix::fs::linkat(tree, "own", &folder, "link", AtFlags::empty())?;
            rustix::fs::symlinkat("x", tree, "symlink")?;
        }
        _ => {}
    }
    Ok(())
}

type Attempt = fn(&Facts) -> io::Result<()>;

/// All attempts, and their names.
const ATTEMPTS: &[(&str, Attempt)] = &[
    ("read a file", |facts| File::open(facts.outside("secret")).map(drop)),
    ("list a directory", |facts| fs::read_dir(facts.outside("")).map(drop)),
    ("write to a file", |facts| {
        File::options().write(true).open(facts.outside("secret")).map(drop)
    }),
    ("create a file", |facts| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let created = rustix::fs::openat(CWD, facts.outside("new"), flags, Mode::RUSR);
        Ok(created.map(drop)?)
    }),
    ("create a directory", |facts| {
        Ok(rustix::fs::mkdirat(CWD, facts.outside("folder"), Mode::RWXU)?)
    }),
    ("create a link", |facts| fs::hard_link(facts.outside("secret"), facts.outside("link"))),
    ("rename a file", |facts| {
        Ok(rustix::fs::renameat(CWD, facts.outside("victim"), CWD, facts.outside("renamed"))?)
    }),
    ("remove a file", |facts| {
        Ok(rustix::fs::unlinkat(CWD, facts.outside("removed"), AtFlags::empty())?)
    }),
    ("change the permissions of a file", |facts| {
        fs::set_permissions(facts.outside("secret"), fs::Permissions::from_mode(0o644))
    }),
    (OWNERS, |facts| {
        let user = Some(rustix::fs::Uid::from_raw(facts.user));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(CWD, facts.outside("secret"), user, None, flags)?)
    }),
    (TIMES, |facts| {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        let path = facts.outside("secret");
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?)
    }),
    (ATTRIBUTES, |facts| {
        let flags = rustix::fs::XattrFlags::empty();
        Ok(rustix::fs::lsetxattr(facts.outside("secret"), c"user.x", b"y", flags)?)
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
        reached(called, libc::EBADF)
    }),
    ("trace a process", |_| {
        // SAFETY: the call finds no process 0.
        reached(
            result(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, 0, 0, 0) }),
            libc::ESRCH,
        )
    }),
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
    ("signal a process", |facts| {
        // SAFETY: the signal 0 only checks the right to send others.
        result(unsafe { libc::kill(facts.process, 0) }.into()).map(drop)
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
    ("execute own memory", |_| map(4096, libc::PROT_READ | libc::PROT_EXEC)),
    ("take much memory", |_| map(MEMORY_MAX + (1 << 30), libc::PROT_NONE)),
    (RINGS, |_| {
        let mut parameters = [0_u8; 120];
        // SAFETY: the kernel's structure has 120 bytes.
        result(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
            .map(drop)
    }),
    (ROOT, |facts| {
        let path = CString::new(facts.folder.as_os_str().as_bytes())?;
        // SAFETY: the string lives until the end of the call.
        result(unsafe { libc::chroot(path.as_ptr()) }.into()).map(drop)
    }),
    (MOUNT, |_| {
        let kind = c"tmpfs".as_ptr();
        // SAFETY: the strings live until the end of the call.
        result(unsafe { libc::mount(kind, c"/".as_ptr(), kind, 0, std::ptr::null()) }.into())
            .map(drop)
    }),
];

/// The attempts on the user's own files for which an ordinary user's command that creates a tree keeps the system calls: it
/// cannot get another root directory.
const OWNERS: &str = "change the owner of a file";
const TIMES: &str = "change the times of a file";
const ATTRIBUTES: &str = "set an attribute of a file";
/// The attempts that only root's commands can make.
const ROOT: &str = "change the root directory";
const MOUNT: &str = "mount";
/// The attempt that a host may refuse to all programs.
const RINGS: &str = "create a ring";

fn result(returned: i64) -> io::Result<i64> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Returns whether a system call has reached the kernel, which then fails with `expected`.
fn reached(called: io::Result<i64>, expected: i32) -> io::Result<()> {
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
fn as_user(user: Option<u32>, program: &Path) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    command.arg("--clear-groups").arg(program);
    command
}

/// A process that is killed at the end.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns what a command of `user` says about its attempts.
fn attempts_of(kind: &str, user: Option<u32>, is_confined: bool) -> String {
    private_mounts();
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (directory, files) in
        [("inside", &["own"][..]), ("outside", &["secret", "victim", "removed"])]
    {
        let directory = folder.path().join(directory);
        fs::create_dir(&directory).unwrap();
        for file in files {
            let path = directory.join(file);
            fs::write(&path, file).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::lsetxattr(&path, c"user.x", b"x", flags).unwrap();
            chown(path, user, user).unwrap();
        }
        chown(directory, user, user).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = format!("bifolio-{kind}-{}-{is_confined}-{user:?}", std::process::id());
    let _socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    // A number that the command gives to no file of its own.
    let passwd = File::open("/etc/passwd").unwrap();
    let inherited = rustix::io::fcntl_dupfd_cloexec(&passwd, 300).unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let victim = as_user(user, Path::new("sleep")).arg("600").spawn().unwrap();
    let victim = Victim(victim);
    // The program may be in a directory that only root can enter. Another process copies it: a thread that starts a program
    // meanwhile would keep a file of this process open for writing, and it could not be executed.
    let program = folder.path().join("program");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut command = as_user(user, &program);
    let state = if is_confined { "confined" } else { "free" };
    let (path, inherited, process) =
        (folder.path().display(), inherited.as_raw_fd(), victim.0.id());
    command.env(FACTS, format!("{kind} {state} {path} {port} {name} {inherited} {process}"));
    let output = command.current_dir("/").stdin(Stdio::null()).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(messages.ends_with("end\n"), "{kind}, {state}: {messages}");
    messages
}

fn check(kind: &str, user: Option<u32>) -> Result<(), Failed> {
    let confined = attempts_of(kind, user, true);
    let free = attempts_of(kind, user, false);
    let is_done = |messages: &str, name: &str| {
        let line = messages.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("{name} was not tried: {messages}")) == "done"
    };
    for (state, messages) in [("confined", &confined), ("free", &free)] {
        assert!(is_done(messages, WORK), "{kind}, {state}: {messages}");
    }
    for (name, _) in ATTEMPTS {
        let keeps_call = [OWNERS, TIMES, ATTRIBUTES].contains(name);
        let may_remain = keeps_call && kind == CREATES && user.is_some();
        assert!(may_remain || !is_done(&confined, name), "{name}, confined: {confined}");
        let is_refused_to_all = *name == RINGS || [MOUNT, ROOT].contains(name) && user.is_some();
        assert!(is_refused_to_all || is_done(&free, name), "{name}, not confined: {free}");
    }
    Ok(())
}
