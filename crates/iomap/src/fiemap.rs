//! A file's extents as the FIEMAP ioctl reports them.

use std::ops::{ControlFlow, Range};

use base::{DeviceOffset, FileOffset, Result};

use crate::mapping::{Iomap, IomapKind, MapFlags, MapRead, map_at};

/// One extent as FIEMAP has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FiemapExtent {
    /// The first byte in the file.
    pub logical: FileOffset,
    /// The first byte on the device; zero for inline data whose place is not known.
    pub physical: DeviceOffset,
    /// The number of bytes.
    pub length: u64,
    /// More about it.
    pub flags: FiemapFlags,
}

/// The flags of a [`FiemapExtent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FiemapFlags {
    /// The last extent of the file (FIEMAP_EXTENT_LAST).
    pub last: bool,
    /// Allocated, without data yet (FIEMAP_EXTENT_UNWRITTEN).
    pub unwritten: bool,
    /// Within metadata (FIEMAP_EXTENT_DATA_INLINE and NOT_ALIGNED).
    pub inline: bool,
    /// Shared with other files (FIEMAP_EXTENT_SHARED).
    pub shared: bool,
    /// The data on the device is encoded (FIEMAP_EXTENT_ENCODED).
    pub encoded: bool,
}

impl FiemapFlags {
    /// The flags as the ioctl numbers them (`linux/fiemap.h`).
    pub fn bits(self) -> u32 {
        [
            (self.last, 0x0001),
            (self.encoded, 0x0008),
            (self.inline, 0x0100 | 0x0200),
            (self.unwritten, 0x0800),
            (self.shared, 0x2000),
        ]
        .into_iter()
        .fold(0, |bits, (set, bit)| if set { bits | bit } else { bits })
    }
}

/// Calls `emit` for each extent that touches `range`, in order, whole extents at a time, until it
/// breaks. Neighbours that continue one another on the device are one extent.
pub fn fiemap(
    mapper: &dyn MapRead,
    range: Range<FileOffset>,
    emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
) -> Result<()> {
    let mut pending: Option<FiemapExtent> = None;
    let mut here = range.start;
    // Past the range, one more look tells whether the extent at its end goes on or is the last.
    while here < range.end || pending.is_some() {
        let map = map_at(mapper, here, range.end.0.saturating_sub(here.0).max(1))?;
        let found = extent(&map);
        match (&mut pending, found) {
            (Some(extent), Some(next)) if continues(extent, &next) => {
                extent.length = extent.length.saturating_add(next.length);
            }
            _ => {
                let complete = pending.take();
                pending = found.filter(|_| here < range.end);
                if let Some(mut extent) = complete {
                    extent.flags.last = found.is_none() && map.flags.last;
                    if emit(extent).is_break() {
                        return Ok(());
                    }
                }
            }
        }
        if map.flags.last || map.end() == u64::MAX {
            break;
        }
        here = FileOffset(map.end());
    }
    if let Some(mut extent) = pending {
        extent.flags.last = true;
        // Nothing follows that a break could prevent.
        let _ = emit(extent);
    }
    Ok(())
}

fn extent(map: &Iomap) -> Option<FiemapExtent> {
    let MapFlags { shared, encoded, .. } = map.flags;
    let unwritten = map.kind == IomapKind::Unwritten;
    let inline = map.kind == IomapKind::Inline;
    (map.kind != IomapKind::Hole).then(|| FiemapExtent {
        logical: map.offset,
        physical: map.address.unwrap_or_default(),
        length: map.length,
        flags: FiemapFlags { last: false, unwritten, inline, shared, encoded },
    })
}

/// Whether `next` continues `extent` in the file and on the device, in the same state.
fn continues(extent: &FiemapExtent, next: &FiemapExtent) -> bool {
    extent.flags == next.flags
        && !extent.flags.inline
        && extent.logical.checked_add(extent.length) == Some(next.logical)
        && extent.physical.checked_add(extent.length) == Some(next.physical)
}
