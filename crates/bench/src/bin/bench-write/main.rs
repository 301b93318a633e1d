//! `make bench-write`: writes through the library in this process and through bifolio's mounts,
//! compared with the running kernel's ext4 and fuse2fs, each on a separate image on tmpfs. The
//! sides take turns; the results are medians.
//!
//! Not here: the tables (`series`, `trees`, `blocks`), the sides (`bench::sides`), the aims
//! (`notes`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod blocks;
mod notes;
mod series;
mod source;
mod trees;

use std::process::ExitCode;

use bench::selection::Selection;
use notes::Notes;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    testkit::private_mounts();
    let mut notes = Notes::default();
    blocks::run(&selection, &mut notes);
    series::run(&selection, &mut notes);
    trees::run(&selection, &mut notes);
    println!("\nload at the end: {}\n\n{notes}", bench::load().unwrap_or_default());
    selection.finish()
}
