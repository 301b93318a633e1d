//! Logs of writes to a device, in the format of the kernel's device-mapper target log-writes, which qemu writes as well.
//! Source: kernel documentation, `admin-guide/device-mapper/log-writes.rst`, and the layout that qemu documents for its
//! filter blklogwrites.

use std::path::Path;

use base::DeviceOffset;
use device::SharedDevice;

use crate::must;

/// The magic number of a log.
const MAGIC: u64 = 0x6A_736677_736872;
/// The bits of an entry's flags.
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// An entry of a log.
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
/// Panics if the log is damaged, or has entries of other kinds than writes and flushes.
pub fn read(log: &Path) -> Vec<LoggedWrite> {
    let bytes = must(std::fs::read(log), log.display());
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(must(bytes.ok_or("the log is short"), log.display()))
    };
    assert_eq!([number(0), number(8)], [MAGIC, 1], "{}", log.display());
    let sector = number(24) as u32 as usize;
    let mut at = sector;
    let mut entries = Vec::new();
    for _ in 0..number(16) {
        let [start, sectors, flags] = [0, 8, 16].map(|field| number(at + field));
        assert_eq!(flags & (DISCARD | MARK), 0, "{}: flags {flags:#x}", log.display());
        at += sector;
        let length = sectors as usize * sector;
        let data = must(bytes.get(at..at + length).ok_or("the log is short"), log.display());
        at += length;
        entries.push(LoggedWrite {
            offset: DeviceOffset(start * sector as u64),
            data: data.to_vec(),
            is_flush: flags & FLUSH != 0,
            is_durable: flags & FUA != 0,
        });
    }
    entries
}

/// Writes what a log has to a device, in the order of the log.
pub fn replay(entries: &[LoggedWrite], device: &SharedDevice) {
    for entry in entries {
        if entry.is_flush {
            must(device.flush(), "a flush");
        }
        if !entry.data.is_empty() {
            must(device.write_at(entry.offset, &entry.data), "a write");
        }
        if entry.is_durable {
            must(device.flush(), "a flush");
        }
    }
}
