//! `make bench-write`: writing through the library, in process and through its mount, against the
//! running kernel's ext4 and fuse2fs, each on an image of its own on tmpfs. Everything in one run,
//! the sides in turn, medians.
//!
//! Not here: the tables (`series`, `trees`, `blocks`), how each side writes (`sides`), what is
//! judged (`notes`).
// A program for people to read.
#![allow(clippy::print_stdout)]

mod blocks;
mod notes;
mod series;
mod sides;
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
