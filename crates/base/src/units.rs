//! Newtypes that carry units: positions in files and devices, block numbers, inode numbers.
//! Arithmetic that can leave the type's range is checked and yields `None`.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// Returns the position `distance` after `self`, or `None` if the type cannot represent
            /// it.
            #[inline]
            pub fn checked_add(self, distance: $repr) -> Option<Self> {
                self.0.checked_add(distance).map(Self)
            }

            /// Returns the distance from `earlier` to `self`, or `None` if `earlier` is greater
            /// than `self`.
            #[inline]
            pub fn checked_distance_from(self, earlier: Self) -> Option<$repr> {
                self.0.checked_sub(earlier.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

unit! {
    /// A byte position in a file.
    FileOffset(u64)
}
unit! {
    /// A byte position on a device.
    DeviceOffset(u64)
}
unit! {
    /// A block of a file, counted from the file's start ("logical block").
    FileBlock(u64)
}
unit! {
    /// A block of the file system, counted from the volume's start ("physical block").
    FsBlock(u64)
}
unit! {
    /// A block group.
    GroupNumber(u32)
}
unit! {
    /// An inode number of the format (ext4: the root is 2).
    InodeNumber(u64)
}
unit! {
    /// A journal transaction id. Ids wrap: compare with [`TransactionId::is_at_or_after`].
    TransactionId(u32)
}

impl TransactionId {
    /// Returns whether `self` is `other` or later in the wrapping sequence of ids.
    #[inline]
    pub fn is_at_or_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 >= 0
    }

    /// Returns the next id.
    #[inline]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A power-of-two block size from 512 bytes to 64 KiB, with the conversions between bytes and
/// blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockSize {
    shift: u32,
}

#[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
impl BlockSize {
    /// Returns the size of `1 << shift` bytes, or `None` unless it is 512 bytes to 64 KiB.
    pub const fn from_shift(shift: u32) -> Option<Self> {
        if shift >= 9 && shift <= 16 { Some(Self { shift }) } else { None }
    }

    /// Returns the size of `bytes` bytes, or `None` unless it is a power of two from 512 to 65536.
    pub const fn from_bytes(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Self::from_shift(bytes.trailing_zeros()) } else { None }
    }

    /// Returns log2 of the size in bytes.
    #[inline]
    pub const fn shift(self) -> u32 {
        self.shift
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        1 << self.shift
    }

    /// Returns the size in bytes, for indexing memory.
    #[inline]
    pub const fn len(self) -> usize {
        1 << self.shift
    }

    /// Returns the file block that contains byte `at`.
    #[inline]
    pub const fn file_block(self, at: FileOffset) -> FileBlock {
        FileBlock(at.0 >> self.shift)
    }

    /// Returns the first byte of `block`, or `None` if it is past 2^64.
    #[inline]
    pub fn device_offset(self, block: FsBlock) -> Option<DeviceOffset> {
        self.scale(block.0).map(DeviceOffset)
    }

    /// Returns the number of blocks for `bytes` bytes.
    #[inline]
    pub const fn blocks_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.shift)
    }

    #[inline]
    fn scale(self, blocks: u64) -> Option<u64> {
        let bytes = blocks << self.shift;
        (bytes >> self.shift == blocks).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_within_the_limits() {
        for bytes in [0, 1, 256, 511, 513, 3000, 131_072, u64::MAX] {
            assert_eq!(BlockSize::from_bytes(bytes), None, "{bytes}");
        }
        for shift in 9..=16 {
            assert_eq!(BlockSize::from_bytes(1 << shift).unwrap().shift(), shift as u32);
        }
    }

    #[test]
    fn block_to_byte_conversion_is_checked() {
        let size = BlockSize::from_bytes(65_536).unwrap();
        assert_eq!(size.device_offset(FsBlock(3)), Some(DeviceOffset(3 << 16)));
        assert_eq!(size.device_offset(FsBlock(1 << 48)), None);
        assert_eq!(size.blocks_for(65_537), 2);
    }

    #[test]
    fn transaction_ids_compare_across_the_wrap() {
        assert!(TransactionId(1).is_at_or_after(TransactionId(u32::MAX)));
        assert!(!TransactionId(u32::MAX).is_at_or_after(TransactionId(1)));
        assert!(TransactionId(7).is_at_or_after(TransactionId(7)));
    }
}
