//! Typical bugs of a file system, planted from outside: by a device between the volume and the
//! recorded device, or by a mount option. The judge must find each of them.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::DeviceOffset;
use device::{Bio, BioOperation, SharedDevice};
use iomap::FiemapExtent;
use parking_lot::Mutex;
use testkit::crash::{JournalBug, is_data, with_lossy_discards};
use testkit::{DeviceHooks, HookedDevice};
use vfs::File;

use crate::common::bytes;
use crate::planted_f2fs::{WithEarlyDiscards, WithReuseOfChain, WithStaleNodes};

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// A bug of the log or of the end of I/O.
    Journal(JournalBug),
    /// A page is made clean before it is protected. A store in between is in memory, but not in the
    /// data that is written, and is never written later.
    CleanBeforeProtect,
    /// Data that replaces other data, by a rename or after a truncation, is written back only when
    /// it is old.
    LateReplacement,
    /// An atomic write is not started: data is in the file at once.
    NotAtomic,
    /// An atomic write is committed in two parts.
    TwoCommits,
    /// Names are removed after the sync that follows their removal.
    LateRemoval,
    /// The first flush of a checkpoint of f2fs is missing.
    NoFlushOfPack,
    /// The last flush of a checkpoint of f2fs is missing: blocks that it frees are written before
    /// it is durable.
    NoFlushOfPackEnd,
    /// Checkpoints of f2fs list no orphans.
    LostOrphans,
    /// A block of f2fs that was freed is written to before the next checkpoint: the last one, or a
    /// synced node, refers to it.
    EarlyReuse,
    /// A block of f2fs that was freed is written to before the next checkpoint: only synced nodes
    /// refer to it.
    ReuseOfChain,
    /// Synced nodes of f2fs from before join the chain of those that are written now.
    StaleNodes,
    /// Segments of f2fs are discarded before the checkpoint that frees them is durable.
    EarlyDiscards,
    /// Checkpoints of f2fs have the quota of the ones before.
    OldQuota,
    /// Encrypted blocks that are written together have each other's initialization vectors.
    OtherBlocksIv,
}

/// A bug, and the state that it needs.
pub struct Planted {
    bug: Bug,
    late: Arc<LateStore>,
    freed: Arc<Freed>,
}

/// A store to a page after it was made clean: the old bytes and the new ones.
#[derive(Debug, Default)]
struct LateStore(Mutex<Option<(Vec<u8>, Vec<u8>)>>);

impl Planted {
    pub fn new(bug: Bug) -> Self {
        Self { bug, late: Arc::default(), freed: Arc::default() }
    }

    /// Returns the device for a volume with the bug, on top of `device`, of which discarded blocks
    /// are not read as zeroes.
    pub fn device(&self, device: SharedDevice) -> SharedDevice {
        let device = with_lossy_discards(device);
        match self.bug {
            Bug::None | Bug::LateReplacement => device,
            Bug::NotAtomic | Bug::TwoCommits | Bug::LateRemoval => device,
            Bug::Journal(bug) => bug.device(device),
            Bug::NoFlushOfPack | Bug::NoFlushOfPackEnd => {
                let is_end = self.bug == Bug::NoFlushOfPackEnd;
                Arc::new(HookedDevice::new(device, WithoutFlush { is_end, writes: Mutex::new(0) }))
            }
            Bug::EarlyReuse => {
                Arc::new(HookedDevice::new(device, WithEarlyReuse(Arc::clone(&self.freed))))
            }
            Bug::ReuseOfChain => {
                Arc::new(HookedDevice::new(device, WithReuseOfChain::new(Arc::clone(&self.freed))))
            }
            Bug::StaleNodes => Arc::new(HookedDevice::new(device, WithStaleNodes::default())),
            Bug::EarlyDiscards => Arc::new(HookedDevice::new(device, WithEarlyDiscards::default())),
            Bug::LostOrphans => Arc::new(HookedDevice::new(device, WithoutOrphans)),
            Bug::OtherBlocksIv => Arc::new(HookedDevice::new(device, WithOtherBlocksIv)),
            Bug::OldQuota => Arc::new(HookedDevice::new(device, OldQuota::default())),
            Bug::CleanBeforeProtect => {
                Arc::new(HookedDevice::new(device, WithoutLateStore(Arc::clone(&self.late))))
            }
        }
    }

    /// Returns the blocks of a file, if the bug needs them: of a compressed file, the first block
    /// of each compressed cluster.
    pub fn blocks_of(&self, file: &File) -> BTreeSet<u64> {
        let mut blocks = BTreeSet::new();
        if matches!(self.bug, Bug::EarlyReuse | Bug::ReuseOfChain) {
            let compression = file.node().compression();
            let is_compressed = compression.is_ok_and(|compression| compression.is_some());
            let mut emit = |extent: FiemapExtent| {
                let flags = extent.flags;
                let has_data = !flags.inline && !flags.delalloc && !flags.unwritten;
                if has_data && flags.encoded == is_compressed {
                    let start = extent.physical.0;
                    let length = if is_compressed { BLOCK as u64 } else { extent.length };
                    blocks.extend((start..start + length).step_by(BLOCK));
                }
                ControlFlow::Continue(())
            };
            file.extents(bytes(0..u64::MAX), &mut emit).unwrap();
        }
        blocks
    }

    /// Records that a file had these blocks before. It may have freed some.
    pub fn had_blocks(&self, file: &File, before: BTreeSet<u64>) {
        let now = self.blocks_of(file);
        self.freed.0.lock().extend(before.difference(&now));
    }

    /// Makes the store of `new` over `old`, which is as long, come after its page was made clean,
    /// if that is the bug.
    pub fn delay_store(&self, old: &[u8], new: &[u8]) {
        if self.bug == Bug::CleanBeforeProtect && !new.is_empty() {
            *self.late.0.lock() = Some((old.to_vec(), new.to_vec()));
        }
    }
}

/// The offsets of blocks on the device that were freed since the last checkpoint.
#[derive(Debug, Default)]
pub struct Freed(pub Mutex<BTreeSet<u64>>);

/// Returns whether a write begins with the head of a compressed cluster: a length, a checksum, and
/// 16 zeroes.
fn is_cluster(bytes: &[u8]) -> bool {
    bytes[..4] != [0; 4] && bytes[8..24] == [0; 16]
}

/// Writes data to freed blocks, too.
#[derive(Debug)]
struct WithEarlyReuse(Arc<Freed>);

impl DeviceHooks for WithEarlyReuse {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch.iter().filter(|bio| bio.operation() == BioOperation::Write) {
            let (start, bytes) = (bio.offset().0, bio.to_vec());
            let mut freed = self.0.0.lock();
            if PACKS.contains(&start) {
                freed.clear();
            }
            // The volume may use blocks that no checkpoint and no synced node refers to.
            freed.retain(|at| !(start..start + bytes.len() as u64).contains(at));
            if bytes.len() >= BLOCK && (is_data(&bytes) || is_cluster(&bytes)) {
                if let Some(at) = freed.pop_first() {
                    device.write_at(DeviceOffset(at), &bytes[..BLOCK]).unwrap();
                }
            }
        }
        device.submit(batch);
    }
}

/// The first byte of the main area of an f2fs volume of 64 MiB.
pub const MAIN_AREA: u64 = 16 << 20;

/// Omits a flush of each checkpoint of f2fs.
#[derive(Debug)]
struct WithoutFlush {
    /// Whether the flush after the pack's last block is omitted, and not the one before it.
    is_end: bool,
    /// The number of writes before the main area since the last flush.
    writes: Mutex<usize>,
}

impl DeviceHooks for WithoutFlush {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        let is_before_main =
            |bio: &&Bio| bio.operation() == BioOperation::Write && bio.offset().0 < MAIN_AREA;
        *self.writes.lock() += batch.iter().filter(is_before_main).count();
        device.submit(batch);
    }

    fn flush(&self, device: &SharedDevice) -> base::Result<()> {
        match (std::mem::take(&mut *self.writes.lock()), self.is_end) {
            // The last block alone follows the other flush.
            (1, true) | (2.., false) => Ok(()),
            _ => device.flush(),
        }
    }
}

/// The checkpoint packs of an f2fs volume of 64 MiB, in bytes.
pub const PACKS: Range<u64> = 2 << 20..6 << 20;
/// The size of a block of f2fs in bytes.
pub const BLOCK: usize = 4096;

/// Removes the entries of orphan blocks of f2fs.
#[derive(Debug)]
struct WithoutOrphans;

impl WithoutOrphans {
    /// Returns whether a block of a pack is an orphan block: it ends with an unused word, its
    /// number among the orphan blocks, the number of these, the number of its entries, and a word
    /// that is zero.
    fn is_orphan_block(block: &[u8]) -> bool {
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        let [unused, numbers, entries, checksum] =
            [16, 12, 8, 4].map(|from_end| word(BLOCK - from_end));
        let (index, count) = (numbers & 0xffff, numbers >> 16);
        unused == 0
            && checksum == 0
            && (1..=count).contains(&index)
            && (1..=BLOCK as u32 / 4 - 4).contains(&entries)
    }
}

impl DeviceHooks for WithoutOrphans {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        submit_changed(device, batch, |bio| {
            if !PACKS.contains(&bio.offset().0) {
                return None;
            }
            let mut bytes = bio.to_vec();
            for block in bytes.chunks_mut(BLOCK).filter(|block| Self::is_orphan_block(block)) {
                block[BLOCK - 8..BLOCK - 4].fill(0);
            }
            Some(bytes)
        });
    }
}

/// Replaces each block with entries of a quota file by the one that was written before it.
#[derive(Debug, Default)]
struct OldQuota(Mutex<Option<Vec<u8>>>);

impl OldQuota {
    /// Returns whether this is the second block of a quota file, as mkfs.f2fs makes it: it begins
    /// with the last level of the tree, whose first reference is to the sixth block of 1 KiB, and
    /// that one has entries.
    fn has_entries(block: &[u8]) -> bool {
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        word(0) == 5 && word(1024) == 0 && (1..=14).contains(&word(1024 + 8))
    }
}

impl DeviceHooks for OldQuota {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        submit_changed(device, batch, |bio| {
            let mut bytes = bio.to_vec();
            for block in bytes.chunks_exact_mut(BLOCK).filter(|block| Self::has_entries(block)) {
                let new = block.to_vec();
                if let Some(old) = self.0.lock().replace(new) {
                    block.copy_from_slice(&old);
                }
            }
            Some(bytes)
        });
    }
}

/// Exchanges encrypted blocks that are written together. Each is then decrypted with the
/// initialization vector of another.
#[derive(Debug)]
struct WithOtherBlocksIv;

impl WithOtherBlocksIv {
    /// Returns whether a block looks random. Nodes and blocks of directories have zeroes.
    fn is_encrypted(block: &[u8]) -> bool {
        !block.chunks(8).any(|word| word == [0; 8])
    }
}

impl DeviceHooks for WithOtherBlocksIv {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        submit_changed(device, batch, |bio| {
            let mut bytes = bio.to_vec();
            let is_pair = bytes.len() == 2 * BLOCK;
            if !is_pair || !bytes.chunks(BLOCK).all(Self::is_encrypted) {
                return None;
            }
            bytes.rotate_left(BLOCK);
            Some(bytes)
        });
    }
}

/// Submits a batch. Writes for which `change` returns other bytes have these.
fn submit_changed(
    device: &SharedDevice,
    batch: Vec<Bio>,
    change: impl Fn(&Bio) -> Option<Vec<u8>>,
) {
    for bio in batch {
        let changed = match bio.operation() {
            BioOperation::Write => change(&bio),
            BioOperation::Read => None,
        };
        match changed {
            Some(bytes) => {
                device.write_at(bio.offset(), &bytes).unwrap();
                bio.end(Ok(()));
            }
            None => device.submit(vec![bio]),
        }
    }
}

/// Hides a late store from the device.
#[derive(Debug)]
struct WithoutLateStore(Arc<LateStore>);

impl WithoutLateStore {
    /// Returns the bytes of a write without the late store, if the write contains it.
    fn before_store(&self, bio: &Bio) -> Option<Vec<u8>> {
        let mut late = self.0.0.lock();
        let (old, new) = late.as_ref()?;
        let mut bytes = bio.to_vec();
        let at = bytes.windows(new.len()).position(|window| window == new)?;
        bytes[at..at + old.len()].copy_from_slice(old);
        *late = None;
        Some(bytes)
    }
}

impl DeviceHooks for WithoutLateStore {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        submit_changed(device, batch, |bio| self.before_store(bio));
    }
}
