//! The calls of `std::fs::File` and `std::os::unix::fs::FileExt`, and the traits of `std::io`, for
//! open files. Not here: calls for servers, with privileges and flags (`file/mod.rs`,
//! `file/synchronous.rs`).
//!
//! The calls have the names, arguments and meanings of the standard library's, but return this
//! library's errors. The `std::io` traits read and write at a position that all users of a [`File`]
//! share, and return `std::io::Error`.

use std::fs::Permissions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::SystemTime;

use base::attributes::{AttributeChange, Attributes};
use base::{Error, FileOffset, Result};
use fs::Credentials;

use crate::file::File;
use crate::file::rw_flags::{RwFlags, WriteAt};
use crate::node::rights::Privileges;

impl File {
    /// Reads at byte `offset`. Returns the number of bytes, which is less than the buffer's length
    /// only at the end of the file. Does not change the file's position.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_with(FileOffset(offset), buffer, RwFlags::default())
    }

    /// Fills `buffer` from byte `offset` on. The file's position stays. Errors: `UnexpectedEof` if
    /// the file ends before the last byte; then the contents of `buffer` are unspecified.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let length = self.read_at(buffer, offset)?;
        if length < buffer.len() { Err(Error::UnexpectedEof) } else { Ok(()) }
    }

    /// Writes `data` into the cache, at byte `offset`, or at the end if the file was opened to
    /// append. Returns the number of bytes written. It is less than the length of `data` only after
    /// an error, which the next write reports. The file's position stays. Setuid and setgid bits
    /// stay, too, as for root.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        let at = self.write_position(offset);
        self.write_with(at, data, Privileges::Keep, RwFlags::default())
    }

    /// Writes all of `data`, as [`write_at`](Self::write_at) does. After an error, a part of it may
    /// be written.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let length = self.write_at(data, offset)?;
            assert!(length > 0, "a write of no bytes succeeded");
            data = &data[length..];
            // The offset is ignored for a file that was opened to append.
            offset = offset.saturating_add(length as u64);
        }
        Ok(())
    }

    /// Makes the file's data and attributes durable. Errors: also the first writeback error since
    /// the file was opened, or since the last error was reported.
    pub fn sync_all(&self) -> Result<()> {
        self.node().sync_with(0..u64::MAX, false, self.errors())
    }

    /// [`sync_all`](Self::sync_all), but makes attributes durable only if reading the data needs
    /// them.
    pub fn sync_data(&self) -> Result<()> {
        self.node().sync_with(0..u64::MAX, true, self.errors())
    }

    /// Truncates the file to `size` bytes, or extends it by a hole. Setuid and setgid bits stay, as
    /// for root. Errors: `InvalidArgument` if the file was not opened for writing.
    pub fn set_len(&self, size: u64) -> Result<()> {
        if !self.mode().write {
            // EINVAL, as ftruncate(2) fails.
            return Err(Error::InvalidArgument("the file was not opened for writing"));
        }
        self.node().set_size(size, Privileges::Keep)
    }

    /// Returns the file's attributes.
    pub fn metadata(&self) -> Result<Attributes> {
        Ok(self.node().attributes())
    }

    /// Sets the time of the last change of the contents.
    pub fn set_modified(&self, time: SystemTime) -> Result<()> {
        let modified = Some(time.into());
        let change = AttributeChange { modified, ..AttributeChange::default() };
        self.node().set_attributes(&change, &Credentials::ROOT)
    }

    /// Sets the file's permissions, with setuid, setgid and sticky.
    pub fn set_permissions(&self, permissions: Permissions) -> Result<()> {
        self.node().set_permissions(&permissions)
    }

    /// Returns where a write at byte `offset` goes: to the end if the file was opened to append.
    fn write_position(&self, offset: u64) -> WriteAt {
        if self.mode().append { WriteAt::End } else { WriteAt::Offset(FileOffset(offset)) }
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let length = self.read_at(buffer, *position)?;
        *position += length as u64;
        Ok(length)
    }
}

impl Write for &File {
    /// Writes at the file's position, or at the end if the file was opened to append. Afterwards,
    /// the position is the end of the written data.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let at = self.write_position(*position);
        let written = self.write_range(at, data, Privileges::Keep, RwFlags::default())?;
        if !data.is_empty() {
            *position = written.end;
        }
        Ok((written.end - written.start) as usize)
    }

    /// Does nothing, like that of `std::fs::File`. [`File::sync_all`] makes the data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(distance) => self.node().attributes().size.checked_add_signed(distance),
            SeekFrom::Current(distance) => position.checked_add_signed(distance),
        };
        let invalid = Error::InvalidArgument("a seek to a negative or overflowing position");
        *position = target.filter(|at| i64::try_from(*at).is_ok()).ok_or(invalid)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
