//! Volumes whose free blocks contain a pattern that no file may ever show, before they are written
//! to or after they were discarded.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use base::DeviceOffset;
use device::{DeviceHooks, HookedDevice, SharedDevice};

use super::kinds::number_after;
use crate::host::command::run;

/// The byte that fills free blocks at first, and that no file contains.
pub const STALE: u8 = 0xEE;

/// The byte that fills discarded blocks, and that no file contains.
pub const DISCARDED: u8 = 0xDB;

/// Returns `device` as one whose discarded blocks contain [`DISCARDED`]. A discard is a write to
/// `device`, so that a power cut may leave any part of it.
pub fn with_lossy_discards(device: SharedDevice) -> SharedDevice {
    Arc::new(HookedDevice::new(device, LossyDiscards))
}

#[derive(Debug)]
struct LossyDiscards;

impl DeviceHooks for LossyDiscards {
    fn discard(
        &self,
        device: &SharedDevice,
        offset: DeviceOffset,
        length: u64,
    ) -> base::Result<()> {
        device.write_at(offset, &vec![DISCARDED; length as usize])
    }
}

/// Returns the contents of an image, with [`STALE`] in all of its free blocks.
pub fn with_stale_blocks(image: &Path) -> Vec<u8> {
    let text = run(Command::new("dumpe2fs").arg(image));
    let text = String::from_utf8_lossy(&text);
    let size = number_after(&text, "Block size:").unwrap() as usize;
    let mut bytes = std::fs::read(image).unwrap();
    for line in text.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|number| number.parse::<usize>().unwrap());
            bytes[first * size..(last + 1) * size].fill(STALE);
        }
    }
    bytes
}
