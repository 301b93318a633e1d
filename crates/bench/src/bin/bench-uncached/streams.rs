//! Streams of several times the size of the cache: speed in each second, processor time, memory,
//! and the part of another file (the hot file) that stays cached.

use std::time::{Duration, Instant};

use bench::image::Image;
use bench::{GIB, median};

use crate::sides::{Library, Target};
use crate::{STREAM_CACHES, Settings};

/// The size of a read or write in bytes.
const PART_BYTES: usize = 256 << 10;
/// The cache's limit divided by the size of the hot file.
const HOT_SHARE: u64 = 4;
/// The number of measurements. Cached and uncached streams take turns.
const ROUNDS: usize = 5;
const MIB: f64 = (1 << 20) as f64;

/// The results of a stream.
struct Found {
    /// GiB in each whole second.
    seconds: Vec<f64>,
    /// GiB per second in total.
    speed: f64,
    /// Processor time of all processors per GiB, including the kernel's, in seconds.
    cpu: f64,
    /// The maximum size of all folios, in MiB.
    folios: f64,
    /// The process's anonymous memory after the stream, in MiB.
    memory: f64,
    /// The part of the hot file that is still cached after the stream, in percent.
    hot: f64,
}

/// The device of the image.
#[derive(Clone, Copy)]
enum Medium {
    /// A file on tmpfs. The processors copy its data.
    Tmpfs,
    /// A device without transfers; see [`Library::skip_transfers`].
    NoTransfers,
}

/// Measures all rows. Returns notes about the results.
pub fn run(settings: &Settings) -> Vec<String> {
    let mib = settings.cache_bytes >> 20;
    println!(
        "\nstreams of {STREAM_CACHES} times a cache of {mib} MiB, {} KiB at a time",
        PART_BYTES >> 10
    );
    let mut notes = table(settings, Medium::Tmpfs, "");
    println!(
        "\nthe same with a device that transfers no data, so that only the library's cost remains"
    );
    notes.extend(table(settings, Medium::NoTransfers, "no device: "));
    notes
}

fn table(settings: &Settings, medium: Medium, prefix: &str) -> Vec<String> {
    println!(
        "{:26} {:>7} {:>23} {:>11} {:>9} {:>9} {:>9} {:>7}",
        "", "GiB/s", "min / median / max", "first/last", "CPU s/GiB", "folios", "memory", "hot"
    );
    let mut notes = Vec::new();
    for write in [false, true] {
        let name = format!("{prefix}{}", if write { "write" } else { "read" });
        let names = ["cached", "uncached"].map(|kind| format!("{name} {kind}"));
        let mut found = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            for (uncached, found) in [false, true].into_iter().zip(&mut found) {
                if settings.selection.has_row(&names[usize::from(uncached)]) {
                    found.push(measure(settings, medium, write, uncached));
                }
            }
        }
        for (name, found) in names.iter().zip(&found).filter(|(_, found)| !found.is_empty()) {
            println!("{}", row(name, found));
        }
        if found.iter().all(|found| !found.is_empty()) {
            notes.push(judge(&name, &found[0], &found[1]));
        }
    }
    notes
}

/// Returns the median of one result over all rounds.
fn median_of(found: &[Found], pick: impl Fn(&Found) -> f64) -> f64 {
    median(found.iter().map(pick).collect())
}

fn row(name: &str, found: &[Found]) -> String {
    let seconds: Vec<f64> = found.iter().flat_map(|found| found.seconds.iter().copied()).collect();
    let of = |pick: fn(f64, f64) -> f64| seconds.iter().copied().reduce(pick).unwrap_or(0.0);
    format!(
        "{name:26} {:7.2} {:7.2} {:7.2} {:7.2} {:>5.2}/{:<5.2} {:9.3} {:5.0} MiB {:5.0} MiB {:6.1}%",
        median_of(found, |found| found.speed),
        of(f64::min),
        median(seconds.clone()),
        of(f64::max),
        median_of(found, Found::first),
        median_of(found, Found::last),
        median_of(found, |found| found.cpu),
        median_of(found, |found| found.folios),
        median_of(found, |found| found.memory),
        median_of(found, |found| found.hot),
    )
}

impl Found {
    /// Returns the speed of the first second.
    fn first(&self) -> f64 {
        self.seconds.first().copied().unwrap_or(0.0)
    }

    /// Returns the speed of the last whole second.
    fn last(&self) -> f64 {
        self.seconds.last().copied().unwrap_or(0.0)
    }
}

fn judge(name: &str, cached: &[Found], uncached: &[Found]) -> String {
    let ratio = |pick: fn(&Found) -> f64| median_of(uncached, pick) / median_of(cached, pick);
    let (speed, cpu) = (ratio(|found| found.speed), ratio(|found| found.cpu));
    let flat = median_of(uncached, |found| found.last() / found.first());
    let (hot_cached, hot) =
        (median_of(cached, |found| found.hot), median_of(uncached, |found| found.hot));
    let verdict = |is_reached: bool| if is_reached { "reached" } else { "MISSED" };
    format!(
        "{name}: uncached {speed:.2} times as fast, {cpu:.2} times the CPU per byte (aim: at least \
         1.65, or at most 0.50): {}; last second to first {flat:.2} (aim: at least 0.85): {}; hot data \
         still cached {hot:.1}% (aim: at least 99; after cached streams {hot_cached:.1}): {}",
        verdict(speed >= 1.65 || cpu <= 0.5),
        verdict(flat >= 0.85),
        verdict(hot >= 99.0),
    )
}

fn measure(settings: &Settings, medium: Medium, write: bool, uncached: bool) -> Found {
    let (stream_bytes, hot_bytes) =
        (STREAM_CACHES * settings.cache_bytes, settings.cache_bytes / HOT_SHARE);
    let image = Image::make(stream_bytes + hot_bytes + (512 << 20), 4096, "");
    let library = Library::new(image, settings.cache_bytes);
    let (hot, stream) = (library.file("hot", false), library.file("stream", uncached));
    let mut buffer = vec![0x5a; PART_BYTES];
    // Writes the stream's file first, so that it has blocks but is not cached.
    let filler = library.file("stream", true);
    for_each_part(stream_bytes, |at| filler.write(at, &buffer));
    filler.sync();
    for_each_part(hot_bytes, |at| hot.write(at, &buffer));
    hot.sync();
    for _ in 0..2 {
        for_each_part(hot_bytes, |at| hot.read(at, &mut buffer));
    }
    if let Medium::NoTransfers = medium {
        library.skip_transfers();
    }
    let (seconds, speed, cpu) =
        timed(settings.time, stream_bytes, |at| transfer(&*stream, write, at, &mut buffer));
    let stats = library.volume.cache_stats();
    let memory = status_bytes("RssAnon:") as f64 / MIB;
    let before = library.bytes_read();
    for_each_part(hot_bytes, |at| hot.read(at, &mut buffer));
    let read_again = (library.bytes_read() - before).min(hot_bytes);
    let hot = 100.0 * (hot_bytes - read_again) as f64 / hot_bytes as f64;
    let folios = stats.bytes_resident as f64 / MIB;
    Found { seconds, speed, cpu, folios, memory, hot }
}

fn transfer(stream: &dyn Target, write: bool, at: u64, buffer: &mut [u8]) {
    if write { stream.write(at, buffer) } else { stream.read(at, buffer) }
}

fn for_each_part(bytes: u64, mut each: impl FnMut(u64)) {
    (0..bytes).step_by(PART_BYTES).for_each(&mut each);
}

/// Calls `each` with the offsets of all parts of a file of `bytes` bytes, again and again, for
/// `time`. Returns the GiB in each second, the GiB per second, and the processor time per GiB.
fn timed(time: Duration, bytes: u64, mut each: impl FnMut(u64)) -> (Vec<f64>, f64, f64) {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let (mut seconds, mut done, mut at) = (vec![0.0], 0_u64, 0);
    loop {
        each(at);
        at = (at + PART_BYTES as u64) % bytes;
        done += PART_BYTES as u64;
        let elapsed = start.elapsed();
        if elapsed >= time {
            let gib = done as f64 / GIB;
            return (seconds, gib / elapsed.as_secs_f64(), (cpu_seconds() - cpu) / gib);
        }
        seconds.resize(elapsed.as_secs() as usize + 1, 0.0);
        if let Some(second) = seconds.last_mut() {
            *second += PART_BYTES as f64 / GIB;
        }
    }
}

/// Returns the processor time of all threads of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Returns a field of this process's status, in bytes.
fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    line.trim().trim_end_matches(" kB").parse::<u64>().expect(field) << 10
}
