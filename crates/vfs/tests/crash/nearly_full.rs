//! A volume of f2fs with few free segments: a pinned file has many of the others, and another one
//! the rest.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use base::{DeviceOffset, Error};
use device::{MemoryDevice, SharedDevice};
use parking_lot::Mutex;
use testkit::crash::{Kind, Pace, Recorded};
use testkit::f2fs::offer_all_segments_but;
use vfs::{Fallocate, File, Privileges};

use crate::common::{bytes, make};
use crate::planted::Bug;
use crate::stage::open;

/// The number of segments that users cannot have: the least with which a volume is written.
const KEPT_BACK: u32 = 8;
/// The size of a section in bytes.
const SECTION: u64 = 2 << 20;
/// The number of free blocks that are left: too few for another section.
const BLOCKS_LEFT: u64 = 440;
const BLOCK: u64 = 4096;

type Made = OnceLock<SharedDevice>;

/// Returns a nearly full volume, which is made once for each kind.
pub fn nearly_full(kind: &Kind) -> SharedDevice {
    static VOLUMES: Mutex<BTreeMap<&str, Arc<Made>>> = Mutex::new(BTreeMap::new());
    let made = Arc::clone(VOLUMES.lock().entry(kind.name).or_default());
    Arc::clone(made.get_or_init(|| fill(kind)))
}

fn fill(kind: &Kind) -> SharedDevice {
    let mut image = contents(&kind.contents());
    offer_all_segments_but(&mut image, KEPT_BACK);
    let before = Arc::new(MemoryDevice::new(image));
    let Recorded { disks, .. } = kind.record_over(before, Pace::AtOnce, |device| device);
    let volume = open(&disks, Bug::None, 1);
    // A file without a size: its blocks need not be read after each cut.
    let pinned = make(&volume, "pinned");
    pinned.node().set_pinned(true).unwrap();
    let mut sections = 0;
    while allocate(&pinned, sections) {
        sections += 1;
    }
    let ballast = make(&volume, "ballast");
    let length = volume.statfs().blocks_free.saturating_sub(BLOCKS_LEFT) * BLOCK;
    ballast.write_all_at(&vec![1; length as usize], 0).unwrap();
    volume.close().unwrap();
    Arc::new(MemoryDevice::new(contents(&disks.volume)))
}

fn contents(device: &SharedDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(DeviceOffset(0), &mut bytes).unwrap();
    bytes
}

/// Allocates the section `number` of a pinned file, which has no size. Returns false if there is no
/// room.
fn allocate(pinned: &File, number: u64) -> bool {
    let range = bytes(number * SECTION..(number + 1) * SECTION);
    match pinned.fallocate(Fallocate::Allocate { keep_size: true }, range, Privileges::Keep) {
        Ok(()) => true,
        Err(Error::NoSpace | Error::NoInodes) => false,
        Err(error) => panic!("{error}"),
    }
}
