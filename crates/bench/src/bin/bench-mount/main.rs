//! `make bench-mount`: reads through bifolio's mounts, compared with the running kernel's and
//! fuse2fs's, each with a separate image on tmpfs. The sides take turns; the results are medians.
//!
//! Not here: the rows (`row`), the sides (`side`), the output (`table`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod row;
mod side;
mod table;

use std::process::ExitCode;

use bench::median;
use bench::mount::{WRITEBACK, mounters};
use bench::selection::Selection;
use row::Row;
use side::Side;

/// The number of measurements of each side.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    testkit::private_mounts();
    // The option writeback does not affect reads.
    let is_wanted = |name: &str| name != WRITEBACK && selection.has_side(name);
    let mounters = mounters().into_iter().filter(|(name, _)| is_wanted(name));
    let mut sides: Vec<Side> = mounters.map(|(name, mounter)| Side::new(name, mounter)).collect();
    table::print_heading(&sides);
    let mut rows = Vec::new();
    for row in Row::ALL.iter().filter(|row| selection.has_row(&row.to_string())) {
        let found = measure(row, &mut sides);
        table::print_row(row, &sides, found.iter().map(|found| found.median));
        rows.push((row, found));
    }
    println!("\nthe same for the fastest round, which other programs disturb least\n");
    for (row, found) in rows {
        table::print_row(row, &sides, found.iter().map(|found| found.best));
    }
    println!("\nload at the end: {}", bench::load().unwrap_or_default());
    selection.finish()
}

/// The result of a row for a side, in bytes per second.
struct Found {
    /// The median speed.
    median: f64,
    /// The speed in the fastest round.
    best: f64,
}

fn measure(row: &Row, sides: &mut [Side]) -> Vec<Found> {
    let mut speeds = vec![Vec::with_capacity(ROUNDS); sides.len()];
    for _ in 0..ROUNDS {
        for (side, speeds) in sides.iter_mut().zip(&mut speeds) {
            speeds.push(row.bytes() as f64 / side.measure(row).as_secs_f64());
        }
    }
    let found = speeds.into_iter().map(|speeds| {
        let best = speeds.iter().copied().fold(f64::NAN, f64::max);
        Found { median: median(speeds), best }
    });
    found.collect()
}
