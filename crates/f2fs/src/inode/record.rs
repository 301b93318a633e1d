//! Inodes as stored: parsing and validation.
//! Not here: the map of the data, and inodes in memory.

use std::mem::offset_of;
use std::ops::Range;

use base::attributes::{Attributes, DeviceNumber, FileType, Timestamp};
use base::view::view_at;
use base::{Error, FileBlock, FsBlock, InodeNumber, Problem, Result};
use zerocopy::IntoBytes;

use super::checksum::checksum;
use crate::compress::{Algorithm, ClusterSize};
use crate::dir;
use crate::features::{Feature, Features};
use crate::geometry::{Geometry, WORD_BYTES};
use crate::nat::Nid;
use crate::node::Node;
use crate::ondisk::node::{
    COMPRESS_ADDRESS, INODE_NIDS, NEW_ADDRESS, RawExtraAttributes, RawInode, advise,
};
use crate::temperature::Temperature;

const STRUCTURE: &str = "inode";
/// Words of inline extended attributes, where inodes do not have their own number.
pub(crate) const DEFAULT_XATTR_WORDS: u32 = 50;
/// Bytes of the least extra attributes: their size, and the size of inline extended attributes.
const EXTRA_BYTES_MIN: u16 = 4;
/// Bytes in the unit of `st_blocks`.
pub(crate) const SECTOR_SHIFT: u32 = 9;

/// Returns the bits of `advise` that no inode of a volume with these features has.
pub(crate) fn impossible_advice(features: Features) -> u8 {
    let of_feature = [
        (Feature::Encrypt, advise::ENCRYPTED | advise::ENCRYPTED_NAME),
        (Feature::Verity, advise::VERITY),
    ];
    let missing = of_feature.into_iter().filter(|(feature, _)| !features.has(*feature));
    missing.fold(0, |bits, (_, more)| bits | more)
}

/// Bits of `inline`.
pub(crate) mod inline {
    pub(crate) const XATTR: u8 = 1;
    pub(crate) const DATA: u8 = 2;
    pub(crate) const DENTRIES: u8 = 4;
    pub(crate) const DATA_EXISTS: u8 = 8;
    pub(crate) const EXTRA: u8 = 0x20;
    pub(crate) const PINNED: u8 = 0x40;
    pub(crate) const RELEASED: u8 = 0x80;
}

/// Bits of `flags`, as FS_IOC_GETFLAGS numbers them.
pub(crate) mod flags {
    use base::attributes::FileType;

    use crate::features::{Feature, Features};

    pub(crate) const COMPRESSED: u32 = 4;
    pub(crate) const NOT_COMPRESSED: u32 = 0x400;
    pub(crate) const ENCRYPTED: u32 = 0x800;
    pub(crate) const IMMUTABLE: u32 = 0x10;
    pub(crate) const VERITY: u32 = 0x10_0000;
    pub(crate) const PINNED: u32 = 0x80_0000;
    pub(crate) const INLINE: u32 = 0x1000_0000;
    pub(crate) const CASEFOLDED: u32 = 0x4000_0000;
    pub(crate) const INHERIT_PROJECT: u32 = 0x2000_0000;
    /// The file represents a whole device.
    pub(crate) const DEVICE_ALIAS: u32 = 0x8000_0000;
    /// The stored bits that users see.
    pub(super) const VISIBLE: u32 = 0x6001_14FC;
    /// The bits that users set, in inodes of any type: no dump, no access times.
    const OF_ALL: u32 = 0xC0;
    /// Those of files and directories: synchronous, immutable, append-only.
    const OF_DATA: u32 = 0x38;
    /// Those of directories: synchronous names, inherited project.
    const OF_DIRECTORIES: u32 = 0x1_0000 | INHERIT_PROJECT;
    /// The bits that new inodes take over from their directory.
    const INHERITED: u32 = 0x8 | OF_ALL | OF_DIRECTORIES | CASEFOLDED;

    /// Returns the bits that users may set in an inode of this type.
    pub(crate) fn changeable(kind: FileType) -> u32 {
        match kind {
            FileType::Directory => OF_ALL | OF_DATA | OF_DIRECTORIES,
            FileType::Regular => OF_ALL | OF_DATA,
            _ => OF_ALL,
        }
    }

    /// The bits that say whether new data is compressed.
    pub(crate) const OF_COMPRESSION: u32 = COMPRESSED | NOT_COMPRESSED;

    /// Returns the bits that no inode of this type has, on a volume with these features.
    pub(crate) fn impossible(kind: FileType, features: Features) -> u32 {
        let of_feature = [
            (Feature::Compression, COMPRESSED),
            (Feature::Casefold, CASEFOLDED),
            (Feature::DeviceAlias, DEVICE_ALIAS),
        ];
        let missing = of_feature.into_iter().filter(|(feature, _)| !features.has(*feature));
        let of_kind = if kind == FileType::Directory { 0 } else { CASEFOLDED };
        missing.fold(of_kind, |bits, (_, more)| bits | more)
    }

    /// Returns the bits of a new inode in a directory with the bits `parent`.
    pub(crate) fn inherited(parent: u32, kind: FileType) -> u32 {
        let mut inherited = parent & INHERITED;
        if kind != FileType::Directory {
            inherited &= changeable(kind);
        }
        inherited
    }
}

/// The compression of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Compression {
    pub(crate) algorithm: Algorithm,
    pub(crate) cluster_size: ClusterSize,
    /// The flags in the extra attributes.
    pub(crate) flags: u16,
    /// The number of blocks that compression has saved.
    pub(crate) saved_blocks: u64,
    /// Whether the saved blocks were freed. The file does not change then.
    pub(crate) is_released: bool,
}

/// A validated inode.
#[derive(Clone, Debug)]
pub(crate) struct InodeRecord {
    pub(crate) attributes: Attributes,
    /// Levels of a directory's hash table.
    pub(crate) depth: u32,
    /// Exponent of the number of buckets on the first level.
    pub(crate) dir_level: u8,
    /// The node with extended attributes.
    pub(crate) xattr_node: Option<Nid>,
    /// Bytes of the block with inline extended attributes. Empty if there are none.
    pub(crate) inline_xattrs: Range<usize>,
    /// Byte of the first address in the block.
    pub(crate) addresses_at: usize,
    /// The number of addresses in the block.
    pub(crate) address_count: u32,
    /// The number of addresses that are used in other nodes.
    pub(crate) addresses_per_node: u32,
    /// Bytes of the block with inline data or dentries.
    pub(crate) inline_area: Option<Range<usize>>,
    /// Whether a flag says that the inline data is not all zeroes. It is read in any case, as in
    /// Linux.
    pub(crate) has_inline_data: bool,
    /// Byte of the numbers of the nodes below.
    pub(crate) nodes_at: usize,
    /// The direct, indirect and double indirect nodes. Zero stands for none.
    pub(crate) nodes: [u32; INODE_NIDS],
    pub(crate) is_encrypted: bool,
    /// Whether a regular file may have blocks behind its end to which nothing was written
    /// ([`advise::TRUNCATE`]).
    pub(crate) is_truncation_due: bool,
    /// How soon the data is likely to be overwritten.
    pub(crate) temperature: Temperature,
    pub(crate) compression: Option<Compression>,
}

impl InodeRecord {
    /// Parses an inode. `node` is its block.
    pub(crate) fn parse(node: &Node, geometry: &Geometry) -> Result<Self> {
        let parser = Parser::new(node, geometry)?;
        node.verify_once(|_| parser.verify_checksum())?;
        parser.record()
    }

    /// Returns whether an inode's block has a checksum, and the right one. Always true on volumes
    /// without checksums.
    pub(crate) fn has_valid_checksum(node: &Node, geometry: &Geometry) -> bool {
        !geometry.features.has(Feature::InodeChecksum)
            || Parser::new(node, geometry).is_ok_and(|parser| {
                parser.stored_checksum().is_some()
                    && node.verify_once(|_| parser.verify_checksum()).is_ok()
            })
    }

    /// Returns whether an address counts as a block of the file: reserved blocks, and those of the
    /// main area, which are `main`. The mark of a compressed cluster counts until the blocks that
    /// compression saves are released. An address outside of the main area is damage.
    pub(crate) fn counts(&self, address: u32, main: &Range<FsBlock>) -> bool {
        match address {
            COMPRESS_ADDRESS => {
                self.compression.is_some_and(|compression| !compression.is_released)
            }
            address => address == NEW_ADDRESS || main.contains(&FsBlock(address.into())),
        }
    }

    /// Returns how many of `addresses` count as blocks of the file.
    pub(crate) fn counted(
        &self,
        addresses: impl Iterator<Item = u32>,
        main: &Range<FsBlock>,
    ) -> i64 {
        addresses.filter(|address| self.counts(*address, main)).count() as i64
    }

    /// Returns whether the words after the extra attributes are addresses. Those of special files
    /// are device numbers.
    pub(crate) fn has_map(&self) -> bool {
        matches!(self.attributes.kind, FileType::Regular | FileType::Directory | FileType::Symlink)
    }

    /// Returns the byte of the first address in the inode's block, and the number of addresses
    /// there: none if it has inline contents or a device number in their place.
    pub(crate) fn own_addresses(&self) -> (usize, u32) {
        let has_addresses = self.inline_area.is_none() && self.has_map();
        (self.addresses_at, if has_addresses { self.address_count } else { 0 })
    }

    /// Parses an inode, whatever its checksum is.
    pub(crate) fn parse_without_checksum(node: &Node, geometry: &Geometry) -> Result<Self> {
        Parser::new(node, geometry)?.record()
    }

    /// Returns whether a directory's block `block` may have an entry with this hash.
    pub(crate) fn may_have(&self, hash: u32, block: FileBlock) -> bool {
        dir::may_have(hash, self.depth, self.dir_level, block)
    }

    /// Returns whether the flag of FS_IOC_GETFLAGS is set.
    pub(crate) fn has_flag(&self, flag: u32) -> bool {
        self.attributes.flags & flag != 0
    }
}

struct Parser<'a> {
    node: &'a Node,
    geometry: &'a Geometry,
    raw: &'a RawInode,
    extra: Option<RawExtraAttributes>,
}

impl<'a> Parser<'a> {
    fn new(node: &'a Node, geometry: &'a Geometry) -> Result<Self> {
        let raw: &RawInode = view_at(node.bytes(), 0, STRUCTURE, node.location())?;
        let mut parser = Self { node, geometry, raw, extra: None };
        if raw.inline & inline::EXTRA != 0 {
            parser.extra = Some(parser.extra_attributes()?);
        }
        Ok(parser)
    }

    fn fault(&self, problem: Problem) -> Error {
        Error::corrupt(STRUCTURE, self.node.location(), problem)
    }

    fn in_range(&self, field: &'static str, found: u64, min: u64, max: u64) -> Result<()> {
        if (min..=max).contains(&found) {
            return Ok(());
        }
        Err(self.fault(Problem::Range { field, found, min, max }))
    }

    /// Returns the extra attributes. Those that the inode does not have are zero.
    fn extra_attributes(&self) -> Result<RawExtraAttributes> {
        if !self.geometry.features.has(Feature::ExtraAttributes) {
            let found = self.raw.inline.into();
            return Err(self.fault(Problem::Invalid { field: "inline flags", found }));
        }
        let at = size_of::<RawInode>();
        let size: &zerocopy::little_endian::U16 =
            view_at(self.node.bytes(), at, STRUCTURE, self.node.location())?;
        let (size, max) = (size.get(), size_of::<RawExtraAttributes>());
        self.in_range("extra attributes' size", size.into(), EXTRA_BYTES_MIN.into(), max as u64)?;
        if usize::from(size) % WORD_BYTES != 0 {
            let found = size.into();
            return Err(self.fault(Problem::Invalid { field: "extra attributes' size", found }));
        }
        let mut extra = RawExtraAttributes::default();
        let bytes = self.node.bytes().get(at..at + usize::from(size)).unwrap_or_default();
        extra.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        Ok(extra)
    }

    /// Returns the extra attributes, if the volume has `feature` and the inode has the attribute
    /// that ends at `end`.
    fn extra_with(&self, feature: Feature, end: usize) -> Option<&RawExtraAttributes> {
        let extra = self.extra.as_ref()?;
        let has = self.geometry.features.has(feature) && usize::from(extra.size.get()) >= end;
        has.then_some(extra)
    }

    fn stored_checksum(&self) -> Option<u32> {
        let end = offset_of!(RawExtraAttributes, checksum) + WORD_BYTES;
        self.extra_with(Feature::InodeChecksum, end).map(|extra| extra.checksum.get())
    }

    fn verify_checksum(&self) -> Result<()> {
        let Some(stored) = self.stored_checksum() else { return Ok(()) };
        let generation = self.raw.generation.get();
        let computed = checksum(self.node.bytes(), self.node.nid, generation, self.geometry);
        if stored != computed {
            return Err(self.fault(Problem::Checksum { stored, computed }));
        }
        Ok(())
    }

    fn extra_words(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| u32::from(extra.size.get()) / WORD_BYTES as u32)
    }

    fn inline_xattr_words(&self) -> Result<u32> {
        if !self.geometry.features.has(Feature::FlexibleInlineXattr) {
            let has = self.raw.inline & (inline::XATTR | inline::DENTRIES) != 0;
            return Ok(if has { DEFAULT_XATTR_WORDS } else { 0 });
        }
        let words = self.extra.as_ref().map_or(0, |extra| extra.inline_xattr_words.get());
        // At least one address, and one word before inline contents, are left.
        let max = self.geometry.inode_words().saturating_sub(self.extra_words() + 2);
        self.in_range("inline extended attributes' size", words.into(), 0, max.into())?;
        Ok(words.into())
    }

    fn compression(&self) -> Result<Option<Compression>> {
        if self.raw.flags.get() & flags::COMPRESSED == 0 {
            return Ok(None);
        }
        let end = offset_of!(RawExtraAttributes, compress_flags) + size_of::<u16>();
        let Some(extra) = self.extra_with(Feature::Compression, end) else { return Ok(None) };
        let location = self.node.location();
        Ok(Some(Compression {
            algorithm: Algorithm::from_number(extra.algorithm, location)?,
            cluster_size: ClusterSize::from_log(extra.log_cluster_size, location)?,
            flags: extra.compress_flags.get(),
            saved_blocks: extra.compressed_blocks.get(),
            is_released: self.raw.inline & inline::RELEASED != 0,
        }))
    }

    fn record(self) -> Result<InodeRecord> {
        let raw = self.raw;
        let mode = raw.mode.get();
        let kind = FileType::from_mode(mode.into())
            .ok_or_else(|| self.fault(Problem::Invalid { field: "mode", found: mode.into() }))?;
        let xattr_words = self.inline_xattr_words()?;
        let words = self.geometry.inode_words();
        let extra_words = self.extra_words();
        let start = size_of::<RawInode>();
        let byte_of = |word: u32| start + word as usize * WORD_BYTES;
        let has_xattrs = raw.inline & inline::XATTR != 0;
        let xattrs_start = words - xattr_words;
        let inline_xattrs = if has_xattrs { byte_of(xattrs_start)..byte_of(words) } else { 0..0 };
        let is_regular = kind == FileType::Regular;
        let compression = if is_regular { self.compression()? } else { None };
        let clusters = |count: u32| match compression {
            Some(compression) => count - count % compression.cluster_size.blocks(),
            None => count,
        };
        let has_contents = match kind {
            FileType::Regular | FileType::Symlink => raw.inline & inline::DATA != 0,
            FileType::Directory => raw.inline & inline::DENTRIES != 0,
            _ => false,
        };
        // One word before inline contents is reserved.
        let inline_area = has_contents.then(|| byte_of(extra_words + 1)..byte_of(xattrs_start));
        let nids_at = byte_of(words);
        let mut nodes = [0; INODE_NIDS];
        for (node, word) in nodes.iter_mut().zip(self.node.words(nids_at, 0, INODE_NIDS as u32)) {
            *node = word;
        }
        Ok(InodeRecord {
            attributes: self.attributes(kind, inline_area.is_some())?,
            depth: raw.current_depth.get(),
            dir_level: raw.dir_level,
            xattr_node: Some(Nid(raw.xattr_nid.get())).filter(|nid| nid.0 != 0),
            inline_xattrs,
            addresses_at: byte_of(extra_words),
            address_count: clusters(xattrs_start - extra_words),
            addresses_per_node: clusters(self.geometry.addresses_per_node()),
            inline_area,
            has_inline_data: raw.inline & inline::DATA_EXISTS != 0,
            nodes_at: nids_at,
            nodes,
            is_encrypted: raw.advise & advise::ENCRYPTED != 0,
            is_truncation_due: kind == FileType::Regular && raw.advise & advise::TRUNCATE != 0,
            temperature: Temperature::of_advice(raw.advise),
            compression,
        })
    }

    fn attributes(&self, kind: FileType, is_inline: bool) -> Result<Attributes> {
        let raw = self.raw;
        let size = raw.size.get();
        self.in_range("size", size, 0, i64::MAX as u64)?;
        let blocks = raw.blocks.get();
        self.in_range("blocks", blocks, 1, self.geometry.block_count)?;
        // The inode's own block is not counted.
        let mut sectors = (blocks - 1) << (self.geometry.block_size.shift() - SECTOR_SHIFT);
        if is_inline && kind != FileType::Symlink {
            sectors +=
                size.min(self.geometry.block_size.bytes().into()).div_ceil(1 << SECTOR_SHIFT);
        }
        Ok(Attributes {
            inode: InodeNumber(self.node.nid.0.into()),
            kind,
            permissions: raw.mode.get() & 0o7777,
            links: raw.links.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            size,
            blocks: sectors,
            device: self.device(kind)?,
            accessed: timestamp(&raw.atime, &raw.atime_nsec),
            modified: timestamp(&raw.mtime, &raw.mtime_nsec),
            changed: timestamp(&raw.ctime, &raw.ctime_nsec),
            created: self.created(),
            generation: raw.generation.get(),
            flags: self.flags(kind, is_inline),
            project: self.project(),
        })
    }

    fn created(&self) -> Option<Timestamp> {
        let end = offset_of!(RawExtraAttributes, created_nsec) + WORD_BYTES;
        let extra = self.extra_with(Feature::InodeCreationTime, end)?;
        Some(timestamp(&extra.created, &extra.created_nsec))
    }

    fn project(&self) -> Option<u32> {
        let end = offset_of!(RawExtraAttributes, project) + WORD_BYTES;
        Some(self.extra_with(Feature::ProjectQuota, end)?.project.get())
    }

    /// Returns the flags as FS_IOC_GETFLAGS reports them.
    fn flags(&self, kind: FileType, is_inline: bool) -> u32 {
        let has = [
            (self.raw.advise & advise::ENCRYPTED != 0, flags::ENCRYPTED),
            (self.raw.advise & advise::VERITY != 0, flags::VERITY),
            (self.raw.inline & inline::PINNED != 0 && kind == FileType::Regular, flags::PINNED),
            (is_inline, flags::INLINE),
        ];
        // Linux does not show this flag of regular files.
        let hidden = if kind == FileType::Regular { flags::INHERIT_PROJECT } else { 0 };
        let stored = self.raw.flags.get() & flags::VISIBLE & !hidden;
        has.iter().filter(|(has, _)| *has).fold(stored, |flags, (_, flag)| flags | flag)
    }

    /// Returns the number of the device that a special file represents: in the first word in the
    /// old form, or in the second one in the new form.
    fn device(&self, kind: FileType) -> Result<DeviceNumber> {
        if !matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            return Ok(DeviceNumber::default());
        }
        let start = size_of::<RawInode>();
        let word = |index| self.node.word(start, self.extra_words() + index);
        Ok(match word(0)? {
            0 => {
                let new = word(1)?;
                let minor = new & 0xFF | new >> 12 & 0xF_FF00;
                DeviceNumber { major: new >> 8 & 0xFFF, minor }
            }
            old => DeviceNumber { major: old >> 8 & 0xFF, minor: old & 0xFF },
        })
    }
}

fn timestamp(
    seconds: &zerocopy::little_endian::U64,
    nanoseconds: &zerocopy::little_endian::U32,
) -> Timestamp {
    // A damaged inode must not have a time that callers cannot represent.
    let nanoseconds = nanoseconds.get().min(999_999_999);
    Timestamp { seconds: seconds.get() as i64, nanoseconds }
}
