//! Tables of reads from f2fs by folio order and read optimisation, beside the gains that the series
//! of patches "f2fs: support large folios for writable files" reports for Linux.

mod image;

use std::sync::Arc;
use std::time::Duration;

use bench::selection::Selection;
use device::{LatencyDevice, SharedDevice};
use iomap::ReadOptions;

use crate::case::{Case, Content, LENGTHS, State};
use crate::measure;
use crate::sides::{Opener, Ours, Side};

/// The latency of the slower device.
const LATENCY: Duration = Duration::from_micros(80);
/// The number of requests that this device serves concurrently.
const QUEUE: usize = 32;

/// The sides: names, folio orders, and whether batched accounting and skipped folio state are on.
const SIDES: [(&str, u8, bool, bool); 5] = [
    ("order 0", 0, true, true),
    ("2 neither", 2, false, false),
    ("2 batch", 2, true, false),
    ("order 2", 2, true, true),
    ("order 9", 9, true, true),
];

/// The side with order 2 and both optimisations.
const ORDER_2: usize = 3;

/// Measures the rows that are selected. Returns a line for each row that misses an aim.
pub fn run(selection: &Selection) -> Vec<String> {
    let memory = [State::Full, State::Cold].map(|state| ("memory", state));
    let tables = memory.into_iter().chain([("latency", State::Full)]);
    let tables: Vec<(&str, Vec<Case>)> = tables
        .map(|(device, state)| (device, cases(selection, device, state)))
        .filter(|(_, cases)| !cases.is_empty())
        .collect();
    if tables.is_empty() {
        return Vec::new();
    }
    let memory = image::make();
    tables.iter().flat_map(|(device, cases)| table(&memory, device, cases)).collect()
}

/// Returns the selected cases.
fn cases(selection: &Selection, device: &str, state: State) -> Vec<Case> {
    let all = [Content::Hole, Content::Data]
        .into_iter()
        .flat_map(|content| LENGTHS.map(|length| Case { content, state, length, threads: 1 }));
    all.filter(|case| selection.has_row(&row_name(device, case))).collect()
}

/// Returns the name of a row on the command line.
fn row_name(device: &str, case: &Case) -> String {
    format!("f2fs {device} {case}")
}

/// Measures and prints the rows of a device. Returns a line for each row that misses an aim.
fn table(memory: &SharedDevice, device: &str, cases: &[Case]) -> Vec<String> {
    println!(
        "\nf2fs, device: {device}, 1 thread, MiB/s; gains over order 0, and the series' gain at order 2\n"
    );
    let mut sides: Vec<Box<dyn Side>> = SIDES.map(|side| new_side(memory, device, side)).into();
    print!("{:<16}", "");
    sides.iter().for_each(|side| print!("{:>11}", side.name()));
    print!(" |");
    sides[1..].iter().for_each(|side| print!("{:>10}", side.name()));
    println!("{:>9}", "series");
    let mut missed = Vec::new();
    for case in cases {
        let speeds = measure::medians(case, &mut sides).speeds;
        let gains: Vec<f64> =
            speeds.iter().map(|speed| (speed / speeds[0] - 1.0) * 100.0).collect();
        print!("{case:<16}");
        speeds.iter().for_each(|speed| print!("{:>11.0}", speed / f64::from(1 << 20)));
        print!(" |");
        gains[1..].iter().for_each(|gain| print!("{gain:>+9.0}%"));
        let aim = series_gain(case);
        println!("{aim:>+8.0}%");
        if gains[ORDER_2] < aim {
            let name = row_name(device, case);
            missed.push(format!(
                "{name}: {:+.0}% at order 2, the series: {aim:+.0}%",
                gains[ORDER_2]
            ));
        }
    }
    missed
}

fn new_side(
    memory: &SharedDevice,
    device: &str,
    (name, order, batch_pending_accounting, skip_folio_state): (&'static str, u8, bool, bool),
) -> Box<dyn Side> {
    let read = ReadOptions { batch_pending_accounting, skip_folio_state, ..Default::default() };
    let memory = Arc::clone(memory);
    let open: Opener = match device {
        "memory" => Arc::new(move || Arc::clone(&memory)),
        _ => Arc::new(move || Arc::new(LatencyDevice::new(Arc::clone(&memory), LATENCY, QUEUE))),
    };
    Box::new(Ours::new(open, name, order, read))
}

/// Returns the gain of order 2 over order 0 that the series reports, in percent, with both
/// optimisations.
fn series_gain(case: &Case) -> f64 {
    match (case.content, case.length >> 10) {
        (Content::Hole, 4) => 11.1,
        (Content::Hole, 64) => 27.6,
        (Content::Hole, _) => 32.8,
        (Content::Data, 4) => 23.3,
        (Content::Data, 64) => 56.6,
        (Content::Data, _) => 60.2,
    }
}
