//! `make bench-direct`: direct writes through the library, with different locks and splits of
//! extents, compared with the device itself; different sizes of blocks and writes; and asynchronous
//! writes to mounts. The sides take turns; the results are medians.
//!
//! Not here: the tables (`locks`, `blocks`, `mounts`), the requests in flight (`jobs`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod blocks;
mod jobs;
mod locks;
mod mounts;

use std::process::ExitCode;

use bench::selection::Selection;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    locks::run(&selection);
    blocks::run(&selection);
    mounts::run(&selection);
    println!("\nload at the end: {}", bench::load().unwrap_or_default());
    selection.finish()
}
