//! Opening an image: the choice of the backend, and of the part of the image that is the volume.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use base::{DeviceOffset, Error, Result};
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::block_ioctl;
use crate::container;
use crate::file::FileDevice;
use crate::lock::PartLock;
use crate::partition::{PartitionTable, SectorSize};
use crate::slice::Slice;
use crate::threaded::ThreadedDevice;
use crate::uring::UringDevice;
use crate::{BlockDevice, SharedDevice};

/// Options for opening an image.
#[derive(Clone, Copy, Debug)]
pub struct OpenDevice {
    /// Refuse all writes, and allow other readers of the image.
    pub read_only: bool,
    /// Claim a block device that is opened for writing, so that the host cannot mount it and other
    /// exclusive users are refused. Off for callers that have the host claim the device in another
    /// way.
    pub exclusive: bool,
    /// Lock the image so that other programs can use other parts of it. For callers that make sure
    /// that no other program uses theirs.
    pub shares_other_parts: bool,
    /// The part of the image to open.
    pub part: Part,
    /// Whether a partition may end after the image does. Then the part ends there. For reading
    /// only.
    pub incomplete: bool,
    /// The threads that do I/O.
    pub backend: Backend,
}

impl Default for OpenDevice {
    fn default() -> Self {
        Self {
            read_only: true,
            exclusive: true,
            shares_other_parts: false,
            part: Part::Whole,
            incomplete: false,
            backend: Backend::Threads,
        }
    }
}

impl OpenDevice {
    /// Returns the part of `device` that is chosen. `None` if that is all of it.
    fn part_of(
        &self,
        device: &SharedDevice,
        sector_size: Option<SectorSize>,
    ) -> Result<Option<Slice>> {
        let whole = || Arc::clone(device);
        match self.part {
            Part::Whole => Ok(None),
            Part::From(start) => Slice::from(whole(), start).map(Some),
            Part::Partition(number) => {
                let table = read_table(&**device, sector_size)?;
                match table.open(whole(), number) {
                    Err(Error::Corrupt(_)) if self.incomplete => {
                        let part = table.open_present(whole(), number);
                        part.map(Some).ok_or(Error::InvalidArgument(
                            "the partition begins past the end of the image",
                        ))
                    }
                    part => part.map(Some),
                }
            }
        }
    }
}

/// A part of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The whole image.
    Whole,
    /// From a byte to the end.
    From(DeviceOffset),
    /// The partition of this number in the image's partition table.
    Partition(u32),
}

/// The threads that do I/O for bios whose submitter does not wait for them. A submitter that waits
/// always does the I/O itself.
///
/// Measured with readahead two readahead windows ahead of a reader that copies all data once (2
/// cores, Linux 6.18; medians in GiB/s, readahead windows of 1 MiB; random reads of 4 KiB in
/// batches of 32, in thousands per second):
///
/// | | submitter | 1 thread | 4 threads | io_uring |
/// |---|---|---|---|---|
/// | file on tmpfs, sequential | 4.8 | 4.6 | 6.7 | 4.6 |
/// | file on disk in the host's cache, sequential | 12.5 | 11.8 | 11.7 | 11.2 |
/// | file on disk, sequential | 2.3 | 1.9 | 2.3 | 2.4 |
/// | file on disk, random | 9 | 5 | 15 | 14 |
///
/// Reads from the host's cache are copies. A ring's thread does them one after the other, while
/// several threads use all processors. So threads are the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// A few threads with system calls, started by the first bio that no submitter waits for.
    Threads,
    /// io_uring, or threads if the host has none.
    Uring,
    /// Always the submitter.
    Submitter,
}

/// The maximum number of bios that wait for a thread or are in flight in the kernel.
const DEPTH: usize = 64;
/// The number of threads for one file.
const THREADS: usize = 4;

/// Opens the file or block device at `path`.
///
/// Threads do not survive a fork, so a program that runs in the background must fork before this.
pub fn open(path: impl AsRef<Path>, options: OpenDevice) -> Result<SharedDevice> {
    Image::open(path.as_ref(), options)?.device()
}

/// Returns whether the host refuses all writes to the file or block device at `path`: the device,
/// or the file system that holds the file, is read-only.
pub fn is_write_protected(path: &Path) -> Result<bool> {
    let failed = |errno: Errno| Error::Open { path: path.into(), errno: errno.raw_os_error() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(failed)?.st_mode);
    if kind == FileType::BlockDevice {
        return block_ioctl::is_write_protected(&file).map_err(failed);
    }
    let host = rustix::fs::fstatvfs(&file).map_err(failed)?;
    Ok(host.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// A file or block device that is open but was not read yet. A program that does not trust its
/// contents can drop its privileges before it reads them.
#[derive(Debug)]
pub struct Image {
    file: Arc<FileDevice>,
    options: OpenDevice,
}

impl Image {
    /// Opens the file or block device at `path`.
    pub fn open(path: &Path, options: OpenDevice) -> Result<Self> {
        let file = FileDevice::open_with(path, &options)?;
        Ok(Self { file: Arc::new(file), options })
    }

    /// Returns the image of an open file.
    pub(crate) fn of_file(file: FileDevice, options: OpenDevice) -> Self {
        Self { file: Arc::new(file), options }
    }

    /// Returns the open file, and the options by which it was opened.
    pub(crate) fn file_and_options(&self) -> (&FileDevice, OpenDevice) {
        (&self.file, self.options)
    }

    /// Returns whether another program than Bifolio had locked the image for writing when it was
    /// opened for reading.
    pub fn is_written_elsewhere(&self) -> bool {
        self.file.is_written_elsewhere()
    }

    /// Keeps `locks` as long as the device of the image.
    pub fn hold(&mut self, locks: Vec<PartLock>) {
        Arc::get_mut(&mut self.file).expect("the device was not started").hold(locks);
    }

    /// Returns the requested part for reading. Returns `None` if that is the whole file, or if the
    /// file is another container, whose contents have other positions. Reads what
    /// [`device`](Self::device) reads.
    pub fn part(&self) -> Result<Option<Slice>> {
        let device: SharedDevice = Arc::clone(&self.file) as _;
        let contents = container::unpack(Arc::clone(&device), true)?;
        if !Arc::ptr_eq(&contents, &device) {
            return Ok(None);
        }
        self.options.part_of(&device, self.file.sector_size())
    }

    /// Returns the device for the requested part. This reads the beginning of the image, and may
    /// read a partition table. An Android sparse image is opened as the image that it contains.
    /// Errors: `Unsupported` if an Android sparse image is opened for writing, or if the image of
    /// the requested partition is in another container.
    pub fn device(self) -> Result<SharedDevice> {
        let sector_size = self.file.sector_size();
        let device = start(self.file, self.options.backend);
        let device = container::unpack(device, self.options.read_only)?;
        let part = self.options.part_of(&device, sector_size)?;
        Ok(part.map_or(device, |part| Arc::new(part)))
    }
}

/// The open file, which has the lock of the image.
impl AsFd for Image {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Reads the partition table. Errors: if the image is in another container, the error names it.
fn read_table(device: &dyn BlockDevice, sector_size: Option<SectorSize>) -> Result<PartitionTable> {
    PartitionTable::read(device, sector_size).map_err(|error| match error {
        Error::Unsupported(_) => container::refusal(device).unwrap_or(error),
        error => error,
    })
}

/// Returns `file` with its backend.
fn start(file: Arc<FileDevice>, backend: Backend) -> SharedDevice {
    match backend {
        Backend::Submitter => return file,
        Backend::Threads => {}
        Backend::Uring => match UringDevice::new(Arc::clone(&file), DEPTH) {
            Ok(device) => return Arc::new(device),
            Err(error) => tracing::info!(%error, "io_uring is not available: using threads"),
        },
    }
    Arc::new(ThreadedDevice::new(file, THREADS, DEPTH))
}
