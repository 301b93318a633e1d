//! A maker of empty f2fs volumes with blocks of 4 or 16 KiB, in all layouts, which mkfs.f2fs of the
//! distributions cannot make. It chooses the writes from the options, and does not write itself.
//! Not here: volumes on several devices, with zones, that are never written, with quota files, or
//! so large that a version bitmap needs checkpoint blocks of its own.

mod areas;
mod checkpoint;
mod files;
mod superblock;
mod tables;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::{BlockSize, Error, Result, Unsupported};
use f2fs::{Feature, Features};

use crate::must;
use areas::Areas;
use files::Files;

/// The magic number, which is also the seed of all checksums but those of inodes.
const MAGIC: u32 = 0xF2F5_2010;
/// Blocks in a segment.
const SEGMENT_BLOCKS: u32 = 512;
/// The number of logs: hot, warm and cold data, hot, warm and cold nodes. This order numbers the
/// types of segments.
const LOGS: usize = 6;
/// The log that has the blocks of directories.
const HOT_DATA: usize = 0;
/// The log whose summary has the journal of the segment information table.
const COLD_DATA: usize = 2;
/// The log that has the inodes of directories.
const HOT_NODES: usize = 3;

/// What a volume is like.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The block size: 4 KiB or 16 KiB.
    pub block_size: BlockSize,
    /// The size in bytes.
    pub bytes: u64,
    /// The bits of the features.
    pub features: u32,
    /// The UUID. Other values depend on it, so that nothing of an older volume on the device seems
    /// to belong to this one.
    pub uuid: [u8; 16],
    /// The label.
    pub label: &'static str,
    /// Segments in a section.
    pub segments_per_section: u32,
    /// Sections in a zone.
    pub sections_per_zone: u32,
    /// Whether the checkpoint has a bitmap for a node address table of any size.
    pub large_nat_bitmap: bool,
    /// Whether the first checkpoint has its data summaries in the compact form.
    pub compact_summaries: bool,
    /// The time of the making, in seconds since 1970.
    pub seconds: u64,
}

impl MakeOptions {
    /// Returns options for a volume without features.
    pub fn new(block_size: BlockSize, bytes: u64) -> Self {
        Self {
            block_size,
            bytes,
            features: 0,
            uuid: *b"a bifolio volume",
            label: "",
            segments_per_section: 1,
            sections_per_zone: 1,
            large_nat_bitmap: false,
            compact_summaries: true,
            seconds: 1_700_000_000,
        }
    }

    /// Returns whether the volume has the feature.
    fn has(&self, feature: Feature) -> bool {
        Features::new(self.features).is_ok_and(|features| features.has(feature))
    }

    /// Returns the size of a summary. A block of the summary area has as many as fit.
    fn summary_bytes(&self) -> usize {
        if self.has(Feature::PackedSummaries) { 4096 } else { self.block_size.len() }
    }

    /// Returns the version of the first checkpoint.
    fn version(&self) -> u64 {
        let bytes = self.uuid.first_chunk().copied().unwrap_or_default();
        // The pack before it has a version, too.
        u64::from(u32::from_le_bytes(bytes)).max(2)
    }
}

/// A write to the device.
#[derive(Clone, Debug)]
pub struct Write {
    /// The first byte.
    pub at: u64,
    /// The contents.
    pub contents: Contents,
}

/// The contents of a [`Write`].
#[derive(Clone, Debug)]
pub enum Contents {
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many zeroes.
    Zeroes(u64),
}

/// Returns the writes that make a volume. The superblocks are the last ones, so that there is no
/// volume before it is complete. Errors: `Unsupported`, or `InvalidArgument` for a size that is too
/// small.
pub fn make(options: &MakeOptions) -> Result<Vec<Write>> {
    let features = Features::new(options.features)?;
    for (feature, name) in [
        (Feature::BlockZoned, "blkzoned"),
        (Feature::ReadOnly, "ro"),
        (Feature::QuotaInodes, "quota"),
    ] {
        if features.has(feature) {
            return Err(Unsupported::Features { names: vec![name.to_owned()] }.into());
        }
    }
    if ![12, 14].contains(&options.block_size.shift()) {
        return Err(Error::InvalidArgument("the block size is neither 4 KiB nor 16 KiB"));
    }
    let areas = Areas::plan(options)?;
    let files = Files::new(options, &areas);
    let superblock = superblock::block(options, &areas);

    let block_bytes = u64::from(options.block_size.bytes());
    let at = |block: u32| u64::from(block) * block_bytes;
    let meta_bytes = at(areas.main) - at(areas.checkpoint);
    let zeroes = Write { at: at(areas.checkpoint), contents: Contents::Zeroes(meta_bytes) };
    let mut writes = vec![zeroes];
    let mut add = |block: u32, bytes: Vec<u8>| {
        assert_eq!(bytes.len() as u64 % block_bytes, 0, "part of a block");
        writes.push(Write { at: at(block), contents: Contents::Bytes(bytes) });
    };
    for (block, bytes) in files.blocks() {
        add(*block, bytes.clone());
    }
    add(areas.nat, tables::nodes(options));
    for (pack, version) in [(0, options.version()), (1, options.version() - 1)] {
        let start = areas.checkpoint + pack * SEGMENT_BLOCKS;
        add(start, checkpoint::pack(options, &areas, &files, version));
    }
    for block in [0, 1] {
        add(block, superblock.clone());
    }
    Ok(writes)
}

/// Makes a volume in a new sparse file.
pub fn make_file(image: &Path, options: &MakeOptions) {
    let file = must(File::create(image), image.display());
    must(file.set_len(options.bytes), image.display());
    for Write { at, contents } in must(make(options), image.display()) {
        // A new file has only zeroes.
        if let Contents::Bytes(bytes) = contents {
            must(file.write_all_at(&bytes, at), image.display());
        }
    }
}
