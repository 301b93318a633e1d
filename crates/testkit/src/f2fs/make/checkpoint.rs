//! A checkpoint pack of a new volume: its first and last block, and the summaries of the logs with
//! the journals.

use std::ops::Range;

use base::checksum::crc32_le;
use f2fs::ondisk::checkpoint::{COMPACT_SUMMARIES, LARGE_NAT_BITMAP, RawCheckpoint, UNMOUNTED};
use f2fs::ondisk::summary::{RawSummary, RawSummaryFooter};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::areas::Areas;
use super::files::Files;
use super::{COLD_DATA, HOT_DATA, HOT_NODES, LOGS, MAGIC, MakeOptions, tables};

/// Bytes of a CRC.
const CRC_BYTES: usize = 4;
/// The number of logs for data, and of those for nodes.
const LOGS_OF_KIND: usize = LOGS / 2;

/// Returns a whole pack.
pub(super) fn pack(options: &MakeOptions, areas: &Areas, files: &Files, version: u64) -> Vec<u8> {
    let summaries = Summaries { options, areas, files };
    let summaries = if options.compact_summaries {
        [summaries.compact(), summaries.normal(HOT_NODES..LOGS)].concat()
    } else {
        summaries.normal(0..LOGS)
    };
    let blocks = 2 + summaries.len() / options.block_size.len();
    let head = head(options, areas, files, version, blocks as u32);
    [head.clone(), summaries, head].concat()
}

/// Returns the first block of a pack of `blocks` blocks, which is also its last one.
fn head(options: &MakeOptions, areas: &Areas, files: &Files, version: u64, blocks: u32) -> Vec<u8> {
    let fixed = size_of::<RawCheckpoint>();
    let [sit_bytes, nat_bytes] = areas.bitmap_bytes();
    let directories = files.inodes().len() as u32;
    let (data, nodes) = areas.log_segments.split_at(LOGS_OF_KIND);
    let mut raw = RawCheckpoint::new_zeroed();
    raw.version = U64::new(version);
    raw.user_block_count = U64::new(areas.user_blocks());
    raw.valid_block_count = U64::new(2 * u64::from(directories));
    raw.reserved_segments = U32::new(areas.reserved_segments);
    raw.overprovision_segments = U32::new(areas.overprovision_segments);
    raw.free_segments = U32::new(areas.main_segments - LOGS as u32);
    raw.node_segments = [U32::new(u32::MAX); 8];
    raw.data_segments = [U32::new(u32::MAX); 8];
    for log in 0..LOGS_OF_KIND {
        raw.node_segments[log] = U32::new(nodes[log]);
        raw.node_offsets[log] = U16::new(files.blocks_in(HOT_NODES + log));
        raw.data_segments[log] = U32::new(data[log]);
        raw.data_offsets[log] = U16::new(files.blocks_in(HOT_DATA + log));
    }
    let flags = [
        (true, UNMOUNTED),
        (options.compact_summaries, COMPACT_SUMMARIES),
        (options.large_nat_bitmap, LARGE_NAT_BITMAP),
    ];
    raw.flags = U32::new(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    raw.pack_blocks = U32::new(blocks);
    raw.summary_start = U32::new(1);
    raw.valid_nodes = U32::new(directories);
    raw.valid_inodes = U32::new(directories);
    raw.next_free_nid =
        U32::new(files.inodes().iter().map(|(number, _)| number + 1).max().unwrap_or_default());
    raw.sit_bitmap_bytes = U32::new(sit_bytes as u32);
    raw.nat_bitmap_bytes = U32::new(nat_bytes as u32);
    // All bits are zero: the first copies count. So it does not matter where the bitmaps are.
    let last = options.block_size.len() - CRC_BYTES;
    let checksum_at = if options.large_nat_bitmap { fixed } else { last };
    raw.checksum_offset = U32::new(checksum_at as u32);

    let mut head = raw.as_bytes().to_vec();
    head.resize(options.block_size.len(), 0);
    let before = crc32_le(MAGIC, &head[..checksum_at]);
    let checksum = crc32_le(before, &head[checksum_at + CRC_BYTES..]);
    head[checksum_at..checksum_at + CRC_BYTES].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// The summaries of the logs.
struct Summaries<'a> {
    options: &'a MakeOptions,
    areas: &'a Areas,
    files: &'a Files,
}

impl Summaries<'_> {
    /// Returns the entries of a log: the directory of each block. Inodes belong to themselves, and
    /// the first address of an inode is that of the block.
    fn entries(&self, log: usize) -> Vec<u8> {
        let inodes = self.files.inodes().iter().take(self.files.blocks_in(log).into());
        let summary = |(number, _): &(u32, u32)| RawSummary {
            nid: (*number).into(),
            version: 0,
            index: U16::ZERO,
        };
        inodes.flat_map(|inode| summary(inode).as_bytes().to_vec()).collect()
    }

    /// Returns the journal in the summary of a log.
    fn journal(&self, log: usize) -> Vec<u8> {
        match log {
            HOT_DATA => tables::node_journal(self.files),
            COLD_DATA => tables::segment_journal(self.areas, self.files),
            _ => Vec::new(),
        }
    }

    /// Returns the byte of the journal in a summary, and the byte of the footer.
    fn positions(&self) -> (usize, usize) {
        let bytes = self.options.summary_bytes();
        (bytes / 8 * size_of::<RawSummary>(), bytes - size_of::<RawSummaryFooter>())
    }

    /// Returns a block for each of `logs`: its entries, its journal, and a footer.
    fn normal(&self, logs: Range<usize>) -> Vec<u8> {
        let (journal_at, footer_at) = self.positions();
        let block = |log: usize| {
            let mut block = self.entries(log);
            block.resize(journal_at, 0);
            block.extend(self.journal(log));
            block.resize(footer_at, 0);
            let kind = u8::from(log >= HOT_NODES);
            block.extend(RawSummaryFooter { kind, checksum: U32::ZERO }.as_bytes());
            block.resize(self.options.block_size.len(), 0);
            block
        };
        logs.flat_map(block).collect()
    }

    /// Returns the block with both journals and the entries of all logs with data.
    fn compact(&self) -> Vec<u8> {
        let (journal_at, footer_at) = self.positions();
        let mut block = self.journal(HOT_DATA);
        block.resize(footer_at - journal_at, 0);
        block.extend(self.journal(COLD_DATA));
        block.resize(2 * (footer_at - journal_at), 0);
        (0..LOGS_OF_KIND).for_each(|log| block.extend(self.entries(log)));
        block.resize(self.options.block_size.len(), 0);
        block
    }
}
