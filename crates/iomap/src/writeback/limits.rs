//! Limits of dirty data: when writeback starts, and when writers wait.
//! Not here: the threads that write back.

use pagecache::DirtyStats;

/// The shares of the cache that folios may have which are dirty or under writeback, also in part,
/// in percent: above the first one, data is written back in the background, and above the second,
/// writers wait. Large folios that are dirty in part would otherwise leave no memory that can be
/// reclaimed.
const HELD_SHARES: [u64; 2] = [40, 60];

/// Limits of bytes that are dirty or under writeback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyLimits {
    /// The limit above which data is written back in the background.
    pub background: u64,
    /// The limit above which writers write back data, or wait. Well below the cache's limit, since
    /// writeback and readers need memory, too.
    pub hard: u64,
    /// The same two limits for the memory of folios with such bytes.
    held: [u64; 2],
}

impl DirtyLimits {
    /// Returns the limits for these shares, in percent, of a cache of `bytes_max` bytes. The
    /// background share is at most half of the hard one, so that writers seldom wait.
    pub fn of_shares(bytes_max: u64, background: u8, hard: u8) -> Self {
        let share = |percent: u64| bytes_max / 100 * percent;
        let hard = share(hard.min(90).into());
        let background = share(background.into()).min(hard / 2);
        Self { background, hard, held: HELD_SHARES.map(share) }
    }

    /// Returns whether writeback should start in the background.
    pub fn needs_flush(&self, stats: &DirtyStats) -> bool {
        stats.bytes_dirty > self.background || stats.bytes_held > self.held[0]
    }

    /// Returns whether a writer must wait until less is dirty.
    pub fn must_throttle(&self, stats: &DirtyStats) -> bool {
        let bytes = stats.bytes_dirty.saturating_add(stats.bytes_writeback);
        bytes > self.hard || stats.bytes_held > self.held[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_under_writeback_counts_against_the_hard_limit_only() {
        let limits = DirtyLimits::of_shares(1000, 10, 20);
        assert_eq!((limits.background, limits.hard), (100, 200));
        for (bytes_dirty, bytes_writeback, flush, throttle) in [
            (100, 0, false, false),
            (101, 0, true, false),
            (0, 200, false, false),
            (0, 201, false, true),
            (150, 51, true, true),
        ] {
            let stats = DirtyStats { bytes_dirty, bytes_writeback, bytes_held: 300 };
            assert_eq!(limits.needs_flush(&stats), flush, "{bytes_dirty}");
            assert_eq!(limits.must_throttle(&stats), throttle, "{bytes_dirty} {bytes_writeback}");
        }
    }

    #[test]
    fn the_limits_are_less_than_the_cache_for_any_shares() {
        let limits = DirtyLimits::of_shares(1000, 255, 255);
        assert_eq!((limits.background, limits.hard), (450, 900));
    }

    #[test]
    fn folios_that_are_dirty_in_part_count_with_all_of_their_memory() {
        let limits = DirtyLimits::of_shares(1000, 10, 20);
        for (bytes_held, flush, throttle) in
            [(400, false, false), (401, true, false), (600, true, false), (601, true, true)]
        {
            let stats = DirtyStats { bytes_dirty: 8, bytes_writeback: 0, bytes_held };
            assert_eq!(limits.needs_flush(&stats), flush, "{bytes_held}");
            assert_eq!(limits.must_throttle(&stats), throttle, "{bytes_held}");
        }
    }
}
