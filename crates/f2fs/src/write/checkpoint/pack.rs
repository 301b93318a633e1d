//! Checkpoint packs, written in steps: all blocks but the last one, a flush, the last block, and a
//! flush. The types of the steps allow no other order.

use std::collections::BTreeSet;

use base::checksum::crc32_le;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use zerocopy::IntoBytes;

use super::batch::Batch;
use crate::checkpoint::{VersionBitmap, bitmap_places};
use crate::core::Core;
use crate::geometry::{SEGMENT_BLOCKS, WORD_BYTES};
use crate::ondisk::checkpoint::{
    COMPACT_SUMMARIES, CRC_RECOVERY, FAST_BOOT, NAT_BITS, NEEDS_FSCK, NO_CRC_RECOVERY, ORPHANS,
    QUOTA_NEEDS_FSCK, RawCheckpoint, RawOrphanFooter, TRIMMED, UNMOUNTED,
};
use crate::summaries::{BlockKind, LOGS};
use crate::superblock::MAGIC;
use crate::write::allocate::logs::Logs;
use crate::write::segments::space::Space;
use crate::write::segments::summary_blocks::SummaryBlocks;

/// Bytes of a CRC.
const CRC_BYTES: usize = 4;

/// The counts of a pack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackCounts {
    pub(crate) blocks: u64,
    pub(crate) nodes: u32,
    pub(crate) inodes: u32,
    pub(crate) free_segments: u32,
}

impl PackCounts {
    /// Changes the counts to ones that are possible if the table has so many blocks of data, and of
    /// nodes, in use. Otherwise the volume could not be opened for writing. Returns whether they
    /// were others, after changes of damaged files.
    pub(crate) fn follow(&mut self, [data, of_nodes]: [u64; 2]) -> bool {
        let Self { blocks, nodes, inodes, .. } = *self;
        self.blocks = blocks.max(data + of_nodes);
        // Numbers of nodes have 32 bits.
        self.nodes = of_nodes as u32;
        self.inodes = inodes.min(self.nodes);
        (self.blocks, self.nodes, self.inodes) != (blocks, nodes, inodes)
    }
}

/// What a pack says, apart from its logs.
pub(crate) struct PackContents<'c> {
    pub(crate) counts: PackCounts,
    /// The version bitmaps of the segment information table and of the node address table.
    pub(crate) versions: (&'c VersionBitmap, &'c VersionBitmap),
    /// The inodes without a name, which are in use.
    pub(crate) orphans: &'c BTreeSet<InodeNumber>,
    /// Whether the quota files need repair.
    pub(crate) is_quota_damaged: bool,
    /// Whether corruption was found. The flag stays until fsck.f2fs clears it.
    pub(crate) needs_fsck: bool,
    /// Whether nothing will be written after this pack.
    pub(crate) is_closed: bool,
    /// The time now, in seconds since the volume was made.
    pub(crate) time: u64,
}

/// A pack in memory.
pub(crate) struct Pack<'v> {
    volume: &'v Core,
    start: FsBlock,
    blocks: Vec<Vec<u8>>,
}

/// The last block of a pack.
struct PackEnd<'v> {
    volume: &'v Core,
    block: FsBlock,
    contents: Vec<u8>,
}

/// A pack that was written but for its last block, and with it all that it refers to.
pub(crate) struct WrittenPack<'v>(PackEnd<'v>);

/// A pack that is durable but for its last block.
pub(crate) struct FlushedPack<'v>(PackEnd<'v>);

impl<'v> Pack<'v> {
    /// Makes the pack that follows the current one.
    pub(crate) fn new(
        (volume, space): (&'v Core, &Space),
        contents: &PackContents<'_>,
        logs: &Logs,
        summaries: &mut SummaryBlocks,
    ) -> Result<Self> {
        let PackContents { counts, versions, orphans, is_closed, time, .. } = contents;
        let geometry = volume.geometry();
        let checkpoint = volume.checkpoint();
        let mut raw = checkpoint.raw.clone();
        raw.version.set(raw.version.get().wrapping_add(1));
        raw.valid_block_count.set(counts.blocks);
        raw.valid_nodes.set(counts.nodes);
        raw.valid_inodes.set(counts.inodes);
        raw.free_segments.set(counts.free_segments);
        raw.elapsed_time.set(*time);
        for (number, place) in logs.places().iter().enumerate() {
            let index = number % LOGS;
            let (segments, offsets) = if number < LOGS {
                (&mut raw.data_segments, &mut raw.data_offsets)
            } else {
                (&mut raw.node_segments, &mut raw.node_offsets)
            };
            segments[index].set(place.segment);
            offsets[index].set(place.offset);
            raw.allocation_types[number] = place.fills_holes.into();
        }
        let cleared = ORPHANS
            | COMPACT_SUMMARIES
            | FAST_BOOT
            | UNMOUNTED
            | NAT_BITS
            | TRIMMED
            | NO_CRC_RECOVERY;
        let mut flags = if *is_closed { UNMOUNTED } else { 0 } | CRC_RECOVERY;
        // fsck.f2fs expects summaries of nodes only in the last pack. Others are read from the
        // nodes.
        let logs_in_pack = if *is_closed { 2 * LOGS } else { LOGS };
        let orphan_blocks = orphan_blocks(orphans, geometry.block_size.len());
        if !orphan_blocks.is_empty() {
            flags |= ORPHANS;
        }
        if contents.needs_fsck {
            flags |= NEEDS_FSCK;
        }
        if contents.is_quota_damaged {
            flags |= QUOTA_NEEDS_FSCK;
        }
        raw.flags.set(raw.flags.get() & !cleared | flags);
        let payload = geometry.checkpoint_payload as usize;
        let summary_start = 1 + payload + orphan_blocks.len();
        // Linux refuses packs without room for the summaries of all logs, even if they have fewer.
        if (summary_start + 2 * LOGS + 1) as u64 > SEGMENT_BLOCKS {
            return Err(Error::NoSpace);
        }
        let count = summary_start + logs_in_pack + 1;
        raw.summary_start.set(summary_start as u32);
        raw.pack_blocks.set(count as u32);

        let length = geometry.block_size.len();
        let mut front = vec![0; (1 + payload) * length];
        place_bitmaps(volume, &raw, *versions, &mut front)?;
        front[..size_of::<RawCheckpoint>()].copy_from_slice(raw.as_bytes());
        seal(&mut front[..length], raw.checksum_offset.get() as usize);
        let mut blocks: Vec<Vec<u8>> = front.chunks(length).map(<[u8]>::to_vec).collect();
        blocks.extend(orphan_blocks);
        for (number, place) in logs.places().iter().enumerate().take(logs_in_pack) {
            let kind = if number < LOGS { BlockKind::Data } else { BlockKind::Node };
            let summary = summaries.of_log((volume, space), place.segment, kind)?;
            let mut block = summary.to_bytes(geometry.summary_bytes());
            block.resize(length, 0);
            blocks.push(block);
        }
        blocks.push(blocks[0].clone());
        let second = FsBlock(geometry.checkpoint.0 + SEGMENT_BLOCKS);
        let start =
            if checkpoint.start == geometry.checkpoint { second } else { geometry.checkpoint };
        Ok(Self { volume, start, blocks })
    }

    /// Writes `batch`, and all blocks but the last one.
    pub(crate) fn write(mut self, batch: &mut Batch<'_>) -> Result<WrittenPack<'v>> {
        let last = self.blocks.len() - 1;
        for (block, contents) in (self.start.0..).map(FsBlock).zip(self.blocks.drain(..last)) {
            batch.add(block, contents.into())?;
        }
        batch.write()?;
        let end = FsBlock(self.start.0 + last as u64);
        Ok(WrittenPack(PackEnd {
            volume: self.volume,
            block: end,
            contents: self.blocks.remove(0),
        }))
    }
}

impl<'v> WrittenPack<'v> {
    /// Makes the pack's blocks, and all that was written before, durable.
    pub(crate) fn flush(self) -> Result<FlushedPack<'v>> {
        self.0.volume.device().flush()?;
        Ok(FlushedPack(self.0))
    }
}

impl FlushedPack<'_> {
    /// Writes the last block, which makes the pack valid, and makes it durable.
    pub(crate) fn commit(self) -> Result<()> {
        let PackEnd { volume, block, contents } = self.0;
        volume.device().write_at(volume.geometry().device_offset(block), &contents)?;
        volume.device().flush()
    }
}

/// Copies the version bitmaps to their places in the first block and the blocks after it.
fn place_bitmaps(
    volume: &Core,
    raw: &RawCheckpoint,
    (sit, nat): (&VersionBitmap, &VersionBitmap),
    front: &mut [u8],
) -> Result<()> {
    let bitmaps = [sit, nat];
    let lengths = bitmaps.map(|bitmap| bitmap.bytes().len());
    for (at, bitmap) in bitmap_places(raw, volume.geometry(), lengths).into_iter().zip(bitmaps) {
        let available = front.len().saturating_sub(at) as u64;
        let Some(to) = front.get_mut(at..at + bitmap.bytes().len()) else {
            let problem = Problem::Truncated { needed: bitmap.bytes().len() as u64, available };
            let location = Location::block(volume.checkpoint().start);
            return Err(Error::corrupt("checkpoint", location, problem));
        };
        to.copy_from_slice(bitmap.bytes());
    }
    Ok(())
}

/// Returns the blocks with the numbers of orphans.
fn orphan_blocks(orphans: &BTreeSet<InodeNumber>, length: usize) -> Vec<Vec<u8>> {
    let per_block = (length - size_of::<RawOrphanFooter>()) / WORD_BYTES;
    let numbers: Vec<u32> = orphans.iter().map(|number| number.0 as u32).collect();
    let count = numbers.len().div_ceil(per_block);
    let block = |(index, numbers): (u16, &[u32])| {
        let mut block: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        block.resize(length - size_of::<RawOrphanFooter>(), 0);
        let footer = RawOrphanFooter {
            reserved: 0.into(),
            index: index.into(),
            count: (count as u16).into(),
            entries: (numbers.len() as u32).into(),
            checksum: 0.into(),
        };
        block.extend_from_slice(footer.as_bytes());
        block
    };
    (1..).zip(numbers.chunks(per_block)).map(block).collect()
}

/// Stores the CRC of a block at byte `at`.
fn seal(block: &mut [u8], at: usize) {
    let crc = crc32_le(crc32_le(MAGIC, &block[..at]), &block[at + CRC_BYTES..]);
    block[at..at + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
}
