//! Logs that are written here, cut off anywhere, and what recovery makes of them.

use std::collections::BTreeMap;

use device::RecordDevice;
use iomap::BlockContents;
use testkit::Random;

use super::*;
use crate::jbd2::{JournalFeatures, LogWriter};

/// What one transaction changes and revokes.
#[derive(Clone, Debug)]
struct Step {
    blocks: Vec<(u64, u8)>,
    revoked: Vec<u64>,
    /// Everything before this transaction is put in place first.
    checkpoint: bool,
}

/// Blocks of the volume that tests write: before the journal.
const TARGETS: std::ops::Range<u64> = 1..40;

fn step() -> impl Strategy<Value = Step> {
    let blocks = prop::collection::vec((TARGETS, any::<u8>()), 0..4);
    let revoked = prop::collection::vec(TARGETS, 0..3);
    (blocks, revoked, prop::bool::weighted(0.1)).prop_map(|(blocks, mut revoked, checkpoint)| {
        // A revoke is for the transaction's own copies too: nobody logs what it frees.
        revoked.retain(|one| blocks.iter().all(|(block, _)| block != one));
        Step { blocks, revoked, checkpoint }
    })
}

/// Contents that differ by `byte`; every fourth begins like a control block.
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

/// A volume in memory and the log in it.
struct World {
    device: Arc<RecordDevice>,
    log: LogWriter,
    /// What is committed but not in place.
    pending: BTreeMap<u64, BlockContents>,
    /// What the volume holds after each transaction, of the blocks that were ever written.
    states: Vec<BTreeMap<u64, BlockContents>>,
    /// The point of the recording at which each transaction had returned.
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
        self.log.checkpointed().unwrap();
    }

    fn run(&mut self, step: &Step) {
        let changes: BTreeMap<u64, BlockContents> =
            step.blocks.iter().map(|&(block, byte)| (block, contents(byte))).collect();
        let blocks: Vec<(FsBlock, BlockContents)> =
            changes.iter().map(|(&block, bytes)| (FsBlock(block), bytes.clone())).collect();
        let revoked: Vec<FsBlock> = step.revoked.iter().copied().map(FsBlock).collect();
        if step.checkpoint || !self.log.has_room(blocks.len(), revoked.len()) {
            self.checkpoint();
        }
        self.log.write(&blocks, &revoked).unwrap();
        for block in &step.revoked {
            self.pending.remove(block);
        }
        self.pending.extend(changes.clone());
        let mut state = self.states.last().unwrap().clone();
        for block in &step.revoked {
            // Nobody reads a block that is free: what it holds is of no interest.
            state.remove(block);
        }
        state.extend(changes);
        self.reached(state.clone());
        if !step.revoked.is_empty() {
            // What was freed is used again, for data, which no recovery may overwrite.
            let device: &dyn device::BlockDevice = &*self.device;
            for &block in &step.revoked {
                let data = contents(0xDA);
                device.write_at(base::DeviceOffset(block * BLOCK as u64), &data).unwrap();
                state.insert(block, data);
            }
            device.flush().unwrap();
            self.reached(state);
        }
    }

    /// From now on the volume has to hold this, after a crash too.
    fn reached(&mut self, state: BTreeMap<u64, BlockContents>) {
        self.states.push(state);
        self.returned.push(self.device.recording().crash_points().end - 1);
    }
}

fn open_on(device: SharedDevice) -> Journal {
    let run = JournalRun { first: 0, physical: FsBlock(JOURNAL_AT), length: JOURNAL };
    let blocks = JournalBlocks::of_inode(device, BLOCK_SIZE, InodeNumber(8), vec![run]).unwrap();
    Journal::open(blocks).unwrap()
}

/// Recovers `image` and says after which of `states` it is.
fn recovered(image: Vec<u8>, states: &[BTreeMap<u64, BlockContents>]) -> Vec<usize> {
    let device = Arc::new(MemoryDevice::new(image));
    let target: SharedDevice = device.clone();
    let recovery = open_on(target.clone()).recover(&target).unwrap();
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
    fn a_log_cut_off_anywhere_recovers_to_what_was_durable(
        steps in prop::collection::vec(step(), 1..24),
        shape in prop::sample::select(Shape::all().filter(|one| one.checksum != 1).collect::<Vec<_>>()),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(shape);
        steps.iter().for_each(|step| world.run(step));
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
                let found = recovered(image, &world.states);
                prop_assert!(
                    found.iter().any(|&state| state == durable || state == durable + 1),
                    "at {point}: {found:?} instead of {durable}"
                );
            }
        }
    }
}

#[test]
fn a_log_goes_round_and_is_finished() {
    for shape in Shape::all().filter(|one| one.checksum != 1) {
        let mut world = World::new(shape);
        for round in 0..40 {
            let blocks = vec![(1 + round % 30, round as u8), (31, round as u8)];
            world.run(&Step { blocks, revoked: vec![35], checkpoint: false });
        }
        let end = world.device.recording().crash_points().end - 1;
        let found = recovered(world.device.recording().image(end, |_, _| false), &world.states);
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
fn a_log_that_was_recovered_is_not_recovered_again_in_part() {
    for shape in Shape::all().filter(|one| one.checksum != 1) {
        let mut world = World::new(shape);
        // The last three are not in place, and the second of those goes round the log's end.
        for round in 0..9 {
            let blocks = vec![(30, round), (31, round)];
            world.run(&Step { blocks, revoked: vec![], checkpoint: round == 6 });
        }
        let end = world.device.point();
        let image = world.device.recording().image(end, |_, _| true);
        let device = Arc::new(RecordDevice::new(Arc::new(MemoryDevice::new(image))).unwrap());
        let target: SharedDevice = device.clone();
        let journal = open_on(target.clone());
        let recovered_to = journal.recover(&target).unwrap().end;
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
            // Of what is not durable, all but the superblock of the journal.
            let superblock = JOURNAL_AT * BLOCK as u64;
            let recording = device.recording();
            let image = recording.image(point, |write, _| write.offset.0 != superblock);
            assert!(!recovered(image, &states).is_empty(), "{shape:?}: at {point}");
        }
    }
}
