//! Intervals that several threads share: exactly one thread observes the end of each interval.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A sequence of intervals of equal length. The first interval has ended already.
#[derive(Debug)]
pub struct Interval {
    length: Duration,
    begin: Instant,
    /// The end of the current interval, in microseconds since `begin`.
    next: AtomicU64,
}

impl Interval {
    /// Creates intervals of this length.
    pub fn new(length: Duration) -> Self {
        Self { length, begin: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Returns whether the interval has ended, and begins the next one. Only one thread gets true
    /// for each interval.
    pub fn has_ended(&self) -> bool {
        let order = Ordering::Relaxed;
        let now = self.begin.elapsed().as_micros() as u64;
        let due = self.next.load(order);
        let next = now + self.length.as_micros() as u64;
        now >= due && self.next.compare_exchange(due, next, order, order).is_ok()
    }

    /// Makes the current interval endless.
    pub fn stop(&self) {
        self.next.store(u64::MAX, Ordering::Relaxed);
    }

    /// Ends the current interval now.
    #[cfg(test)]
    pub fn end(&self) {
        self.next.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_interval_is_reported_once() {
        let interval = Interval::new(Duration::from_secs(3600));
        assert!(interval.has_ended() && !interval.has_ended());
        interval.end();
        assert!(interval.has_ended() && !interval.has_ended());
        let brief = Interval::new(Duration::ZERO);
        assert!(brief.has_ended() && brief.has_ended());
        brief.stop();
        assert!(!brief.has_ended());
    }
}
