//! `make bench-f2fs`: writes of f2fs files by folio order, in the rows of the series of patches
//! "f2fs: support large folios for writable files", on a device in memory and on one with latency.
//! Beside them: ext4 of the library, the running kernel's ext4, and bifolio's mount of an f2fs
//! image. Another table has several threads that sync files of their own. The sides take turns; the
//! results are medians.
//!
//! Not here: the rows and their gains in the series (`row`), the sides (`columns`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod columns;
mod row;
mod syncs;
mod table;

use std::process::ExitCode;

use bench::selection::Selection;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    testkit::private_mounts();
    let mut missed = table::run(&selection);
    missed.extend(syncs::run(&selection));
    println!("\nload at the end: {}\n", bench::load().unwrap_or_default());
    println!("{}", bench::aims(&missed));
    selection.finish()
}
