//! Opens an image: chooses the backend, and the part of the image that is the volume.

use std::path::Path;
use std::sync::Arc;

use base::{DeviceOffset, Error, Result};
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::SharedDevice;
use crate::block_ioctl;
use crate::file::FileDevice;
use crate::partition::PartitionTable;
use crate::slice::Slice;
use crate::threaded::ThreadedDevice;
use crate::uring::UringDevice;

/// How to open an image.
#[derive(Clone, Copy, Debug)]
pub struct OpenDevice {
    /// Refuse every write, and let others read the image at the same time.
    pub read_only: bool,
    /// Claim a block device that is opened for writing, so that the host's file systems and other exclusive
    /// users are refused. Off for callers for which the host claims the device in another way.
    pub exclusive: bool,
    /// Which part of the image to open.
    pub part: Part,
    /// Who does the work.
    pub backend: Backend,
}

impl Default for OpenDevice {
    fn default() -> Self {
        Self { read_only: true, exclusive: true, part: Part::Whole, backend: Backend::Threads }
    }
}

/// A part of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// From a byte to the end.
    From(DeviceOffset),
    /// The partition of this number in the image's partition table.
    Partition(u32),
}

/// Who does the work of a bio whose submitter does not wait for it. What is waited for is always
/// done by its submitter.
///
/// Measured with readahead two windows ahead of a reader that copies everything once (2 cores,
/// Linux 6.18; medians in GiB/s, windows of 1 MiB; random reads of 4 KiB in batches of 32, in
/// thousands per second):
///
/// | | submitter | 1 thread | 4 threads | io_uring |
/// |---|---|---|---|---|
/// | file on tmpfs, sequential | 4.8 | 4.6 | 6.7 | 4.6 |
/// | file on disk in the host's cache, sequential | 12.5 | 11.8 | 11.7 | 11.2 |
/// | file on disk, sequential | 2.3 | 1.9 | 2.3 | 2.4 |
/// | file on disk, random | 9 | 5 | 15 | 14 |
///
/// Reading through the host's cache is copying, which one ring's thread does one request after the
/// other, while threads use all processors; so threads are the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// A few threads with system calls, started by the first bio that nobody waits for.
    Threads,
    /// io_uring, or threads where the host has none.
    Uring,
    /// Always the submitter.
    Submitter,
}

/// Bios that wait for a thread or are with the kernel, at most.
const DEPTH: usize = 64;
/// Threads that work on one file.
const THREADS: usize = 4;

/// Opens the file or block device at `path`.
///
/// Threads do not survive a fork: a program that goes into the background does so first.
pub fn open(path: &Path, options: OpenDevice) -> Result<SharedDevice> {
    Image::open(path, options)?.device()
}

/// Returns whether the host refuses all writes to the file or block device at `path`: the device, or the file
/// system that holds the file, is read-only.
pub fn is_write_protected(path: &Path) -> Result<bool> {
    let failed = |errno: Errno| Error::Open { path: path.into(), errno: errno.raw_os_error() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(failed)?.st_mode);
    match kind {
        FileType::BlockDevice => block_ioctl::is_write_protected(&file).map_err(failed),
        _ => {
            let host = rustix::fs::fstatvfs(&file).map_err(failed)?;
            Ok(host.f_flag.contains(StatVfsMountFlags::RDONLY))
        }
    }
}

/// A file or block device that is open, but of which nothing has been read. A program that does not
/// trust what is in it can give up its privileges at this point.
#[derive(Debug)]
pub struct Image {
    file: FileDevice,
    options: OpenDevice,
}

impl Image {
    /// Opens the file or block device at `path`.
    pub fn open(path: &Path, options: OpenDevice) -> Result<Self> {
        let file = FileDevice::open_with(path, options.read_only, options.exclusive)?;
        Ok(Self { file, options })
    }

    /// The part of it that was asked for.
    pub fn device(self) -> Result<SharedDevice> {
        let sector_size = self.file.sector_size();
        let device = start(Arc::new(self.file), self.options.backend);
        match self.options.part {
            Part::Whole => Ok(device),
            Part::From(start) => Ok(Arc::new(Slice::from(device, start)?)),
            Part::Partition(number) => {
                let table = PartitionTable::read(&*device, sector_size)?;
                Ok(Arc::new(table.open(device, number)?))
            }
        }
    }
}

fn start(file: Arc<FileDevice>, backend: Backend) -> SharedDevice {
    match backend {
        Backend::Submitter => return file,
        Backend::Threads => {}
        Backend::Uring => match UringDevice::new(Arc::clone(&file), DEPTH) {
            Ok(device) => return Arc::new(device),
            Err(error) => tracing::info!(%error, "no io_uring here: using threads"),
        },
    }
    Arc::new(ThreadedDevice::new(file, THREADS, DEPTH))
}
