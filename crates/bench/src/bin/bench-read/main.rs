//! `make bench-read`: reading through the library, in process, against the running kernel's mount of
//! the same image and against copying memory. Everything in one run, the sides in turn, medians.
//!
//! Not here: what is measured (`case`), how each side reads (`sides`), what is printed (`table`).
// A program for people to read.
#![allow(clippy::print_stdout)]

mod buffer;
mod case;
mod image;
mod lend;
mod measure;
mod memory;
mod notes;
mod sides;
mod table;

use case::Case;
use image::Image;

fn main() {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    testkit::private_mounts();
    let image = Image::make();
    // First: what the other measurements leave in the heap would hide the growth.
    let memory = memory::check(&image);
    let mut sides = sides::all(&image);
    let mut notes = notes::Notes::default();
    for threads in [1, 2] {
        table::heading(threads, &sides);
        let mut rows = Vec::new();
        for case in Case::all(threads) {
            let medians = measure::medians(&case, &mut sides);
            table::row(&case, &medians);
            notes.judge(&case, &medians.speeds);
            rows.push((case, medians));
        }
        table::costs(&sides, &rows);
    }
    drop(sides);
    lend::report(&image);
    println!("\n{memory}");
    notes.add_memory(&memory);
    println!("\n{notes}");
}
