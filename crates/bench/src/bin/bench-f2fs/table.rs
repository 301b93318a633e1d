//! The table of rows by sides, with gains over order 0, and the processor time of the writing
//! thread.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bench::selection::Selection;
use bench::sides::{Output, Side};
use bench::{median, thread_time};

use crate::columns::{Kind, ORDERS, all, works_alone};
use crate::row::{FILE_BYTES, Row, Sync};

const NAME: &str = "data";

/// The result of a row for a side.
struct Found {
    side: &'static str,
    /// The median speed in bytes per second.
    speed: f64,
    /// The processor time of the writing thread for each byte, in seconds.
    cost: f64,
}

/// Measures and prints both tables. Returns a line for each aim that is missed.
pub fn run(selection: &Selection) -> Vec<String> {
    [Kind::Memory, Kind::Latency].into_iter().flat_map(|kind| table(selection, kind)).collect()
}

fn row_name(kind: Kind, row: &Row) -> String {
    format!("{} {row}", kind.name())
}

fn table(selection: &Selection, kind: Kind) -> Vec<String> {
    let rows: Vec<Row> = Row::all().filter(|row| selection.has_row(&row_name(kind, row))).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let sides = all(selection, kind);
    for side in &sides {
        // Makes the host allocate the memory that the side uses.
        drop(create_whole_file(&**side, FILE_BYTES));
        side.remove(NAME);
    }
    print_heading(kind, &sides);
    let (mut results, mut missed) = (Vec::new(), Vec::new());
    for row in rows {
        let found = measure(&row, &sides);
        print_row(&row, &found);
        missed.extend(missed_aims(kind, &row, &found));
        results.push((row, found));
    }
    print_costs(&results);
    missed
}

/// Creates and syncs a file of at least `bytes` bytes, rounded up to 1 MiB.
fn create_whole_file(side: &dyn Side, bytes: u64) -> Box<dyn Output> {
    let mut file = side.create(NAME);
    let data = vec![7; 1 << 20];
    (0..bytes.div_ceil(1 << 20)).for_each(|at| file.write(at << 20, &data));
    file.sync();
    file
}

fn measure(row: &Row, sides: &[Box<dyn Side>]) -> Vec<Found> {
    let mut times = vec![Vec::new(); sides.len()];
    let mut spent = times.clone();
    let mut existing: Vec<_> = sides
        .iter()
        .map(|side| row.overwrite.then(|| create_whole_file(&**side, row.bytes())))
        .collect();
    for _ in 0..row.rounds() {
        for (index, side) in sides.iter().enumerate() {
            let mut new = None;
            let file = match &mut existing[index] {
                Some(file) => file,
                None => new.insert(side.create(NAME)),
            };
            let (time, processor) = write_file(row, &mut **file);
            times[index].push(time);
            spent[index].push(processor);
            // The next round begins without dirty data, and on f2fs with a checkpoint.
            file.sync();
            side.sync();
        }
    }
    drop(existing);
    sides.iter().for_each(|side| side.remove(NAME));
    let seconds = |times| median::<Duration>(times).as_secs_f64();
    let bytes = row.bytes() as f64;
    let found = sides.iter().zip(times).zip(spent).map(|((side, times), spent)| Found {
        side: side.name(),
        speed: bytes / seconds(times),
        cost: seconds(spent) / bytes,
    });
    found.collect()
}

/// Writes one file. Returns the elapsed time, and the processor time of this thread.
fn write_file(row: &Row, file: &mut dyn Output) -> (Duration, Duration) {
    let data = vec![7; row.length];
    let (begin, processor) = (Instant::now(), thread_time());
    for at in (0..row.bytes()).step_by(row.length) {
        file.write(at, black_box(&data));
        if row.sync == Sync::Each {
            file.sync();
        }
    }
    if row.sync == Sync::Once {
        file.sync();
    }
    (begin.elapsed(), thread_time().saturating_sub(processor))
}

/// Returns the gain of an order over order 0, in percent, if both were measured.
fn gain(found: &[Found], order: &str) -> Option<f64> {
    let of = |name: &str| found.iter().find(|found| found.side == name);
    let (base, this) = (of(ORDERS[0].0)?, of(order)?);
    Some((this.speed / base.speed - 1.0) * 100.0)
}

fn missed_aims(kind: Kind, row: &Row, found: &[Found]) -> Vec<String> {
    let Some(aim) = row.aim() else { return Vec::new() };
    let gains = ORDERS[1..].iter().filter_map(|(order, _)| Some((order, gain(found, order)?)));
    let missed = gains.filter(|(_, gain)| *gain < aim);
    let line = |(order, gain): (&&str, f64)| {
        format!("{}: {gain:+.0}% at {order}, aim {aim:+.0}%", row_name(kind, row))
    };
    missed.map(line).collect()
}

fn print_heading(kind: Kind, sides: &[Box<dyn Side>]) {
    println!(
        "\ndevice: {}, 1 thread, MiB/s; gains over order 0, and the series' gain at order 2\n",
        kind.name()
    );
    print!("{:<18}", "");
    sides.iter().for_each(|side| print!("{:>9}", side.name()));
    print!(" |");
    ORDERS[1..].iter().for_each(|(order, _)| print!("{order:>9}"));
    println!("{:>8}", "series");
}

fn print_row(row: &Row, found: &[Found]) {
    print!("{row:<18}");
    found.iter().for_each(|found| print!("{:>9.1}", found.speed / f64::from(1 << 20)));
    print!(" |");
    for (order, _) in &ORDERS[1..] {
        match gain(found, order) {
            Some(gain) => print!("{gain:>+8.0}%"),
            None => print!("{:>9}", ""),
        }
    }
    match row.gain {
        Some(gain) => println!("{gain:>+7.0}%"),
        None => println!(),
    }
}

/// Prints the processor time of the writing thread for sides where this thread does all the work.
/// It depends less on other programs than speed.
fn print_costs(results: &[(Row, Vec<Found>)]) {
    println!("\nprocessor time of the writing thread, ms/GiB\n");
    for (index, (row, found)) in results.iter().enumerate() {
        let alone = || found.iter().filter(|found| works_alone(found.side));
        if index == 0 {
            print!("{:<18}", "");
            alone().for_each(|found| print!("{:>9}", found.side));
            println!();
        }
        print!("{row:<18}");
        alone().for_each(|found| print!("{:>9.1}", found.cost * bench::GIB * 1e3));
        println!();
    }
}
