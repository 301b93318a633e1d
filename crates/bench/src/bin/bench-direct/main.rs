//! `make bench-direct`: direct writes through the library, by the lock that they take and by the time when extents are
//! split, against the device itself; and by the sizes of blocks and of writes. One run, the sides in turn, medians.
//!
//! Not here: the tables (`locks`, `blocks`), and the requests in flight (`jobs`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod blocks;
mod jobs;
mod locks;

use std::process::ExitCode;

use bench::selection::Selection;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    locks::run(&selection);
    blocks::run(&selection);
    println!("\nload at the end: {}", bench::load().unwrap_or_default());
    selection.finish()
}
