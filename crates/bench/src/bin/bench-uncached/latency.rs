//! Latency of single writes while several threads write streams, cached and uncached: with the
//! library in this process, and with the running kernel's ext4 on a loop device, with RWF_DONTCACHE
//! and without.

use std::thread;
use std::time::{Duration, Instant};

use bench::image::Image;

use crate::sides::{Kernel, Library, Target};
use crate::{STREAM_CACHES, Settings};

/// The number of threads. Each has its own file.
const WRITERS: u64 = 2;
/// The size of a write in bytes.
const PART_BYTES: usize = 64 << 10;

/// Measures all rows.
pub fn run(settings: &Settings) {
    println!(
        "\n{WRITERS} writers, {} KiB at a time; times of single writes in microseconds",
        PART_BYTES >> 10
    );
    println!("{:18} {:>9} {:>9} {:>9} {:>9} {:>9}", "", "GiB/s", "p50", "p99", "p99.9", "max");
    let bytes = STREAM_CACHES * settings.cache_bytes / WRITERS;
    let image = || Image::make(STREAM_CACHES * settings.cache_bytes + (512 << 20), 4096, "");
    for dontcache in [false, true] {
        let kind = if dontcache { "uncached" } else { "cached" };
        let name = format!("latency {kind}");
        if settings.selection.has_row(&name) && settings.selection.has_side("ours") {
            let library = Library::new(image(), settings.cache_bytes);
            measure(settings, &format!("ours {kind}"), bytes, |name| library.file(name, dontcache));
        }
        if settings.selection.has_row(&name) && settings.selection.has_side("kernel") {
            let kernel = Kernel::new(image());
            measure(settings, &format!("kernel {kind}"), bytes, |name| {
                kernel.file(name, dontcache)
            });
        }
    }
}

fn measure(
    settings: &Settings,
    name: &str,
    bytes: u64,
    open: impl Fn(&str) -> Box<dyn Target> + Sync,
) {
    let start = Instant::now();
    let mut times: Vec<Duration> = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let open = &open;
                scope.spawn(move || {
                    let (file, data) = (open(&format!("file {writer}")), vec![0x5a; PART_BYTES]);
                    let (mut at, mut times) = (0, Vec::new());
                    while start.elapsed() < settings.time {
                        let before = Instant::now();
                        file.write(at, &data);
                        times.push(before.elapsed());
                        at = (at + PART_BYTES as u64) % bytes;
                    }
                    times
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().expect("no panic")).collect()
    });
    let speed = (times.len() * PART_BYTES) as f64 / bench::GIB / start.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len() - 1);
        times[index].as_secs_f64() * 1e6
    };
    println!(
        "{name:18} {speed:9.2} {:9.1} {:9.1} {:9.1} {:9.1}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}
