//! Syncs of the volume that wait at the same time for data which a device loses.

use std::time::Duration;

use base::DeviceOffset;
use device::{Bio, BioOperation, BlockDevice, SharedDevice};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

use crate::kind::{KINDS, Kind};
use crate::{EIO, WRITE, create, number, write};

/// A device that holds writes of data. Data begins with 512 bytes 7 or 512 bytes 8.
#[derive(Debug)]
struct HoldDevice {
    inner: SharedDevice,
    held: Mutex<Vec<Bio>>,
    more: Condvar,
}

/// Returns the first byte of a write of data.
fn data_of(bio: &Bio) -> Option<u8> {
    let first = bio.segments().first()?.bytes().get(..512)?;
    let is_data = matches!(first[0], 7 | 8) && first.iter().all(|byte| *byte == first[0]);
    (is_data && bio.operation() == BioOperation::Write).then_some(first[0])
}

impl HoldDevice {
    fn new(inner: SharedDevice) -> Arc<Self> {
        Arc::new(Self { inner, held: Mutex::default(), more: Condvar::new() })
    }

    /// Waits until data that begins with `fill` is held.
    fn wait_for(&self, fill: u8) {
        let mut held = self.held.lock();
        while !held.iter().any(|bio| data_of(bio) == Some(fill)) {
            let waited = self.more.wait_for(&mut held, Duration::from_secs(60));
            assert!(!waited.timed_out(), "no data that begins with {fill} is written");
        }
    }

    /// Ends the held writes: with an error if the data begins with `fill`.
    fn end_failing(&self, fill: u8) {
        let held = std::mem::take(&mut *self.held.lock());
        let (failing, others) = held.into_iter().partition(|bio| data_of(bio) == Some(fill));
        let failing: Vec<Bio> = failing;
        failing.into_iter().for_each(|bio| bio.end(Err(EIO)));
        self.inner.submit(others);
    }
}

impl BlockDevice for HoldDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        let (held, others) = batch.into_iter().partition(|bio| data_of(bio).is_some());
        self.held.lock().extend::<Vec<Bio>>(held);
        self.more.notify_all();
        self.inner.submit(others);
    }

    fn flush(&self) -> base::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> base::Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> base::Result<()> {
        self.inner.write_zeroes(offset, length)
    }
}

/// Returns the kinds on whose devices data lies as it was written.
fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.stores_data_as_it_is())
}

#[test]
fn all_syncs_of_the_volume_that_wait_for_lost_data_report_it() {
    kinds().for_each(lose_data_of_two_syncs);
}

fn lose_data_of_two_syncs(kind: &Kind) {
    let device = HoldDevice::new(kind.disk());
    let volume = kind.open(device.clone());
    let open = |path| create(&volume, path).unwrap().open_for(WRITE).unwrap();
    let [lost, other] = ["/lost", "/other"].map(open);
    volume.sync().unwrap();
    write(&lost, 0, &[7; 5000]).unwrap();
    let reported = std::thread::scope(|scope| {
        let first = scope.spawn(|| number(volume.sync()));
        device.wait_for(7);
        write(&other, 0, &[8; 5000]).unwrap();
        // The second sync has begun when it writes back the other file.
        let second = scope.spawn(|| number(volume.sync()));
        device.wait_for(8);
        device.end_failing(7);
        [first, second].map(|sync| sync.join().unwrap())
    });
    assert_eq!(reported, [EIO, EIO], "{kind:?}");
    assert_eq!(number(volume.sync()), 0, "{kind:?}: the error was reported before this sync began");
    volume.close().unwrap();
}

#[test]
fn each_sync_of_the_volume_reports_the_loss_of_its_own_data() {
    kinds().for_each(lose_data_of_each_sync);
}

fn lose_data_of_each_sync(kind: &Kind) {
    let device = HoldDevice::new(kind.disk());
    let volume = kind.open(device.clone());
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    volume.sync().unwrap();
    let sync_losing = |fill: u8, during: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| number(volume.sync()));
            device.wait_for(fill);
            during();
            device.end_failing(fill);
            sync.join().unwrap()
        })
    };
    // Whole blocks: a write behind a block in part would wait until the zeroes behind its data can
    // be written.
    let unit = kind.unit();
    write(&file, 0, &vec![7; unit]).unwrap();
    let write_more = || assert_eq!(write(&file, 4 * unit as u64, &vec![8; unit]), Ok(unit));
    assert_eq!(sync_losing(7, &write_more), EIO, "{kind:?}");
    assert_eq!(sync_losing(8, &|| ()), EIO, "{kind:?}: the first sync reported other data");
    write(&file, 0, &vec![9; unit]).unwrap();
    assert_eq!(number(volume.sync()), 0, "{kind:?}: its data is durable");
    volume.close().unwrap();
}
