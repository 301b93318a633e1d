//! The data of one imported file. Holes of the host's file stay holes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::FileOffset;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vfs::{Node, OpenMode, Privileges};

use super::Trouble;
use crate::archive::{Member, Segment};

/// The most that is read and written at once, in bytes.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Copies all of `from` to the empty file `to`, around the cache if it has more than `kept_bytes_max`
/// bytes. `go_on` is asked from time to time.
pub fn copy(
    from: &File,
    to: &Arc<Node>,
    kept_bytes_max: u64,
    go_on: impl Fn() -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let read = |error| Trouble::Host("cannot read", error);
    let metadata = from.metadata().map_err(read)?;
    let mut copy = to.open_for(OpenMode { write: true, append: false })?;
    if metadata.len() > kept_bytes_max {
        copy = copy.uncached();
    }
    let mut writer = Writer { copy: &copy, go_on, buffer: Vec::new() };
    // Files of a kind that are made up when they are read say that they are empty.
    if !metadata.is_file() || metadata.len() == 0 {
        let mut from = from;
        return writer.write(0, u64::MAX, |_, buffer| from.read(buffer)).map(drop);
    }
    let size = metadata.len();
    let mut end = 0;
    while let Some(data) = next_data(from, end, size).map_err(read)? {
        let (start, stop) = data;
        let length = stop - start;
        let written = writer.write(start, length, |at, buffer| from.read_at(buffer, at))?;
        if written < length {
            return Err(Trouble::Other("was truncated while it was copied"));
        }
        end = stop;
    }
    if end < size {
        to.set_size(size, Privileges::Keep).map_err(cannot_write)?;
    }
    Ok(())
}

/// Writes the data of an archive's member to the empty file `to`: all of it from its start, or, of
/// a sparse file, where `segments` say.
pub fn unpack(
    member: &Member,
    mut data: impl Read,
    to: &Arc<Node>,
    go_on: impl Fn() -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let copy = to.open_for(OpenMode { write: true, append: false })?;
    let mut writer = Writer { copy: &copy, go_on, buffer: Vec::new() };
    let all = [Segment { offset: 0, length: member.size }];
    for segment in member.segments.as_deref().unwrap_or(&all) {
        writer.write(segment.offset, segment.length, |_, buffer| data.read(buffer))?;
    }
    if copy.node().attributes().size < member.size {
        to.set_size(member.size, Privileges::Keep).map_err(cannot_write)?;
    }
    Ok(())
}

/// Returns the range of the first data at or after `at`. On hosts without holes, all is data.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(error) => return Err(error.into()),
    };
    let stop = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
    Ok((start < stop).then_some((start, stop)))
}

struct Writer<'a, G> {
    copy: &'a vfs::File,
    go_on: G,
    buffer: Vec<u8>,
}

impl<G: Fn() -> Result<(), Trouble>> Writer<'_, G> {
    /// Writes up to `length` bytes from `read`, from byte `start` on. Returns their number.
    fn write(
        &mut self,
        start: u64,
        length: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
    ) -> Result<u64, Trouble> {
        let mut done = 0;
        while done < length {
            (self.go_on)()?;
            let wanted = (length - done).min(CHUNK_BYTES_MAX as u64) as usize;
            self.buffer.resize(wanted, 0);
            let got = match read(start + done, &mut self.buffer) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Trouble::Host("cannot read", error)),
            };
            let mut written = 0;
            while written < got {
                let at = FileOffset(start + done + written as u64);
                let rest = &self.buffer[written..got];
                let count = self.copy.write_at(rest, at.0).map_err(cannot_write)?;
                if count == 0 {
                    return Err(Trouble::Other("cannot write the copy: no more data is accepted"));
                }
                written += count;
            }
            done += got as u64;
        }
        Ok(done)
    }
}

fn cannot_write(error: base::Error) -> Trouble {
    Trouble::Image("cannot write the copy", error)
}
