//! Layout of the multiple-mount protection block (kernel documentation,
//! `filesystems/ext4/mmp.rst`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Value of `RawMmp::magic`.
pub const MMP_MAGIC: u32 = 0x004D_4D50;
/// Value of `RawMmp::sequence` while the volume is not open for writing anywhere.
pub const MMP_SEQUENCE_CLEAN: u32 = 0xFF4D_4D50;
/// Value of `RawMmp::sequence` while e2fsck checks the volume.
pub const MMP_SEQUENCE_FSCK: u32 = 0xE24D_4D50;
/// The largest value of `RawMmp::sequence` that a writer uses.
pub const MMP_SEQUENCE_MAX: u32 = 0xE24D_4D4F;

/// The beginning of the block; the rest of it is unused.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RawMmp {
    /// [`MMP_MAGIC`].
    pub magic: U32,
    /// Changes with every update.
    pub sequence: U32,
    /// The last update, seconds since 1970.
    pub time: U64,
    /// Name of the host that made the last update.
    pub node_name: [u8; 64],
    /// That host's name of the device.
    pub device_name: [u8; 32],
    /// Maximum time until the next update, in seconds.
    pub check_interval: U16,
    /// Unused.
    pub pad1: U16,
    /// Unused.
    pub pad2: [U32; 226],
    /// crc32c of all bytes before this field (`metadata_csum`).
    pub checksum: U32,
}
const _: () = assert!(size_of::<RawMmp>() == 1024);
