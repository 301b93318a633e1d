//! What a command that an image has taken over could do to its host: each attempt is refused to a
//! confined command, and succeeds without confinement. This program is also the command, if its
//! environment says so.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use confine::{Confinement, FILES_MAX, Inherited, Layer, Needs, Proof, Resources, Tree, Trees};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use tempfile::TempDir;
use testkit::escapes::{
    self, Attempt, END, Facts, Host, MEMORY_MAX, MOUNT, RINGS, Victim, as_user, is_done, reached,
    result, say,
};
use testkit::{private_mounts, ring_escapes};

/// The user id of an ordinary user.
const NOBODY: u32 = 65_534;

fn main() -> ExitCode {
    if let Some(facts) = Facts::of_program() {
        return run(facts);
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

/// What the commands do: three only use open files, one reads a tree, and two create files in a
/// tree, the last one with what gives rights.
const KINDS: [&str; 6] =
    ["opens_its_files", ONLY_READS, WITHOUT_LANDLOCK, READS, CREATES, CREATES_PRIVILEGED];
/// As the first one, for images that are open for reading only.
const ONLY_READS: &str = "only_reads_its_files";
/// As the first one, on a host whose Landlock controls nothing: the filter on system calls makes up
/// for it.
const WITHOUT_LANDLOCK: &str = "opens_its_files_without_landlock";
const READS: &str = "reads_a_tree";
const CREATES: &str = "creates_a_tree";
const CREATES_PRIVILEGED: &str = "creates_a_privileged_tree";

/// The command, in the test's folder with the trees `inside` and `outside`.
struct Place {
    facts: Facts,
    /// The tree `inside`.
    tree: OwnedFd,
    /// A directory that was opened in the tree, and has been moved out of it.
    moved: OwnedFd,
    user: u32,
}

impl Deref for Place {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Place {
    fn outside(&self, name: &str) -> PathBuf {
        self.folder.join("outside").join(name)
    }

    /// Creates a file in the tree, and opens it for writing.
    fn create(&self, name: &str, permissions: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.tree, name, flags, Mode::from_raw_mode(permissions))?)
    }
}

fn creates(kind: &str) -> bool {
    [CREATES, CREATES_PRIVILEGED].contains(&kind)
}

/// Confines this program as a command, and tries everything.
fn run(facts: Facts) -> ExitCode {
    if facts.is_confined {
        Inherited::list().close();
    }
    let user = rustix::process::getuid();
    let tree: OwnedFd = File::open(facts.folder.join("inside")).unwrap().into();
    let has_own_mount = facts.is_confined && creates(&facts.kind) && user.is_root();
    let own = if has_own_mount { Tree::in_own_mount(tree).unwrap() } else { tree.into() };
    let tree = own.directory.try_clone().unwrap();
    rustix::fs::mkdirat(&tree, "moved", Mode::RWXU).unwrap();
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let moved = rustix::fs::openat(&tree, "moved", flags, Mode::empty()).unwrap();
    fs::rename(facts.folder.join("inside/moved"), facts.folder.join("outside/moved")).unwrap();
    let place = Place { facts, tree, moved, user: user.as_raw() };
    let trees = match place.kind.as_str() {
        READS => Trees::Read { trees: std::slice::from_ref(&place.tree), attributes: true },
        kind if creates(kind) => Trees::Create {
            tree: place.tree.as_fd(),
            attributes: true,
            privileged: kind == CREATES_PRIVILEGED,
        },
        _ => Trees::None,
    };
    let resources = Resources { memory_max: MEMORY_MAX, files_max: FILES_MAX };
    let writable = !creates(&place.kind) && place.kind != ONLY_READS;
    let needs = Needs { writable, output: true, rings: false, guard: false, resources, trees };
    if place.is_confined {
        let layers = match place.kind.as_str() {
            WITHOUT_LANDLOCK => Confinement::FULL.without(Layer::Landlock),
            _ => Confinement::FULL,
        };
        confine::confine(layers, needs, &Proof::open()).unwrap();
    }
    say(WORK, work(&place));
    for (name, attempt) in escapes::ATTEMPTS {
        say(name, attempt(&place.facts));
    }
    for (name, attempt) in ATTEMPTS {
        say(name, attempt(&place));
    }
    eprintln!("end");
    ExitCode::SUCCESS
}

/// What a command is for, and may do.
const WORK: &str = "work";

fn work(facts: &Place) -> io::Result<()> {
    let tree = &facts.tree;
    match facts.kind.as_str() {
        READS => {
            let inside = facts.folder.join("inside");
            let names = fs::read_dir(&inside)?.map(|entry| Ok(entry?.file_name()));
            assert_eq!(names.collect::<io::Result<Vec<_>>>()?, ["own"]);
            fs::symlink_metadata(inside.join("own"))?;
            assert_eq!(fs::read(inside.join("own"))?, b"own");
            rustix::fs::lgetxattr(inside.join("own"), c"user.x", &mut [0; 9][..])?;
        }
        kind if creates(kind) => {
            let file = facts.create("new", 0o600)?;
            rustix::fs::ftruncate(&file, 1)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o1755))?;
            rustix::io::pwrite(&file, b"new", 0)?;
            rustix::fs::renameat(tree, "new", tree, "own")?;
            rustix::fs::mkdirat(tree, "folder", Mode::RWXU)?;
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(tree, "folder", flags, Mode::empty())?;
            rustix::fs::linkat(tree, "own", &folder, "link", AtFlags::empty())?;
            rustix::fs::symlinkat("x", tree, "symlink")?;
            rustix::fs::mkdirat(&folder, "new", Mode::RWXU)?;
            rustix::fs::renameat(&folder, "new", tree, "moved")?;
            rustix::fs::unlinkat(tree, "moved", AtFlags::REMOVEDIR)?;
        }
        _ => {}
    }
    Ok(())
}

/// Gives standard output another number, which stays open.
fn log_by_another_number() -> io::Result<i32> {
    // SAFETY: the call takes numbers.
    let log = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 100) };
    Ok(result(log.into())? as i32)
}

/// Maps a file for writing, and leaves it mapped.
fn map(file: i32) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (none, flags) = (std::ptr::null_mut(), libc::MAP_SHARED);
    // SAFETY: the kernel chooses an address that is not in use.
    let mapped = unsafe { libc::mmap(none, 4096, protection, flags, file, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The attempts that only commands make.
const ATTEMPTS: &[Attempt<Place>] = &[
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
    (MOVED, |facts| {
        let user = Some(rustix::fs::Uid::from_raw(facts.user));
        Ok(rustix::fs::chownat(&facts.moved, "../secret", user, None, AtFlags::empty())?)
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
    ("get hold of a file", |facts| {
        // With O_PATH, the flags for reading and for creating mean nothing, and an existing file is
        // opened.
        let path = facts.outside("secret");
        let new = libc::O_PATH | libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let opened = OFlags::from_bits_retain(new as u32);
        rustix::fs::openat(CWD, &path, opened, Mode::empty())
            .or_else(|_| rustix::fs::openat(CWD, &path, OFlags::PATH, Mode::empty()))?;
        Ok(())
    }),
    (SET_ID_NEW, |facts| facts.create("rights", 0o4755).map(drop)),
    (SET_ID_CHANGED, |facts| {
        let file = facts.create("later", 0o600)?;
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(0o2755))?)
    }),
    (SET_ID_NODE, |facts| {
        let (kind, mode) = (FileType::RegularFile, Mode::from_raw_mode(0o6755));
        Ok(rustix::fs::mknodat(&facts.tree, "node", kind, mode, 0)?)
    }),
    ("truncate a log", |_| {
        // SAFETY: the call takes numbers.
        result(unsafe { libc::ftruncate(libc::STDOUT_FILENO, 0) }.into()).map(drop)
    }),
    ("truncate a log by another number", |_| {
        let log = log_by_another_number()?;
        // SAFETY: the call takes numbers.
        result(unsafe { libc::ftruncate(log, 0) }.into()).map(drop)
    }),
    ("truncate a log in place of another file", |_| {
        // SAFETY: the descriptors are used by nothing else.
        let replaced = unsafe { libc::dup2(libc::STDOUT_FILENO, 101) };
        let log = result(replaced.into())? as i32;
        // SAFETY: the call takes numbers.
        result(unsafe { libc::ftruncate(log, 0) }.into()).map(drop)
    }),
    ("punch a hole in a log", |_| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the call takes numbers.
        let punched = unsafe { libc::fallocate(libc::STDOUT_FILENO, mode, 0, 1) };
        // The file system may not have holes.
        reached(result(punched.into()), libc::EOPNOTSUPP)
    }),
    ("map a log", |_| map(libc::STDOUT_FILENO)),
    ("map a log by another number", |_| map(log_by_another_number()?)),
    ("punch a hole in a mapped file", |_| {
        // SAFETY: the range is empty.
        let called = unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_REMOVE) };
        result(called.into()).map(drop)
    }),
    ("lock a log", |_| {
        let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
        Ok(rustix::fs::flock(rustix::stdio::stdout(), shared)?)
    }),
    ("lock a log by another number", |_| {
        let log = log_by_another_number()?;
        // SAFETY: the call takes numbers.
        result(unsafe { libc::flock(log, libc::LOCK_SH | libc::LOCK_NB) }.into()).map(drop)
    }),
    ("change the permissions of a log", |_| {
        Ok(rustix::fs::fchmod(rustix::stdio::stdout(), Mode::from_raw_mode(0o666))?)
    }),
    ("change the owner of a log", |facts| {
        let user = Some(rustix::fs::Uid::from_raw(facts.user));
        Ok(rustix::fs::fchown(rustix::stdio::stdout(), user, None)?)
    }),
    ("change the owner of a log in another way", |facts| {
        let user = Some(rustix::fs::Uid::from_raw(facts.user));
        Ok(rustix::fs::chownat(rustix::stdio::stdout(), "", user, None, AtFlags::EMPTY_PATH)?)
    }),
    ("change the times of a log", |_| {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::futimens(rustix::stdio::stdout(), &times)?)
    }),
    ("set an attribute of a log", |_| {
        let flags = rustix::fs::XattrFlags::empty();
        Ok(rustix::fs::fsetxattr(rustix::stdio::stdout(), c"user.y", b"y", flags)?)
    }),
    ("remove an attribute of a log", |_| {
        Ok(rustix::fs::fremovexattr(rustix::stdio::stdout(), c"user.x")?)
    }),
    (ROOT, |facts| {
        let path = CString::new(facts.folder.as_os_str().as_bytes())?;
        // SAFETY: the string lives until the end of the call.
        result(unsafe { libc::chroot(path.as_ptr()) }.into()).map(drop)
    }),
];

/// The attempts on the user's own files for which an ordinary user's command that creates a tree
/// keeps the system calls: it cannot get another root directory.
const OWNERS: &str = "change the owner of a file";
const MOVED: &str = "change the owner of a file from a moved directory";
const TIMES: &str = "change the times of a file";
const ATTRIBUTES: &str = "set an attribute of a file";
/// The attempts to create programs that others would execute with the rights of their owner.
const SET_ID_NEW: &str = "create a file with set-ID bits";
const SET_ID_CHANGED: &str = "give a file set-ID bits";
const SET_ID_NODE: &str = "create a node with set-ID bits";
/// The attempt that only root's commands can make, beside `MOUNT`.
const ROOT: &str = "change the root directory";

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
    let host = Host::new(&format!("{kind}-{is_confined}-{user:?}"));
    let mut victim = Victim::start(user);
    // The program may be in a directory that only root can enter. Another process copies it: a
    // thread that starts a program meanwhile would keep a file of this process open for writing,
    // and it could not be executed.
    let program = folder.path().join("program");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut command = as_user(user, &program);
    host.facts(kind, is_confined, folder.path(), victim.id()).give(&mut command);
    let log = folder.path().join("log");
    fs::write(&log, "log").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::lsetxattr(&log, c"user.x", b"x", flags).unwrap();
    chown(&log, user, user).unwrap();
    let appended = File::options().read(true).append(true).open(&log).unwrap();
    let output = command.stdin(host.input()).stdout(appended).output().unwrap();
    let is_kept = fs::read(&log).unwrap() == b"log";
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(messages.ends_with("end\n"), "{kind}, confined {is_confined}: {messages}");
    assert_eq!(is_kept, is_confined, "{kind}: {messages}");
    victim.check(is_done(&messages, END));
    messages
}

fn check(kind: &str, user: Option<u32>) -> Result<(), Failed> {
    let confined = attempts_of(kind, user, true);
    let free = attempts_of(kind, user, false);
    for (state, messages) in [("confined", &confined), ("free", &free)] {
        assert!(is_done(messages, WORK), "{kind}, {state}: {messages}");
    }
    let common = escapes::ATTEMPTS.iter().map(|(name, _)| *name);
    for name in common.chain(ATTEMPTS.iter().map(|(name, _)| *name)) {
        let keeps_call = [OWNERS, MOVED, TIMES, ATTRIBUTES].contains(&name);
        let gives_rights = [SET_ID_NEW, SET_ID_CHANGED, SET_ID_NODE].contains(&name);
        let may_remain = keeps_call && creates(kind) && user.is_some()
            || gives_rights && kind == CREATES_PRIVILEGED;
        assert!(may_remain || !is_done(&confined, name), "{name}, confined: {confined}");
        let creates_rings = ring_escapes::offered();
        let is_refused_to_all =
            name == RINGS && !creates_rings || [MOUNT, ROOT].contains(&name) && user.is_some();
        assert!(is_refused_to_all || is_done(&free, name), "{name}, not confined: {free}");
    }
    Ok(())
}
