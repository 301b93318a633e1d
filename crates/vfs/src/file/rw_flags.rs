//! The position of a write, and flags of one read or write, as for preadv2(2) and pwritev2(2).
//! Not here: the mode of an open file, which applies to all of its reads and writes.

use base::{FileOffset, Result, Unsupported};

const DSYNC: u32 = 0x2;
const SYNC: u32 = 0x4;
const APPEND: u32 = 0x10;
const DONTCACHE: u32 = 0x80;

/// The position of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAt {
    /// This byte.
    Offset(FileOffset),
    /// The end of the file at the time of the write.
    End,
    /// This byte, for data from another cache, such as the kernel's. The data was written before,
    /// so flags that the file has got since then do not apply.
    FromCache {
        /// The position.
        at: FileOffset,
        /// Whether the other cache sets the file's times itself.
        keeps_times: bool,
    },
}

/// The part of a write that is durable when it returns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum WriteSync {
    /// Nothing: the data is in the cache.
    #[default]
    None,
    /// The data, and what is needed to read it: O_DSYNC, RWF_DSYNC.
    Data,
    /// The data and all attributes: O_SYNC, RWF_SYNC.
    All,
}

/// The flags of one read or write. The default is the behaviour of
/// [`read_at`](crate::File::read_at) and [`write_at`](crate::File::write_at).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RwFlags {
    /// RWF_DONTCACHE: data that this call adds to the cache is evicted after it was read or written
    /// back. Data that was in the cache before stays. Writeback begins after 1 MiB, or after 100
    /// ms. A writer waits only while more than 32 MiB, or a tenth of the cache, is not on the
    /// device yet. Works for all files.
    pub dontcache: bool,
    /// RWF_APPEND: a write goes to the end of the file.
    pub append: bool,
    /// RWF_DSYNC, RWF_SYNC: the part of a write that is durable when it returns.
    pub sync: WriteSync,
}

impl RwFlags {
    /// Converts the flags of the system calls (`linux/fs.h`). Errors: `Unsupported` for unknown
    /// flags.
    pub fn from_bits(bits: u32) -> Result<Self> {
        if bits & !(DSYNC | SYNC | APPEND | DONTCACHE) != 0 {
            return Err(Unsupported::Operation("an unknown flag of a read or write").into());
        }
        let has = |flag| bits & flag != 0;
        let sync = match (has(SYNC), has(DSYNC)) {
            (true, _) => WriteSync::All,
            (false, true) => WriteSync::Data,
            (false, false) => WriteSync::None,
        };
        Ok(Self { dontcache: has(DONTCACHE), append: has(APPEND), sync })
    }
}

#[cfg(test)]
mod tests {
    use base::Error;

    use super::*;

    #[test]
    fn flags_have_the_numbers_of_the_kernel_and_unknown_ones_are_refused() {
        let all = RwFlags::from_bits(0x96).unwrap();
        assert_eq!(all, RwFlags { dontcache: true, append: true, sync: WriteSync::All });
        assert_eq!(RwFlags::from_bits(0x2).unwrap().sync, WriteSync::Data);
        assert_eq!(RwFlags::from_bits(0).unwrap(), RwFlags::default());
        // RWF_HIPRI, RWF_NOWAIT, RWF_NOAPPEND, RWF_ATOMIC, and unknown flags.
        for bits in [0x1, 0x8, 0x20, 0x40, 0x100, 1 << 31] {
            let refused = RwFlags::from_bits(bits | 0x80);
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{bits:#x}");
        }
    }
}
