//! Tests of recovery from logs that `LogWriter` writes, interrupted at any point.

use std::collections::BTreeMap;

use device::RecordDevice;
use iomap::BlockContents;
use testkit::Random;

use super::*;
use crate::jbd2::{JournalFeatures, LogWriter};

/// The changes and revokes of one transaction.
#[derive(Clone, Debug)]
struct Changes {
    blocks: Vec<(u64, u8)>,
    revoked: Vec<u64>,
    /// Whether all earlier transactions are checkpointed first.
    checkpoint: bool,
}

/// The blocks of the volume that tests write. They are before the journal.
const TARGETS: std::ops::Range<u64> = 1..40;

fn transaction() -> impl Strategy<Value = Changes> {
    let blocks = prop::collection::vec((TARGETS, any::<u8>()), 0..4);
    let revoked = prop::collection::vec(TARGETS, 0..3);
    (blocks, revoked, prop::bool::weighted(0.1)).prop_map(|(blocks, mut revoked, checkpoint)| {
        // A revoke applies to the transaction's own copies, too: no transaction logs blocks that it
        // frees.
        revoked.retain(|revoked| blocks.iter().all(|(block, _)| block != revoked));
        Changes { blocks, revoked, checkpoint }
    })
}

/// Returns contents that differ by `byte`. For every fourth `byte`, they begin like a control
/// block.
fn contents(byte: u8) -> BlockContents {
    let mut bytes = vec![byte; BLOCK];
    if byte % 4 == 0 {
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    bytes.into()
}

fn features(shape: Shape) -> JournalFeatures {
    JournalFeatures {
        revoke: true,
        block_numbers_64: shape.wide,
        checksum_v2: shape.checksum == 2,
        checksum_v3: shape.checksum == 3,
        ..JournalFeatures::default()
    }
}

/// A volume in memory and its log.
struct World {
    device: Arc<RecordDevice>,
    log: LogWriter,
    /// The blocks that are committed but not checkpointed.
    pending: BTreeMap<u64, BlockContents>,
    /// The contents of all blocks written so far, after each transaction.
    states: Vec<BTreeMap<u64, BlockContents>>,
    /// The point of the recording from which on each state is durable.
    returned: Vec<usize>,
}

impl World {
    fn new(shape: Shape) -> Self {
        let image = Image::new(shape, 0, 7);
        let inner = Arc::new(MemoryDevice::new(image.bytes.clone()));
        let device = Arc::new(RecordDevice::new(inner).unwrap());
        let journal = open_on(device.clone());
        let log = LogWriter::begin(journal, TransactionId(7), features(shape), false).unwrap();
        let states = vec![BTreeMap::new()];
        Self { device, log, pending: BTreeMap::new(), states, returned: vec![0] }
    }

    fn checkpoint(&mut self) {
        let device: &dyn device::BlockDevice = &*self.device;
        for (block, contents) in std::mem::take(&mut self.pending) {
            device.write_at(base::DeviceOffset(block * BLOCK as u64), &contents).unwrap();
        }
        device.flush().unwrap();
        self.log.release_checkpointed().unwrap();
    }

    fn commit(&mut self, transaction: &Changes) {
        let changes: BTreeMap<u64, BlockContents> =
            transaction.blocks.iter().map(|&(block, byte)| (block, contents(byte))).collect();
        let blocks: Vec<(FsBlock, BlockContents)> =
            changes.iter().map(|(&block, bytes)| (FsBlock(block), bytes.clone())).collect();
        let revoked: Vec<FsBlock> = transaction.revoked.iter().copied().map(FsBlock).collect();
        if transaction.checkpoint || !self.log.has_room(blocks.len(), revoked.len()) {
            self.checkpoint();
        }
        self.log.write(&blocks, &revoked).unwrap();
        for block in &transaction.revoked {
            self.pending.remove(block);
        }
        self.pending.extend(changes.clone());
        let mut state = self.states.last().unwrap().clone();
        for block in &transaction.revoked {
            // No thread reads a free block, so its contents do not matter.
            state.remove(block);
        }
        state.extend(changes);
        self.add_state(state.clone());
        if !transaction.revoked.is_empty() {
            // The freed blocks are used again, for data. No recovery may overwrite it.
            let device: &dyn device::BlockDevice = &*self.device;
            for &block in &transaction.revoked {
                let data = contents(0xDA);
                device.write_at(base::DeviceOffset(block * BLOCK as u64), &data).unwrap();
                state.insert(block, data);
            }
            device.flush().unwrap();
            self.add_state(state);
        }
    }

    /// Records the state that the volume must have from now on, also after a crash.
    fn add_state(&mut self, state: BTreeMap<u64, BlockContents>) {
        self.states.push(state);
        self.returned.push(self.device.recording().crash_points().end - 1);
    }
}

fn open_on(device: SharedDevice) -> Journal {
    let run = JournalRun { first: 0, physical: FsBlock(JOURNAL_AT), length: JOURNAL };
    let blocks = JournalBlocks::of_inode(device, BLOCK_SIZE, InodeNumber(8), vec![run]).unwrap();
    Journal::open(blocks).unwrap()
}

/// Recovers `image`, and returns the indexes of the `states` that it matches.
fn states_after_recovery(image: Vec<u8>, states: &[BTreeMap<u64, BlockContents>]) -> Vec<usize> {
    let device = Arc::new(MemoryDevice::new(image));
    let target: SharedDevice = device.clone();
    let recovery = open_on(target.clone()).recover(&target, LOGGED_VOLUME).unwrap();
    assert!(recovery.damage.is_none(), "{:?}", recovery.damage);
    let bytes = device.snapshot();
    let holds = |state: &BTreeMap<u64, BlockContents>| {
        state
            .iter()
            .all(|(&block, contents)| bytes[block as usize * BLOCK..][..BLOCK] == contents[..])
    };
    (0..states.len()).filter(|&index| holds(&states[index])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_log_interrupted_anywhere_recovers_to_a_durable_state(
        transactions in prop::collection::vec(transaction(), 1..24),
        shape in prop::sample::select(Shape::all().filter(|shape| shape.checksum != 1).collect::<Vec<_>>()),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(shape);
        transactions.iter().for_each(|transaction| world.commit(transaction));
        let recording = world.device.recording();
        let mut random = Random(seed);
        for point in recording.crash_points() {
            let durable = world.returned.iter().filter(|&&returned| returned <= point).count() - 1;
            for kept in 0..6 {
                let image = recording.image(point, |_, _| match kept {
                    0 => false,
                    1 => true,
                    _ => random.below(2) == 0,
                });
                let found = states_after_recovery(image, &world.states);
                prop_assert!(
                    found.iter().any(|&state| state == durable || state == durable + 1),
                    "at {point}: {found:?} instead of {durable}"
                );
            }
        }
    }
}

#[test]
fn a_log_wraps_around_and_is_marked_empty() {
    for shape in Shape::all().filter(|shape| shape.checksum != 1) {
        let mut world = World::new(shape);
        for round in 0..40 {
            let blocks = vec![(1 + round % 30, round as u8), (31, round as u8)];
            world.commit(&Changes { blocks, revoked: vec![35], checkpoint: false });
        }
        let end = world.device.recording().crash_points().end - 1;
        let found =
            states_after_recovery(world.device.recording().image(end, |_, _| false), &world.states);
        assert_eq!(found.last(), Some(&80), "{shape:?}");
        world.checkpoint();
        world.log.finish().unwrap();
        let end = world.device.recording().crash_points().end - 1;
        let image = world.device.recording().image(end, |_, _| false);
        let journal = open_on(Arc::new(MemoryDevice::new(image)));
        assert_eq!(journal.superblock().start, None);
        assert_eq!(journal.superblock().sequence, TransactionId(47));
    }
}

#[test]
fn a_recovered_log_is_not_partly_recovered_again() {
    for shape in Shape::all().filter(|shape| shape.checksum != 1) {
        let mut world = World::new(shape);
        // The last three are not checkpointed, and the second of them wraps around the log's end.
        for round in 0..9 {
            let blocks = vec![(30, round), (31, round)];
            world.commit(&Changes { blocks, revoked: vec![], checkpoint: round == 6 });
        }
        let end = world.device.point();
        let image = world.device.recording().image(end, |_, _| true);
        let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image))).unwrap());
        let target: SharedDevice = device.clone();
        let journal = open_on(target.clone());
        let recovered_to = journal.recover(&target, LOGGED_VOLUME).unwrap().end;
        device::BlockDevice::flush(&*device).unwrap();
        let mut log =
            LogWriter::begin(journal, recovered_to.next(), features(shape), false).unwrap();
        let begun = device.point();
        let next: BTreeMap<u64, BlockContents> =
            [30, 31].into_iter().map(|block| (block, contents(77))).collect();
        let blocks: Vec<_> = next.iter().map(|(&at, bytes)| (FsBlock(at), bytes.clone())).collect();
        log.write(&blocks, &[]).unwrap();
        let states = [world.states.last().unwrap().clone(), next];
        for point in begun..=device.point() {
            // All writes that are not durable are kept, except those of the journal's superblock.
            let superblock = JOURNAL_AT * BLOCK as u64;
            let recording = device.recording();
            let image = recording.image(point, |write, _| write.offset.0 != superblock);
            assert!(!states_after_recovery(image, &states).is_empty(), "{shape:?}: at {point}");
        }
    }
}
