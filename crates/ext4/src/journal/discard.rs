//! Discards of freed space on the device. Not here: which space is discarded, and when.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{DeviceOffset, Error};
use device::BlockDevice;
use rustix::io::Errno;

/// The state of discards on a device.
#[derive(Default)]
pub(super) struct Discards {
    /// Whether the device does not support discards. No further ones are tried.
    are_refused: AtomicBool,
}

impl Discards {
    /// Discards `ranges` of `device`, after merging adjacent ones.
    pub(super) fn submit(&self, device: &dyn BlockDevice, ranges: Vec<Range<DeviceOffset>>) {
        if self.are_refused.load(Ordering::Relaxed) {
            return;
        }
        let discard = |range: Range<DeviceOffset>| {
            device.discard(range.start, range.end.0.saturating_sub(range.start.0))
        };
        // Discards are an optimization: errors are only logged.
        match merge(ranges).into_iter().try_for_each(discard) {
            Ok(()) => {}
            Err(error) if is_refusal(&error) => {
                tracing::warn!("discard is not supported, and is not tried again: {error}");
                self.are_refused.store(true, Ordering::Relaxed);
            }
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Returns whether `error` says that the device or the host does not support discards.
fn is_refusal(error: &Error) -> bool {
    let Error::Io(error) = error else { return false };
    let errno = Errno::from_raw_os_error(error.errno);
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL)
}

/// Returns the same bytes as sorted ranges that neither overlap nor touch.
fn merge(mut ranges: Vec<Range<DeviceOffset>>) -> Vec<Range<DeviceOffset>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<DeviceOffset>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &[(u64, u64)]) -> Vec<Range<DeviceOffset>> {
        ranges.iter().map(|&(start, end)| DeviceOffset(start)..DeviceOffset(end)).collect()
    }

    #[test]
    fn touching_ranges_are_merged_in_any_order() {
        let freed = ranges(&[(30, 40), (0, 10), (50, 60), (10, 30), (70, 80), (55, 58)]);
        assert_eq!(merge(freed), ranges(&[(0, 40), (50, 60), (70, 80)]));
        assert_eq!(merge(Vec::new()), []);
    }
}
