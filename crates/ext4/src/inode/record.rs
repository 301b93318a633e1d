//! Parsing and validation of one inode's bytes.
//! Not here: reading them, and the inode's data.

use std::sync::Arc;

use base::attributes::{Attributes, DeviceNumber, FileType, Timestamp};
use base::checksum::crc32c;
use base::locks::RankedRwLock;
use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use zerocopy::FromBytes;

use crate::features::Feature;
use crate::inode::times::{self, TimeRoom};
use crate::layout::geometry::Geometry;
use crate::ondisk::inode::{
    BASE_BYTES, CHECKSUM_HI_OFFSET, CHECKSUM_LO_OFFSET, RawInode, RawInodeExtra,
};

const STRUCTURE: &str = "inode";

/// A record in memory, which is replaced as a whole, and its lock.
pub(crate) type RecordLock = RankedRwLock<Arc<InodeRecord>>;

/// The flags of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InodeFlags(pub u32);

impl InodeFlags {
    /// The inode cannot be changed.
    pub const IMMUTABLE: Self = Self(0x10);
    /// The contents are encrypted; in a directory, the names, too.
    pub const ENCRYPTED: Self = Self(0x800);
    /// The directory is hashed.
    pub const INDEX: Self = Self(0x1000);
    /// Data is written through the journal.
    pub const JOURNAL_DATA: Self = Self(0x4000);
    /// `blocks` counts blocks, not units of 512 bytes.
    pub const HUGE_FILE: Self = Self(0x4_0000);
    /// The block area holds the root of an extent tree.
    pub const EXTENTS: Self = Self(0x8_0000);
    /// The file is protected by fs-verity.
    pub const VERITY: Self = Self(0x10_0000);
    /// The inode holds the value of an extended attribute.
    pub const EA_INODE: Self = Self(0x20_0000);
    /// The data lies in the inode.
    pub const INLINE_DATA: Self = Self(0x1000_0000);
    /// Names in the directory ignore case.
    pub const CASEFOLD: Self = Self(0x4000_0000);

    /// The flags that new inodes inherit from their directory: secure deletion, undeletion,
    /// compression or not, sync, no dump, no access times, no tail merging, sync of directories,
    /// project inheritance, direct access.
    const INHERITED: u32 = 0x2201_84CF;
    /// The flags that only directories can have.
    const OF_DIRECTORIES: u32 = 0x2003_0000;

    /// The flags that FS_IOC_GETFLAGS reports.
    pub(crate) const VISIBLE: u32 = 0x725B_DFFF;
    /// The flags that FS_IOC_SETFLAGS changes: the first eight, those of directories, data through
    /// the journal, no tail merging, direct access, project inheritance, ignored case.
    pub(crate) const CHANGEABLE: u32 = 0x6243_C0FF;
    /// The flags that determine how the contents are stored. Changing one would require a
    /// conversion of the contents.
    pub(crate) const OF_CONTENTS: u32 = Self::EXTENTS.0 | Self::JOURNAL_DATA.0 | Self::CASEFOLD.0;

    /// Returns the flags that a new inode of type `kind` inherits from a directory with these
    /// flags.
    pub(crate) fn inherited_by(self, kind: FileType) -> Self {
        Self(self.0 & Self::INHERITED & Self::possible_for(kind))
    }

    /// Returns the flags that an inode of type `kind` can have. Only meaningful for flags that
    /// users may set.
    pub(crate) fn possible_for(kind: FileType) -> u32 {
        match kind {
            FileType::Directory => u32::MAX,
            FileType::Regular => !(Self::OF_DIRECTORIES | Self::CASEFOLD.0),
            // No dump and no access times.
            _ => 0xC0,
        }
    }

    /// Returns whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A validated inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// The inode number.
    pub number: InodeNumber,
    /// Its type.
    pub kind: FileType,
    /// Permissions with setuid, setgid and sticky.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Hard links; 1 for a directory with more links than the format can count.
    pub links: u16,
    /// The size in bytes, at most `i64::MAX`.
    pub size: u64,
    /// The allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// The flags.
    pub flags: InodeFlags,
    /// The generation.
    pub generation: u32,
    /// The version. In an attribute inode, its low half is part of the reference count. 0 on
    /// volumes whose inodes have no version.
    pub version: u64,
    /// Last access. In an attribute inode, the low 32 bits of the seconds are the value's hash.
    pub accessed: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Creation, if the inode has room for it.
    pub created: Option<Timestamp>,
    /// Time of the deletion in seconds since 1970, or the next inode of the orphan list.
    pub deleted: u32,
    /// The project id, if the volume has the feature `project`.
    pub project: Option<u32>,
    /// The block of extended attributes, if any; it lies in the volume.
    pub attribute_block: Option<FsBlock>,
    /// The block map, extent tree root, inline data, short link target or device number.
    pub block_area: [u8; 60],
    /// The bytes behind the last field, for extended attributes; empty if there is no room.
    pub attribute_area: Box<[u8]>,
    /// Offset of `attribute_area` in the inode.
    pub attribute_area_start: usize,
    /// The checksum seed of all structures that belong to the inode, if metadata has checksums.
    pub checksum_seed: Option<u32>,
}

impl InodeRecord {
    /// Parses and validates the bytes of inode `number`, which are `geometry.inode_size` at
    /// `location`. Errors: `NotFound` if the inode was never used, or is deleted and cleared.
    pub fn parse(
        bytes: &[u8],
        geometry: &Geometry,
        number: InodeNumber,
        location: Location,
    ) -> Result<Self> {
        let location = location.in_inode(number);
        let raw: &RawInode = view_at(bytes, 0, STRUCTURE, location)?;
        if raw.mode.get() == 0 && raw.links_count.get() == 0 {
            return Err(Error::NotFound);
        }
        let (extra, extra_bytes) = parse_extra(bytes, location)?;
        Self::verify(bytes, geometry, number, location)?;
        let checksum_seed = geometry.inode_seed(number, raw.generation.get());
        let mode = raw.mode.get();
        let kind = FileType::from_mode(mode.into()).ok_or_else(|| {
            let problem = Problem::Invalid { field: "mode", found: mode.into() };
            Error::corrupt(STRUCTURE, location, problem)
        })?;
        let flags = InodeFlags(raw.flags.get());
        // A field is present if the extra bytes reach its end.
        let there = |end: usize| extra_bytes >= end;
        let time = |seconds: u32, extra: u32, end| {
            times::decode(seconds, if there(end) { extra } else { 0 })
        };
        let join = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let start = (BASE_BYTES + extra_bytes).min(bytes.len());
        Ok(Self {
            number,
            kind,
            permissions: mode & 0o7777,
            uid: join(raw.uid_high.get(), raw.uid.get()),
            gid: join(raw.gid_high.get(), raw.gid.get()),
            links: raw.links_count.get(),
            size: parse_size(raw, kind, geometry, location)?,
            blocks: parse_blocks(raw, flags, geometry),
            flags,
            generation: raw.generation.get(),
            version: if geometry.has_inode_versions() {
                let high = if there(28) { extra.version_hi.get() } else { 0 };
                u64::from(high) << 32 | u64::from(raw.version_lo.get())
            } else {
                0
            },
            accessed: time(raw.atime.get(), extra.atime_extra.get(), 16),
            changed: time(raw.ctime.get(), extra.ctime_extra.get(), 8),
            modified: time(raw.mtime.get(), extra.mtime_extra.get(), 12),
            created: there(20).then(|| time(extra.crtime.get(), extra.crtime_extra.get(), 24)),
            deleted: raw.dtime.get(),
            project: geometry
                .features
                .has(Feature::Project)
                .then(|| if there(32) { extra.projid.get() } else { 0 }),
            attribute_block: parse_attribute_block(raw, geometry, location)?,
            block_area: raw.block,
            attribute_area: bytes.get(start..).unwrap_or_default().into(),
            attribute_area_start: start,
            checksum_seed,
        })
    }

    /// Verifies an inode's checksum, whether the inode is in use or not, if the volume has
    /// checksums.
    pub(crate) fn verify(
        bytes: &[u8],
        geometry: &Geometry,
        number: InodeNumber,
        location: Location,
    ) -> Result<()> {
        let raw: &RawInode = view_at(bytes, 0, STRUCTURE, location)?;
        let (extra, extra_bytes) = parse_extra(bytes, location)?;
        match geometry.inode_seed(number, raw.generation.get()) {
            Some(seed) if geometry.has_inode_checksums() => {
                let has_high = extra_bytes >= CHECKSUM_HI_OFFSET + 2 - BASE_BYTES;
                let high = has_high.then_some(extra.checksum_hi.get());
                verify_checksum(bytes, seed, raw.checksum_lo.get(), high, location)
            }
            _ => Ok(()),
        }
    }

    /// Returns the inode's room for times.
    pub(crate) fn time_room(&self) -> TimeRoom {
        TimeRoom(self.attribute_area_start.saturating_sub(BASE_BYTES))
    }

    /// Replaces each time by the nearest time that the inode has room for.
    pub(crate) fn fit_times(&mut self) {
        // Attribute inodes use these fields for other numbers.
        if self.flags.contains(InodeFlags::EA_INODE) {
            return;
        }
        let room = self.time_room();
        self.accessed = room.accessed(self.accessed);
        self.changed = room.changed(self.changed);
        self.modified = room.modified(self.modified);
        self.created = self.created.map(|time| room.created(time));
    }

    /// Returns the attributes that stat(2) reports.
    pub fn attributes(&self) -> Attributes {
        Attributes {
            inode: self.number,
            kind: self.kind,
            permissions: self.permissions,
            links: self.links.into(),
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            blocks: self.blocks_reported(),
            device: self.device(),
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
            generation: self.generation,
            flags: self.flags.0 & InodeFlags::VISIBLE,
            project: self.project,
        }
    }

    /// Returns the units of 512 bytes that stat(2) reports. As in Linux, inline data counts, since
    /// programs take a file without blocks for a hole.
    fn blocks_reported(&self) -> u64 {
        if self.kind == FileType::Regular && self.flags.contains(InodeFlags::INLINE_DATA) {
            self.blocks.saturating_add(self.size.div_ceil(512))
        } else {
            self.blocks
        }
    }

    /// Returns the device number of a special file; 0:0 for other types.
    pub fn device(&self) -> DeviceNumber {
        if !matches!(self.kind, FileType::CharacterDevice | FileType::BlockDevice) {
            return DeviceNumber::default();
        }
        let [a, b, c, d, e, f, g, h, ..] = self.block_area;
        let (old, new) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        if old != 0 {
            DeviceNumber { major: old >> 8 & 0xFF, minor: old & 0xFF }
        } else {
            DeviceNumber { major: new >> 8 & 0xFFF, minor: new & 0xFF | new >> 12 & 0xF_FF00 }
        }
    }
}

/// Returns the extra fields, and the number of their bytes that the inode has.
fn parse_extra(bytes: &[u8], location: Location) -> Result<(RawInodeExtra, usize)> {
    let mut fields = RawInodeExtra::default();
    let room = bytes.len().saturating_sub(BASE_BYTES);
    if room == 0 {
        return Ok((fields, 0));
    }
    let tail = bytes.get(BASE_BYTES..).unwrap_or_default();
    if let Ok((there, _)) = RawInodeExtra::read_from_prefix(tail) {
        fields = there;
    }
    let extra_bytes = usize::from(fields.extra_isize.get());
    if extra_bytes > room || extra_bytes % 4 != 0 {
        let problem = Problem::Range {
            field: "extra inode size",
            found: extra_bytes as u64,
            min: 0,
            max: room as u64,
        };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    Ok((fields, extra_bytes))
}

/// Verifies the checksum. It covers the inode with both halves of the checksum set to zero.
fn verify_checksum(
    bytes: &[u8],
    seed: u32,
    low: u16,
    high: Option<u16>,
    location: Location,
) -> Result<()> {
    let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    let crc = crc32c(seed, part(0..CHECKSUM_LO_OFFSET));
    let crc = crc32c(crc, &[0; 2]);
    let crc = match high {
        Some(_) => {
            let crc = crc32c(crc, part(CHECKSUM_LO_OFFSET + 2..CHECKSUM_HI_OFFSET));
            crc32c(crc32c(crc, &[0; 2]), part(CHECKSUM_HI_OFFSET + 2..bytes.len()))
        }
        None => crc32c(crc, part(CHECKSUM_LO_OFFSET + 2..bytes.len())),
    };
    let (stored, computed) = match high {
        Some(high) => (u32::from(high) << 16 | u32::from(low), crc),
        None => (low.into(), crc & 0xFFFF),
    };
    if stored != computed {
        return Err(Error::corrupt(STRUCTURE, location, Problem::Checksum { stored, computed }));
    }
    Ok(())
}

fn parse_size(
    raw: &RawInode,
    kind: FileType,
    geometry: &Geometry,
    location: Location,
) -> Result<u64> {
    // In directories, the high half was once the block of the ACL.
    let has_high = kind == FileType::Regular || geometry.features.has(Feature::LargeDir);
    let high = if has_high { raw.size_high.get() } else { 0 };
    let size = u64::from(high) << 32 | u64::from(raw.size_lo.get());
    let max = i64::MAX as u64;
    if size > max {
        let problem = Problem::Range { field: "size", found: size, min: 0, max };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    Ok(size)
}

fn parse_blocks(raw: &RawInode, flags: InodeFlags, geometry: &Geometry) -> u64 {
    if !geometry.features.has(Feature::HugeFile) {
        return raw.blocks_lo.get().into();
    }
    let blocks = u64::from(raw.blocks_high.get()) << 32 | u64::from(raw.blocks_lo.get());
    if flags.contains(InodeFlags::HUGE_FILE) {
        // 48 bits shifted by at most 7.
        blocks << (geometry.block_size.shift() - 9)
    } else {
        blocks
    }
}

fn parse_attribute_block(
    raw: &RawInode,
    geometry: &Geometry,
    location: Location,
) -> Result<Option<FsBlock>> {
    let has_high = geometry.has_high_attribute_blocks();
    let high = if has_high { raw.file_acl_high.get() } else { 0 };
    let block = FsBlock(u64::from(high) << 32 | u64::from(raw.file_acl_lo.get()));
    if block.0 == 0 {
        return Ok(None);
    }
    geometry.check_run("extended attribute block reference", location, block, 1)?;
    Ok(Some(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Result<InodeRecord> {
        let geometry = crate::layout::geometry::tests::plain();
        InodeRecord::parse(bytes, &geometry, InodeNumber(12), Location::default())
    }

    #[test]
    fn extra_fields_must_fit_into_the_inode() {
        let mut bytes = [0; 256];
        bytes[1] = 0x81;
        for (extra, is_sound) in
            [(0, true), (4, true), (28, true), (128, true), (132, false), (30, false)]
        {
            bytes[128] = extra;
            assert_eq!(parse(&bytes).is_ok(), is_sound, "{extra}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_parse_to_an_error_or_a_record(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600),
            mode in any::<u16>(),
        ) {
            if bytes.len() >= 130 {
                bytes[..2].copy_from_slice(&mode.to_le_bytes());
                bytes[129] = 0;
            }
            if let Ok(record) = parse(&bytes) {
                record.attributes();
            }
        }
    }
}
