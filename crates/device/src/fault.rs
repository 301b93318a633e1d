//! A device that injects faults, by a seed: errors, and torn, lost and misdirected writes.

use std::ops::Range;

use base::{DeviceOffset, IoError, IoOperation, Result};
use parking_lot::Mutex;

use crate::bio::{EIO, range_within};
use crate::{Bio, BioOperation, BlockDevice, SharedDevice};

/// The unit that a device writes atomically, in bytes.
const SECTOR: u64 = 512;

/// The frequency of each kind of fault, in requests per million. No faults by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// The seed. Two devices with the same plan and the same requests in the same order have the
    /// same faults.
    pub seed: u64,
    /// Reads that end with EIO.
    pub read_errors: u32,
    /// Writes that end with EIO. Some leading sectors may have been written.
    pub write_errors: u32,
    /// Writes that succeed, although some sectors were not written.
    pub torn_writes: u32,
    /// Writes that succeed, although nothing was written.
    pub lost_writes: u32,
    /// Writes that succeed, but to another offset.
    pub misdirected_writes: u32,
    /// Flushes that end with EIO.
    pub flush_errors: u32,
    /// A fault at a given request.
    pub counted: Option<CountedFault>,
}

/// A fault at the request with a given number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedFault {
    /// The operation of the counted requests. Zeroing counts as a write.
    pub operation: IoOperation,
    /// The number of the request, from 0 on.
    pub number: u64,
    /// The duration of the fault.
    pub lasting: Lasting,
    /// The error number of failed requests.
    pub errno: i32,
}

/// The duration of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasting {
    /// One request fails.
    Once,
    /// From the request on, every write and every flush fails.
    ForGood,
}

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// A read that ended with EIO.
    ReadError,
    /// A write that ended with EIO.
    WriteError,
    /// A write without some of its sectors.
    Torn,
    /// A write that was not done.
    Lost,
    /// A write that went to this offset instead.
    Misdirected(DeviceOffset),
    /// A flush that ended with EIO.
    FlushError,
}

/// A fault that has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The offset of the request.
    pub offset: DeviceOffset,
    /// The length of the request, in bytes.
    pub length: u64,
}

/// A device with injected faults.
#[derive(Debug)]
pub struct FaultDevice {
    inner: SharedDevice,
    plan: FaultPlan,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    bad_reads: Vec<Range<u64>>,
    bad_writes: Vec<Range<u64>>,
    faults: Vec<Fault>,
    /// The numbers of reads, writes and flushes so far.
    requests: [u64; 3],
    /// Whether a counted fault that lasts for good has happened.
    is_dead: bool,
}

/// Returns the index of an operation's counter.
fn counter(operation: IoOperation) -> usize {
    match operation {
        IoOperation::Read => 0,
        IoOperation::Flush => 2,
        _ => 1,
    }
}

impl FaultDevice {
    /// Returns `inner` with the faults of `plan`.
    pub fn new(inner: SharedDevice, plan: FaultPlan) -> Self {
        let state = State {
            random: plan.seed,
            bad_reads: Vec::new(),
            bad_writes: Vec::new(),
            faults: Vec::new(),
            requests: [0; 3],
            is_dead: false,
        };
        Self { inner, plan, state: Mutex::new(state) }
    }

    /// Makes reads that overlap these bytes end with EIO.
    pub fn fail_reads_in(&self, range: Range<u64>) {
        self.state.lock().bad_reads.push(range);
    }

    /// Makes writes that overlap these bytes end with EIO.
    pub fn fail_writes_in(&self, range: Range<u64>) {
        self.state.lock().bad_writes.push(range);
    }

    /// Ends the effect of all calls of [`fail_reads_in`](Self::fail_reads_in) and
    /// [`fail_writes_in`](Self::fail_writes_in).
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.bad_reads.clear();
        state.bad_writes.clear();
    }

    /// Returns the faults so far, in order.
    pub fn faults(&self) -> Vec<Fault> {
        self.state.lock().faults.clone()
    }

    /// Returns the number of requests so far: reads, writes (including zeroing), or flushes.
    pub fn requests(&self, operation: IoOperation) -> u64 {
        self.state.lock().requests[counter(operation)]
    }

    /// Returns the error number of failed requests.
    fn errno(&self) -> i32 {
        self.plan.counted.map_or(EIO, |fault| fault.errno)
    }

    fn decide_read(&self, range: &Range<u64>) -> Option<FaultKind> {
        let mut state = self.state.lock();
        let is_counted = state.count(IoOperation::Read, self.plan.counted);
        let by_chance = state.chance(self.plan.read_errors) || is_counted;
        let fails = by_chance || overlaps(&state.bad_reads, range);
        state.record(fails.then_some(FaultKind::ReadError), range)
    }

    fn decide_write(&self, range: &Range<u64>) -> Option<FaultKind> {
        let mut state = self.state.lock();
        let plan = &self.plan;
        let is_counted = state.count(IoOperation::Write, plan.counted);
        let is_bad = overlaps(&state.bad_writes, range);
        let kind = if state.chance(plan.write_errors) || is_counted || is_bad {
            Some(FaultKind::WriteError)
        } else if state.chance(plan.torn_writes) {
            Some(FaultKind::Torn)
        } else if state.chance(plan.lost_writes) {
            Some(FaultKind::Lost)
        } else if state.chance(plan.misdirected_writes) {
            let offsets = (self.inner.size() - (range.end - range.start)) / SECTOR + 1;
            Some(FaultKind::Misdirected(DeviceOffset(state.below(offsets) * SECTOR)))
        } else {
            None
        };
        state.record(kind, range)
    }

    fn read(&self, bio: Bio, range: &Range<u64>) -> Option<Bio> {
        match self.decide_read(range) {
            None => Some(bio),
            Some(_) => {
                bio.end(Err(self.errno()));
                None
            }
        }
    }

    fn write(&self, mut bio: Bio, range: &Range<u64>) -> Option<Bio> {
        let Some(kind) = self.decide_write(range) else { return Some(bio) };
        match kind {
            FaultKind::Misdirected(elsewhere) => {
                bio.redirect(elsewhere);
                return Some(bio);
            }
            FaultKind::Lost => bio.end(Ok(())),
            FaultKind::Torn => {
                let kept = self.state.lock().random();
                let result =
                    self.write_sectors(&bio, range, |sector| kept >> (sector % 64) & 1 == 1);
                bio.end(result);
            }
            _ => {
                let sectors = (range.end - range.start).div_ceil(SECTOR);
                let done = self.state.lock().below(sectors + 1);
                // The write fails anyway.
                let _ = self.write_sectors(&bio, range, |sector| sector < done);
                bio.end(Err(self.errno()));
            }
        }
        None
    }

    /// Writes the sectors of the request for whose index `keep` returns true.
    fn write_sectors(
        &self,
        bio: &Bio,
        range: &Range<u64>,
        keep: impl Fn(u64) -> bool,
    ) -> Result<(), i32> {
        for (sector, bytes) in (0..).zip(bio.to_vec().chunks(SECTOR as usize)) {
            if keep(sector) {
                let at = DeviceOffset(range.start + sector * SECTOR);
                self.inner.write_at(at, bytes).map_err(|_| EIO)?;
            }
        }
        Ok(())
    }
}

/// Returns whether any of `bad` overlaps `range`.
fn overlaps(bad: &[Range<u64>], range: &Range<u64>) -> bool {
    bad.iter().any(|bad| bad.start < range.end && range.start < bad.end)
}

impl State {
    /// Returns the next random number (SplitMix64).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random() % bound
    }

    fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < per_million.into()
    }

    /// Counts a request. Returns whether `fault` applies to it.
    fn count(&mut self, operation: IoOperation, fault: Option<CountedFault>) -> bool {
        let number = self.requests[counter(operation)];
        self.requests[counter(operation)] += 1;
        let Some(fault) = fault else { return false };
        let is_counted = fault.number == number && counter(fault.operation) == counter(operation);
        self.is_dead |= is_counted && fault.lasting == Lasting::ForGood;
        is_counted || self.is_dead && operation != IoOperation::Read
    }

    fn record(&mut self, kind: Option<FaultKind>, range: &Range<u64>) -> Option<FaultKind> {
        let (offset, length) = (DeviceOffset(range.start), range.end - range.start);
        self.faults.extend(kind.map(|kind| Fault { kind, offset, length }));
        kind
    }
}

impl BlockDevice for FaultDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let mut passed_on = Vec::with_capacity(batch.len());
        for bio in batch {
            match (bio.range_within(self.size()), bio.operation()) {
                (Err(errno), _) => bio.end(Err(errno)),
                (Ok(range), BioOperation::Read) => passed_on.extend(self.read(bio, &range)),
                (Ok(range), BioOperation::Write) => passed_on.extend(self.write(bio, &range)),
            }
        }
        self.inner.submit(passed_on);
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let is_counted = state.count(IoOperation::Flush, self.plan.counted);
        let fails = state.chance(self.plan.flush_errors) || is_counted;
        if state.record(fails.then_some(FaultKind::FlushError), &(0..self.size())).is_some() {
            let (operation, offset) = (IoOperation::Flush, DeviceOffset(0));
            let (length, errno) = (self.size(), self.errno());
            return Err(IoError { operation, offset, length, errno }.into());
        }
        drop(state);
        self.inner.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        let operation = IoOperation::WriteZeroes;
        let range = range_within(operation, offset, length, self.size())?;
        match self.decide_write(&range) {
            None => self.inner.write_zeroes(offset, length),
            Some(FaultKind::WriteError) => {
                Err(IoError { operation, offset, length, errno: self.errno() }.into())
            }
            Some(FaultKind::Misdirected(elsewhere)) => self.inner.write_zeroes(elsewhere, length),
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::sync::Arc;

    const ALWAYS: u32 = 1_000_000;

    /// Writes one megabyte of ones at byte 4096 of a device of zeroes. Returns the result, the
    /// faults, and the numbers of the sectors that are full of ones.
    fn write_with(plan: FaultPlan) -> (Result<()>, Vec<Fault>, Vec<u64>) {
        let inner = Arc::new(MemoryDevice::new(vec![0; 3 << 20]));
        let device = FaultDevice::new(inner.clone(), plan);
        let result = (&device as &dyn BlockDevice).write_at(DeviceOffset(4096), &[1; 1 << 20]);
        let contents = inner.snapshot();
        let sectors = (0..).zip(contents.chunks(512)).filter(|(_, bytes)| *bytes == [1; 512]);
        let written = sectors.map(|(sector, _)| sector).collect();
        (result, device.faults(), written)
    }

    #[test]
    fn a_default_plan_has_no_faults() {
        let (result, faults, written) = write_with(FaultPlan::default());
        assert_eq!((result, faults), (Ok(()), Vec::new()));
        assert_eq!(written, (8..8 + 2048).collect::<Vec<_>>());
    }

    #[test]
    fn a_torn_write_succeeds_without_some_of_its_sectors() {
        let (result, faults, written) =
            write_with(FaultPlan { seed: 1, torn_writes: ALWAYS, ..Default::default() });
        assert_eq!((result, faults[0].kind), (Ok(()), FaultKind::Torn));
        assert!(!written.is_empty() && written.len() < 2048);
    }

    #[test]
    fn a_lost_write_succeeds_and_is_not_done() {
        let (result, faults, written) =
            write_with(FaultPlan { lost_writes: ALWAYS, ..Default::default() });
        assert_eq!((result, faults[0].kind, written), (Ok(()), FaultKind::Lost, Vec::new()));
    }

    #[test]
    fn a_misdirected_write_goes_to_another_offset() {
        let (result, faults, written) =
            write_with(FaultPlan { seed: 3, misdirected_writes: ALWAYS, ..Default::default() });
        let FaultKind::Misdirected(location) = faults[0].kind else { panic!("{faults:?}") };
        let first = location.0 / 512;
        assert_eq!((result, written), (Ok(()), (first..first + 2048).collect()));
    }

    #[test]
    fn a_failed_write_returns_an_error_and_writes_leading_sectors() {
        let (result, _, written) =
            write_with(FaultPlan { seed: 5, write_errors: ALWAYS, ..Default::default() });
        assert!(result.is_err());
        assert_eq!(written, (8..8 + written.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_seed_fails_the_same_requests() {
        let run = |seed| {
            let plan = FaultPlan { seed, read_errors: 200_000, ..Default::default() };
            let device = FaultDevice::new(Arc::new(MemoryDevice::new(vec![0; 4096])), plan);
            for _ in 0..100 {
                let _ = (&device as &dyn BlockDevice).read_at(DeviceOffset(0), &mut [0; 8]);
            }
            device.faults().len()
        };
        assert_eq!(run(7), run(7));
        assert!((5..50).contains(&run(7)));
    }

    #[test]
    fn a_counted_fault_happens_at_its_request_once_or_for_good() {
        let run = |lasting| {
            let fault =
                CountedFault { operation: IoOperation::Write, number: 1, lasting, errno: 28 };
            let plan = FaultPlan { counted: Some(fault), ..Default::default() };
            let device = FaultDevice::new(Arc::new(MemoryDevice::new(vec![0; 4096])), plan);
            let device: &dyn BlockDevice = &device;
            let write = || device.write_at(DeviceOffset(0), &[1; 8]).is_ok();
            let done = [device.flush().is_ok(), write(), write(), write(), device.flush().is_ok()];
            device.read_at(DeviceOffset(0), &mut [0; 8]).unwrap();
            done
        };
        assert_eq!(run(Lasting::Once), [true, true, false, true, true]);
        assert_eq!(run(Lasting::ForGood), [true, true, false, false, false]);
    }

    #[test]
    fn reads_of_bad_ranges_fail_until_the_device_is_healed() {
        let inner = Arc::new(MemoryDevice::new(vec![0; 4096]));
        let device = FaultDevice::new(inner, FaultPlan::default());
        device.fail_reads_in(1000..1001);
        let read = |at| (&device as &dyn BlockDevice).read_at(DeviceOffset(at), &mut [0; 500]);
        read(500).unwrap();
        read(501).unwrap_err();
        read(1000).unwrap_err();
        read(1001).unwrap();
        device.heal();
        read(1000).unwrap();
    }
}
