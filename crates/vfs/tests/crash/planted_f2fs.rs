//! Bugs of f2fs that only show where blocks are used again: in the chain of synced nodes, and in
//! discards. Each is a device between the volume and the recorded device (`planted.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use base::DeviceOffset;
use device::{Bio, BioOperation, DeviceHooks, SharedDevice};
use parking_lot::Mutex;
use testkit::crash::is_data;

use crate::planted::{BLOCK, Freed, MAIN_AREA, PACKS};

/// The words of a node's footer, from the end of the block.
const NODE: usize = 24;
const INODE: usize = 20;
const FLAGS: usize = 16;
const VERSION: usize = 12;
const NEXT: usize = 4;
/// The flag of the last node that a call of fsync(2) wrote.
const SYNCED: u32 = 2;
/// More than the numbers of all nodes of a volume of 64 MiB.
const NODES_MAX: u32 = 1 << 20;

fn footer_word(block: &[u8], from_end: usize) -> u32 {
    let at = block.len() - from_end;
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

/// Returns whether a block is the last node of a call of fsync(2). Data has no zero bytes, and so
/// no small numbers.
fn is_synced_node(block: &[u8]) -> bool {
    let are_numbers =
        [NODE, INODE].iter().all(|word| (1..NODES_MAX).contains(&footer_word(block, *word)));
    block.len() == BLOCK && are_numbers && footer_word(block, FLAGS) & SYNCED != 0
}

/// Returns the offset and the bytes of each write of a batch.
fn writes(batch: &[Bio]) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let writes = batch.iter().filter(|bio| bio.operation() == BioOperation::Write);
    writes.map(|bio| (bio.offset().0, bio.to_vec()))
}

/// Writes data to freed blocks that the last checkpoint does not use, although the chain of synced
/// nodes refers to them.
#[derive(Debug)]
pub struct WithReuseOfChain {
    freed: Arc<Freed>,
    since: Mutex<SinceCheckpoint>,
}

/// Blocks that were written since the last checkpoint, by their offset.
#[derive(Debug, Default)]
struct SinceCheckpoint {
    written: BTreeSet<u64>,
    /// Those after which synced nodes were written.
    synced: BTreeSet<u64>,
}

impl WithReuseOfChain {
    pub fn new(freed: Arc<Freed>) -> Self {
        Self { freed, since: Mutex::default() }
    }
}

impl DeviceHooks for WithReuseOfChain {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for (start, bytes) in writes(&batch) {
            let (mut freed, mut since) = (self.freed.0.lock(), self.since.lock());
            if PACKS.contains(&start) {
                freed.clear();
                *since = SinceCheckpoint::default();
                continue;
            }
            let blocks = (start..start + bytes.len() as u64).step_by(BLOCK);
            since.written.extend(blocks);
            if bytes.chunks(BLOCK).any(is_synced_node) {
                let written = std::mem::take(&mut since.written);
                since.synced.extend(written);
            }
            freed.retain(|at| !(start..start + bytes.len() as u64).contains(at));
            if bytes.len() >= BLOCK && is_data(&bytes) {
                let of_chain = freed.iter().copied().find(|at| since.synced.contains(at));
                if let Some(at) = of_chain {
                    freed.remove(&at);
                    device.write_at(DeviceOffset(at), &bytes[..BLOCK]).unwrap();
                }
            }
        }
        device.submit(batch);
    }
}

/// Writes an older synced inode behind each synced node, as if it belonged to the same chain.
#[derive(Debug, Default)]
pub struct WithStaleNodes {
    /// The synced inodes that were written last, by number.
    inodes: Mutex<BTreeMap<u32, Vec<u8>>>,
}

impl DeviceHooks for WithStaleNodes {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for (_, bytes) in writes(&batch) {
            for node in bytes.chunks(BLOCK).filter(|block| is_synced_node(block)) {
                let (number, next) = (footer_word(node, INODE), footer_word(node, NEXT));
                if footer_word(node, NODE) != number {
                    continue;
                }
                let Some(mut stale) = self.inodes.lock().insert(number, node.to_vec()) else {
                    continue;
                };
                stale[BLOCK - VERSION..BLOCK - NEXT]
                    .copy_from_slice(&node[BLOCK - VERSION..BLOCK - NEXT]);
                stale[BLOCK - NEXT..].copy_from_slice(&(next + 1).to_le_bytes());
                let at = DeviceOffset(u64::from(next) * BLOCK as u64);
                device.write_at(at, &stale).unwrap();
            }
        }
        device.submit(batch);
    }
}

/// The segment information table of a volume of 64 MiB: two copies.
const SEGMENT_TABLE: Range<u64> = 6 << 20..10 << 20;
const SEGMENT_BYTES: u64 = 2 << 20;
/// The size of an entry of the table, which begins with the number of blocks in use and the type.
const SEGMENT_ENTRY: usize = 74;
const USED_BITS: u16 = 0x3FF;

/// Discards the segments that a checkpoint frees before its last flush.
#[derive(Debug, Default)]
pub struct WithEarlyDiscards(Mutex<Checkpoint>);

/// What was written for the next checkpoint.
#[derive(Debug, Default)]
struct Checkpoint {
    /// The number of blocks in use of each segment, as the table was written last.
    used: BTreeMap<u64, u16>,
    freed: BTreeSet<u64>,
    /// The segments that were written to.
    written: BTreeSet<u64>,
    /// The number of writes before the main area since the last flush.
    writes: usize,
}

impl Checkpoint {
    /// Records the write of a block of the segment information table.
    fn write_table(&mut self, at: u64, block: &[u8]) {
        let per_block = BLOCK / SEGMENT_ENTRY;
        let number = (at - SEGMENT_TABLE.start) % SEGMENT_BYTES / BLOCK as u64;
        let first = number * per_block as u64;
        for (segment, entry) in (first..).zip(block.chunks_exact(SEGMENT_ENTRY)) {
            let used = u16::from_le_bytes([entry[0], entry[1]]) & USED_BITS;
            let old = self.used.insert(segment, used);
            if used == 0 && old.is_some_and(|old| old > 0) {
                self.freed.insert(segment);
            }
        }
    }
}

impl DeviceHooks for WithEarlyDiscards {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for (start, bytes) in writes(&batch) {
            let mut next = self.0.lock();
            if let Some(in_main) = start.checked_sub(MAIN_AREA) {
                next.written.insert(in_main / SEGMENT_BYTES);
                continue;
            }
            next.writes += 1;
            if SEGMENT_TABLE.contains(&start) {
                for (at, block) in (start..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
                    next.write_table(at, block);
                }
            }
        }
        device.submit(batch);
    }

    fn flush(&self, device: &SharedDevice) -> base::Result<()> {
        let mut next = self.0.lock();
        // The pack's last block alone precedes the last flush.
        if std::mem::take(&mut next.writes) == 1 {
            let written = std::mem::take(&mut next.written);
            for segment in std::mem::take(&mut next.freed).difference(&written) {
                let at = DeviceOffset(MAIN_AREA + segment * SEGMENT_BYTES);
                device.discard(at, SEGMENT_BYTES).unwrap();
            }
        }
        device.flush()
    }
}
