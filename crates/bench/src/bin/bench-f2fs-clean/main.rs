//! `make bench-f2fs-clean`: overwrites of 4 KiB on f2fs volumes that are nearly full, on a device
//! in memory. The write amplification is printed beside that of textbook cleaning, and the longest
//! write and sync.
//!
//! Not here: the workload (`row`), the simulated log (`textbook`), the count of what reaches the
//! device (`counting`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod counting;
mod row;
mod textbook;

use std::process::ExitCode;
use std::time::Duration;

use bench::selection::Selection;

use crate::row::{Measured, Row};
use crate::textbook::{Policy, Simulation};

/// The longest write or sync at 90%, at most.
const STALL_MAX: Duration = Duration::from_secs(1);
/// The percentage to which this aim applies.
const STALL_PERCENT: u64 = 90;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    println!(
        "{:<20}{:>7}{:>8}{:>8}{:>10}{:>10}{:>9}{:>9}{:>9}{:>9}",
        "", "", "ampli-", "", "", "cost-", "adja-", "", "longest", "longest"
    );
    println!(
        "{:<20}{:>7}{:>8}{:>8}{:>10}{:>10}{:>9}{:>9}{:>9}{:>9}",
        "", "used", "fied", "all", "greedy", "benefit", "cent KiB", "MiB/s", "write ms", "sync ms"
    );
    let mut missed = Vec::new();
    for row in Row::all().filter(|row| selection.has_row(&row.name())) {
        let measured = row.measure();
        print(&row, &measured);
        let longest = measured.longest_write.max(measured.longest_sync);
        if row.percent == STALL_PERCENT && longest > STALL_MAX {
            missed.push(format!("{}: a call took {} ms", row.name(), longest.as_millis()));
        }
    }
    println!("\nload at the end: {}\n", bench::load().unwrap_or_default());
    println!("{}", bench::aims(&missed));
    selection.finish()
}

fn print(row: &Row, measured: &Measured) {
    let simulation = Simulation {
        segments: measured.segments,
        pages: measured.used,
        written: measured.written,
        is_skewed: row.is_skewed,
    };
    println!(
        "{:<20}{:>7.3}{:>8.2}{:>8.2}{:>10.2}{:>10.2}{:>9.0}{:>9.0}{:>9}{:>9}",
        row.name(),
        measured.used as f64 / (measured.segments * textbook::SEGMENT_PAGES) as f64,
        measured.main_amplification,
        measured.amplification,
        simulation.amplification(Policy::Greedy),
        simulation.amplification(Policy::CostBenefit),
        measured.adjacent_kib,
        measured.mib_per_second,
        measured.longest_write.as_millis(),
        measured.longest_sync.as_millis(),
    );
}
