//! `make bench-uncached`: cached and uncached streams of several times the size of the cache: their
//! speed in each second, their cost, and their effect on other cached data. Also the latency of
//! single writes, compared with the running kernel's ext4. The images are on tmpfs.
//!
//! Arguments: `seconds=N` for the duration of each measurement (5), `cache=MIB` for the cache's
//! limit (256), and parts of rows' names.
//!
//! Not here: the sides (`sides`), the streams (`streams`), single writes (`latency`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod latency;
mod sides;
mod streams;

use std::process::ExitCode;
use std::time::Duration;

use bench::selection::Selection;

/// The settings of a run.
pub struct Settings {
    /// The duration of each measurement.
    pub time: Duration,
    /// The limit of the cache, in bytes.
    pub cache_bytes: u64,
    /// The selected rows and sides.
    pub selection: Selection,
}

/// The size of a stream, in multiples of the cache's limit.
pub const STREAM_CACHES: u64 = 8;

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let (mut time, mut cache_bytes, mut rest) = (Duration::from_secs(5), 256 << 20, Vec::new());
    for argument in std::env::args().skip(1) {
        let number = |text: &str| text.parse::<u64>().expect("a number");
        match argument.split_once('=') {
            Some(("seconds", value)) => time = Duration::from_secs(number(value)),
            Some(("cache", value)) => cache_bytes = number(value) << 20,
            _ => rest.push(argument),
        }
    }
    let settings = Settings { time, cache_bytes, selection: Selection::new(rest.into_iter()) };
    testkit::private_mounts();
    let notes = streams::run(&settings);
    latency::run(&settings);
    println!("\nload at the end: {}\n", bench::load().unwrap_or_default());
    notes.iter().for_each(|note| println!("{note}"));
    settings.selection.finish()
}
