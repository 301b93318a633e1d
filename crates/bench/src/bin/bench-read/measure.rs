//! Measurements: the sides in turn, several rounds, medians.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bench::median;

use crate::buffer::Buffer;
use crate::case::{Case, State};
use crate::image::FILE_BYTES;
use crate::sides::Side;

/// The number of measurements of each side.
const ROUNDS: usize = 5;
/// The number of times that a cached file is read in one measurement, since a single read is too
/// short.
const PASSES_CACHED: u32 = 3;

/// The results of a case for each side.
pub struct Medians {
    /// Speeds in bytes per second.
    pub speeds: Vec<f64>,
    /// Processor time of this process for each byte, in seconds.
    pub costs: Vec<f64>,
}

/// Measures all sides. Returns the medians.
pub fn medians(case: &Case, sides: &mut [Box<dyn Side>]) -> Medians {
    let mut times = vec![Vec::with_capacity(ROUNDS); sides.len()];
    let mut spent = times.clone();
    for _ in 0..ROUNDS {
        for (index, side) in sides.iter_mut().enumerate() {
            side.prepare(case);
            let before = processor_time();
            times[index].push(time(case, &**side));
            spent[index].push(processor_time().saturating_sub(before));
        }
    }
    let bytes = (FILE_BYTES * u64::from(passes(case))) as f64;
    let seconds = |times| median::<Duration>(times).as_secs_f64();
    Medians {
        speeds: times.into_iter().map(|times| bytes / seconds(times)).collect(),
        costs: spent.into_iter().map(|times| seconds(times) / bytes).collect(),
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().unwrap_or_default()
}

fn passes(case: &Case) -> u32 {
    if case.state == State::Cached { PASSES_CACHED } else { 1 }
}

/// Reads the file with all threads. Returns the time from the start of the first thread to the end
/// of the last one.
fn time(case: &Case, side: &dyn Side) -> Duration {
    let barrier = Barrier::new(case.threads);
    let part = FILE_BYTES / case.threads as u64;
    let work = |thread: u64, mut read: crate::sides::Read<'_>| {
        let mut buffer = Buffer::new(case.length);
        barrier.wait();
        let begin = Instant::now();
        for _ in 0..passes(case) {
            for at in (thread * part..(thread + 1) * part).step_by(case.length) {
                read(at, &mut buffer);
                black_box(&mut buffer[..]);
            }
        }
        (begin, Instant::now())
    };
    let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..case.threads as u64)
            .map(|thread| {
                let read = side.reader(case);
                let work = &work;
                scope.spawn(move || work(thread, read))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread that reads")).collect()
    });
    let begin = spans.iter().map(|span| span.0).min();
    let end = spans.iter().map(|span| span.1).max();
    end.zip(begin).map(|(end, begin)| end - begin).unwrap_or_default()
}
