//! Times of an inode: their range and their encoding.

use base::attributes::Timestamp;

use crate::ondisk::inode::BASE_BYTES;

/// The earliest time of any inode, in seconds since 1970: in the year 1901.
const SECONDS_MIN: i64 = i32::MIN as i64;
/// The latest time without extra bits: in the year 2038.
const SECONDS_MAX: i64 = i32::MAX as i64;
/// The latest time with extra bits: in the year 2446.
const SECONDS_MAX_WITH_EXTRA: i64 = (1 << 34) - 1 + SECONDS_MIN;

/// The end of the extra bits of each time, in bytes from the end of the inode's first 128 bytes.
const CHANGED_END: usize = 8;
const MODIFIED_END: usize = 12;
const ACCESSED_END: usize = 16;
const CREATED_END: usize = 24;

/// Returns the granularity of times, in nanoseconds, in inodes of this size in bytes.
pub(crate) fn granularity(inode_bytes: usize) -> u32 {
    if inode_bytes >= BASE_BYTES + ACCESSED_END { 1 } else { 1_000_000_000 }
}

/// The size of an inode's extra fields, in bytes, which bounds its times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeRoom(pub usize);

impl TimeRoom {
    /// Returns the access time that is stored for `time`.
    pub(crate) fn accessed(self, time: Timestamp) -> Timestamp {
        self.fit(time, ACCESSED_END)
    }

    /// Returns the modification time that is stored for `time`.
    pub(crate) fn modified(self, time: Timestamp) -> Timestamp {
        self.fit(time, MODIFIED_END)
    }

    /// Returns the change time that is stored for `time`.
    pub(crate) fn changed(self, time: Timestamp) -> Timestamp {
        self.fit(time, CHANGED_END)
    }

    /// Returns the creation time that is stored for `time`.
    pub(crate) fn created(self, time: Timestamp) -> Timestamp {
        self.fit(time, CREATED_END)
    }

    /// Returns the nearest time that there is room for. As in Linux, the limits have no
    /// nanoseconds.
    fn fit(self, time: Timestamp, extra_end: usize) -> Timestamp {
        let has_extra = self.0 >= extra_end;
        let max = if has_extra { SECONDS_MAX_WITH_EXTRA } else { SECONDS_MAX };
        let seconds = time.seconds.clamp(SECONDS_MIN, max);
        let is_limit = seconds == SECONDS_MIN || seconds == max;
        let nanoseconds = if has_extra && !is_limit { time.nanoseconds } else { 0 };
        Timestamp { seconds, nanoseconds }
    }
}

/// Decodes a time from its first field and its extra bits.
pub(crate) fn decode(seconds: u32, extra: u32) -> Timestamp {
    let epoch = i64::from(extra & 3) << 32;
    Timestamp {
        seconds: i64::from(seconds as i32) + epoch,
        // 30 bits can hold more nanoseconds than a second has.
        nanoseconds: (extra >> 2).min(999_999_999),
    }
}

/// Returns the extra bits of a time: nanoseconds, and the epoch (overflow of the seconds).
pub(crate) fn extra_bits(time: Timestamp) -> u32 {
    let epoch = (time.seconds - i64::from(time.seconds as i32)) >> 32;
    time.nanoseconds << 2 | epoch as u32 & 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_from_1901_to_2446() {
        let at = |seconds: u32, extra| decode(seconds, extra).seconds;
        assert_eq!(at(0x8000_0000, 0), -(1 << 31));
        assert_eq!(at(0x7FFF_FFFF, 0), (1 << 31) - 1);
        assert_eq!(at(0x8000_0000, 1), 1 << 31);
        assert_eq!(at(0x7FFF_FFFF, 3), 0x3_7FFF_FFFF);
        assert_eq!(decode(0, 999_999_999 << 2).nanoseconds, 999_999_999);
        assert_eq!(decode(0, u32::MAX).nanoseconds, 999_999_999);
    }

    #[test]
    fn times_are_stored_as_the_nearest_time_that_there_is_room_for() {
        let wide = (1 << 34) - (1 << 31) - 1;
        for (seconds, narrow_kept, wide_kept) in [
            (i64::MIN, -(1 << 31), -(1 << 31)),
            (-(1 << 32), -(1 << 31), -(1 << 31)),
            (-(1 << 31), -(1 << 31), -(1 << 31)),
            (-1, -1, -1),
            ((1 << 31) - 1, (1 << 31) - 1, (1 << 31) - 1),
            (1 << 31, (1 << 31) - 1, 1 << 31),
            (1 << 33, (1 << 31) - 1, 1 << 33),
            (wide, (1 << 31) - 1, wide),
            (1 << 34, (1 << 31) - 1, wide),
            (i64::MAX, (1 << 31) - 1, wide),
        ] {
            let time = Timestamp { seconds, nanoseconds: 7 };
            let narrow = TimeRoom(ACCESSED_END - 1).accessed(time);
            assert_eq!(narrow, Timestamp { seconds: narrow_kept, nanoseconds: 0 });
            let kept = TimeRoom(ACCESSED_END).accessed(time);
            let is_limit = wide_kept == -(1 << 31) || wide_kept == wide;
            let nanoseconds = if is_limit { 0 } else { 7 };
            assert_eq!(kept, Timestamp { seconds: wide_kept, nanoseconds });
            assert_eq!(decode(kept.seconds as u32, extra_bits(kept)), kept);
        }
    }

    #[test]
    fn each_time_has_its_own_extra_bits() {
        let time = Timestamp { seconds: 1 << 32, nanoseconds: 5 };
        for (bytes, kept) in [(4, 0), (8, 1), (12, 2), (16, 3), (20, 3), (24, 4), (32, 4)] {
            let room = TimeRoom(bytes);
            let all =
                [room.changed(time), room.modified(time), room.accessed(time), room.created(time)];
            assert_eq!(all.iter().filter(|found| **found == time).count(), kept, "{bytes}");
        }
    }
}
