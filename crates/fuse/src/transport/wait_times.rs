//! Expected times for which requests of each kind wait for the device. They decide whether the
//! leader may wait itself. Not here: the waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The limit below which a wait is brief. Waking another thread, usually on another processor,
/// takes about as long, so other requests gain nothing if the leader is back earlier.
const BRIEF: Duration = Duration::from_micros(200);
/// The expectation before the first request. It is long, so that waits count as brief only after
/// some requests.
const UNKNOWN: Duration = Duration::from_millis(1);
/// The share of the old expectation that is kept, above a wait that was shorter, as numerator and
/// denominator. After a long wait, waits count as brief again only after about thirty brief ones.
/// So other requests seldom wait for a leader that waits for the device.
const KEPT_SHARE: (u64, u64) = (7, 8);
/// The number of kinds: operation codes are distinguished up to this number.
const KINDS: usize = 64;

/// The expected wait of each kind, in nanoseconds.
#[derive(Debug)]
pub struct WaitTimes([AtomicU64; KINDS]);

impl Default for WaitTimes {
    fn default() -> Self {
        Self([const { AtomicU64::new(UNKNOWN.as_nanos() as u64) }; KINDS])
    }
}

impl WaitTimes {
    /// Returns whether requests with this operation code wait so briefly that no other thread need
    /// receive requests during the wait.
    pub fn are_brief(&self, opcode: u32) -> bool {
        self.of(opcode).load(Ordering::Relaxed) < BRIEF.as_nanos() as u64
    }

    /// Records how long a request has waited.
    pub fn record(&self, opcode: u32, waited: Duration) {
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let expected = self.of(opcode);
        let above = expected.load(Ordering::Relaxed).saturating_sub(waited);
        // If several threads record at the same time, any of their values will do.
        let (kept, of) = KEPT_SHARE;
        expected.store(waited.saturating_add(above / of * kept), Ordering::Relaxed);
    }

    fn of(&self, opcode: u32) -> &AtomicU64 {
        &self.0[opcode as usize % KINDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records brief waits until waits count as brief. Returns their number.
    fn record_brief_waits(wait_times: &WaitTimes, opcode: u32) -> usize {
        (0..1000)
            .take_while(|_| {
                let brief = wait_times.are_brief(opcode);
                wait_times.record(opcode, Duration::from_micros(20));
                !brief
            })
            .count()
    }

    #[test]
    fn waits_are_brief_after_many_brief_ones_of_their_kind_until_a_long_one() {
        let wait_times = WaitTimes::default();
        assert!((5..50).contains(&record_brief_waits(&wait_times, 20)));
        assert!(!wait_times.are_brief(15), "another kind");
        wait_times.record(20, Duration::from_millis(10));
        assert!((20..60).contains(&record_brief_waits(&wait_times, 20)));
        wait_times.record(20, Duration::from_secs(3600));
        assert!(
            record_brief_waits(&wait_times, 20) < 400,
            "even a very long wait loses its effect"
        );
    }
}
