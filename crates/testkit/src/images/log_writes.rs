//! Logs of writes to a device, in the format of the kernel's device-mapper target log-writes, which
//! qemu writes as well. Source: kernel documentation, `admin-guide/device-mapper/log-writes.rst`,
//! and the layout that qemu documents for its filter blklogwrites.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use base::DeviceOffset;
use device::{Completed, Recording, SharedDevice};

use crate::must;

/// The magic number of a log.
const MAGIC: u64 = 0x6A_736677_736872;
/// The version of the format.
const VERSION: u64 = 1;
/// The bits of an entry's flags.
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// The size of sectors in logs that are written, in bytes.
const SECTOR: usize = 512;
/// The size of the fields of an entry, in bytes. The text of a mark follows them.
const ENTRY: usize = 32;

/// An entry of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Logged {
    /// A write, or a flush.
    Write(LoggedWrite),
    /// A discard of so many bytes.
    Discard(DeviceOffset, u64),
    /// A text that marks a point in the log.
    Mark(String),
}

/// A write to a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedWrite {
    /// Where the data was written.
    pub offset: DeviceOffset,
    /// The data. May be empty.
    pub data: Vec<u8>,
    /// Whether what was written before became durable first.
    pub is_flush: bool,
    /// Whether the data was durable when the write ended.
    pub is_durable: bool,
}

/// Reads a log.
///
/// # Panics
///
/// Panics if the log is damaged.
pub fn read(log: &Path) -> Vec<Logged> {
    let bytes = must(std::fs::read(log), log.display());
    let part = |at: usize, length: usize| {
        must(bytes.get(at..at + length).ok_or("the log is short"), log.display())
    };
    let number =
        |at: usize| u64::from_le_bytes(part(at, 8).try_into().expect("the part has this length"));
    assert_eq!([number(0), number(8)], [MAGIC, VERSION], "{}", log.display());
    let sector = number(24) as u32 as usize;
    let mut at = sector;
    let mut entries = Vec::new();
    for _ in 0..number(16) {
        let [start, sectors, flags, text] = [0, 8, 16, 24].map(|field| number(at + field));
        let offset = DeviceOffset(start * sector as u64);
        let length = sectors as usize * sector;
        let fields = at;
        at += sector;
        if flags & MARK != 0 {
            let text = part(fields + ENTRY, text as usize);
            entries.push(Logged::Mark(String::from_utf8_lossy(text).into_owned()));
        } else if flags & DISCARD != 0 {
            entries.push(Logged::Discard(offset, length as u64));
        } else {
            let data = part(at, length).to_vec();
            at += length;
            let (is_flush, is_durable) = (flags & FLUSH != 0, flags & FUA != 0);
            entries.push(Logged::Write(LoggedWrite { offset, data, is_flush, is_durable }));
        }
    }
    entries
}

/// Does to a device what a log has, in the order of the log.
pub fn replay(entries: &[Logged], device: &SharedDevice) {
    for entry in entries {
        match entry {
            Logged::Write(write) => {
                if write.is_flush {
                    must(device.flush(), "a flush");
                }
                if !write.data.is_empty() {
                    must(device.write_at(write.offset, &write.data), "a write");
                }
                if write.is_durable {
                    must(device.flush(), "a flush");
                }
            }
            Logged::Discard(offset, length) => must(device.discard(*offset, *length), "a discard"),
            Logged::Mark(_) => {}
        }
    }
}

/// Writes a recording as a log. Each of `marks`, which are in the order of their points, comes
/// after what is certain at its point. A write of a part of a sector is logged with the rest of the
/// sector as it was.
///
/// # Panics
///
/// Panics if a mark is longer than a sector.
pub fn write(recording: &Recording, marks: &[(usize, String)], log: &Path) {
    let completed = recording.completed();
    let mut marks = marks.iter().peekable();
    let count = (completed.len() + marks.len()) as u64;
    let mut file = BufWriter::new(must(File::create(log), log.display()));
    let mut add = |bytes: &[u8]| must(file.write_all(bytes), log.display());
    add(&sector([MAGIC, VERSION, count, SECTOR as u64], ""));
    let mark = |text: &str| sector([0, 0, MARK, text.len() as u64], text);
    let is_partial = |one: &Completed| match one {
        Completed::Flush => false,
        Completed::Write(write) => {
            write.offset.0 % SECTOR as u64 != 0 || write.data.len() % SECTOR != 0
        }
    };
    let mut contents =
        completed.iter().any(|(_, one)| is_partial(one)).then(|| recording.image(0, |_, _| false));
    for (point, one) in completed {
        while let Some((_, text)) = marks.next_if(|(at, _)| *at < point) {
            add(&mark(text));
        }
        match one {
            Completed::Flush => add(&sector([0, 0, FLUSH, 0], "")),
            Completed::Write(write) => {
                let start = write.offset.0 as usize;
                let end = start + write.data.len();
                let sectors = [start / SECTOR, end.div_ceil(SECTOR)];
                let length = sectors[1] - sectors[0];
                add(&sector([sectors[0] as u64, length as u64, 0, 0], ""));
                match &mut contents {
                    None => add(&write.data),
                    Some(contents) => {
                        contents.resize(contents.len().max(sectors[1] * SECTOR), 0);
                        contents[start..end].copy_from_slice(&write.data);
                        add(&contents[sectors[0] * SECTOR..sectors[1] * SECTOR]);
                    }
                }
            }
        }
    }
    marks.for_each(|(_, text)| add(&mark(text)));
    must(file.flush(), log.display());
}

/// Returns a sector with these numbers and this text behind them.
fn sector(numbers: [u64; 4], text: &str) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    for (field, number) in sector.chunks_exact_mut(8).zip(numbers) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    sector[ENTRY..][..text.len()].copy_from_slice(text.as_bytes());
    sector
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::{MemoryDevice, RecordDevice};

    use super::*;
    use crate::Random;

    const BYTES: u64 = 64 << 10;

    fn memory(contents: Vec<u8>) -> SharedDevice {
        Arc::new(MemoryDevice::new(contents))
    }

    fn contents(device: &SharedDevice) -> Vec<u8> {
        let mut bytes = vec![0; BYTES as usize];
        device.read_at(DeviceOffset(0), &mut bytes).unwrap();
        bytes
    }

    /// Writes and flushes at random. Returns the recording, and a mark after each flush.
    fn record(seed: u64) -> (Recording, Vec<(usize, String)>) {
        let mut random = Random(seed);
        let recorder = Arc::new(RecordDevice::new(memory(vec![1; BYTES as usize])).unwrap());
        let device: SharedDevice = recorder.clone();
        let mut marks = Vec::new();
        for step in 0..60 {
            // Every second recording has writes of parts of sectors.
            let part = if seed % 2 == 0 { 0 } else { random.below(512) };
            let at = random.below(BYTES / 512 - 10) * 512;
            match random.below(8) {
                0 => device.flush().unwrap(),
                1 => device.discard(DeviceOffset(at), 1024).unwrap(),
                _ => device
                    .write_at(
                        DeviceOffset(at + part),
                        &vec![step; 512 * (1 + step as usize % 8) + part as usize / 2],
                    )
                    .unwrap(),
            }
            if random.below(6) == 0 {
                device.flush().unwrap();
                marks.push((recorder.point(), format!("flush {step}")));
            }
        }
        (recorder.recording(), marks)
    }

    #[test]
    fn a_log_up_to_a_mark_has_what_was_durable_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for seed in 0..20 {
            let (recording, marks) = record(seed);
            write(&recording, &marks, &path);
            let logged = read(&path);
            let mut before = 0;
            let device = memory(vec![1; BYTES as usize]);
            for (point, text) in &marks {
                let mark = Logged::Mark(text.clone());
                let at = before + logged[before..].iter().position(|one| *one == mark).unwrap();
                replay(&logged[before..at], &device);
                before = at;
                assert_eq!(
                    contents(&device),
                    recording.image(*point, |_, _| false),
                    "{seed}: {text}"
                );
            }
            replay(&logged[before..], &device);
            let end = recording.crash_points().end - 1;
            assert_eq!(contents(&device), recording.image(end, |_, _| true), "{seed}");
        }
    }
}
