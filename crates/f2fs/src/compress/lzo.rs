//! The LZO1X format, and its extension for runs of zeroes, LZO-RLE (kernel documentation,
//! `staging/lzo.rst`). Not here: compression.

use base::{Problem, Result};

/// The first byte of data that begins with a version.
const VERSION_MARK: u8 = 17;
/// The least number of bytes of such data.
const VERSIONED_LEN_MIN: usize = 5;
/// The version with runs of zeroes.
const VERSION_RLE: u8 = 1;
/// The number of zeroes in the shortest run.
const ZERO_RUN_MIN: usize = 4;
/// The number of literals, or more, that an instruction copies that does nothing else. Others copy
/// fewer.
const LITERALS_ONLY: usize = 4;
/// The length of the copy whose distance of zero ends the data.
const END_LENGTH: usize = 3;

/// Decompresses `source` to the beginning of `target`. Returns the number of bytes. The data says
/// itself whether it has runs of zeroes. Errors: data that is damaged, longer than `target`, or
/// followed by other bytes.
pub(super) fn decompress(source: &[u8], target: &mut [u8]) -> Result<usize, Problem> {
    let mut source = Source { bytes: source, at: 0 };
    let mut target = Target { bytes: target, at: 0 };
    let has_zero_runs = read_version(&mut source)?;
    // The number of literals that the last instruction copied, at most `LITERALS_ONLY`.
    let mut literals = 0;
    if let Some(first) = source.peek(0).filter(|first| *first > VERSION_MARK) {
        source.at += 1;
        let count = usize::from(first - VERSION_MARK);
        target.put(source.take(count)?)?;
        literals = count.min(LITERALS_ONLY);
    }
    // Each instruction has at least one byte.
    loop {
        let code = source.byte()?;
        if code < 16 && literals == 0 {
            let count = 3 + source.length(code, 15)?;
            target.put(source.take(count)?)?;
            literals = LITERALS_ONLY;
            continue;
        }
        let (copy, operand) = read_copy(code, literals, has_zero_runs, &mut source)?;
        match copy {
            Copy::Zeroes { length } => target.put_zeroes(length)?,
            Copy::Earlier { distance, length } => target.put_earlier(distance, length)?,
            Copy::End => {
                source.check_end()?;
                return Ok(target.at);
            }
        }
        literals = usize::from(operand & 3);
        target.put(source.take(literals)?)?;
    }
}

/// Reads the version, if there is one. Returns whether the data may have runs of zeroes.
fn read_version(source: &mut Source<'_>) -> Result<bool, Problem> {
    if source.bytes.len() < VERSIONED_LEN_MIN || source.peek(0) != Some(VERSION_MARK) {
        return Ok(false);
    }
    source.at += 1;
    match source.byte()? {
        0 => Ok(false),
        VERSION_RLE => Ok(true),
        other => Err(Problem::Invalid { field: "version of LZO data", found: other.into() }),
    }
}

/// What an instruction copies, apart from literals.
enum Copy {
    Zeroes { length: usize },
    Earlier { distance: usize, length: usize },
    End,
}

/// Reads the rest of an instruction that begins with `code` and follows `literals` literals.
/// Returns the byte, too, whose low bits are the number of literals at its end.
fn read_copy(
    code: u8,
    literals: usize,
    has_zero_runs: bool,
    source: &mut Source<'_>,
) -> Result<(Copy, u8), Problem> {
    let bits = usize::from(code);
    let (distance, length, operand) = match code {
        0..16 => {
            let (length, nearest) = if literals == LITERALS_ONLY { (3, 2049) } else { (2, 1) };
            let high = usize::from(source.byte()?);
            ((high << 2) + (bits >> 2) + nearest, length, code)
        }
        16..32 => {
            if let Some((length, operand)) = source.zero_run(code).filter(|_| has_zero_runs) {
                source.take(3)?;
                return Ok((Copy::Zeroes { length }, operand));
            }
            let length = 2 + source.length(code, 7)?;
            let (operand, low) = source.distance()?;
            let distance = ((bits & 8) << 11) + low;
            if distance == 0 && length == END_LENGTH {
                return Ok((Copy::End, operand));
            }
            // Other copies of distance zero do not exist.
            let distance = if distance == 0 { 0 } else { distance + 16384 };
            (distance, length, operand)
        }
        32..64 => {
            let length = 2 + source.length(code, 31)?;
            let (operand, low) = source.distance()?;
            (low + 1, length, operand)
        }
        64.. => {
            let high = usize::from(source.byte()?);
            ((high << 3) + (bits >> 2 & 7) + 1, (bits >> 5) + 1, code)
        }
    };
    Ok((Copy::Earlier { distance, length }, operand))
}

/// The compressed data.
struct Source<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Source<'a> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at.checked_add(ahead)?).copied()
    }

    fn byte(&mut self) -> Result<u8, Problem> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Problem> {
        let end = self.at.saturating_add(count);
        let Some(bytes) = self.bytes.get(self.at..end) else {
            let (needed, available) = (end as u64, self.bytes.len() as u64);
            return Err(Problem::Truncated { needed, available });
        };
        self.at = end;
        Ok(bytes)
    }

    /// Returns the length in the bits `mask` of `code`, or the longer one that follows if these are
    /// zero.
    fn length(&mut self, code: u8, mask: u8) -> Result<usize, Problem> {
        if code & mask != 0 {
            return Ok((code & mask).into());
        }
        let mut length = usize::from(mask);
        loop {
            match self.byte()? {
                0 => length = length.saturating_add(255),
                last => return Ok(length.saturating_add(last.into())),
            }
        }
    }

    /// Reads a distance of two bytes. Returns the first byte, too, whose low bits do not belong to
    /// the distance.
    fn distance(&mut self) -> Result<(u8, usize), Problem> {
        let bytes = self.take(2)?;
        let distance = u16::from_le_bytes([bytes[0], bytes[1]]) >> 2;
        Ok((bytes[0], distance.into()))
    }

    /// Returns the length of the run of zeroes that the bytes after `code` would be, and the byte
    /// with the number of literals.
    fn zero_run(&self, code: u8) -> Option<(usize, u8)> {
        let (operand, high, length) = (self.peek(0)?, self.peek(1)?, self.peek(2)?);
        let is_run = code & 8 != 0 && operand & 0xfc == 0xfc && high == 0xff;
        let length = (usize::from(length) << 3) + usize::from(code & 7) + ZERO_RUN_MIN;
        is_run.then_some((length, operand))
    }

    fn check_end(&self) -> Result<(), Problem> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        let (found, expected) = (self.bytes.len() as u64, self.at as u64);
        Err(Problem::Mismatch { field: "length of LZO data", found, expected })
    }
}

/// The decompressed data.
struct Target<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Target<'_> {
    /// Moves on by `length` bytes. Returns the position before.
    fn advance(&mut self, length: usize) -> Result<usize, Problem> {
        let start = self.at;
        let end = start.saturating_add(length);
        if end > self.bytes.len() {
            let (needed, available) = (end as u64, self.bytes.len() as u64);
            return Err(Problem::Truncated { needed, available });
        }
        self.at = end;
        Ok(start)
    }

    fn put(&mut self, literals: &[u8]) -> Result<(), Problem> {
        let start = self.advance(literals.len())?;
        self.bytes[start..self.at].copy_from_slice(literals);
        Ok(())
    }

    fn put_zeroes(&mut self, length: usize) -> Result<(), Problem> {
        let start = self.advance(length)?;
        self.bytes[start..self.at].fill(0);
        Ok(())
    }

    /// Repeats what begins `distance` bytes before the end. It may reach into what is put.
    fn put_earlier(&mut self, distance: usize, length: usize) -> Result<(), Problem> {
        let start = self.advance(length)?;
        let Some(from) = start.checked_sub(distance).filter(|_| distance > 0) else {
            let (found, max) = (distance as u64, start as u64);
            return Err(Problem::Range { field: "distance in LZO data", found, min: 1, max });
        };
        let mut put = 0;
        while put < length {
            // All from `from` on, which doubles each time: a multiple of the distance, so the
            // period continues.
            let run = (distance + put).min(length - put);
            self.bytes.copy_within(from..from + run, start + put);
            put += run;
        }
        Ok(())
    }
}
