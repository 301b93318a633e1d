//! Advisory locks of images: flock(2), and the byte ranges by which QEMU and other programs lock
//! images (fcntl(2), open file description locks). Not here: the name of the program that has a
//! lock.
//!
//! QEMU has one byte for each permission that it uses, from byte 100 on, and one for each
//! permission that it leaves to no other program, from byte 200 on. It takes shared locks of its
//! bytes, and then looks whether others have the opposite bytes. POSIX locks of other programs
//! conflict with open file description locks, too.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use base::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

/// The byte by which writers of parts are known to readers of the whole, which is none of QEMU's.
const WRITES_PART: u64 = 99;
/// QEMU's byte for reading consistent data.
const READS: u64 = 100;
/// QEMU's byte for writing.
const WRITES: u64 = 101;
/// QEMU's byte for changing the size.
const RESIZES: u64 = 103;
/// QEMU's byte for leaving consistent reads to no other program.
const READS_ALONE: u64 = 200;
/// QEMU's byte for leaving writes to no other program.
const WRITES_ALONE: u64 = 201;
/// QEMU's byte for leaving changes of the size to no other program.
const RESIZES_ALONE: u64 = 203;
/// The end of QEMU's bytes.
const QEMU_END: u64 = 300;
/// All bytes that a lock can have.
const EVERYTHING: Range<u64> = 0..u64::MAX;

/// The number of attempts to have a reader's lock again, and the time between them.
const DOWNGRADE_ATTEMPTS: u32 = 25;
const DOWNGRADE_INTERVAL: Duration = Duration::from_millis(4);

/// The use of an image that a lock announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Reading.
    Read,
    /// Writing, with no other user.
    Write,
    /// Reading a part of the image through another device.
    ReadPart,
    /// Writing a part of the image through another device. Others may write other parts: programs
    /// of this kind if they are known to be there.
    WritePart {
        /// Whether other parts have users.
        has_others: bool,
    },
}

/// A kind of byte-range lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Shared,
    Exclusive,
}

/// Locks an open image. Returns whether another program has locked it for writing, which only
/// excludes other writers.
///
/// # Errors
///
/// EBUSY if another program has locked the image. Hosts that cannot lock the file are no error,
/// since locks are advisory.
pub(crate) fn lock(file: &OwnedFd, usage: Use) -> Result<bool, Errno> {
    let operation = match usage {
        Use::Write => FlockOperation::NonBlockingLockExclusive,
        Use::Read | Use::ReadPart | Use::WritePart { .. } => FlockOperation::NonBlockingLockShared,
    };
    if rustix::fs::flock(file, operation) == Err(Errno::WOULDBLOCK) {
        return Err(Errno::BUSY);
    }
    // Announced before others are looked for, as QEMU does: of two programs that do so at a time,
    // at least one finds the other.
    let is_free = ranges_of(usage).iter().all(|(kind, range)| set(file, *kind, range))
        && !is_locked_against(file, usage);
    if is_free {
        return Ok(false);
    }
    unlock_ranges(file);
    match usage {
        Use::Read | Use::ReadPart => Ok(true),
        Use::Write | Use::WritePart { .. } => {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
            Err(Errno::BUSY)
        }
    }
}

/// Turns the lock of an image that is open for reading, which has the lock of [`Use::Read`], into
/// that of [`Use::Write`]. `writer` is another open file of the image, for writing, which the lock
/// of bytes belongs to; the other belongs to `reader`.
///
/// # Errors
///
/// EBUSY if another program has locked the image. The lock is then still that of a reader, unless
/// another program has taken its own in between, which is logged.
pub(crate) fn upgrade(reader: &OwnedFd, writer: &OwnedFd) -> Result<(), Errno> {
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    if rustix::fs::flock(reader, exclusive) == Err(Errno::WOULDBLOCK) {
        // Linux has ended the shared lock first.
        say_if_lost(downgrade(reader));
        return Err(Errno::BUSY);
    }
    let announced = ranges_of(Use::Write).iter().all(|(kind, range)| set(writer, *kind, range));
    // The reader's own bytes would be taken for those of another program. Programs that come
    // meanwhile find the writer's.
    unlock_ranges(reader);
    let is_free = announced && !is_locked_against(writer, Use::Write);
    for (kind, range) in ranges_of(Use::Read) {
        set(reader, kind, &range);
    }
    if !is_free {
        unlock_ranges(writer);
        say_if_lost(downgrade(reader));
        return Err(Errno::BUSY);
    }
    Ok(())
}

/// Turns the lock of an [upgraded](upgrade) reader into that of a reader, after the writer was
/// closed.
///
/// # Errors
///
/// EBUSY if another program has taken the lock in between, and keeps it. The image is then not
/// locked.
pub(crate) fn downgrade(reader: &OwnedFd) -> Result<(), Errno> {
    for attempt in 1..=DOWNGRADE_ATTEMPTS {
        // Another program may have it only for its own attempt. Other errors mean that the host has
        // no such locks.
        match rustix::fs::flock(reader, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) if attempt < DOWNGRADE_ATTEMPTS => {
                std::thread::sleep(DOWNGRADE_INTERVAL);
            }
            Err(Errno::WOULDBLOCK) => break,
            _ => return Ok(()),
        }
    }
    Err(Errno::BUSY)
}

/// Logs that a reader has lost its lock.
fn say_if_lost(downgraded: Result<(), Errno>) {
    if downgraded.is_err() {
        tracing::warn!(
            "another program has locked an image that is read here, and may change it: unmount it"
        );
    }
}

/// Ends all locks of an open image, even if a child of this process still has a copy of the
/// descriptor.
pub(crate) fn unlock(file: &OwnedFd) {
    // These fail if the host cannot lock the file, and in confined processes, whose locks end with
    // the descriptor.
    unlock_ranges(file);
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Returns the byte ranges that a user of an image locks.
fn ranges_of(usage: Use) -> Vec<(Kind, Range<u64>)> {
    let shared = |byte: u64| (Kind::Shared, byte..byte + 1);
    match usage {
        // As the readers of QEMU that do not share the image with a writer.
        Use::Read => vec![shared(READS), shared(WRITES_ALONE), shared(RESIZES_ALONE)],
        Use::ReadPart => vec![shared(READS)],
        // Without the byte for writing, the users of other parts are not taken for writers of the
        // whole. QEMU does not write beside the last byte.
        Use::WritePart { .. } => vec![shared(WRITES_PART), shared(READS), shared(WRITES_ALONE)],
        // The byte for consistent reads is left out, so that `qemu-img info -U` can read the image.
        Use::Write => vec![
            (Kind::Exclusive, 0..READS),
            (Kind::Shared, READS..READS_ALONE),
            (Kind::Shared, WRITES_ALONE..QEMU_END),
            (Kind::Exclusive, QEMU_END..EVERYTHING.end),
        ],
    }
}

/// Returns whether another open file has a lock that excludes this use.
fn is_locked_against(file: &OwnedFd, usage: Use) -> bool {
    let conflicts = |kind, range| conflicts(file, kind, range);
    let has_exclusive = || conflicts(Kind::Shared, EVERYTHING);
    let has = |byte: u64| conflicts(Kind::Exclusive, byte..byte + 1);
    match usage {
        // A program that only reads, and shares the image with writers, has no other byte than this
        // one.
        Use::Write => {
            conflicts(Kind::Exclusive, 0..READS)
                || conflicts(Kind::Shared, READS..READS + 1)
                || conflicts(Kind::Exclusive, READS + 1..EVERYTHING.end)
        }
        Use::WritePart { has_others } => {
            let excluding = [WRITES, RESIZES, READS_ALONE, RESIZES_ALONE];
            has_exclusive() || excluding.into_iter().any(has) || (!has_others && has(WRITES_ALONE))
        }
        // A shared lock of all bytes is one of a reader. The bytes of QEMU are locked by
        // themselves.
        Use::Read | Use::ReadPart => {
            let is_qemu = |byte: u64| {
                let found = conflicting(file, Kind::Exclusive, &(byte..byte + 1));
                found.is_some_and(|lock| lock.l_start >= READS as libc::off_t)
            };
            let has_part_writer = || {
                let found = conflicting(file, Kind::Exclusive, &(WRITES_PART..READS));
                found.is_some_and(|lock| lock.l_start == WRITES_PART as libc::off_t)
            };
            let writes = || is_qemu(WRITES) || is_qemu(RESIZES) || has_part_writer();
            has_exclusive() || is_qemu(READS_ALONE) || (usage == Use::Read && writes())
        }
    }
}

fn unlock_ranges(file: &OwnedFd) {
    let mut request = request(libc::F_UNLCK, &EVERYTHING);
    let _ = control(file, libc::F_OFD_SETLK, &mut request);
}

/// Locks a range. Returns false if another open file has a conflicting lock.
fn set(file: &OwnedFd, kind: Kind, range: &Range<u64>) -> bool {
    let mut request = request(kind.number(), range);
    // Other errors mean that the host has no such locks.
    !matches!(control(file, libc::F_OFD_SETLK, &mut request), Err(Errno::AGAIN | Errno::ACCESS))
}

/// Returns whether another open file has a lock in `range` that conflicts with one of this kind.
fn conflicts(file: &OwnedFd, kind: Kind, range: Range<u64>) -> bool {
    conflicting(file, kind, &range).is_some()
}

/// Returns a lock of another open file in `range` that conflicts with one of this kind.
fn conflicting(file: &OwnedFd, kind: Kind, range: &Range<u64>) -> Option<libc::flock> {
    let mut request = request(kind.number(), range);
    control(file, libc::F_OFD_GETLK, &mut request).ok()?;
    (i32::from(request.l_type) != libc::F_UNLCK).then_some(request)
}

impl Kind {
    fn number(self) -> i32 {
        match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        }
    }
}

fn request(kind: i32, range: &Range<u64>) -> libc::flock {
    let is_open = range.end == EVERYTHING.end;
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start as libc::off_t,
        // Zero means up to the end, wherever it will be.
        l_len: if is_open { 0 } else { (range.end - range.start) as libc::off_t },
        l_pid: 0,
    }
}

fn control(file: &OwnedFd, command: i32, request: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: both commands read one `struct flock`, and may store to it, which lives until the
    // call returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *request) } {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// A lock of a file or device that has the bytes of another device, such as the file of a loop
/// device. It excludes programs that use it as a whole, and not those that use other parts of it.
#[derive(Debug)]
pub struct PartLock {
    file: OwnedFd,
    /// The process that took the lock. A forked one shares it and must not release it.
    opened_by: Pid,
}

impl PartLock {
    /// Locks the file or block device at `path`, of which other parts may have users, too. Errors:
    /// EBUSY if another program uses the whole of it.
    pub fn take(path: &Path, read_only: bool, has_others: bool) -> Result<Self> {
        let failed = |errno: Errno| Error::Open { path: path.into(), errno: errno.raw_os_error() };
        let file = open(path).map_err(failed)?;
        let usage = if read_only { Use::ReadPart } else { Use::WritePart { has_others } };
        lock(&file, usage).map_err(failed)?;
        Ok(Self { file, opened_by: rustix::process::getpid() })
    }
}

impl AsFd for PartLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for PartLock {
    fn drop(&mut self) {
        if self.opened_by == rustix::process::getpid() {
            unlock(&self.file);
        }
    }
}

/// Returns whether another program has locked the file or block device at `path` in any way that a
/// writer of all of it must respect. One that cannot be opened counts as not locked.
pub fn is_locked(path: &Path) -> bool {
    is_locked_for(path, FlockOperation::NonBlockingLockExclusive, Use::Write)
}

/// Returns whether another program has locked the file or block device at `path` as a whole, which
/// a writer of a part of it must respect. One that cannot be opened counts as not locked.
pub fn is_locked_as_whole(path: &Path) -> bool {
    let usage = Use::WritePart { has_others: true };
    is_locked_for(path, FlockOperation::NonBlockingLockShared, usage)
}

fn is_locked_for(path: &Path, operation: FlockOperation, usage: Use) -> bool {
    let Ok(file) = open(path) else { return false };
    rustix::fs::flock(&file, operation) == Err(Errno::WOULDBLOCK) || is_locked_against(&file, usage)
}

/// Opens a file that is not read or written.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty())
}
