//! What a server that an image has taken over could do to its host: each attempt is refused to a
//! confined server, and succeeds without confinement. This program is also the one that mounts, if
//! its environment says so.
#![allow(clippy::print_stderr, reason = "it is a program, too")]

use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use fuse::{Confinement, Inherited, LoopDevice, MountOptions, Plan, Upgrade};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use testkit::escapes::{
    self, Attempt, END, Facts, Host, MEMORY_MAX, MOUNT, RINGS, Victim, as_user, is_done, reached,
    result, say,
};
use testkit::ring_escapes::{self, Ring, SET_OPTION, SUBMISSIONS};
use testkit::toy::{BLOCK_BYTES, Content, ROOT, Toy};
use testkit::{RingOffer, private_mounts};

/// The user id of an ordinary user.
const NOBODY: u32 = 65_534;
/// The partition that is mounted, in bytes of the disk.
const PARTITION: Range<u64> = 65_536..131_072;
/// The size of the disk.
const DISK_BYTES: u64 = 262_144;
/// Memory that is read from the guard, which has it at the same address.
static WORD: u64 = 7;

fn main() -> ExitCode {
    if let Some(facts) = Facts::of_program() {
        return mount(&facts);
    }
    let trials = vec![
        Trial::test("roots_server_cannot_reach_the_host", || check(None)),
        Trial::test("an_ordinary_users_server_cannot_reach_the_host", || check(Some(NOBODY))),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Runs this program as the one that mounts. Its server tries everything before it serves.
fn mount(facts: &Facts) -> ExitCode {
    let is_confined = facts.is_confined;
    let inherited = if is_confined { Inherited::list() } else { Inherited::default() };
    let plan = Plan {
        source: "toy".into(),
        directory: facts.folder.join("mount"),
        claim: None,
        options: MountOptions { writable: true, ..MountOptions::default() },
        foreground: true,
        system_log: Arc::default(),
        upgrade: Upgrade::never("it is a test"),
        confinement: if is_confined { Confinement::FULL } else { Confinement::NONE },
        memory_max: MEMORY_MAX,
        inherited,
        threads: const { NonZeroUsize::new(1).unwrap() },
    };
    let disk = facts.folder.join("disk");
    let is_root = rustix::process::geteuid().is_root();
    // As root's mounts of a partition have it. Others have the whole disk open.
    let part =
        (is_confined && is_root).then(|| LoopDevice::attach(&disk, PARTITION, true).unwrap());
    // A program that has been taken over knows them: they are the same for all rings of this kind.
    let parameters = ring_escapes::parameters();
    let prepare = || {
        let image = part.as_ref().map_or(disk.as_path(), LoopDevice::path);
        let opened = File::options().read(true).write(true).open(image).unwrap();
        drop(part);
        let socket = UnixDatagram::unbound().unwrap();
        Ok::<_, base::Error>((OwnedFd::from(opened), OwnedFd::from(socket)))
    };
    let open = |(image, socket): (OwnedFd, OwnedFd)| {
        let start = if is_confined && is_root { 0 } else { PARTITION.start };
        let last = start + (PARTITION.end - PARTITION.start) - 512;
        say(WORK, rustix::io::pwrite(&image, &[0xaa; 512], last).map(drop).map_err(Into::into));
        for (name, attempt) in escapes::ATTEMPTS {
            say(name, attempt(facts));
        }
        for (name, attempt) in ATTEMPTS {
            say(name, attempt(&image));
        }
        let ring = Ring::unrestricted().or_else(|_| Ring::taken(parameters?));
        try_ring(ring, &image, &socket);
        eprintln!("end");
        let root = Content::directory(&[(".", ROOT), ("..", ROOT)]);
        let toy = Toy::new(vec![b'x'; BLOCK_BYTES as usize], [(ROOT, root)]);
        Ok(Arc::new(toy.volume(16)))
    };
    match fuse::run(&plan, prepare, open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Tries what a ring could do: one that the server creates, or else one of those that it has.
fn try_ring(ring: io::Result<Ring>, image: &OwnedFd, socket: &OwnedFd) {
    let (mut ring, found) = match ring {
        Ok(ring) => (Some(ring), Ok(())),
        Err(error) => (None, Err(error)),
    };
    say(RING, found);
    let submissions = SUBMISSIONS.iter().map(|submission| (submission, image));
    for (submission, file) in submissions.chain([(&SET_OPTION, socket)]) {
        let none = || Err(io::ErrorKind::NotFound.into());
        let attempt = |ring| ring_escapes::attempt(ring, submission, file);
        say(submission.0, ring.as_mut().map_or_else(none, attempt));
    }
}

/// What a server is for, and may do: here, to write to the last bytes of the partition.
const WORK: &str = "work";
/// A ring of any kind, if the host offers rings.
const RING: &str = "get a ring";
/// The attempt that an ordinary user's server can make.
const PAST_PARTITION: &str = "write past the partition";

/// The attempts that only servers make. They have the image open.
const ATTEMPTS: &[Attempt<OwnedFd>] = &[
    ("open a file", |_| File::open("/").map(drop)),
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
    ("truncate a log", |_| {
        // SAFETY: the call takes numbers.
        let called = unsafe { libc::ftruncate(libc::STDERR_FILENO, 0) };
        // Here, standard error is a pipe.
        reached(result(called.into()), libc::EINVAL)
    }),
    (PAST_PARTITION, |image| {
        rustix::io::pwrite(image, &[0xee; 512], PARTITION.end)?;
        Ok(())
    }),
];

/// Returns what a server of `user` says about its attempts.
fn attempts_of(user: Option<u32>, is_confined: bool) -> String {
    private_mounts();
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = folder.path().canonicalize().unwrap().join("mount");
    fs::create_dir(&directory).unwrap();
    let disk = folder.path().join("disk");
    fs::write(&disk, vec![0; DISK_BYTES as usize]).unwrap();
    chown(&disk, user, user).unwrap();
    let host = Host::new(&format!("server-{is_confined}-{}", user.is_some()));
    let mut victim = Victim::start(user);
    let program = std::env::current_exe().unwrap();
    if user.is_some() {
        let script = "mount -t tmpfs -o mode=755 none . && mknod -m 666 fuse c 10 229 \
                      && mount --bind fuse /dev/fuse";
        let devices = folder.path().join("devices");
        fs::create_dir(&devices).unwrap();
        let made = Command::new("sh").args(["-c", script]).current_dir(&devices).status();
        assert!(made.unwrap().success());
        chown(&directory, user, user).unwrap();
    }
    let mut command = as_user(user, &program);
    // The path of a mount point has no symbolic links.
    let path = folder.path().canonicalize().unwrap();
    host.facts("serves", is_confined, &path, victim.id()).give(&mut command);
    command.stdin(host.input()).stdout(Stdio::null()).stderr(Stdio::piped());
    let messages = end_after_attempts(command.spawn().unwrap());
    victim.check(is_done(&messages, END));
    assert!(is_done(&messages, WORK), "{messages}");
    let written = fs::read(&disk).unwrap();
    let (start, end) = (PARTITION.start as usize, PARTITION.end as usize);
    assert_eq!(written[end - 512..end], [0xaa; 512]);
    let is_outside = |at: &usize| !(start..end).contains(at);
    let has_escaped = (0..written.len()).filter(is_outside).any(|at| written[at] != 0);
    assert_eq!(has_escaped, is_done(&messages, PAST_PARTITION), "{messages}");
    messages
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
    // All programs may create rings, or none. A confined server has some if the kernel offers FUSE
    // over io_uring.
    let creates_rings = ring_escapes::offered();
    let offer = RingOffer::put(true);
    if !creates_rings || offer.is_none() {
        let text =
            "the host has no rings, or no FUSE over io_uring: what they refuse was not tried";
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{text}");
        eprintln!("NOTE: {text}");
    }
    let confined = attempts_of(user, true);
    let free = attempts_of(user, false);
    assert!(!creates_rings || offer.is_none() || is_done(&confined, RING), "{confined}");
    drop(offer);
    for (name, _, _) in SUBMISSIONS.iter().chain([&SET_OPTION]) {
        assert!(!is_done(&confined, name), "{name}, confined: {confined}");
        assert!(!creates_rings || is_done(&free, name), "{name}, not confined: {free}");
    }
    let common = escapes::ATTEMPTS.iter().map(|(name, _)| *name);
    for name in common.chain(ATTEMPTS.iter().map(|(name, _)| *name)) {
        let may_remain = name == PAST_PARTITION && user.is_some();
        assert!(may_remain || !is_done(&confined, name), "{name}, confined: {confined}");
        let is_refused_to_all = name == RINGS && !creates_rings || name == MOUNT && user.is_some();
        assert!(is_refused_to_all || is_done(&free, name), "{name}, not confined: {free}");
    }
    Ok(())
}
