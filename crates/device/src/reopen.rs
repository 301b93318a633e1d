//! Opening an image for writing that is open for reading already, in another process: the
//! descriptor is passed to the process that reads the image, which may have no right to open files.
//! Not here: the other users of the image's host devices.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use base::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::file::{FileDevice, Properties, is_protected_device};
use crate::lock;
use crate::open::Image;
use crate::{OpenDevice, SharedDevice};

/// An image that is open for reading, and how to open it for writing. Processes that were forked
/// since can each use it.
#[derive(Debug)]
pub struct Reopen {
    /// The path for messages.
    path: PathBuf,
    /// The file that is open for reading. It has the lock, also for the one that is open for
    /// writing.
    reader: OwnedFd,
    options: OpenDevice,
    properties: Properties,
}

impl Reopen {
    /// Returns the way to open `image`, which was opened by `path`, for writing.
    pub fn new(image: &Image, path: &Path) -> Result<Self> {
        let (file, options) = image.file_and_options();
        let reader = file.duplicate().map_err(|errno| failed(path, errno))?;
        let options = OpenDevice { read_only: false, ..options };
        Ok(Self { path: path.into(), reader, options, properties: file.properties() })
    }

    /// Returns the path by which the image was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the image for writing, and makes the lock that of a writer. This is the same file or
    /// device, whatever its path leads to by now.
    ///
    /// # Errors
    ///
    /// EBUSY if another program uses the image, EROFS if the host refuses all writes to it. The
    /// lock is then that of a reader.
    pub fn open(&self) -> Result<OwnedFd> {
        self.open_file().map_err(|errno| failed(&self.path, errno))
    }

    fn open_file(&self) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", self.reader.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let writer = rustix::fs::open(path, flags, Mode::empty())?;
        if is_protected_device(&writer)? {
            return Err(Errno::ROFS);
        }
        rustix::fs::fcntl_setfl(&writer, OFlags::RDWR)?;
        lock::upgrade(&self.reader, &writer)?;
        Ok(writer)
    }

    /// Returns the device of `writer`, which another process has opened by [`open`](Self::open).
    /// This reads what [`Image::device`] reads. Keeps the lock as long as the device.
    pub fn device(&self, writer: OwnedFd) -> Result<SharedDevice> {
        let reader = rustix::io::fcntl_dupfd_cloexec(&self.reader, 3);
        let reader = reader.map_err(|errno| failed(&self.path, errno))?;
        let file = FileDevice::reopened(writer, reader, self.properties);
        let file = file.map_err(|errno| failed(&self.path, errno))?;
        Image::of_file(file, self.options).device()
    }

    /// Makes the lock that of a reader again, after everything that was opened for writing was
    /// closed.
    ///
    /// # Errors
    ///
    /// EBUSY if another program has locked the image in between, and keeps it. It may then change
    /// the image.
    pub fn give_up(&self) -> Result<()> {
        lock::downgrade(&self.reader).map_err(|errno| failed(&self.path, errno))
    }
}

fn failed(path: &Path, errno: Errno) -> Error {
    Error::Open { path: path.into(), errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_reader_becomes_a_writer_only_without_other_users() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, [7; 4096]).unwrap();
        let reading = OpenDevice::default();
        let writing = OpenDevice { read_only: false, ..reading };
        let is_busy = |error: Error| {
            let busy = Errno::BUSY.raw_os_error();
            matches!(error, Error::Open { errno, .. } if errno == busy)
        };
        let image = Image::open(&path, reading).unwrap();
        let reopen = Reopen::new(&image, &path).unwrap();

        let other = Image::open(&path, reading).unwrap();
        assert!(is_busy(reopen.open().unwrap_err()), "another reader");
        // Its lock is still that of a reader.
        assert!(is_busy(Image::open(&path, writing).unwrap_err()));
        drop(other);

        // The path leads to another file.
        let moved = folder.path().join("moved");
        std::fs::rename(&path, &moved).unwrap();
        File::create(&path).unwrap();
        let device = reopen.device(reopen.open().unwrap()).unwrap();
        // In the process that has opened it, the image would end the lock.
        std::mem::forget(image);
        assert!(is_busy(Image::open(&moved, reading).unwrap_err()), "a writer excludes readers");
        device.write_zeroes(base::DeviceOffset(0), 512).unwrap();
        device.flush().unwrap();
        let mut found = [7; 1024];
        File::open(&moved).unwrap().read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [[0; 512], [7; 512]].concat()[..]);

        drop(device);
        reopen.give_up().unwrap();
        let other = Image::open(&moved, reading).unwrap();
        drop(other);
        assert!(is_busy(Image::open(&moved, writing).unwrap_err()));
    }

    #[test]
    fn a_reader_says_that_another_program_has_its_lock() {
        use rustix::fs::{FlockOperation, flock};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, [7; 4096]).unwrap();
        let image = Image::open(&path, OpenDevice::default()).unwrap();
        let reopen = Reopen::new(&image, &path).unwrap();
        // As Linux does before it tries to take an exclusive lock.
        flock(&reopen.reader, FlockOperation::Unlock).unwrap();
        let other = File::open(&path).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(reopen.give_up().is_err());
        // One that has it for a moment is waited for.
        std::thread::scope(|scope| {
            scope.spawn(|| flock(&other, FlockOperation::Unlock).unwrap());
            reopen.give_up().unwrap();
        });
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
    }
}
