//! `make bench-direct`: direct writes through the library, by the lock that they take and when extents are
//! split, against the bare device; and by the sizes of blocks and of writes. Everything in one run, the
//! sides in turn, medians.
//!
//! Not here: the tables (`locks`, `blocks`), and what keeps requests in flight (`jobs`).
// A program for people to read.
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
