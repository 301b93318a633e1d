//! Tests of multiple-mount protection: two hosts without waiting times, and invalid blocks.

use std::sync::atomic::{AtomicBool, Ordering};

use base::{IoError, IoOperation};
use device::{BlockDevice, CountedFault, FaultDevice, FaultPlan, Lasting, MemoryDevice};
use testkit::{DeviceHooks, HookedDevice};

use super::*;
use crate::common::{self, Image};

/// Returns a volume with the protection, and its block.
fn block() -> MmpBlock {
    let image = Image::make(16, &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    MmpBlock::of(&common::open(image.bytes()).unwrap()).unwrap().unwrap()
}

/// Takes the volume without waiting; how long it would have waited.
fn take(block: &MmpBlock, mut meanwhile: impl FnMut()) -> (Result<Claim>, Vec<u64>) {
    let mut waited = Vec::new();
    let claim = Claim::take(block.clone(), |_, time| {
        waited.push(time.as_secs());
        meanwhile();
        Ok(())
    });
    (claim, waited)
}

fn by(result: Result<Claim>) -> String {
    match result.map(drop) {
        Err(Error::InUse { by }) => by,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_volume_that_was_closed_is_taken_at_once_and_one_that_was_not_after_a_wait() {
    let block = block();
    let (claim, waited) = take(&block, || ());
    claim.unwrap().renew().unwrap();
    assert_eq!(waited, [0]);
    // Nobody counts any more.
    let (claim, waited) = take(&block, || ());
    assert_eq!(waited, [11, 11]);
    claim.unwrap().release().unwrap();
    assert_eq!(take(&block, || ()).1, [0]);
}

#[test]
fn who_counts_keeps_others_out() {
    let block = block();
    let mut first = take(&block, || ()).0.unwrap();
    let (second, waited) = take(&block, || first.renew().unwrap());
    assert!(by(second).ends_with(" as bifolio"));
    assert_eq!(waited, [11]);
    first.renew().unwrap();
    first.release().unwrap();
}

#[test]
fn of_two_that_come_at_once_one_gets_the_volume() {
    let block = block();
    drop(take(&block, || ()));
    let mut second = None;
    let (first, _) = take(&block, || {
        second.get_or_insert_with(|| take(&block, || ()).0);
    });
    by(first);
    second.unwrap().unwrap().renew().unwrap();
}

#[test]
fn who_was_too_late_finds_that_the_volume_is_taken() {
    let block = block();
    let mut first = take(&block, || ()).0.unwrap();
    let second = take(&block, || ()).0.unwrap();
    by(first.renew().map(|()| first));
    second.release().unwrap();
}

#[test]
fn what_is_no_such_block_is_refused() {
    let block = block();
    let good = block.read().unwrap();
    let with = |change: &dyn Fn(&mut RawMmp), sealed: bool| {
        let mut raw = good.clone();
        change(&mut raw);
        if sealed {
            raw.checksum = checksum(&raw, block.seed).unwrap().into();
        }
        (&*block.device as &dyn BlockDevice).write_at(block.offset, raw.as_bytes()).unwrap();
        take(&block, || ()).0.map(drop).unwrap_err()
    };
    for (found, expected) in [
        (with(&|raw| raw.magic = 1.into(), true), "magic"),
        (with(&|raw| raw.sequence = 1.into(), false), "checksum"),
        (with(&|raw| raw.sequence = (MMP_SEQUENCE_FSCK + 1).into(), true), "sequence"),
        // Nobody waits for the better part of a day.
        (with(&|raw| raw.check_interval = 60_000.into(), true), "check interval"),
    ] {
        assert!(matches!(found, Error::Corrupt(_)), "{found}");
        assert!(found.to_string().contains(expected), "{found}");
    }
    let fsck = with(&|raw| raw.sequence = MMP_SEQUENCE_FSCK.into(), true);
    assert!(by(Err(fsck)).starts_with("e2fsck"));
}

#[test]
fn a_volume_that_somebody_else_takes_is_not_written_any_more() {
    let image = Image::make(16, &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
    let volume = common::open_device_for_writing(Arc::clone(&device)).unwrap();
    let block = MmpBlock::of(&volume).unwrap().unwrap();
    block.write(12345).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let stopped = loop {
        let change = volume.change(1, |_| Ok(()));
        if change.is_err() || Instant::now() > deadline {
            break change;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(matches!(stopped, Err(Error::ShutDown(_))), "{stopped:?}");
    assert!(volume.close().is_err());
    assert_eq!(block.read().unwrap().sequence.get(), 12345, "it is theirs");
}

#[test]
fn a_flush_that_fails_does_not_make_the_volume_somebody_elses() {
    let mut block = block();
    let (operation, lasting) = (IoOperation::Flush, Lasting::Once);
    let counted = Some(CountedFault { operation, number: 1, lasting, errno: 5 });
    let plan = FaultPlan { counted, ..FaultPlan::default() };
    block.device = Arc::new(FaultDevice::new(Arc::clone(&block.device), plan));
    let mut claim = take(&block, || ()).0.unwrap();
    let failed = claim.renew();
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    claim.renew().unwrap();
    claim.release().unwrap();
}

/// A device that loses data at a flush, and reports that only to the first caller of flush, as hosts do.
#[derive(Default, Debug)]
struct Forgetful {
    forgets: AtomicBool,
}

impl DeviceHooks for Forgetful {
    fn flush(&self, _: &SharedDevice) -> Result<()> {
        if !self.forgets.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let (operation, offset) = (IoOperation::Flush, DeviceOffset(0));
        Err(IoError { operation, offset, length: 0, errno: 5 }.into())
    }
}

#[test]
fn a_failed_flush_of_the_block_is_one_of_the_volume() {
    let image = Image::make(16, &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    let inner = Arc::new(MemoryDevice::new(image.bytes()));
    let device = Arc::new(HookedDevice::new(inner, Forgetful::default()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    device.forgets.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(60);
    while device.forgets.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline, "nobody counts");
        std::thread::sleep(Duration::from_millis(50));
    }
    volume.sync().unwrap_err();
}
