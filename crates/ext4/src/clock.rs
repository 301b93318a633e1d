//! The host's time of day. Not here: how inodes store times (`inode/times.rs`).

use std::time::{Duration, SystemTime};

use base::attributes::Timestamp;

/// Returns the time since 1970, or zero if the host's clock is set to an earlier time.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    let since = since_1970();
    Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}
