//! The choice of power cuts: their times, and the part of volatile data that they leave.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Random;
use device::{RebuiltDevice, RecordedWrite, Recording, Replay};

/// The unit that a device writes atomically, in bytes.
const SECTOR: u64 = 512;
/// The first of the superblock's two sectors.
const SUPERBLOCK: u64 = ext4::SUPERBLOCK_OFFSET.0 / SECTOR;
/// One in this number of random cuts tears the superblock.
const HALF_SUPERBLOCKS_EVERY: usize = 16;

/// The part that remains of writes that were not durable.
#[derive(Clone, Copy, Debug)]
pub enum Rest {
    /// None of them.
    Nothing,
    /// All of them.
    All,
    /// Random sectors, each with a probability of so many eighths. Tears writes, and drops writes
    /// before others.
    Sectors(u64),
    /// Random whole writes, each with a probability of so many eighths.
    Writes(u64),
    /// The first writes, in order. The last of them is torn.
    First,
    /// All writes but one.
    AllButOne,
    /// One write.
    One,
    /// One of the superblock's two sectors, and random other writes.
    HalfSuperblock,
}

/// A power cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The time, as a point of the recording.
    pub point: usize,
    /// The part that remains of writes that were not durable then.
    pub rest: Rest,
    seed: u64,
}

impl Cut {
    /// Returns `count` cuts at or after `begin`, in order of time. A third of them are after
    /// flushes, without the writes that followed; these cover all flushes if there are enough. The
    /// others are at random times, with a part of the volatile writes.
    pub fn choose(
        recording: &Recording,
        begin: usize,
        count: usize,
        random: &mut Random,
    ) -> Vec<Self> {
        // The durable writes are the same until the next flush ends. The last point before that has
        // the most promises.
        let end = recording.crash_points().end;
        let flushes = recording.flush_points().into_iter().filter(|&point| point > begin);
        let lasts: Vec<usize> = flushes.map(|point| point - 1).chain([end - 1]).collect();
        let distance = (lasts.len() * 3).div_ceil(count.max(1));
        let nothing = |&point| Self { point, rest: Rest::Nothing, seed: 0 };
        let mut cuts: Vec<Self> = lasts.iter().step_by(distance).map(nothing).collect();
        let superblocks = recording.points_of_writes(ext4::SUPERBLOCK_OFFSET);
        let superblocks: Vec<usize> = superblocks.into_iter().filter(|at| *at >= begin).collect();
        for _ in 0..count.saturating_sub(cuts.len()) / HALF_SUPERBLOCKS_EVERY {
            let Some(&point) = random.pick(&superblocks) else { break };
            cuts.push(Self { point, rest: Rest::HalfSuperblock, seed: random.draw() });
        }
        let span = (end - begin) as u64;
        while cuts.len() < count {
            let point = begin + random.below(span) as usize;
            let rest = match random.below(8) {
                0 => Rest::All,
                1 => Rest::First,
                2 => Rest::AllButOne,
                3 => Rest::One,
                4..=5 => Rest::Writes(1 + random.below(7)),
                _ => Rest::Sectors(1 + random.below(7)),
            };
            cuts.push(Self { point, rest, seed: random.draw() });
        }
        cuts.sort_by_key(|cut| cut.point);
        cuts
    }

    /// Returns the device after the cut. Blocks of `unit` bytes are written or not, but never torn.
    /// Returns `None` if the contents are those of an earlier cut, or if no volatile write remains
    /// although some should.
    pub fn device(
        &self,
        replay: &mut Replay<'_>,
        unit: u64,
        seen: &mut HashSet<u64>,
    ) -> Option<RebuiltDevice> {
        let writes = replay.volatile(self.point);
        let mut keeper = Keeper {
            rest: self.rest,
            random: Random(self.seed),
            chosen: 0,
            next: 0,
            keeps_write: false,
            keeps_anything: false,
            sectors: unit / SECTOR,
            keeps_unit: false,
            hasher: DefaultHasher::new(),
        };
        keeper.chosen = match self.rest {
            Rest::HalfSuperblock => keeper.random.below(2),
            _ => keeper.random.below(writes.max(1)),
        };
        replay.durable(self.point).hash(&mut keeper.hasher);
        let device = replay.device(self.point, |write, sector| keeper.keep(write, sector)).unwrap();
        let is_other = keeper.keeps_anything || matches!(self.rest, Rest::Nothing);
        (is_other && seen.insert(keeper.hasher.finish())).then_some(device)
    }
}

/// Decides which sectors remain, one after the other.
struct Keeper {
    rest: Rest,
    random: Random,
    /// The index of a chosen write, or of the superblock's sector that remains.
    chosen: u64,
    /// The index of the next write.
    next: u64,
    keeps_write: bool,
    keeps_anything: bool,
    /// The number of sectors that are kept or lost together.
    sectors: u64,
    keeps_unit: bool,
    hasher: DefaultHasher,
}

impl Keeper {
    fn keep(&mut self, write: &RecordedWrite, sector: u64) -> bool {
        if sector == 0 {
            let index = self.next;
            self.next += 1;
            self.keeps_write = match self.rest {
                Rest::Nothing => false,
                Rest::All | Rest::Sectors(_) => true,
                Rest::Writes(of_8) => self.random.below(8) < of_8,
                Rest::First => index <= self.chosen,
                Rest::AllButOne => index != self.chosen,
                Rest::One => index == self.chosen,
                Rest::HalfSuperblock => self.random.below(2) == 0,
            };
        }
        let at = write.offset.0 / SECTOR + sector;
        if sector != 0 && at % self.sectors != 0 {
            // The block was decided with its first sector.
            return self.note(self.keeps_unit, sector);
        }
        let mut keep = self.keeps_write;
        match self.rest {
            Rest::Sectors(of_8) => keep = self.random.below(8) < of_8,
            Rest::First if self.next == self.chosen + 1 => keep &= self.random.below(2) == 0,
            Rest::HalfSuperblock => match at {
                at if at == SUPERBLOCK => keep = self.chosen == 0,
                at if at == SUPERBLOCK + 1 => keep = self.chosen == 1,
                _ => {}
            },
            _ => {}
        }
        self.keeps_unit = keep;
        self.note(keep, sector)
    }

    /// Records whether a sector is kept.
    fn note(&mut self, keep: bool, sector: u64) -> bool {
        if keep {
            self.keeps_anything = true;
            (self.next, sector).hash(&mut self.hasher);
        }
        keep
    }
}
