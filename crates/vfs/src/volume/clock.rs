//! The clock for the times of inodes.

use std::sync::atomic::{AtomicI64, Ordering};

use base::attributes::Timestamp;
use rustix::time::{ClockId, Timespec, clock_gettime};

const SECOND: i64 = 1_000_000_000;

/// The last time that [`now`] returned, in nanoseconds since 1970. An `i64` holds times until 2262.
static LAST_EXACT: AtomicI64 = AtomicI64::new(0);

/// Returns the exact time, for changes that write the inode anyway. Two changes get different
/// times, unlike with ticks.
pub fn now() -> Timestamp {
    let now = nanoseconds(&clock_gettime(ClockId::Realtime));
    let before = LAST_EXACT.fetch_max(now, Ordering::Relaxed);
    if was_set_back(now, before) {
        LAST_EXACT.store(now, Ordering::Relaxed);
    }
    timestamp(now)
}

/// Returns the time of the host's last tick, some milliseconds ago, or the last time that [`now`]
/// returned if that is later. Changes of data use it: two changes within a tick need only one write
/// of the inode.
pub(crate) fn last_tick() -> Timestamp {
    let tick = nanoseconds(&clock_gettime(ClockId::RealtimeCoarse));
    timestamp(not_before(tick, LAST_EXACT.load(Ordering::Relaxed)))
}

/// Returns the time of the host's last tick, which the host's kernel uses for its own changes. It
/// may be some milliseconds earlier than [`now`].
pub fn tick() -> Timestamp {
    timestamp(nanoseconds(&clock_gettime(ClockId::RealtimeCoarse)))
}

fn not_before(tick: i64, exact: i64) -> i64 {
    if was_set_back(tick, exact) { tick } else { tick.max(exact) }
}

/// Returns whether the clock was set back since it showed `before`. Ticks are never as late as
/// that.
fn was_set_back(now: i64, before: i64) -> bool {
    before.saturating_sub(now) > SECOND
}

fn nanoseconds(time: &Timespec) -> i64 {
    time.tv_sec.saturating_mul(SECOND).saturating_add(time.tv_nsec)
}

fn timestamp(nanoseconds: i64) -> Timestamp {
    let part = nanoseconds.rem_euclid(SECOND);
    Timestamp { seconds: nanoseconds.div_euclid(SECOND), nanoseconds: part as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_times_differ_and_ticks_are_not_before_them() {
        let first = now();
        assert!(last_tick() >= first);
        let second = now();
        assert!(second > first, "{first:?}, then {second:?}");
        assert!(last_tick() >= second);
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        assert_eq!(not_before(5 * SECOND, 5 * SECOND + 7), 5 * SECOND + 7);
        assert_eq!(not_before(5 * SECOND + 8, 5 * SECOND + 7), 5 * SECOND + 8);
        assert_eq!(not_before(5 * SECOND, 3600 * SECOND), 5 * SECOND);
    }

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        assert_eq!(timestamp(-1), Timestamp { seconds: -1, nanoseconds: 999_999_999 });
    }
}
