//! Jobs that keep several requests in flight until they have written the whole file, or the time is
//! over. Not here: the requests.

use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// The number of threads.
pub const JOBS: usize = 10;
/// The number of requests that each thread has in flight.
pub const DEPTH: usize = 10;
/// The maximum duration.
const TIME_MAX: Duration = Duration::from_secs(2);

/// A sender that returns a request's buffer to its job at the end of the request.
pub type BufferSender = Sender<Vec<u8>>;

/// A function that starts writes of buffers to byte offsets. It sends each buffer sender at the end
/// of its write.
pub type Start<'s> = dyn Fn(Vec<(u64, Vec<u8>)>, &BufferSender) + Sync + 's;

/// Writes to `ranges` ranges of `length` bytes, to each at most once, in a pseudo-random order,
/// until the time is over. Returns the writes per second.
pub fn run(ranges: u64, length: usize, start: &Start<'_>) -> f64 {
    // A prime that does not divide `ranges`, so that no range is written twice.
    const STEP: u64 = 1_000_003;
    let begin = Instant::now();
    let run_job = |job: u64| {
        let mut left = (job..ranges).step_by(JOBS).map(|index| index * STEP % ranges);
        let (sender, ended) = mpsc::channel();
        let new_buffer = || vec![job as u8 + 1; length];
        let next = |buffer| left.next().map(|range| (range * length as u64, buffer));
        let first: Vec<_> =
            std::iter::repeat_with(new_buffer).take(DEPTH).map_while(next).collect();
        let mut in_flight = first.len();
        let mut count = 0u64;
        start(first, &sender);
        while in_flight > 0 {
            let mut batch = Vec::new();
            let mut returned = ended.recv().ok();
            while let Some(buffer) = returned {
                in_flight -= 1;
                count += 1;
                if begin.elapsed() < TIME_MAX {
                    batch.extend(left.next().map(|range| (range * length as u64, buffer)));
                }
                returned = ended.try_recv().ok();
            }
            in_flight += batch.len();
            if !batch.is_empty() {
                start(batch, &sender);
            }
        }
        count
    };
    let count: u64 = thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS as u64).map(|job| scope.spawn(move || run_job(job))).collect();
        jobs.into_iter().map(|job| job.join().expect("a job")).sum()
    });
    count as f64 / begin.elapsed().as_secs_f64()
}
