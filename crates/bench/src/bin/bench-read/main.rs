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

/// The load below which the machine counts as idle.
const LOAD_MAX: f64 = 0.5;

fn main() {
    warn_if_busy();
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

/// Says so when other programs will share in every number.
fn warn_if_busy() {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let last_minute = load.split(' ').next().and_then(|load| load.parse::<f64>().ok());
    if let Some(load) = last_minute.filter(|load| *load > LOAD_MAX) {
        println!("the machine is busy (load {load}): the numbers will say little");
    }
}
