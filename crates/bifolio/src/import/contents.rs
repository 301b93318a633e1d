//! Copies of the data of a file into an image. Holes are preserved.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::FileOffset;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use vfs::{Node, OpenMode, Privileges};

use super::CopyError;
use crate::archive::{Member, Segment};

/// Maximum number of bytes that are read and written at a time.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Copies all of `from` to the empty file `to`. Does not use the cache if the file has more than
/// `cached_bytes_max` bytes. Calls `check_interrupted` before each chunk; an error of it ends the
/// copy.
pub fn copy(
    from: &File,
    to: &Arc<Node>,
    cached_bytes_max: u64,
    check_interrupted: impl Fn() -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let read = |error| CopyError::Host("cannot read", error);
    // Not `File::metadata`, whose system call is refused to a confined process.
    let metadata = rustix::fs::fstat(from).map_err(|error| read(error.into()))?;
    let size = u64::try_from(metadata.st_size).unwrap_or(0);
    let is_regular = FileType::from_raw_mode(metadata.st_mode) == FileType::RegularFile;
    let mut copy = to.open_for(OpenMode { write: true, append: false })?;
    if size > cached_bytes_max {
        copy = copy.uncached();
    }
    let mut writer = Writer { copy: &copy, check_interrupted, stream: None, buffer: Vec::new() };
    // Virtual files, such as those in /proc, report a size of 0, and are read to their end.
    if !is_regular || size == 0 {
        writer.stream = Some(from);
        let mut from = from;
        return writer.write(0, u64::MAX, |_, buffer| from.read(buffer)).map(drop);
    }
    let mut end = 0;
    while let Some(data) = next_data(from, end, size).map_err(read)? {
        let (start, data_end) = data;
        let length = data_end - start;
        let written = writer.write(start, length, |at, buffer| from.read_at(buffer, at))?;
        if written < length {
            let now = rustix::fs::fstat(from).map_err(|error| read(error.into()))?;
            if now.st_size == metadata.st_size {
                // Files in /sys have less data than their size.
                return Ok(());
            }
            return Err(CopyError::Other("was truncated while it was copied".into()));
        }
        end = data_end;
    }
    if end < size {
        to.set_size(size, Privileges::Keep).map_err(cannot_write)?;
    }
    Ok(())
}

/// Copies all of the regular file `from`, which is in an image, to the empty file `to`. Otherwise
/// as [`copy`].
pub fn copy_node(
    from: &Arc<Node>,
    to: &Arc<Node>,
    cached_bytes_max: u64,
    check_interrupted: impl Fn() -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let cannot_read = |error| CopyError::Image("cannot read", error);
    let size = from.attributes().size;
    let mut original = from.open().map_err(cannot_read)?.without_access_time();
    let mut copy = to.open_for(OpenMode { write: true, append: false })?;
    if size > cached_bytes_max {
        original = original.uncached();
        copy = copy.uncached();
    }
    let mut buffer =
        vec![0; usize::try_from(size).map_or(CHUNK_BYTES_MAX, |size| size.min(CHUNK_BYTES_MAX))];
    let mut at = 0;
    while at < size {
        let data = match original.seek_data(FileOffset(at)) {
            Ok(data) if data.0 < size => data,
            Ok(_) | Err(base::Error::NoSuchOffset) => break,
            Err(error) => return Err(cannot_read(error)),
        };
        let end = original.seek_hole(data).map_err(cannot_read)?.0.min(size);
        at = data.0;
        while at < end {
            check_interrupted()?;
            let wanted =
                usize::try_from(end - at).map_or(buffer.len(), |rest| rest.min(buffer.len()));
            let part = buffer.get_mut(..wanted).unwrap_or_default();
            let got = original.read_at(part, at).map_err(cannot_read)?;
            if got == 0 {
                return Err(CopyError::Other("was truncated while it was copied".into()));
            }
            copy.write_all_at(&part[..got], at).map_err(cannot_write)?;
            at += got as u64;
        }
    }
    if copy.node().attributes().size < size {
        to.set_size(size, Privileges::Keep).map_err(cannot_write)?;
    }
    Ok(())
}

/// Writes the data of a member of an archive to the empty file `to`, with the holes of a sparse
/// file.
pub fn unpack(
    member: &Member,
    mut data: impl Read,
    to: &Arc<Node>,
    check_interrupted: impl Fn() -> Result<(), CopyError>,
) -> Result<(), CopyError> {
    let copy = to.open_for(OpenMode { write: true, append: false })?;
    let mut writer = Writer { copy: &copy, check_interrupted, stream: None, buffer: Vec::new() };
    let all = [Segment { offset: 0, length: member.size }];
    for segment in member.segments.as_deref().unwrap_or(&all) {
        writer.write(segment.offset, segment.length, |_, buffer| data.read(buffer))?;
    }
    if copy.node().attributes().size < member.size {
        to.set_size(member.size, Privileges::Keep).map_err(cannot_write)?;
    }
    Ok(())
}

/// Returns the range of the first data at or after `at`. If the host does not support holes,
/// returns the rest of the file. Linux's f2fs also finds blocks past the end of the file, in which
/// it finds no hole (ENXIO).
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start < size => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < end).then_some((start, end)))
}

struct Writer<'a, C> {
    copy: &'a vfs::File,
    check_interrupted: C,
    /// What is read, if a read can take any time.
    stream: Option<&'a File>,
    buffer: Vec<u8>,
}

impl<C: Fn() -> Result<(), CopyError>> Writer<'_, C> {
    /// Writes up to `length` bytes from `read`, from offset `start` on. Returns the number of
    /// bytes.
    fn write(
        &mut self,
        start: u64,
        length: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> Result<u64, CopyError> {
        let mut done = 0;
        while done < length {
            (self.check_interrupted)()?;
            while self.stream.is_some_and(|stream| !is_ready(stream)) {
                (self.check_interrupted)()?;
            }
            let wanted = (length - done).min(CHUNK_BYTES_MAX as u64) as usize;
            self.buffer.resize(wanted, 0);
            let got = match read(start + done, &mut self.buffer) {
                Ok(0) => {
                    // The signal often ends the program, too, from which the data comes.
                    (self.check_interrupted)()?;
                    break;
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(CopyError::Host("cannot read", error)),
            };
            let mut written = 0;
            while written < got {
                let at = FileOffset(start + done + written as u64);
                let rest = &self.buffer[written..got];
                let count = self.copy.write_at(rest, at.0).map_err(cannot_write)?;
                if count == 0 {
                    return Err(CopyError::Other(
                        "cannot write the copy: no more data is accepted".into(),
                    ));
                }
                written += count;
            }
            done += got as u64;
        }
        Ok(done)
    }
}

/// Waits for a short time until a stream has data, or has ended. Returns whether it has, or whether
/// that is unknown.
fn is_ready(stream: &File) -> bool {
    const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut watched = [PollFd::new(stream, PollFlags::IN)];
    !matches!(rustix::event::poll(&mut watched, Some(&WAIT)), Ok(0) | Err(Errno::INTR))
}

fn cannot_write(error: base::Error) -> CopyError {
    CopyError::Image("cannot write the copy", error)
}
