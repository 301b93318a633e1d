//! `make bench-read`: reads through the library, in this process, compared with the running
//! kernel's mount of the same image and with memcpy. The sides take turns; the results are medians.
//! Arguments: parts of rows' names.
//!
//! Not here: the rows (`case`), the sides (`sides`), the output (`table`), f2fs
//! (`f2fs`), encrypted, verified and compressed files (`transforms`).
#![allow(clippy::print_stdout, reason = "the output is for people")]

mod buffer;
mod case;
mod f2fs;
mod image;
mod lend;
mod measure;
mod memory;
mod notes;
mod sides;
mod table;
mod transforms;

use std::process::ExitCode;

use bench::selection::Selection;
use case::Case;
use image::Image;
use notes::Notes;

fn main() -> ExitCode {
    testkit::guest::run_if_guest();
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    let has_memory = selection.has_row("memory");
    let tables = [1, 2].map(|threads| {
        Case::all(threads).filter(|case| selection.has_row(&case.row_name())).collect::<Vec<_>>()
    });
    let has_lending = selection.has_row("lending");
    testkit::private_mounts();
    let mut notes = Notes::default();
    if has_memory || has_lending || tables.iter().any(|cases| !cases.is_empty()) {
        measure_ext4(&tables, has_memory, has_lending, &mut notes);
    }
    notes.add(f2fs::run(&selection));
    transforms::run(&selection);
    println!("\n{notes}");
    selection.finish()
}

/// Measures the rows of ext4.
fn measure_ext4(tables: &[Vec<Case>; 2], has_memory: bool, has_lending: bool, notes: &mut Notes) {
    let image = Image::make();
    // This comes first: memory that other measurements leave on the heap would hide the growth.
    let memory = has_memory.then(|| memory::check(&image));
    let mut sides = sides::all(&image);
    for cases in tables.iter().filter(|cases| !cases.is_empty()) {
        table::print_heading(cases[0].threads, &sides);
        let mut rows = Vec::new();
        for case in cases {
            let medians = measure::medians(case, &mut sides);
            table::print_row(case, &medians);
            notes.judge(case, &medians.speeds);
            rows.push((*case, medians));
        }
        table::print_costs(&sides, &rows);
    }
    drop(sides);
    if has_lending {
        lend::report(&image);
    }
    if let Some(memory) = memory {
        println!("\n{memory}");
        notes.add_memory(&memory);
    }
}
