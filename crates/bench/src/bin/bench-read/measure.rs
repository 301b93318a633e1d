//! Times: the sides in turn, several rounds, medians.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::case::{Case, State};
use crate::image::FILE_BYTES;
use crate::sides::Side;

/// How often each side is measured.
const ROUNDS: usize = 5;
/// How often a cached file is read for one measurement: once would be too short.
const PASSES_CACHED: u32 = 3;

/// How fast each side was, in bytes per second.
pub fn medians(case: &Case, sides: &mut [Box<dyn Side>]) -> Vec<f64> {
    let mut times = vec![Vec::with_capacity(ROUNDS); sides.len()];
    for _ in 0..ROUNDS {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            side.prepare(case);
            times.push(time(case, &**side));
        }
    }
    let passes = passes(case);
    let speed = |mut times: Vec<Duration>| {
        times.sort();
        (FILE_BYTES * u64::from(passes)) as f64 / times[ROUNDS / 2].as_secs_f64()
    };
    times.into_iter().map(speed).collect()
}

fn passes(case: &Case) -> u32 {
    if case.state == State::Cached { PASSES_CACHED } else { 1 }
}

/// How long all threads take together.
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
