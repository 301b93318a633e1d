//! `make bench-scale`: the cost of one file, name, extent and so on, for small and large numbers of
//! them. The cost should not depend on the number.
//!
//! Arguments: `max=N` for the largest number (100,000), `cpu` to print processor time, which
//! depends less on other programs, and parts of rows' names.
//!
//! Not here: trees and archives (`tree`), the command (`command`), the library (`files`, `names`),
//! the kernel's mount (`kernel`), trees on mounts (`mounted`), the output (`table`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod command;
mod cost;
mod files;
mod kernel;
mod mounted;
mod names;
mod table;
mod tree;

use std::process::ExitCode;

use bench::selection::Selection;
use cost::Costs;

/// The sizes, in ascending order.
const SIZES: [u64; 4] = [1000, 10_000, 100_000, 1_000_000];
/// The number of measurements of small sizes. The first ones are slow; the fastest counts.
const ROUNDS_OF_SMALL: usize = 3;

/// A function that measures the rows of a series at one size. The rows depend on each other.
type Series = fn(u64, &mut Costs);

/// All series, by the first part of their rows' names.
const SERIES: [(&str, Series); 21] = [
    ("one directory", command::one_directory),
    ("many directories", command::many_directories),
    ("names", names::names),
    ("kernel names", kernel::names),
    ("links", names::links),
    ("orphans", names::orphans),
    ("kernel orphans", kernel::orphans),
    ("extents", files::extents),
    ("kernel extents", kernel::extents),
    ("xattrs", files::xattrs),
    ("kernel xattrs", kernel::xattrs),
    ("open files", files::open_files),
    ("fsyncs", files::fsyncs),
    ("kernel fsyncs", kernel::fsyncs),
    ("mount one", mounted::ours_in_one),
    ("kernel one", mounted::kernel_in_one),
    ("mount many", mounted::ours_in_many),
    ("kernel many", mounted::kernel_in_many),
    ("mount directories", mounted::ours_directories),
    ("kernel directories", mounted::kernel_directories),
    ("commands", command::commands),
];

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let (mut size_max, mut in_cpu, mut rest) = (100_000, false, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("max", value)) => size_max = value.parse().expect("a number"),
            _ if argument == "cpu" => in_cpu = true,
            _ => rest.push(argument),
        }
    }
    let selection = Selection::new(rest.into_iter());
    testkit::private_mounts();
    let sizes: Vec<u64> = SIZES.into_iter().filter(|size| *size <= size_max).collect();
    let mut table = table::Table::new(&sizes, in_cpu);
    for (name, series) in SERIES.iter().filter(|(name, _)| selection.has_row(name)) {
        let mut columns = Vec::new();
        for &size in &sizes {
            let rounds = if size <= 10_000 { ROUNDS_OF_SMALL } else { 1 };
            let mut costs = Costs::default();
            for _ in 0..rounds {
                series(size, &mut costs);
            }
            columns.push(costs);
        }
        table.add(name, &columns);
    }
    table.finish();
    println!("\nload at the end: {}", bench::load().unwrap_or_default());
    selection.finish()
}
