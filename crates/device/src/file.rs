//! A device over a regular file or a block device of the host, read and written by the submitting
//! thread. Not here: I/O on other threads (`threaded`, `uring`), and parts of a device (`slice`).

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{DeviceOffset, Error, IoError, IoOperation, Result};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::Pid;
use smallvec::SmallVec;

use crate::bio::{EIO, EROFS, range_within};
use crate::block_ioctl::is_write_protected;
use crate::lock::{self, PartLock, Use};
use crate::partition::SectorSize;
use crate::{Bio, BioOperation, BlockDevice, OpenDevice, everything_from};

/// The maximum number of segments in one system call (IOV_MAX).
const SEGMENTS_PER_CALL_MAX: usize = 1024;
/// A buffer of zeroes, for hosts that cannot zero a range themselves.
const ZEROES: &[u8] = &[0; 64 * 1024];

/// A file or block device of the host. Its size is that of the time when it was opened.
#[derive(Debug)]
pub struct FileDevice {
    file: OwnedFd,
    size: u64,
    read_only: bool,
    sector_size: Option<SectorSize>,
    /// The size of the host's pages, which a confined program cannot query.
    page_bytes: u64,
    /// The process that took the lock. A forked one shares it and must not release it.
    opened_by: Pid,
    /// Whether another program had locked the image for writing when it was opened.
    is_written_elsewhere: bool,
    /// Whether the file was found to be smaller than when it was opened.
    is_cut: AtomicBool,
    /// Locks that end with the device.
    held: Vec<PartLock>,
    /// Another open file of the image, which has a part of its lock.
    _locked: Option<OwnedFd>,
}

/// What a confined process cannot find out about a device that it gets open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    sector_size: Option<SectorSize>,
    page_bytes: u64,
    opened_by: Pid,
}

impl FileDevice {
    /// Opens the image at `path`. Readers share it, and a writer has it alone (advisory locks, also
    /// those of other programs such as QEMU; see `lock`). A reader is not refused if another
    /// program than Bifolio writes the image. A file that the host cannot lock is opened without a
    /// lock. The lock ends with the device, even if a child of this process still has a copy of the
    /// descriptor. Errors: EBUSY if another program has locked the image; EROFS for writing, if the
    /// host refuses all writes to the block device.
    pub fn open(path: &Path, read_only: bool) -> Result<Self> {
        Self::open_with(path, &OpenDevice { read_only, ..OpenDevice::default() })
    }

    /// Opens like [`open`](Self::open), with the options for claims and locks of `options`.
    pub(crate) fn open_with(path: &Path, options: &OpenDevice) -> Result<Self> {
        Self::open_file(path, options)
            .map_err(|errno| Error::Open { path: path.into(), errno: errno.raw_os_error() })
    }

    fn open_file(path: &Path, options: &OpenDevice) -> Result<Self, Errno> {
        let OpenDevice { read_only, exclusive, .. } = *options;
        // Without O_NONBLOCK, opening a pipe would wait for its other end.
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut file = rustix::fs::open(path, flags, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => {}
            FileType::BlockDevice => {
                if !read_only && is_protected_device(&file)? {
                    return Err(Errno::ROFS);
                }
                if !read_only && exclusive {
                    // Fails with EBUSY while the host has the device mounted.
                    file = rustix::fs::open(path, flags | OFlags::EXCL, Mode::empty())?;
                }
            }
            FileType::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::NOTBLK),
        }
        // O_NONBLOCK is not needed any more. With it, io_uring would fail rather than wait.
        rustix::fs::fcntl_setfl(&file, access)?;
        let is_written_elsewhere = lock::lock(&file, usage(options))?;
        let size = rustix::fs::seek(&file, SeekFrom::End(0))?;
        let sector_size = match rustix::fs::ioctl_blksszget(&file) {
            Ok(512) => Some(SectorSize::B512),
            Ok(4096) => Some(SectorSize::B4096),
            _ => None,
        };
        let opened_by = rustix::process::getpid();
        let page_bytes = rustix::param::page_size() as u64;
        Ok(Self {
            file,
            size,
            read_only,
            sector_size,
            page_bytes,
            opened_by,
            is_written_elsewhere,
            is_cut: AtomicBool::new(false),
            held: Vec::new(),
            _locked: None,
        })
    }

    /// Returns the device of `file`, which another process has opened for writing, and locked.
    /// `locked` has the rest of the lock.
    pub(crate) fn reopened(
        file: OwnedFd,
        locked: OwnedFd,
        properties: Properties,
    ) -> Result<Self, Errno> {
        let Properties { sector_size, page_bytes, opened_by } = properties;
        let size = rustix::fs::seek(&file, SeekFrom::End(0))?;
        Ok(Self {
            file,
            size,
            read_only: false,
            sector_size,
            page_bytes,
            opened_by,
            is_written_elsewhere: false,
            is_cut: AtomicBool::new(false),
            held: Vec::new(),
            _locked: Some(locked),
        })
    }

    /// Returns what [`reopened`](Self::reopened) needs.
    pub(crate) fn properties(&self) -> Properties {
        let Self { sector_size, page_bytes, opened_by, .. } = *self;
        Properties { sector_size, page_bytes, opened_by }
    }

    /// Returns another descriptor of the open file.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 3)
    }

    /// Returns whether another program had locked the image for writing when it was opened.
    pub(crate) fn is_written_elsewhere(&self) -> bool {
        self.is_written_elsewhere
    }

    /// Keeps `locks` until the device is dropped.
    pub(crate) fn hold(&mut self, locks: Vec<PartLock>) {
        self.held.extend(locks);
    }

    /// Returns the sector size for partition tables, if the device is a disk and not an image of
    /// one.
    pub(crate) fn sector_size(&self) -> Option<SectorSize> {
        self.sector_size
    }

    /// Checks a bio. Errors: EINVAL outside the device, EROFS for writes to a read-only device.
    pub(crate) fn check(&self, bio: &Bio) -> Result<(), i32> {
        bio.range_within(self.size)?;
        match bio.operation() {
            BioOperation::Write if self.read_only => Err(EROFS),
            BioOperation::Write => self.check_size().map_err(Errno::raw_os_error),
            BioOperation::Read => Ok(()),
        }
    }

    /// Checks that the file has at least the size that it had when it was opened. A write past the
    /// end of a file that was cut would succeed, although what was between is lost. After the first
    /// failure, all further writes and flushes fail.
    fn check_size(&self) -> Result<(), Errno> {
        if self.is_cut.load(Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        match rustix::fs::seek(&self.file, SeekFrom::End(0)) {
            Ok(size) if size < self.size => {
                self.report_cut(size);
                Err(Errno::IO)
            }
            _ => Ok(()),
        }
    }

    /// Logs that the file has `size` bytes only, the first time that it is found out.
    fn report_cut(&self, size: u64) {
        if !self.is_cut.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "the image was cut from {} to {size} bytes while it is in use: the rest is lost, and it is not written any \
                 more",
                self.size
            );
        }
    }

    /// Reads or writes the rest of a checked `bio` after its first `done` bytes.
    pub(crate) fn transfer(&self, bio: &mut Bio, mut done: u64) -> Result<(), i32> {
        while done < bio.length() {
            let at = bio.offset().0 + done;
            let moved = match bio.operation() {
                BioOperation::Read => {
                    let mut slices = SmallVec::<[IoSliceMut<'_>; 16]>::new();
                    slices.extend(
                        bio.memory_mut().filter(|one| !one.is_empty()).map(IoSliceMut::new),
                    );
                    let mut left = &mut slices[..];
                    IoSliceMut::advance_slices(&mut left, done as usize);
                    let count = left.len().min(SEGMENTS_PER_CALL_MAX);
                    rustix::io::preadv(&self.file, &mut left[..count], at)
                }
                BioOperation::Write => {
                    let mut slices = SmallVec::<[IoSlice<'_>; 16]>::new();
                    let segments = bio.segments().iter().filter(|one| !one.is_empty());
                    slices.extend(segments.map(|one| IoSlice::new(one.bytes())));
                    let mut left = &mut slices[..];
                    IoSlice::advance_slices(&mut left, done as usize);
                    let count = left.len().min(SEGMENTS_PER_CALL_MAX);
                    rustix::io::pwritev(&self.file, &left[..count], at)
                }
            };
            match moved {
                // The range is within the size at opening, so the file was truncated since.
                Ok(0) => {
                    self.report_cut(at);
                    return Err(EIO);
                }
                Ok(bytes) => done += bytes as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.raw_os_error()),
            }
        }
        Ok(())
    }

    /// Checks an operation that changes the device.
    fn writable_range(
        &self,
        operation: IoOperation,
        offset: DeviceOffset,
        length: u64,
    ) -> Result<Change, IoError> {
        let failed = |errno| IoError { operation, offset, length, errno };
        range_within(operation, offset, length, self.size)?;
        if self.read_only {
            return Err(failed(EROFS));
        }
        self.check_size().map_err(|errno| failed(errno.raw_os_error()))?;
        Ok(Change { operation, offset, length })
    }

    /// Changes a range by fallocate(2). Returns false if the host does not support that.
    fn fallocate(&self, change: &Change, flags: FallocateFlags) -> Result<bool, IoError> {
        loop {
            match rustix::fs::fallocate(&self.file, flags, change.offset.0, change.length) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(false),
                Err(errno) => return Err(change.failed(errno)),
            }
        }
    }

    fn fill_with_zeroes(&self, change: &Change) -> Result<(), IoError> {
        let mut done = 0;
        while done < change.length {
            let count = (change.length - done).min(ZEROES.len() as u64) as usize;
            match rustix::io::pwrite(&self.file, &ZEROES[..count], change.offset.0 + done) {
                Ok(0) => return Err(change.failed(Errno::IO)),
                Ok(bytes) => done += bytes as u64,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(change.failed(errno)),
            }
        }
        Ok(())
    }
}

impl AsRawFd for FileDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A discard or zeroing within the bounds of the device.
struct Change {
    operation: IoOperation,
    offset: DeviceOffset,
    length: u64,
}

impl Change {
    fn failed(&self, errno: Errno) -> IoError {
        let errno = errno.raw_os_error();
        IoError { operation: self.operation, offset: self.offset, length: self.length, errno }
    }
}

/// Returns whether the host refuses all writes to an open file because it is a block device that is
/// read-only. Opening one for writing succeeds, but each write fails with EPERM.
pub(crate) fn is_protected_device(file: &OwnedFd) -> Result<bool, Errno> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
    Ok(kind == FileType::BlockDevice && is_write_protected(file)?)
}

/// Returns the use of the image that its lock announces.
fn usage(options: &OpenDevice) -> Use {
    match (options.read_only, options.shares_other_parts) {
        (true, false) => Use::Read,
        (true, true) => Use::ReadPart,
        (false, false) => Use::Write,
        (false, true) => Use::WritePart { has_others: true },
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // Any thread may have started a child. Between its fork and its exec, the child has a copy
        // of the descriptor, so closing this one alone would not end the lock.
        if self.opened_by == rustix::process::getpid() {
            lock::unlock(&self.file);
        }
    }
}

impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn submit(&self, batch: Vec<Bio>) {
        for mut bio in batch {
            let result = self.check(&bio).and_then(|()| self.transfer(&mut bio, 0));
            bio.end(result);
        }
    }

    fn flush(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        // fdatasync flushes a block device's own cache, too. It must not be repeated after a
        // failure: the host drops data that it could not write, so the second call would succeed
        // although data is lost. Bytes that were cut are not durable either.
        let flushed = rustix::fs::fdatasync(&self.file).and_then(|()| self.check_size());
        flushed.map_err(|errno| IoError {
            operation: IoOperation::Flush,
            offset: DeviceOffset(0),
            length: self.size,
            errno: errno.raw_os_error(),
        })?;
        Ok(())
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let change = self.writable_range(IoOperation::Discard, offset, length)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if length == 0 || self.fallocate(&change, punch)? {
            Ok(())
        } else {
            Err(change.failed(Errno::OPNOTSUPP).into())
        }
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let change = self.writable_range(IoOperation::WriteZeroes, offset, length)?;
        if length == 0 || self.fallocate(&change, FallocateFlags::ZERO_RANGE)? {
            return Ok(());
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if !self.fallocate(&change, punch)? {
            self.fill_with_zeroes(&change)?;
        }
        Ok(())
    }

    fn refresh(&self, offset: DeviceOffset, length: u64) {
        // Drops clean pages from the host's cache, but only whole ones. If the host refuses, reads
        // see at least this host's writes.
        let start = offset.0 / self.page_bytes * self.page_bytes;
        let end = offset.0.saturating_add(length).div_ceil(self.page_bytes);
        let end = end.saturating_mul(self.page_bytes);
        let length = std::num::NonZeroU64::new(end.saturating_sub(start));
        let _ = rustix::fs::fadvise(&self.file, start, length, rustix::fs::Advice::DontNeed);
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        let everything = everything_from(offset, self.size)?;
        // The position of the file has no other use, so threads may change it at the same time.
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(offset.0)) {
            Ok(start) if start < self.size => start,
            // The host reports a hole up to the end by ENXIO.
            Ok(_) | Err(Errno::NXIO) => return None,
            Err(_) => return Some(everything),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start)).unwrap_or(self.size);
        Some(DeviceOffset(start)..DeviceOffset(end.min(self.size)))
    }
}
