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

/// Claims the volume, and calls `during_wait` instead of waiting. Returns the waiting times in
/// seconds, too.
fn acquire(block: &MmpBlock, mut during_wait: impl FnMut()) -> (Result<Claim>, Vec<u64>) {
    let mut waited = Vec::new();
    let claim = Claim::acquire(block.clone(), |_, time| {
        waited.push(time.as_secs());
        during_wait();
        Ok(())
    });
    (claim, waited)
}

/// Returns the user that the error of `result` names.
fn user_in_error(result: Result<Claim>) -> String {
    match result.map(drop) {
        Err(Error::InUse { by }) => by,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_closed_volume_is_claimed_at_once_and_an_unclosed_volume_after_a_wait() {
    let block = block();
    let (claim, waited) = acquire(&block, || ());
    claim.unwrap().renew().unwrap();
    assert_eq!(waited, [0]);
    // The sequence number does not advance any more.
    let (claim, waited) = acquire(&block, || ());
    assert_eq!(waited, [11, 11]);
    claim.unwrap().release().unwrap();
    assert_eq!(acquire(&block, || ()).1, [0]);
}

#[test]
fn a_host_that_advances_the_number_excludes_other_hosts() {
    let block = block();
    let mut first = acquire(&block, || ()).0.unwrap();
    let (second, waited) = acquire(&block, || first.renew().unwrap());
    assert!(user_in_error(second).ends_with(" as bifolio"));
    assert_eq!(waited, [11]);
    first.renew().unwrap();
    first.release().unwrap();
}

#[test]
fn one_of_two_concurrent_hosts_gets_the_volume() {
    let block = block();
    drop(acquire(&block, || ()));
    let mut second = None;
    let (first, _) = acquire(&block, || {
        second.get_or_insert_with(|| acquire(&block, || ()).0);
    });
    user_in_error(first);
    second.unwrap().unwrap().renew().unwrap();
}

#[test]
fn a_late_renewal_fails_after_another_host_has_claimed_the_volume() {
    let block = block();
    let mut first = acquire(&block, || ()).0.unwrap();
    let second = acquire(&block, || ()).0.unwrap();
    user_in_error(first.renew().map(|()| first));
    second.release().unwrap();
}

#[test]
fn invalid_blocks_are_refused() {
    let block = block();
    let good = block.read().unwrap();
    let with = |change: &dyn Fn(&mut RawMmp), sealed: bool| {
        let mut raw = good.clone();
        change(&mut raw);
        if sealed {
            raw.checksum = checksum(&raw, block.seed).unwrap().into();
        }
        (&*block.device as &dyn BlockDevice).write_at(block.offset, raw.as_bytes()).unwrap();
        acquire(&block, || ()).0.map(drop).unwrap_err()
    };
    for (found, expected) in [
        (with(&|raw| raw.magic = 1.into(), true), "magic"),
        (with(&|raw| raw.sequence = 1.into(), false), "checksum"),
        (with(&|raw| raw.sequence = (MMP_SEQUENCE_FSCK + 1).into(), true), "sequence"),
        // With this interval, an open would wait for most of a day.
        (with(&|raw| raw.check_interval = 60_000.into(), true), "check interval"),
    ] {
        assert!(matches!(found, Error::Corrupt(_)), "{found}");
        assert!(found.to_string().contains(expected), "{found}");
    }
    let fsck = with(&|raw| raw.sequence = MMP_SEQUENCE_FSCK.into(), true);
    assert!(user_in_error(Err(fsck)).starts_with("e2fsck"));
}

#[test]
fn a_volume_that_another_host_claims_is_not_written_any_more() {
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
    assert_eq!(block.read().unwrap().sequence.get(), 12345, "the other host's number is kept");
}

#[test]
fn a_failed_flush_does_not_lose_the_claim() {
    let mut block = block();
    let (operation, lasting) = (IoOperation::Flush, Lasting::Once);
    let counted = Some(CountedFault { operation, number: 1, lasting, errno: 5 });
    let plan = FaultPlan { counted, ..FaultPlan::default() };
    block.device = Arc::new(FaultDevice::new(Arc::clone(&block.device), plan));
    let mut claim = acquire(&block, || ()).0.unwrap();
    let failed = claim.renew();
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    claim.renew().unwrap();
    claim.release().unwrap();
}

/// A device that loses data at a flush, and reports the loss only to the first caller of flush, as
/// hosts do.
#[derive(Default, Debug)]
struct LosesData {
    loses_next: AtomicBool,
}

impl DeviceHooks for LosesData {
    fn flush(&self, _: &SharedDevice) -> Result<()> {
        if !self.loses_next.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let (operation, offset) = (IoOperation::Flush, DeviceOffset(0));
        Err(IoError { operation, offset, length: 0, errno: 5 }.into())
    }
}

#[test]
fn a_failed_flush_of_the_block_fails_the_next_sync_of_the_volume() {
    let image = Image::make(16, &["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"]);
    let inner = Arc::new(MemoryDevice::new(image.bytes()));
    let device = Arc::new(HookedDevice::new(inner, LosesData::default()));
    let volume = common::open_device_for_writing(device.clone() as SharedDevice).unwrap();
    device.loses_next.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(60);
    while device.loses_next.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline, "the sequence number does not advance");
        std::thread::sleep(Duration::from_millis(50));
    }
    volume.sync().unwrap_err();
}
