//! Support for all benchmarks: the load of the machine, medians, names, tables of times, images and
//! their mounts, and ways of writing files. Not here: the measurements.

#![forbid(unsafe_code)]

pub mod image;
pub mod mount;
pub mod selection;
pub mod sides;
pub mod times;

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// One GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// The load below which the machine counts as idle.
const LOAD_MAX: f64 = 0.5;

/// Returns the number of runnable threads, on average over the last minute.
pub fn load() -> Option<f64> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    load.split(' ').next()?.parse().ok()
}

/// Returns a warning if other programs keep the machine busy.
pub fn busy_warning() -> Option<String> {
    let load = load().filter(|load| *load > LOAD_MAX)?;
    Some(format!("the machine is busy (load {load}): the results are not reliable"))
}

/// Returns the median of `values`, which must not be empty.
pub fn median<T: Copy + PartialOrd>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    values[values.len() / 2]
}

/// Returns the lines that say which aims were missed.
pub fn aims(missed: &[String]) -> String {
    if missed.is_empty() {
        return "all aims were reached".to_owned();
    }
    missed.iter().fold("missed aims:".to_owned(), |lines, line| lines + "\n  " + line)
}

/// Returns the processor time of this thread.
pub fn thread_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Runs a program of the host without input, and discards its output. Panics if it fails.
pub fn succeed(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("a program");
    assert!(status.success(), "{command:?}: {status}");
}

/// Returns the name of a number of bytes in tables, such as "64K".
pub fn length_name(bytes: usize) -> String {
    match bytes >> 10 {
        1024 => "1M".to_owned(),
        kibibytes => format!("{kibibytes}K"),
    }
}
