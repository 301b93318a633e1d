//! Limits of dirty data: when writeback starts, and when writers wait.
//! Not here: the threads that write back.

use pagecache::DirtyStats;

/// Two limits, in bytes that are dirty or under writeback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyLimits {
    /// The limit above which data is written back in the background.
    pub background: u64,
    /// The limit above which writers write back data, or wait. Well below the cache's limit, since writeback and
    /// readers need memory, too.
    pub hard: u64,
}

impl DirtyLimits {
    /// Returns the limits for these shares, in percent, of a cache of `bytes_max` bytes. The background share is
    /// at most half of the hard one, so that writers seldom wait.
    pub fn of_shares(bytes_max: u64, background: u8, hard: u8) -> Self {
        let share = |percent: u64| bytes_max / 100 * percent;
        let hard = share(hard.min(90).into());
        Self { background: share(background.into()).min(hard / 2), hard }
    }

    /// Returns whether writeback should start in the background.
    pub fn needs_flush(&self, stats: &DirtyStats) -> bool {
        stats.bytes_dirty > self.background
    }

    /// Returns whether a writer must wait until less is dirty.
    pub fn must_throttle(&self, stats: &DirtyStats) -> bool {
        stats.bytes_dirty.saturating_add(stats.bytes_writeback) > self.hard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_under_writeback_counts_against_the_hard_limit_only() {
        let limits = DirtyLimits::of_shares(1000, 10, 20);
        assert_eq!(limits, DirtyLimits { background: 100, hard: 200 });
        for (bytes_dirty, bytes_writeback, flush, throttle) in [
            (100, 0, false, false),
            (101, 0, true, false),
            (0, 200, false, false),
            (0, 201, false, true),
            (150, 51, true, true),
        ] {
            let stats = DirtyStats { bytes_dirty, bytes_writeback };
            assert_eq!(limits.needs_flush(&stats), flush, "{bytes_dirty}");
            assert_eq!(limits.must_throttle(&stats), throttle, "{bytes_dirty} {bytes_writeback}");
        }
    }

    #[test]
    fn the_limits_are_less_than_the_cache_for_any_shares() {
        let limits = DirtyLimits::of_shares(1000, 255, 255);
        assert_eq!(limits, DirtyLimits { background: 450, hard: 900 });
    }
}
