//! The table of syncs by several threads, each with a file of its own: how far callers share
//! flushes.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use bench::median;
use bench::selection::Selection;
use bench::sides::{Library, Output, Side};

use crate::columns::{EXT4, Kind, ORDERS, ext4, f2fs};

const THREADS: [usize; 4] = [1, 2, 8, 32];
/// The number of measurements of each side.
const ROUNDS: usize = 5;
/// The number of synced writes of a thread.
const WRITES: u64 = 64;
const WRITE_BYTES: usize = 4096;

/// The side with f2fs.
const F2FS: &str = "f2fs";

/// The aim: with 8 threads, this many times the syncs per second of one thread, on the device with
/// latency.
const AIM: (usize, f64) = (8, 3.0);

/// Measures and prints the table. Returns a line for each aim that is missed.
pub fn run(selection: &Selection) -> Vec<String> {
    let name = |threads: usize| format!("syncs {threads}");
    let rows: Vec<usize> =
        THREADS.into_iter().filter(|threads| selection.has_row(&name(*threads))).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let (_, order) = ORDERS[ORDERS.len() - 1];
    let mut sides = Vec::new();
    if selection.has_side(F2FS) {
        sides.push(f2fs(F2FS, Kind::Latency, order));
    }
    if selection.has_side(EXT4) {
        sides.push(ext4(Kind::Latency));
    }
    println!("\nsyncs of 4 KiB per second, all threads, device: latency\n");
    print!("{:<18}", "");
    sides.iter().for_each(|side| print!("{:>9}", side.name()));
    println!();
    let mut of_one = None;
    let mut missed = Vec::new();
    for threads in rows {
        let mut found = vec![Vec::new(); sides.len()];
        for _ in 0..ROUNDS {
            sides.iter().zip(&mut found).for_each(|(side, found)| found.push(rate(side, threads)));
        }
        let medians: Vec<f64> = found.into_iter().map(median).collect();
        print!("{:<18}", name(threads));
        medians.iter().for_each(|rate| print!("{rate:>9.0}"));
        println!();
        let ours = sides.iter().zip(&medians).find(|(side, _)| side.name() == F2FS);
        let Some((_, &rate)) = ours else { continue };
        if threads == 1 {
            of_one = Some(rate);
        }
        let times = of_one.filter(|_| threads == AIM.0).map(|one| rate / one);
        if let Some(times) = times.filter(|times| *times < AIM.1) {
            let (_, aim) = AIM;
            missed
                .push(format!("{}: {times:.1} times the syncs of 1, aim {aim:.1}", name(threads)));
        }
    }
    missed
}

/// Returns the number of syncs per second of so many threads.
fn rate(side: &Library, threads: usize) -> f64 {
    let names: Vec<String> = (0..threads).map(|number| format!("data {number}")).collect();
    let mut files: Vec<Box<dyn Output>> = names.iter().map(|name| side.create(name)).collect();
    // The first sync of a new file may need a checkpoint.
    files.iter_mut().for_each(|file| file.sync());
    let start = Barrier::new(threads + 1);
    let begin = thread::scope(|scope| {
        for mut file in files {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let data = [7; WRITE_BYTES];
                for at in 0..WRITES {
                    file.write(at * WRITE_BYTES as u64, &data);
                    file.sync();
                }
            });
        }
        start.wait();
        Instant::now()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    names.iter().for_each(|name| side.remove(name));
    (threads as u64 * WRITES) as f64 / elapsed
}
