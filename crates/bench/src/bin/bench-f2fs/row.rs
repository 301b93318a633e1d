//! The rows: ways of writing a file from its start to its end, and the gains of large folios that
//! the series reports.

use std::fmt;

use bench::length_name;

/// The sizes of writes.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The number of synced writes of each size.
const SYNCED_WRITES: [u64; 3] = [1000, 500, 64];
/// The number of bytes that are written otherwise.
pub const FILE_BYTES: u64 = 64 << 20;

/// The time of the sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// None during the measurement.
    Never,
    /// After each write.
    Each,
    /// After the last write.
    Once,
}

/// One way of writing a file.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Whether the file has its blocks already.
    pub overwrite: bool,
    pub sync: Sync,
    /// The size of a write in bytes.
    pub length: usize,
    /// The gain at order 2 over order 0 that the series reports for Linux, in percent.
    pub gain: Option<f64>,
}

impl Row {
    /// Returns all rows.
    pub fn all() -> impl Iterator<Item = Self> {
        let gains = [
            (false, Sync::Never, [None; 3]),
            (true, Sync::Never, [None; 3]),
            (false, Sync::Each, [-15.7, -27.4, 52.5].map(Some)),
            (true, Sync::Each, [80.0, 148.7, 4.0].map(Some)),
            (false, Sync::Once, [8.7, 75.5, 80.3].map(Some)),
            (true, Sync::Once, [14.1, 25.3, 30.6].map(Some)),
        ];
        gains.into_iter().flat_map(|(overwrite, sync, gains)| {
            let rows = LENGTHS.into_iter().zip(gains);
            rows.map(move |(length, gain)| Self { overwrite, sync, length, gain })
        })
    }

    /// Returns the number of bytes that are written.
    pub fn bytes(&self) -> u64 {
        if self.sync != Sync::Each {
            return FILE_BYTES;
        }
        let index = LENGTHS.iter().position(|length| *length == self.length);
        SYNCED_WRITES[index.unwrap_or_default()] * self.length as u64
    }

    /// Returns the number of measurements of each side.
    pub fn rounds(&self) -> usize {
        if self.sync == Sync::Each { 9 } else { 5 }
    }

    /// Returns the aimed gain over order 0, in percent: that of the series, and no loss where the
    /// series has one. `None` for rows that the series does not have.
    pub fn aim(&self) -> Option<f64> {
        self.gain.map(|gain| gain.max(0.0))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.overwrite { "over" } else { "new" };
        let sync = match self.sync {
            Sync::Never => "cached",
            Sync::Each => "sync",
            Sync::Once => "writeback",
        };
        f.pad(&format!("{file} {sync} {}", length_name(self.length)))
    }
}
