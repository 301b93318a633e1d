//! The time of day, as inodes keep it.

use base::attributes::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// The time now: of the host's last tick, some milliseconds ago, as the kernel's own file systems
/// take it. What changes twice within a tick need not be written twice.
pub fn now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or_default() }
}
