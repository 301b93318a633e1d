//! The list of a file's extents for the FIEMAP ioctl.

use std::ops::{ControlFlow, Range};

use base::{DeviceOffset, FileOffset, Result};

use crate::mapping::{Iomap, IomapKind, MapFlags, MapRead, map_at};

/// An extent, as FIEMAP reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FiemapExtent {
    /// The first byte in the file.
    pub logical: FileOffset,
    /// The first byte on the device; zero for inline data whose address is unknown.
    pub physical: DeviceOffset,
    /// The number of bytes.
    pub length: u64,
    /// The flags.
    pub flags: FiemapFlags,
}

/// The flags of a [`FiemapExtent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FiemapFlags {
    /// Whether this is the last extent of the file (FIEMAP_EXTENT_LAST).
    pub last: bool,
    /// Whether it is not allocated yet (FIEMAP_EXTENT_DELALLOC and UNKNOWN).
    pub delalloc: bool,
    /// Whether it is allocated, but has no data yet (FIEMAP_EXTENT_UNWRITTEN).
    pub unwritten: bool,
    /// Whether it is within metadata (FIEMAP_EXTENT_DATA_INLINE and NOT_ALIGNED).
    pub inline: bool,
    /// Whether it is shared with other files (FIEMAP_EXTENT_SHARED).
    pub shared: bool,
    /// Whether the data on the device is encoded (FIEMAP_EXTENT_ENCODED).
    pub encoded: bool,
}

impl FiemapFlags {
    /// Returns the flags as the bits of the ioctl (`linux/fiemap.h`).
    pub fn bits(self) -> u32 {
        [
            (self.last, 0x0001),
            (self.delalloc, 0x0002 | 0x0004),
            (self.encoded, 0x0008),
            (self.inline, 0x0100 | 0x0200),
            (self.unwritten, 0x0800),
            (self.shared, 0x2000),
        ]
        .into_iter()
        .fold(0, |bits, (set, bit)| if set { bits | bit } else { bits })
    }
}

/// Calls `emit` for each extent that has bytes of `range`, in order, until `emit` breaks. Extents
/// are reported as a whole. Adjacent ranges that are contiguous on the device are one extent.
pub fn fiemap(
    mapper: &dyn MapRead,
    range: Range<FileOffset>,
    emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
) -> Result<()> {
    let mut pending: Option<FiemapExtent> = None;
    let mut here = range.start;
    // After the range, one more mapping shows whether its last extent continues, or is the last of
    // the file.
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
        // A break has no effect here: nothing follows.
        let _ = emit(extent);
    }
    Ok(())
}

fn extent(map: &Iomap) -> Option<FiemapExtent> {
    let MapFlags { shared, encoded, .. } = map.flags;
    let delalloc = map.kind == IomapKind::Delalloc;
    let unwritten = map.kind == IomapKind::Unwritten;
    let inline = map.kind == IomapKind::Inline;
    let encoded = encoded || map.kind == IomapKind::Encoded;
    (map.kind != IomapKind::Hole).then(|| FiemapExtent {
        logical: map.offset,
        physical: map.address.unwrap_or_default(),
        length: map.length,
        flags: FiemapFlags { last: false, delalloc, unwritten, inline, shared, encoded },
    })
}

/// Returns whether `next` continues `extent` in the file and on the device, with the same flags.
fn continues(extent: &FiemapExtent, next: &FiemapExtent) -> bool {
    extent.flags == next.flags
        && !extent.flags.inline
        && extent.logical.checked_add(extent.length) == Some(next.logical)
        && (extent.flags.delalloc
            || extent.physical.checked_add(extent.length) == Some(next.physical))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of adjacent ranges of (kind, length, address), and then a hole.
    #[derive(Debug)]
    struct File(Vec<(IomapKind, u64, u64)>);

    impl MapRead for File {
        fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
            let mut offset = 0;
            for (index, &(kind, length, address)) in self.0.iter().enumerate() {
                if at.0 < offset + length {
                    let last = self.0[index + 1..].iter().all(|part| part.0 == IomapKind::Hole);
                    let address = (kind != IomapKind::Hole).then_some(DeviceOffset(address));
                    let flags = MapFlags { last, ..MapFlags::default() };
                    return Ok(Iomap { offset: FileOffset(offset), length, kind, address, flags });
                }
                offset += length;
            }
            Ok(Iomap {
                offset: FileOffset(offset),
                length: u64::MAX - offset,
                kind: IomapKind::Hole,
                address: None,
                flags: MapFlags { last: true, ..MapFlags::default() },
            })
        }

        fn inline_data(&self) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
    }

    /// Returns the extents as (logical, length, physical, last).
    fn extents(file: &File, range: Range<u64>) -> Vec<(u64, u64, u64, bool)> {
        let mut extents = Vec::new();
        let range = FileOffset(range.start)..FileOffset(range.end);
        fiemap(file, range, &mut |extent| {
            let FiemapExtent { logical, physical, length, flags } = extent;
            extents.push((logical.0, length, physical.0, flags.last));
            ControlFlow::Continue(())
        })
        .expect("mapped");
        extents
    }

    use IomapKind::{Hole, Inline, Mapped, Unwritten};

    #[test]
    fn adjacent_ranges_that_are_contiguous_on_the_device_are_one_extent() {
        let file = File(vec![
            (Mapped, 10, 100),
            (Mapped, 20, 110),
            (Mapped, 5, 200),
            (Unwritten, 5, 205),
            (Hole, 10, 0),
            (Mapped, 1, 300),
        ]);
        let all =
            [(0, 30, 100, false), (30, 5, 200, false), (35, 5, 205, false), (50, 1, 300, true)];
        assert_eq!(extents(&file, 0..u64::MAX), all);
        assert_eq!(extents(&file, 0..51), all);
        assert_eq!(extents(&file, 10..31), [(10, 20, 110, false), (30, 5, 200, false)]);
        assert_eq!(extents(&file, 0..1), [(0, 30, 100, false)]);
        assert_eq!(extents(&file, 41..45), []);
        assert_eq!(extents(&file, 45..50), []);
        assert_eq!(extents(&file, 50..51), [(50, 1, 300, true)]);
        assert_eq!(extents(&file, 51..99), []);
        assert_eq!(extents(&file, 5..5), []);
    }

    #[test]
    fn the_last_extent_before_a_hole_has_the_flag() {
        let file = File(vec![(Hole, 5, 0), (Mapped, 10, 100), (Hole, 50, 0)]);
        assert_eq!(extents(&file, 0..65), [(5, 10, 100, true)]);
        assert_eq!(extents(&file, 0..15), [(5, 10, 100, true)]);
        assert_eq!(extents(&File(vec![]), 0..u64::MAX), []);
        assert_eq!(extents(&File(vec![(Hole, 9, 0)]), 0..u64::MAX), []);
    }

    #[test]
    fn a_break_ends_the_list_and_flags_have_their_bits() {
        let file = File(vec![(Unwritten, 10, 100), (Mapped, 10, 500), (Inline, 10, 0)]);
        let mut seen = Vec::new();
        fiemap(&file, FileOffset(0)..FileOffset(u64::MAX), &mut |extent| {
            seen.push(extent.flags.bits());
            if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("mapped");
        assert_eq!(seen, [0x800, 0]);
        let inline = FiemapFlags { inline: true, last: true, ..FiemapFlags::default() };
        assert_eq!(inline.bits(), 0x301);
    }
}
