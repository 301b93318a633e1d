//! Comparison of the rows with the aims for writes.

use std::fmt;

use crate::series::{Found, ORDER_0, OURS, Row, speed_of};
use bench::mount::{FUSE2FS, KERNEL, OUR_MOUNTS};

/// The aimed speed of bifolio's mount for writes, in multiples of fuse2fs's.
const FUSE2FS_WRITING: f64 = 5.0;
/// The aimed speed of bifolio's mount with many small files, in multiples of fuse2fs's.
const FUSE2FS_TREES: f64 = 3.0;
/// The maximum time of bifolio's mount with many small files, in multiples of the kernel's.
const KERNEL_TREES: f64 = 2.0;
/// The aimed average gain of large blocks over bigalloc at order 0, in percent.
const BLOCKS_GAIN: f64 = 50.0;

/// The rows that miss an aim.
#[derive(Default)]
pub struct Notes {
    missed: Vec<String>,
}

impl Notes {
    /// Adds the aims that a row of the table `series` misses.
    pub fn judge_series(&mut self, row: &Row, found: &[Found]) {
        let gain = 1.0 + row.gain / 100.0;
        let speeds = OUR_MOUNTS.map(|side| (side, speed_of(found, side)));
        let mount = best(speeds.into_iter());
        let of_mount = [(KERNEL, 1.0), (FUSE2FS, FUSE2FS_WRITING)];
        let aims = [(OURS, KERNEL, 1.0), (OURS, ORDER_0, gain)].into_iter().chain(
            mount.into_iter().flat_map(|mount| of_mount.map(|(other, aim)| (mount, other, aim))),
        );
        for (one, other, aim) in aims {
            let Some((of_one, of_other)) = speed_of(found, one).zip(speed_of(found, other)) else {
                continue;
            };
            self.want(&format!("{row}: {one}"), other, of_one / of_other, aim);
        }
    }

    /// Adds the aims that a row of the table `trees` misses. `times` has the time of each side.
    pub fn judge_tree(&mut self, name: &str, times: &[(&str, f64)]) {
        let time_of =
            |side: &str| times.iter().find(|(name, _)| *name == side).map(|(_, time)| *time);
        let speeds = OUR_MOUNTS.map(|side| (side, time_of(side).map(|time| 1.0 / time)));
        let Some(mount) = best(speeds.into_iter()) else { return };
        for (other, aim) in [(KERNEL, 1.0 / KERNEL_TREES), (FUSE2FS, FUSE2FS_TREES)] {
            if let Some((ours, theirs)) = time_of(mount).zip(time_of(other)) {
                self.want(&format!("{name}: {mount}"), other, theirs / ours, aim);
            }
        }
    }

    /// Adds the aim for large blocks, if their gain in percent is too small.
    pub fn judge_blocks(&mut self, gain: f64) {
        self.want("blocks", "bigalloc at order 0", 1.0 + gain / 100.0, 1.0 + BLOCKS_GAIN / 100.0);
    }

    fn want(&mut self, row: &str, other: &str, ratio: f64, aim: f64) {
        if ratio < aim {
            self.missed.push(format!("{row}: {ratio:.2} times the speed of {other}, aim {aim:.2}"));
        }
    }
}

/// Returns the fastest of the measured sides.
fn best(speeds: impl Iterator<Item = (&'static str, Option<f64>)>) -> Option<&'static str> {
    let measured = speeds.filter_map(|(side, speed)| Some((side, speed?)));
    measured.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(side, _)| side)
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&bench::aims(&self.missed))
    }
}
