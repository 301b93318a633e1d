//! A device for the contents of an Android sparse image, read-only.
//! Not here: the format (`chunks`), and the detection (`container`).

mod chunks;
#[cfg(test)]
mod tests;

use std::ops::Range;

use base::{Container, DeviceOffset, Error, Result, Unsupported};

use crate::bio::EROFS;
use crate::split::{Piece, split_into};
use crate::{Bio, BioOperation, BlockDevice, SharedDevice, everything_from};
use chunks::{Chunks, Source};

/// The bytes at the beginning of an image without which no file system or partition table is found.
const NEEDED_BYTES: u64 = 4096;

/// The contents of an Android sparse image. Reads become reads of the file, of as few parts as
/// there are chunks. Parts that the image does not define read as zeroes, as after `simg2img`.
/// Checksums in the image are not verified.
#[derive(Debug)]
pub struct SparseDevice {
    file: SharedDevice,
    chunks: Chunks,
}

/// Returns whether the first bytes of an image are those of an Android sparse image.
pub(crate) fn has_magic(beginning: &[u8]) -> bool {
    beginning.starts_with(&chunks::MAGIC.to_le_bytes())
}

impl SparseDevice {
    /// Opens the sparse image in `file`. This reads all chunk headers. Errors: `Corrupt`, and
    /// `Unsupported` for an image with more than 4 Mi chunks, or with blocks of less than 512
    /// bytes.
    pub fn open(file: SharedDevice) -> Result<Self> {
        let chunks = Chunks::read(&*file)?;
        Ok(Self { file, chunks })
    }

    /// Checks all chunk headers of the sparse image in `file`. Errors: as for [`open`](Self::open).
    pub(crate) fn check(file: &dyn BlockDevice) -> Result<()> {
        Chunks::read(file).map(drop)
    }

    /// Returns whether the image does not define its beginning, as the later pieces of a split
    /// image.
    pub(crate) fn begins_with_gap(&self) -> bool {
        self.chunks.leading_gap() >= NEEDED_BYTES
    }

    /// Ends a read if it needs nothing from the file. Otherwise adds the reads of the file to
    /// `below`.
    fn read(&self, mut bio: Bio, below: &mut Vec<Bio>) {
        let range = match bio.range_within(self.size()) {
            Ok(range) => range,
            Err(errno) => return bio.end(Err(errno)),
        };
        let mut parts = self.chunks.parts(range.start, bio.length());
        let first = parts.next();
        if let Some(chunks::Part { length, source: Source::File(offset) }) = first {
            if length == bio.length() {
                bio.redirect(offset);
                return below.push(bio);
            }
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        for part in first.into_iter().chain(parts) {
            match part.source {
                Source::File(offset) => pieces.push(Piece { start, length: part.length, offset }),
                Source::Fill(pattern) => fill(&mut bio, start, part.length, pattern),
            }
            start += part.length;
        }
        split_into(bio, &pieces, below);
    }
}

/// Fills `length` bytes of the bio's memory from byte `start` on with a repeated pattern.
fn fill(bio: &mut Bio, start: u64, length: u64, pattern: [u8; 4]) {
    let end = start + length;
    let mut at = 0;
    for memory in bio.memory_mut() {
        let memory_end = at + memory.len() as u64;
        let from = start.max(at);
        let to = end.min(memory_end);
        if from < to {
            let mut pattern = pattern;
            pattern.rotate_left(((from - start) % 4) as usize);
            let target = &mut memory[(from - at) as usize..(to - at) as usize];
            for chunk in target.chunks_mut(4) {
                chunk.copy_from_slice(&pattern[..chunk.len()]);
            }
        }
        at = memory_end;
    }
}

/// Returns the error of a change, which names the command that makes the image writable.
fn cannot_change() -> Error {
    Error::Unsupported(Unsupported::Container(Container::AndroidSparse))
}

impl BlockDevice for SparseDevice {
    fn size(&self) -> u64 {
        self.chunks.size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn submit(&self, batch: Vec<Bio>) {
        let mut below = Vec::with_capacity(batch.len());
        for bio in batch {
            match bio.operation() {
                BioOperation::Read => self.read(bio, &mut below),
                BioOperation::Write => bio.end(Err(EROFS)),
            }
        }
        if !below.is_empty() {
            self.file.submit(below);
        }
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
        Err(cannot_change())
    }

    fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
        Err(cannot_change())
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        let everything = everything_from(offset, self.size())?;
        let mut at = offset.0;
        for part in self.chunks.parts(offset.0, everything.end.0 - offset.0) {
            let end = at + part.length;
            if part.source != Source::Fill([0; 4]) {
                return Some(DeviceOffset(at)..DeviceOffset(end));
            }
            at = end;
        }
        None
    }
}
