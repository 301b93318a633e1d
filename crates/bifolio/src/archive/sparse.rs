//! Maps of sparse members: the GNU header, and the three pax forms.

use std::io::{self, Read};

use base::text;
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use super::pax::Records;
use super::{ArchiveReader, RECORD_BYTES, field, invalid};

/// Maximum number of segments of a file.
const SEGMENTS_MAX: u64 = 1 << 20;

/// Data segment of a sparse file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The length, in bytes.
    pub length: u64,
}

/// Size and data segments of a sparse file.
#[derive(Debug)]
pub struct Sparse {
    pub size: u64,
    pub segments: Vec<Segment>,
}

/// Reads the map of the current member of `reader`. Returns `None` if the member is not sparse.
pub fn read_map<R: Read>(
    reader: &mut ArchiveReader<R>,
    header: &Header,
    records: &Records,
) -> io::Result<Option<Sparse>> {
    let sparse = if header.entry_type() == EntryType::GNUSparse {
        let gnu = header.as_gnu().ok_or_else(|| invalid("a sparse file has no GNU header"))?;
        let mut segments = Vec::new();
        let mut added = add(&mut segments, &gnu.sparse);
        let mut more = gnu.is_extended();
        // Also after an error: the data follows the map.
        while more {
            let mut next = GnuExtSparseHeader::new();
            reader.input.read_exact(next.as_mut_bytes())?;
            added = added.and_then(|()| add(&mut segments, &next.sparse));
            more = next.is_extended();
        }
        added?;
        Sparse { size: field("size", &gnu.realsize, gnu.real_size())?, segments }
    } else if records.get("GNU.sparse.major").is_some() {
        match (records.number("GNU.sparse.major")?, records.number("GNU.sparse.minor")?) {
            (Some(1), Some(0)) => {}
            (major, minor) => {
                let (major, minor) = (major.unwrap_or(0), minor.unwrap_or(0));
                return Err(invalid(format!(
                    "sparse files of version {major}.{minor} are not supported"
                )));
            }
        }
        let size = records.number("GNU.sparse.realsize")?;
        let size = size.ok_or_else(|| invalid("a sparse file has no size"))?;
        Sparse { size, segments: read_map_in_data(reader)? }
    } else if let Some(size) = records.number("GNU.sparse.size")? {
        let segments = match records.get("GNU.sparse.map") {
            Some(map) => parse_map(map)?,
            None => records.segments().to_vec(),
        };
        Sparse { size, segments }
    } else {
        return Ok(None);
    };
    let mut end = 0;
    let mut data = 0_u64;
    for segment in &sparse.segments {
        let segment_end = segment.offset.checked_add(segment.length);
        match segment_end {
            Some(segment_end) if segment.offset >= end && segment_end <= sparse.size => {
                end = segment_end;
            }
            _ => {
                return Err(invalid(
                    "the map of a sparse file is not in order, or exceeds its size",
                ));
            }
        }
        data += segment.length;
    }
    if data != reader.data {
        let (has, says) = (reader.data, data);
        return Err(invalid(format!(
            "a sparse file has {has} bytes of data, but its map has {says}"
        )));
    }
    Ok(Some(sparse))
}

fn add(segments: &mut Vec<Segment>, entries: &[GnuSparseHeader]) -> io::Result<()> {
    for entry in entries.iter().filter(|entry| !entry.is_empty()) {
        check_count(segments.len() as u64)?;
        segments.push(Segment {
            offset: field("sparse map", &entry.offset, entry.offset())?,
            length: field("sparse map", &entry.numbytes, entry.length())?,
        });
    }
    Ok(())
}

/// Errors: one segment more than `count` is too many.
pub fn check_count(count: u64) -> io::Result<()> {
    if count >= SEGMENTS_MAX {
        return Err(invalid("a sparse file has too many segments"));
    }
    Ok(())
}

/// Parses `offset,length,offset,length…` in decimal.
fn parse_map(map: &[u8]) -> io::Result<Vec<Segment>> {
    let bad = || invalid("GNU.sparse.map is not a list of offsets and lengths");
    let numbers = map.split(|&byte| byte == b',').map(text::decimal);
    let numbers: Vec<u64> = numbers.collect::<Option<_>>().ok_or_else(bad)?;
    if numbers.len() % 2 != 0 {
        return Err(bad());
    }
    let pairs = numbers.chunks_exact(2);
    Ok(pairs.map(|pair| Segment { offset: pair[0], length: pair[1] }).collect())
}

/// Reads a map from the data of the member: a line with the number of segments, and one line for
/// each offset and each length, padded to a whole record.
fn read_map_in_data<R: Read>(reader: &mut ArchiveReader<R>) -> io::Result<Vec<Segment>> {
    let mut lines = Lines { reader, record: [0; RECORD_BYTES], at: RECORD_BYTES };
    let count = lines.number()?;
    check_count(count.saturating_sub(1))?;
    (0..count).map(|_| Ok(Segment { offset: lines.number()?, length: lines.number()? })).collect()
}

struct Lines<'a, R> {
    reader: &'a mut ArchiveReader<R>,
    record: [u8; RECORD_BYTES],
    at: usize,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0_u64;
        loop {
            if self.at == RECORD_BYTES {
                self.reader.read_exact(&mut self.record)?;
                self.at = 0;
            }
            let byte = self.record[self.at];
            self.at += 1;
            let next = match byte {
                b'\n' => return Ok(number),
                b'0'..=b'9' => {
                    number.checked_mul(10).and_then(|n| n.checked_add((byte - b'0').into()))
                }
                _ => None,
            };
            number = next.ok_or_else(|| invalid("the map of a sparse file has invalid numbers"))?;
        }
    }
}
