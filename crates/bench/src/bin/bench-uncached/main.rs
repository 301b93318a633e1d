//! `make bench-uncached`: streams of several times the cache, kept in it and not: how fast they are from
//! second to second, what they cost, and what they leave of others' data; and how long single writes
//! take, beside the running kernel's ext4. Everything in one run, on images on tmpfs.
//!
//! Arguments: `seconds=N` for each measurement (5), `cache=MIB` for the limit (256), and parts of rows'
//! names.
//!
//! Not here: the sides (`sides`), the streams (`streams`), single writes (`latency`).
// A program for people to read.
#![allow(clippy::print_stdout)]

mod latency;
mod sides;
mod streams;

use std::process::ExitCode;
use std::time::Duration;

use bench::selection::Selection;

/// How long, and with how much memory.
pub struct Settings {
    /// Of each measurement.
    pub time: Duration,
    /// The limit of the cache, in bytes.
    pub cache_bytes: u64,
    /// Which rows and sides.
    pub selection: Selection,
}

/// How many times the cache the streams are.
pub const TIMES: u64 = 8;

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
