//! Data that is written to a file while it is synced, and lost afterwards.

use std::sync::Arc;
use std::time::Duration;

use device::{
    Bio, BioOperation, BlockDevice, DeviceHooks, FaultDevice, FaultPlan, HookedDevice, SharedDevice,
};
use parking_lot::Mutex;
use vfs::{File, Volume, VolumeOptions};

use testkit::wait_until;

use crate::kind::{KINDS, Kind};
use crate::{EIO, WRITE, create, number, write};

/// Where a page of the file is that is not written back at the same time as the first one.
const APART: u64 = 1 << 20;

/// Writes 10 bytes to a file while the next write of the device is submitted.
#[derive(Debug, Default)]
struct WritesOnce(Mutex<Option<File>>);

impl DeviceHooks for WritesOnce {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        if batch.iter().any(|bio| bio.operation() == BioOperation::Write)
            && let Some(file) = self.0.lock().take()
        {
            let writing = std::thread::spawn(move || write(&file, APART, &[9; 10]));
            assert_eq!(writing.join().unwrap(), Ok(10));
        }
        device.submit(batch);
    }
}

#[test]
fn a_file_that_is_written_to_during_its_sync_is_named_when_it_is_lost() {
    let faults = Arc::new(FaultDevice::new(Kind::Ext4.disk(), FaultPlan::default()));
    let device = Arc::new(HookedDevice::new(faults.clone(), WritesOnce::default()));
    // Nothing is written back in the background.
    let commit_interval = Duration::from_secs(3600);
    let options = VolumeOptions { writable: true, commit_interval, ..VolumeOptions::default() };
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    write(&file, APART, &[1; 4096]).unwrap();
    write(&file, 0, &[1; 4096]).unwrap();
    file.sync_all().unwrap();
    write(&file, 0, &[2; 4096]).unwrap();
    *device.0.lock() = Some(file.node().open_for(WRITE).unwrap());
    file.sync_all().unwrap();
    assert!(device.0.lock().is_none(), "the sync has written nothing");
    faults.fail_writes_in(0..faults.size());
    assert_eq!(number(volume.close()), EIO);
    let lost = volume.lost_files().to_string();
    assert!(lost.ends_with(" /file (10 bytes)"), "{lost:?}");
}

#[test]
fn a_file_that_was_written_back_is_not_named_after_its_sync() {
    for kind in [Kind::Ext4, KINDS[1]] {
        let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
        // Nothing is committed in the background, but a tenth of the cache is written back.
        options.commit_interval = Duration::from_secs(3600);
        options.cache.bytes_max = 16 << 20;
        let volume = Volume::open_device(kind.disk(), &options).unwrap();
        let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
        write(&file, 0, &vec![1; 4 << 20]).unwrap();
        wait_until("writeback", || !volume.lost_files().to_string().is_empty());
        // A further round may move bytes during a sync, which then has not covered them.
        wait_until("a sync that covers all bytes", || {
            file.sync_all().unwrap();
            volume.lost_files().to_string().is_empty()
        });
        drop(file);
        volume.close().unwrap();
    }
}
