//! Table of the times of programs on mounts: the median of each side, and ratios to bifolio's
//! mount. Not here: how times are measured.
// The output is for people.
#![allow(clippy::print_stdout)]

use crate::mount::{FUSE2FS, KERNEL, MOUNT};

/// The sides with a column for the ratio of their time to [`MOUNT`]'s.
const OTHERS: [&str; 2] = [KERNEL, FUSE2FS];

/// Layout of a table of times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct TimesTable {
    /// Width of the first column, with the names of the rows.
    pub name_width: usize,
    /// Width of the column of a side.
    pub side_width: usize,
    /// Digits after the decimal point of a time.
    pub decimals: usize,
}

impl TimesTable {
    /// Prints the heading.
    pub fn print_heading<'s>(&self, sides: impl Iterator<Item = &'s str>) {
        let Self { name_width, side_width, .. } = *self;
        print!("{:<name_width$}", "");
        sides.for_each(|side| print!("{side:>side_width$}"));
        print!(" |");
        OTHERS.iter().for_each(|other| print!("{other:>10}"));
        println!();
    }

    /// Prints the row `name`, with the median of each side in seconds. The ratio to a side that was
    /// not measured stays empty.
    pub fn print_row(&self, name: &str, medians: &[(&str, f64)]) {
        let Self { name_width, side_width, decimals } = *self;
        print!("{name:<name_width$}");
        medians.iter().for_each(|(_, time)| print!("{:>side_width$.decimals$}", time * 1e3));
        print!(" |");
        let median_of =
            |side: &str| medians.iter().find(|(name, _)| *name == side).map(|(_, time)| time);
        for other in OTHERS {
            match median_of(other).zip(median_of(MOUNT)) {
                Some((other, ours)) => print!("{:>10.2}", other / ours),
                None => print!("{:>10}", ""),
            }
        }
        println!();
    }
}
