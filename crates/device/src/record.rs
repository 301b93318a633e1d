//! A device that records all writes and flushes, and rebuilds the contents that a crash may leave.
//!
//! A write is durable if it succeeded before the start of a flush that succeeded. Of all other
//! submitted writes, any sectors may be on the device. A failed flush makes nothing durable, and
//! neither does a later flush for the same writes, since a host forgets writes that it could not
//! make durable.
//!
//! Several devices can share one recording, in which their bytes follow each other. A flush of one
//! device makes no writes to other devices durable.

use std::ops::Range;
use std::sync::Arc;

use base::{BlockSize, DeviceOffset, IoOperation, Result};
use parking_lot::Mutex;

use crate::bio::range_within;
use crate::{Bio, BioOperation, BlockDevice, MemoryDevice, OverlayDevice, SharedDevice};

/// The unit that a device writes atomically, in bytes.
const SECTOR: u64 = 512;
/// The maximum number of devices in one recording.
const PARTS: usize = 2;
/// The size of changed blocks in a rebuilt device.
const OVERLAY_BLOCK: BlockSize = match BlockSize::from_bytes(4096) {
    Some(size) => size,
    None => panic!("a power of two"),
};

/// A recorded device. Keeps its first contents and the data of every write in memory.
#[derive(Debug)]
pub struct RecordDevice {
    inner: SharedDevice,
    /// The index of the device in the recording.
    part: usize,
    /// The position of the device's first byte in the recording.
    start: u64,
    /// The contents before the first event, of all devices. They never change.
    before: SharedDevice,
    events: Arc<Mutex<Vec<Event>>>,
}

/// One event of a recording.
#[derive(Clone, Debug)]
enum Event {
    /// A write was submitted to the device of this index.
    Submitted(usize, Arc<RecordedWrite>),
    /// The write that was submitted at this event index has succeeded.
    Ended(usize),
    FlushStarted(usize),
    /// The flush that was started at this event index has succeeded.
    Flushed(usize),
    /// The flush that was started at this event index has failed.
    FlushFailed(usize),
}

/// A write. Zeroing and discarding are recorded as writes of zeroes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedWrite {
    /// The first byte.
    pub offset: DeviceOffset,
    /// The data.
    pub data: Vec<u8>,
}

/// A write or a flush of a [`Recording`] that has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed<'r> {
    /// A write.
    Write(&'r RecordedWrite),
    /// A flush.
    Flush,
}

impl RecordDevice {
    /// Records `inner` from now on.
    pub fn new(inner: SharedDevice) -> Result<Self> {
        let mut before = vec![0; inner.size() as usize];
        inner.read_at(DeviceOffset(0), &mut before)?;
        Ok(Self::over(inner, Arc::new(MemoryDevice::new(before))))
    }

    /// Records `inner` from now on. `before` has the same contents now, and never changes.
    pub fn over(inner: SharedDevice, before: SharedDevice) -> Self {
        Self { inner, part: 0, start: 0, before, events: Arc::default() }
    }

    /// Records a device that begins with the contents of `before`, which is never written to: what
    /// is written is kept in memory. `wrap` can add a device between it and the recorder.
    pub fn over_layer(
        before: SharedDevice,
        wrap: impl FnOnce(SharedDevice) -> SharedDevice,
    ) -> Self {
        let layer = OverlayDevice::new(Arc::clone(&before), OVERLAY_BLOCK, u64::MAX);
        Self::over(wrap(Arc::new(layer)), before)
    }

    /// Records both devices from now on. Both share one recording.
    pub fn pair(first: SharedDevice, second: SharedDevice) -> Result<[Self; 2]> {
        let (start, size) = (first.size(), first.size() + second.size());
        let mut before = vec![0; size as usize];
        let (of_first, of_second) = before.split_at_mut(start as usize);
        first.read_at(DeviceOffset(0), of_first)?;
        second.read_at(DeviceOffset(0), of_second)?;
        let first = Self::over(first, Arc::new(MemoryDevice::new(before)));
        let (before, events) = (Arc::clone(&first.before), Arc::clone(&first.events));
        let second = Self { inner: second, part: 1, start, before, events };
        Ok([first, second])
    }

    /// Returns the recording so far.
    pub fn recording(&self) -> Recording {
        Recording { before: Arc::clone(&self.before), events: self.events.lock().clone() }
    }

    /// Returns the current point in time, which is the number of events so far.
    pub fn point(&self) -> usize {
        self.events.lock().len()
    }

    /// Records an event. Returns its index.
    fn record(&self, event: Event) -> usize {
        let mut events = self.events.lock();
        events.push(event);
        events.len() - 1
    }

    fn record_write(&self, offset: DeviceOffset, data: Vec<u8>) -> usize {
        let offset = DeviceOffset(self.start + offset.0);
        self.record(Event::Submitted(self.part, Arc::new(RecordedWrite { offset, data })))
    }

    /// Records a write of zeroes, which `work` does.
    fn record_zeroes(
        &self,
        offset: DeviceOffset,
        length: u64,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let index = self.record_write(offset, vec![0; length as usize]);
        work()?;
        self.record(Event::Ended(index));
        Ok(())
    }
}

impl BlockDevice for RecordDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, mut batch: Vec<Bio>) {
        for bio in &mut batch {
            if bio.operation() == BioOperation::Write && bio.range_within(self.size()).is_ok() {
                let index = self.record_write(bio.offset(), bio.to_vec());
                let events = Arc::clone(&self.events);
                // Recorded before the submitter's completion function, so that its next flush comes
                // later.
                bio.before_end(move |result| {
                    result.inspect(|()| events.lock().push(Event::Ended(index)))
                });
            }
        }
        self.inner.submit(batch);
    }

    fn flush(&self) -> Result<()> {
        let index = self.record(Event::FlushStarted(self.part));
        let result = self.inner.flush();
        self.record(match result {
            Ok(()) => Event::Flushed(index),
            Err(_) => Event::FlushFailed(index),
        });
        result
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        range_within(IoOperation::Discard, offset, length, self.size())?;
        self.record_zeroes(offset, length, || self.inner.discard(offset, length))
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        range_within(IoOperation::WriteZeroes, offset, length, self.size())?;
        self.record_zeroes(offset, length, || self.inner.write_zeroes(offset, length))
    }
}

/// The events of devices. [`Replay`] rebuilds the states that a crash may leave.
#[derive(Clone, Debug)]
pub struct Recording {
    before: SharedDevice,
    events: Vec<Event>,
}

impl Recording {
    /// Returns all points in time, from before the first event to after the last one.
    pub fn crash_points(&self) -> Range<usize> {
        0..self.events.len() + 1
    }

    /// Returns the points right after a flush.
    pub fn flush_points(&self) -> Vec<usize> {
        let flushes = (1..).zip(&self.events);
        flushes.filter(|(_, event)| matches!(event, Event::Flushed(_))).map(|one| one.0).collect()
    }

    /// Returns the writes and flushes that have succeeded, as a list in which a flush makes exactly
    /// the writes before it durable: each write comes before the first flush that makes it durable,
    /// and the writes that are never durable come last. Otherwise the order is that of submission.
    /// With each item comes the point at which it is certain.
    pub fn completed(&self) -> Vec<(usize, Completed<'_>)> {
        let item =
            |write: usize, point| Some((point, Completed::Write(self.events[write].submitted()?)));
        let mut completed = Vec::new();
        let mut is_durable = vec![false; self.events.len()];
        let mut known_to = [0; PARTS];
        for (point, event) in (1..).zip(&self.events) {
            let Some((start, has_succeeded)) = event.ended_flush() else { continue };
            let mut covered: Vec<usize> =
                newly_covered(&self.events, start, &mut known_to).collect();
            if has_succeeded {
                covered.sort_unstable();
                covered.iter().for_each(|write| is_durable[*write] = true);
                completed.extend(covered.into_iter().filter_map(|write| item(write, point)));
                completed.push((point, Completed::Flush));
            }
        }
        let ended = self.events.iter().filter_map(Event::ended_write);
        let mut rest: Vec<usize> = ended.filter(|write| !is_durable[*write]).collect();
        rest.sort_unstable();
        completed.extend(rest.into_iter().filter_map(|write| item(write, self.events.len())));
        completed
    }

    /// Returns the points right after the submission of a write of byte `at`.
    pub fn points_of_writes(&self, at: DeviceOffset) -> Vec<usize> {
        let events = (1..).zip(&self.events);
        let writes = events.filter_map(|(point, event)| Some((point, event.submitted()?)));
        let contains = |write: &RecordedWrite| {
            at >= write.offset && at.0 - write.offset.0 < write.data.len() as u64
        };
        writes.filter(|(_, write)| contains(write)).map(|(point, _)| point).collect()
    }

    /// Returns the writes that were submitted before `point` but not durable at `point`, in order.
    pub fn volatile_writes(&self, point: usize) -> Vec<&RecordedWrite> {
        self.writes(point).filter(|(_, durable)| !durable).map(|(write, _)| write).collect()
    }

    /// Returns the contents after a crash at `point`, like [`Replay::image`]. Of the writes that
    /// were not durable, only the sectors for which `keep` returns true are applied.
    pub fn image(&self, point: usize, keep: impl FnMut(&RecordedWrite, u64) -> bool) -> Vec<u8> {
        Replay::new(self).image(point, keep)
    }

    /// Returns the writes submitted before `point`, and whether each was durable.
    fn writes(&self, point: usize) -> impl Iterator<Item = (&RecordedWrite, bool)> {
        let past = &self.events[..point];
        let mut durable = vec![false; past.len()];
        mark_durable(&self.events, past, &mut [0; PARTS], &mut durable);
        let writes = past.iter().zip(durable);
        writes.filter_map(|(event, durable)| event.submitted().map(|write| (write, durable)))
    }
}

impl Event {
    fn submitted(&self) -> Option<&RecordedWrite> {
        match self {
            Self::Submitted(_, write) => Some(write),
            _ => None,
        }
    }

    /// Returns the event at which a write was submitted that has succeeded now.
    fn ended_write(&self) -> Option<usize> {
        match self {
            Self::Ended(write) => Some(*write),
            _ => None,
        }
    }

    /// Returns the event at which a flush was started that has ended now, and whether it has
    /// succeeded.
    fn ended_flush(&self) -> Option<(usize, bool)> {
        match self {
            Self::Flushed(start) => Some((*start, true)),
            Self::FlushFailed(start) => Some((*start, false)),
            _ => None,
        }
    }

    /// Returns the index of the device that was written or is flushed.
    fn part(&self) -> Option<usize> {
        match self {
            Self::Submitted(part, _) | Self::FlushStarted(part) => Some(*part),
            _ => None,
        }
    }
}

/// Marks the writes as durable that successful flushes in `passed` cover. Writes that a failed
/// flush covers never become durable. `known_to` is, for each device, the event up to which this
/// was decided before.
fn mark_durable(events: &[Event], passed: &[Event], known_to: &mut [usize], durable: &mut [bool]) {
    for (start, has_succeeded) in passed.iter().filter_map(Event::ended_flush) {
        newly_covered(events, start, known_to).for_each(|write| durable[write] = has_succeeded);
    }
}

/// Returns the writes, by the events of their submission, that a flush covers and no flush before
/// it has covered. The flush was started at the event `start`. `known_to` is, for each device, the
/// event up to which writes were covered before.
fn newly_covered<'e>(
    events: &'e [Event],
    start: usize,
    known_to: &mut [usize],
) -> impl Iterator<Item = usize> + use<'e> {
    let part = events[start].part();
    let known_to = part.and_then(|part| known_to.get_mut(part));
    let from = known_to.map_or(start, |known_to| {
        let from = *known_to;
        *known_to = start.max(from);
        from
    });
    let ended = events.get(from..start).unwrap_or_default().iter().filter_map(Event::ended_write);
    ended.filter(move |write| events[*write].part() == part)
}

/// Rebuilds the contents after crashes at points in ascending order: durable writes are applied
/// only once.
#[derive(Debug)]
pub struct Replay<'r> {
    recording: &'r Recording,
    /// Whether each write, by its event index, is durable at `point`.
    durable: Vec<bool>,
    /// The contents after the first `in_base` events, whose writes are all durable: a layer over
    /// the first contents, since most recordings change a small part of the device.
    base: Arc<OverlayDevice>,
    /// The number of events whose writes are in `base`.
    in_base: usize,
    point: usize,
    /// For each device, the event up to which `durable` is decided for writes that have ended.
    known_to: [usize; PARTS],
}

impl<'r> Replay<'r> {
    /// Returns a replay that begins before the first event.
    pub fn new(recording: &'r Recording) -> Self {
        let durable = vec![false; recording.events.len()];
        let before = Arc::clone(&recording.before);
        let base = Arc::new(OverlayDevice::new(before, OVERLAY_BLOCK, u64::MAX));
        Self { recording, durable, base, in_base: 0, point: 0, known_to: [0; PARTS] }
    }

    /// Returns the contents after a crash at `point`. Of the writes that were not durable, only the
    /// sectors for which `keep` returns true are applied. Its arguments are the write and the index
    /// of the sector in the write. Writes are applied in the order of their submission. Another
    /// order would leave the same contents as a crash that lost the later write.
    pub fn image(
        &mut self,
        point: usize,
        keep: impl FnMut(&RecordedWrite, u64) -> bool,
    ) -> Vec<u8> {
        self.go_to(point);
        let mut image = vec![0; self.recording.before.size() as usize];
        let base: &dyn BlockDevice = &*self.base;
        base.read_at(DeviceOffset(0), &mut image).expect("memory is read");
        self.patch(keep, |offset, data| {
            let start = offset.0 as usize;
            image[start..start + data.len()].copy_from_slice(data);
        });
        image
    }

    /// Returns the contents of [`image`](Self::image) as a writable device. The device shares
    /// memory with the replay: the next call copies the changed blocks if the device still exists.
    pub fn device(
        &mut self,
        point: usize,
        keep: impl FnMut(&RecordedWrite, u64) -> bool,
    ) -> Result<RebuiltDevice> {
        self.go_to(point);
        let durable = Arc::clone(&self.base);
        let base: SharedDevice = Arc::clone(&durable) as SharedDevice;
        let device = Arc::new(OverlayDevice::new(base, OVERLAY_BLOCK, u64::MAX));
        let writable: &dyn BlockDevice = &*device;
        let mut written = Ok(());
        self.patch(keep, |offset, data| {
            if written.is_ok() {
                written = writable.write_at(offset, data);
            }
        });
        let before = Arc::clone(&self.recording.before);
        written.map(|()| RebuiltDevice { before, durable, device })
    }

    /// Calls `write_to` with the changes to the base, in order.
    fn patch(
        &self,
        mut keep: impl FnMut(&RecordedWrite, u64) -> bool,
        mut write_to: impl FnMut(DeviceOffset, &[u8]),
    ) {
        for index in self.in_base..self.point {
            let Some(write) = self.recording.events[index].submitted() else { continue };
            let mut write_part = |part: Range<usize>| {
                if !part.is_empty() {
                    write_to(DeviceOffset(write.offset.0 + part.start as u64), &write.data[part]);
                }
            };
            if self.durable[index] {
                write_part(0..write.data.len());
                continue;
            }
            let mut kept = 0..0;
            for (number, part) in (0..).zip(sectors(write)) {
                if keep(write, number) {
                    let is_adjacent = kept.end == part.start;
                    kept = if is_adjacent { kept.start } else { part.start }..part.end;
                } else {
                    write_part(std::mem::take(&mut kept));
                }
            }
            write_part(kept);
        }
    }

    /// Returns the number of writes that are submitted but not durable at `point`.
    pub fn volatile(&mut self, point: usize) -> u64 {
        self.go_to(point);
        let events = &self.recording.events;
        let is_volatile =
            |&index: &usize| events[index].submitted().is_some() && !self.durable[index];
        (self.in_base..point).filter(is_volatile).count() as u64
    }

    /// Returns a number that is equal at points with the same durable writes.
    pub fn durable(&mut self, point: usize) -> usize {
        self.go_to(point);
        self.known_to.iter().sum()
    }

    /// Advances to `point`.
    fn go_to(&mut self, point: usize) {
        assert!(self.point <= point, "points must be in ascending order");
        let passed = &self.recording.events[self.point..point];
        mark_durable(&self.recording.events, passed, &mut self.known_to, &mut self.durable);
        self.point = point;
        while self.in_base < point {
            if let Some(write) = self.recording.events[self.in_base].submitted() {
                if !self.durable[self.in_base] {
                    break;
                }
                if Arc::get_mut(&mut self.base).is_none() {
                    self.base = Arc::new(self.base.copy());
                }
                let base: &dyn BlockDevice = &*self.base;
                base.write_at(write.offset, &write.data).expect("memory is written");
            }
            self.in_base += 1;
        }
    }
}

/// The contents after a crash, as layers of changed blocks over the contents before the first
/// event.
#[derive(Clone, Debug)]
pub struct RebuiltDevice {
    before: SharedDevice,
    durable: Arc<OverlayDevice>,
    device: Arc<OverlayDevice>,
}

impl RebuiltDevice {
    /// The size of changed blocks.
    pub const BLOCK: BlockSize = OVERLAY_BLOCK;

    /// Returns the writable device.
    pub fn device(&self) -> SharedDevice {
        Arc::clone(&self.device) as SharedDevice
    }

    /// Returns a device with the current contents, which no write changes. It copies only changed
    /// blocks.
    pub fn snapshot(&self) -> SharedDevice {
        Arc::new(self.device.copy())
    }

    /// Returns a device with the contents before the first event, which no write changes.
    pub fn before(&self) -> &SharedDevice {
        &self.before
    }

    /// Calls `visit` with the number and the contents of each block of [`BLOCK`](Self::BLOCK) bytes
    /// that may differ from the contents before.
    pub fn for_each_changed(&self, mut visit: impl FnMut(u64, &[u8])) {
        self.durable.for_each_written(|number, block| {
            if !self.device.is_written(number) {
                visit(number, block);
            }
        });
        self.device.for_each_written(visit);
    }
}

/// Returns the parts of the write's data in each sector, in order.
fn sectors(write: &RecordedWrite) -> impl Iterator<Item = Range<usize>> {
    let (start, length) = (write.offset.0, write.data.len() as u64);
    let first = start / SECTOR;
    (first..(start + length).div_ceil(SECTOR)).map(move |sector| {
        let from = (sector * SECTOR).max(start) - start;
        let to = ((sector + 1) * SECTOR).min(start + length) - start;
        from as usize..to as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CountedFault, FaultDevice, FaultPlan, Lasting, MemoryDevice};
    use proptest::prelude::*;

    fn record() -> RecordDevice {
        RecordDevice::new(Arc::new(MemoryDevice::new(vec![0; 4096]))).unwrap()
    }

    fn write(device: &RecordDevice, at: u64, data: &[u8]) {
        (device as &dyn BlockDevice).write_at(DeviceOffset(at), data).unwrap();
    }

    /// Returns the contents as (offset, byte) of the start of each sequence of equal bytes.
    fn changes(image: &[u8]) -> Vec<(usize, u8)> {
        let changes = (0..image.len()).filter(|&at| at == 0 || image[at] != image[at - 1]);
        changes.map(|at| (at, image[at])).collect()
    }

    #[test]
    fn flushed_writes_survive_a_crash_and_other_writes_may() {
        let device = record();
        write(&device, 0, &[1; 1024]);
        device.flush().unwrap();
        write(&device, 512, &[2; 1024]);
        let recording = device.recording();
        let end = recording.crash_points().end - 1;
        assert_eq!(recording.flush_points(), [4]);
        assert_eq!(recording.points_of_writes(DeviceOffset(512)), [1, 5]);
        assert_eq!(recording.points_of_writes(DeviceOffset(1024)), [5]);
        assert_eq!(recording.points_of_writes(DeviceOffset(1536)), []);
        assert_eq!(recording.volatile_writes(4), [] as [&RecordedWrite; 0]);
        assert_eq!(changes(&recording.image(end, |_, _| false)), [(0, 1), (1024, 0)]);
        assert_eq!(changes(&recording.image(end, |_, _| true)), [(0, 1), (512, 2), (1536, 0)]);
        let torn = recording.image(end, |_, sector| sector == 1);
        assert_eq!(changes(&torn), [(0, 1), (1024, 2), (1536, 0)]);
        assert_eq!(changes(&recording.image(3, |_, _| false)), [(0, 0)]);
    }

    #[test]
    fn writes_to_a_rebuilt_device_do_not_change_its_snapshot() {
        let device = record();
        write(&device, 0, &[1; 1024]);
        let recording = device.recording();
        let end = recording.crash_points().end - 1;
        let rebuilt = Replay::new(&recording).device(end, |_, sector| sector == 0).unwrap();
        let recovery = RecordDevice::over(rebuilt.device(), rebuilt.snapshot());
        write(&recovery, 256, &[2; 512]);
        let recovery = recovery.recording();
        let end = recovery.crash_points().end - 1;
        assert_eq!(changes(&recovery.image(end, |_, _| false)), [(0, 1), (512, 0)]);
        assert_eq!(changes(&recovery.image(end, |_, _| true)), [(0, 1), (256, 2), (768, 0)]);
    }

    #[test]
    fn a_flush_makes_writes_to_its_own_device_durable() {
        let memory = || Arc::new(MemoryDevice::new(vec![0; 1024]));
        let [first, second] = RecordDevice::pair(memory(), memory()).unwrap();
        write(&second, 0, &[1; 512]);
        write(&first, 512, &[2; 512]);
        second.flush().unwrap();
        let recording = first.recording();
        let end = recording.crash_points().end - 1;
        let image = |keep| recording.image(end, |_, _| keep);
        assert_eq!(changes(&image(false)), [(0, 0), (1024, 1), (1536, 0)]);
        assert_eq!(changes(&image(true)), [(0, 0), (512, 2), (1024, 1), (1536, 0)]);
        first.flush().unwrap();
        let recording = second.recording();
        let end = recording.crash_points().end - 1;
        let image = recording.image(end, |_, _| false);
        assert_eq!(changes(&image), [(0, 0), (512, 2), (1024, 1), (1536, 0)]);
    }

    #[test]
    fn writes_tear_at_the_sectors_of_the_device() {
        let device = record();
        write(&device, 500, &[1; 600]);
        let recording = device.recording();
        let image = |kept| recording.image(2, |_, sector| sector == kept);
        assert_eq!(changes(&image(0)), [(0, 0), (500, 1), (512, 0)]);
        assert_eq!(changes(&image(1)), [(0, 0), (512, 1), (1024, 0)]);
        assert_eq!(changes(&image(2)), [(0, 0), (1024, 1), (1100, 0)]);
    }

    #[test]
    fn a_write_in_flight_during_a_flush_is_not_durable() {
        // Submitted before the flush, ended after its start.
        let events = vec![
            Event::Submitted(0, Arc::new(RecordedWrite { offset: DeviceOffset(0), data: vec![1] })),
            Event::FlushStarted(0),
            Event::Ended(0),
            Event::Flushed(1),
        ];
        let before = Arc::new(MemoryDevice::new(vec![0]));
        let mut recording = Recording { before, events };
        assert_eq!(recording.volatile_writes(4).len(), 1);
        recording.events.extend([Event::FlushStarted(0), Event::Flushed(4)]);
        assert_eq!(recording.volatile_writes(5).len(), 1);
        assert_eq!(recording.volatile_writes(6).len(), 0);
    }

    #[test]
    fn no_flush_makes_writes_durable_for_which_an_earlier_flush_failed() {
        let (operation, lasting) = (IoOperation::Flush, Lasting::Once);
        let fault = CountedFault { operation, number: 1, lasting, errno: 5 };
        let plan = FaultPlan { counted: Some(fault), ..FaultPlan::default() };
        let memory = Arc::new(MemoryDevice::new(vec![0; 4096]));
        let device = RecordDevice::new(Arc::new(FaultDevice::new(memory, plan))).unwrap();
        write(&device, 0, &[1; 512]);
        device.flush().unwrap();
        write(&device, 512, &[2; 512]);
        device.flush().unwrap_err();
        write(&device, 1024, &[3; 512]);
        device.flush().unwrap();
        let recording = device.recording();
        let end = recording.crash_points().end - 1;
        let image = recording.image(end, |_, _| false);
        assert_eq!(changes(&image), [(0, 1), (512, 0), (1024, 3), (1536, 0)]);
    }

    #[test]
    fn zeroed_and_discarded_ranges_are_recorded() {
        let device = record();
        write(&device, 0, &[1; 2048]);
        device.flush().unwrap();
        device.write_zeroes(DeviceOffset(0), 512).unwrap();
        device.discard(DeviceOffset(1024), 512).unwrap();
        let recording = device.recording();
        let end = recording.crash_points().end - 1;
        assert_eq!(changes(&recording.image(end, |_, _| false)), [(0, 1), (2048, 0)]);
        let all = recording.image(end, |_, _| true);
        assert_eq!(changes(&all), [(0, 0), (512, 1), (1024, 0), (1536, 1), (2048, 0)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn images_are_equal_to_snapshots_of_the_device(
            writes in prop::collection::vec((any::<bool>(), 0..4000usize, 1..900usize, 1u8..), 1..30),
        ) {
            let inner = Arc::new(MemoryDevice::new(vec![0; 4096]));
            let device = RecordDevice::new(inner.clone()).unwrap();
            let mut flushed = Vec::new();
            for (flush, at, length, byte) in writes {
                write(&device, at as u64, &vec![byte; length.min(4096 - at)]);
                if flush {
                    device.flush().unwrap();
                    flushed.push(inner.snapshot());
                }
            }
            let recording = device.recording();
            let end = recording.crash_points().end - 1;
            prop_assert!(recording.image(end, |_, _| true) == inner.snapshot());
            let mut replay = Replay::new(&recording);
            for point in recording.crash_points() {
                let odd = |_: &RecordedWrite, sector| sector % 2 == 1;
                let image = recording.image(point, odd);
                let mut of_device = vec![0; image.len()];
                let rebuilt = replay.device(point, odd).unwrap();
                rebuilt.device().read_at(DeviceOffset(0), &mut of_device).unwrap();
                prop_assert!(of_device == image && replay.image(point, odd) == image);
                let mut changed = vec![0; image.len()];
                rebuilt.before().read_at(DeviceOffset(0), &mut changed).unwrap();
                rebuilt.for_each_changed(|number, block| {
                    changed[number as usize * block.len()..][..block.len()].copy_from_slice(block);
                });
                prop_assert!(changed == image);
            }
            for (point, expected) in recording.flush_points().into_iter().zip(&flushed) {
                prop_assert!(&recording.image(point, |_, _| false) == expected);
            }
            // Flushed writes are still there, even if no other write survives the crash.
            if let Some(expected) = flushed.last() {
                prop_assert!(&recording.image(end, |_, _| false) == expected);
            }
        }
    }
}
