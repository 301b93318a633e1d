//! The table `series`, with the rows of the kernel's large-folio patch series: new and existing
//! files, without a sync, with one sync, and with a sync after each write.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bench::{length_name, median, thread_time};
use pagecache::CacheOptions;

use crate::notes::Notes;
use bench::image::Image;
use bench::mount::{FUSE2FS, KERNEL, MOUNT, WRITEBACK, mounters};
use bench::selection::Selection;
use bench::sides::{Library, Mounted, Output, Side};

/// The number of measurements of each side.
const ROUNDS: usize = 5;
/// The size of each image in bytes.
const IMAGE_BYTES: u64 = 640 << 20;
/// The number of bytes written, except by fuse2fs.
const FILE_BYTES: u64 = 128 << 20;
/// fuse2fs is slow, so it writes only this fraction: 1 / SLOW_SHARE.
const SLOW_SHARE: u64 = 8;
/// The number of synced writes of each length.
const SYNCED_WRITES: [u64; 3] = [1000, 500, 64];
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const NAME: &str = "data";

/// The columns of the library in this process.
pub const OURS: &str = "ours";
pub const ORDER_0: &str = "order 0";

/// The time of the sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// None during the measurement.
    Never,
    /// After each write.
    Each,
    /// After the last write.
    Once,
}

/// One way of writing a file from its start to its end.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Whether the file has its blocks already.
    pub overwrite: bool,
    /// The time of the sync.
    pub sync: Sync,
    /// The size of a write in bytes.
    pub length: usize,
    /// The gain of large folios over single pages that the patch series reports, in percent.
    pub gain: f64,
}

impl Row {
    /// Returns all rows, with the gains that the patch series reports (first cached, then on a RAM
    /// disk).
    fn all() -> impl Iterator<Item = Self> {
        let gains = [
            (false, Sync::Never, [5.0, 144.0, 167.0]),
            (true, Sync::Never, [5.0, 125.0, 137.0]),
            (false, Sync::Once, [-3.0, 138.0, 164.0]),
            (true, Sync::Once, [8.0, 127.0, 139.0]),
            (false, Sync::Each, [29.0, 51.0, 75.0]),
            (true, Sync::Each, [3.0, 86.0, 85.0]),
        ];
        gains.into_iter().flat_map(|(overwrite, sync, gains)| {
            let rows = LENGTHS.into_iter().zip(gains);
            rows.map(move |(length, gain)| Self { overwrite, sync, length, gain })
        })
    }

    fn bytes(&self, side: &dyn Side) -> u64 {
        if self.sync == Sync::Each {
            let index = LENGTHS.iter().position(|&length| length == self.length);
            return SYNCED_WRITES[index.unwrap_or_default()] * self.length as u64;
        }
        if side.name() == FUSE2FS { FILE_BYTES / SLOW_SHARE } else { FILE_BYTES }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = if self.overwrite { "over" } else { "new" };
        let sync = match self.sync {
            Sync::Never => "cached",
            Sync::Each => "fsync each",
            Sync::Once => "writeback",
        };
        f.pad(&format!("{file} {sync} {}", length_name(self.length)))
    }
}

/// The result of a row for a side.
pub struct Found {
    /// The name of the column.
    pub side: &'static str,
    /// The median speed in bytes per second.
    pub speed: f64,
    /// The speed in the fastest round.
    pub best: f64,
    /// The processor time of the writing thread for each byte, in seconds.
    pub cost: f64,
}

/// Measures and prints the table.
pub fn run(selection: &Selection, notes: &mut Notes) {
    let rows: Vec<Row> =
        Row::all().filter(|row| selection.has_row(&format!("series {row}"))).collect();
    if rows.is_empty() {
        return;
    }
    let sides = sides(selection);
    for side in &sides {
        warm_up(&**side);
    }
    print_heading(&sides);
    let mut table = Vec::new();
    for row in rows {
        let found = measure(&row, &sides);
        print_row(&row, &found, |found| found.speed);
        notes.judge_series(&row, &found);
        table.push((row, found));
    }
    println!("\nthe same for the fastest round, which other programs disturb least\n");
    table.iter().for_each(|(row, found)| print_row(row, found, |found| found.best));
    print_costs(&sides, &table);
}

fn sides(selection: &Selection) -> Vec<Box<dyn Side>> {
    let image = || Image::make(IMAGE_BYTES, 4096, "");
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    let orders = [(OURS, CacheOptions::default().folio_order_max), (ORDER_0, 0)];
    for (name, order) in orders.into_iter().filter(|(name, _)| selection.has_side(name)) {
        sides.push(Box::new(Library::new(name, image(), order, FILE_BYTES)));
    }
    for (name, mounter) in mounters().into_iter().filter(|(name, _)| selection.has_side(name)) {
        sides.push(Box::new(Mounted::new(name, image(), mounter)));
    }
    sides
}

/// Makes the host allocate the memory that each side uses.
fn warm_up(side: &dyn Side) {
    let bytes = if side.name() == FUSE2FS { FILE_BYTES / SLOW_SHARE } else { FILE_BYTES };
    drop(create_whole_file(side, bytes));
    side.remove(NAME);
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
    let mut times = vec![Vec::with_capacity(ROUNDS); sides.len()];
    let mut spent = times.clone();
    let mut existing_files: Vec<_> = sides
        .iter()
        .map(|side| row.overwrite.then(|| create_whole_file(&**side, row.bytes(&**side))))
        .collect();
    for _ in 0..ROUNDS {
        for (index, side) in sides.iter().enumerate() {
            let mut new = None;
            let file = match &mut existing_files[index] {
                Some(file) => file,
                None => new.insert(side.create(NAME)),
            };
            let (time, processor) = write_file(row, row.bytes(&**side), &mut **file);
            times[index].push(time);
            spent[index].push(processor);
            // Syncs, so that the next round begins without dirty data.
            file.sync();
        }
    }
    drop(existing_files);
    sides.iter().for_each(|side| side.remove(NAME));
    let seconds = |times| median::<Duration>(times).as_secs_f64();
    let found = sides.iter().zip(times).zip(spent).map(|((side, times), spent)| {
        let bytes = row.bytes(&**side) as f64;
        let best = bytes / times.iter().min().map_or(f64::NAN, Duration::as_secs_f64);
        let (speed, cost) = (bytes / seconds(times), seconds(spent) / bytes);
        Found { side: side.name(), speed, best, cost }
    });
    found.collect()
}

/// Writes one file. Returns the elapsed time, and the processor time of this thread.
fn write_file(row: &Row, bytes: u64, file: &mut dyn Output) -> (Duration, Duration) {
    let data = vec![7; row.length];
    let (begin, processor) = (Instant::now(), thread_time());
    for at in (0..bytes).step_by(row.length) {
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

/// The printed ratios: two columns, and the heading.
const RATIOS: [(&str, &str, &str); 6] = [
    (OURS, KERNEL, "kernel"),
    (OURS, ORDER_0, "order 0"),
    (MOUNT, KERNEL, "m/kernel"),
    (MOUNT, FUSE2FS, "m/fuse2fs"),
    (WRITEBACK, KERNEL, "w/kernel"),
    (WRITEBACK, FUSE2FS, "w/fuse2fs"),
];

/// Returns the speed of a side, if it was measured.
pub fn speed_of(found: &[Found], side: &str) -> Option<f64> {
    found.iter().find(|found| found.side == side).map(|found| found.speed)
}

fn print_heading(sides: &[Box<dyn Side>]) {
    println!(
        "\n1 thread, MiB/s; ratios: ours to kernel and order 0, our mounts (m, w) to others\n"
    );
    print!("{:<20}", "");
    sides.iter().for_each(|side| print!("{:>10}", side.name()));
    print!(" |");
    RATIOS.iter().for_each(|(_, _, heading)| print!("{heading:>10}"));
    println!();
}

fn print_row(row: &Row, found: &[Found], speed: impl Fn(&Found) -> f64) {
    print!("{row:<20}");
    found.iter().for_each(|found| print!("{:>10.1}", speed(found) / f64::from(1 << 20)));
    print!(" |");
    let speed_of = |side: &str| found.iter().find(|found| found.side == side).map(&speed);
    for (one, other, _) in RATIOS {
        match speed_of(one).zip(speed_of(other)) {
            Some((one, other)) => print!("{:>10.2}", one / other),
            None => print!("{:>10}", ""),
        }
    }
    println!();
}

/// Prints the processor time of the writing thread for sides where this thread does all the work.
/// It depends less on other programs than speed.
fn print_costs(sides: &[Box<dyn Side>], table: &[(Row, Vec<Found>)]) {
    let works_alone = |side: &str| [KERNEL, OURS, ORDER_0].contains(&side);
    println!("\nprocessor time of the writing thread, ms/GiB\n");
    print!("{:<20}", "");
    let names = sides.iter().map(|side| side.name()).filter(|side| works_alone(side));
    names.for_each(|side| print!("{side:>10}"));
    println!();
    for (row, found) in table.iter().filter(|(row, _)| row.sync == Sync::Never) {
        print!("{row:<20}");
        let alone = found.iter().filter(|found| works_alone(found.side));
        alone.for_each(|found| print!("{:>10.1}", found.cost * bench::GIB * 1e3));
        println!();
    }
}
