//! Jobs that keep some requests in flight, until they have written to all offsets of a file, or the time is over.
//! Not here: the requests.

use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The number of threads, and the number of requests that each has in flight.
pub const JOBS: usize = 10;
pub const DEPTH: usize = 10;
/// The maximum duration.
const TIME_MAX: Duration = Duration::from_secs(2);

/// A buffer, which is sent back when its request has ended.
pub type Back = Sender<Vec<u8>>;

/// Starts writes of these buffers to these offsets. Each buffer is sent back at the end of its write.
pub type Start<'s> = dyn Fn(Vec<(u64, Vec<u8>)>, &Back) + Sync + 's;

/// Writes to `places` ranges of `length` bytes each, in a pseudo-random order. Returns the writes per second.
pub fn run(places: u64, length: usize, start: &Start<'_>) -> f64 {
    // A prime that divides no number of ranges, so that each range is visited once.
    const STEP: u64 = 1_000_003;
    let begin = Instant::now();
    let of_job = |job: u64| {
        let mut left = (job..places).step_by(JOBS).map(|index| index * STEP % places);
        let (back, ended) = mpsc::channel();
        let buffers = || vec![job as u8 + 1; length];
        let next = |buffer| left.next().map(|place| (place * length as u64, buffer));
        let first: Vec<_> = std::iter::repeat_with(buffers).take(DEPTH).map_while(next).collect();
        let mut in_flight = first.len();
        let mut count = 0u64;
        start(first, &back);
        while in_flight > 0 {
            let mut batch = Vec::new();
            let mut come = ended.recv().ok();
            while let Some(buffer) = come {
                (in_flight, count) = (in_flight - 1, count + 1);
                if begin.elapsed() < TIME_MAX {
                    batch.extend(left.next().map(|place| (place * length as u64, buffer)));
                }
                come = ended.try_recv().ok();
            }
            in_flight += batch.len();
            if !batch.is_empty() {
                start(batch, &back);
            }
        }
        count
    };
    let count: u64 = thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS as u64).map(|job| scope.spawn(move || of_job(job))).collect();
        jobs.into_iter().map(|job| job.join().expect("a job")).sum()
    });
    count as f64 / begin.elapsed().as_secs_f64()
}
