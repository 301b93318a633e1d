//! Tests of recoveries from devices with blocks that cannot be read.

use std::sync::Arc;

use base::attributes::FileType;
use device::{FaultDevice, FaultPlan, MemoryDevice};
use ext4::ROOT_INODE;

use crate::common::{Image, new_inode, number_after, open_device, open_device_for_writing};
use crate::e2fsck;

const BLOCK: u64 = 1024;

/// A power cut during a write can leave a block that cannot be read until it is written again. The
/// log has its contents.
#[test]
fn a_block_that_the_log_replaces_need_not_be_readable() {
    let image = Image::make(6, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let memory = Arc::new(MemoryDevice::new(image.bytes()));
    let volume = open_device_for_writing(memory.clone()).unwrap();
    let root = volume.inode(ROOT_INODE).unwrap();
    let file = root.create(b"file", &new_inode(FileType::Regular)).unwrap();
    let number = file.number();
    drop((root, file));
    volume.sync().unwrap();
    let cut = memory.snapshot();
    drop(volume);
    let located = image.debugfs(&format!("imap <{number}>"));
    let home = number_after(&located, "located at block ").unwrap() * BLOCK;
    let home = home..home + BLOCK;
    for is_writable in [false, true] {
        let memory = Arc::new(MemoryDevice::new(cut.clone()));
        let device = Arc::new(FaultDevice::new(memory.clone(), FaultPlan::default()));
        device.fail_reads_in(home.clone());
        let open = if is_writable { open_device_for_writing } else { open_device };
        let volume = open(device.clone()).unwrap();
        if is_writable {
            // The recovery has written it.
            device.heal();
        }
        let root = volume.inode(ROOT_INODE).unwrap();
        assert_eq!(root.lookup(b"file").unwrap(), number, "writable: {is_writable}");
        assert!(volume.inode(number).is_ok(), "writable: {is_writable}");
        drop(root);
        if is_writable {
            volume.close().unwrap();
            drop(volume);
            e2fsck(&memory.snapshot(), "-fn", 0, "after the recovery");
        }
    }
}
