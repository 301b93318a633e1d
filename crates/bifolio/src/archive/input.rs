//! The bytes of an archive, and where they are in it. One record can be read ahead.

use std::io::{self, Read};

use super::RECORD_BYTES;

/// Input with a position.
pub struct Input<R> {
    input: R,
    /// The record that was read ahead.
    ahead: [u8; RECORD_BYTES],
    /// The number of bytes of `ahead`, and of those that were read.
    ahead_bytes: usize,
    ahead_read: usize,
    position: u64,
}

impl<R: Read> Input<R> {
    /// Creates an input at the start of an archive.
    pub fn new(input: R) -> Self {
        let (ahead_bytes, ahead_read) = (0, 0);
        Self { input, ahead: [0; RECORD_BYTES], ahead_bytes, ahead_read, position: 0 }
    }

    /// Returns the number of bytes that were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads a record. Returns the number of its bytes: fewer at the end of the input.
    pub fn read_record(&mut self, record: &mut [u8; RECORD_BYTES]) -> io::Result<usize> {
        fill(self, record)
    }

    /// Returns the next record, which is read again later. `None` if the input ends before its end.
    pub fn peek(&mut self) -> io::Result<Option<&[u8; RECORD_BYTES]>> {
        if self.ahead_read == self.ahead_bytes {
            self.ahead_read = 0;
            self.ahead_bytes = fill(&mut self.input, &mut self.ahead)?;
        }
        let is_whole = self.ahead_read == 0 && self.ahead_bytes == RECORD_BYTES;
        Ok(is_whole.then_some(&self.ahead))
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut ahead = self.ahead.get(self.ahead_read..self.ahead_bytes).unwrap_or_default();
        let count = match ahead.is_empty() {
            true => self.input.read(buffer)?,
            false => {
                let count = ahead.read(buffer)?;
                self.ahead_read += count;
                count
            }
        };
        self.position += count as u64;
        Ok(count)
    }
}

/// Fills a record. Returns the number of bytes, which is smaller at the end of the input.
fn fill(mut input: impl Read, record: &mut [u8; RECORD_BYTES]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest @ [_, ..]) = record.get_mut(filled..) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
