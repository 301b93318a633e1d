//! Atomic writes on devices that fail.

use std::sync::Arc;

use base::Error;
use device::{FaultDevice, FaultPlan, SharedDevice};
use vfs::AtomicWrite;

use crate::common::{device, make, open_on};
use crate::stage::{ALL, MEGABYTES, Stage, data, read};

const BLOCK: usize = 4096;

#[test]
fn a_commit_without_all_of_its_data_fails_and_can_be_tried_again() {
    let stage = Stage::new();
    let faults = Arc::new(FaultDevice::new(device(&stage.image), FaultPlan::default()));
    let volume = open_on(faults.clone() as SharedDevice, iomap::DirectOptions::default());
    let file = make(&volume, "f");
    let old = data(1, 100 * BLOCK);
    file.write_all_at(&old, 0).unwrap();
    volume.sync().unwrap();
    for kind in [AtomicWrite::Update, AtomicWrite::Replace] {
        file.atomic_start(kind).unwrap();
        file.write_all_at(&data(2, 50 * BLOCK), 0).unwrap();
        file.sync_range(0..u64::MAX, ALL).unwrap();
        file.write_all_at(&data(3, 50 * BLOCK), 30 * BLOCK as u64).unwrap();
        faults.fail_writes_in(0..MEGABYTES << 20);
        let failed = file.atomic_commit();
        assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
        faults.heal();
        assert!(read(&file) == old, "after the failed commit");
        assert_eq!(file.sync_all(), Ok(()), "the commit has reported the error");
        volume.sync().unwrap_err();
        volume.sync().unwrap();
        assert!(stage.contents_on_device("f") == old, "after the failed commit");
    }
    file.atomic_start(AtomicWrite::Update).unwrap();
    file.write_all_at(&data(4, 2 * BLOCK), 0).unwrap();
    file.atomic_commit().unwrap();
    let new = [data(4, 2 * BLOCK), old[2 * BLOCK..].to_vec()].concat();
    assert!(stage.contents_on_device("f") == new, "after the second try");
    drop((file, faults));
    stage.close(volume);
}
