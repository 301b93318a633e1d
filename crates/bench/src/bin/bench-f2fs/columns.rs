//! The sides of a table: the library on f2fs with several folio orders, and others.

use std::sync::Arc;
use std::time::Duration;

use bench::image::Image;
use bench::mount::{Mounter, mounters};
use bench::selection::Selection;
use bench::sides::{Library, Mounted, Side};
use device::{LatencyDevice, MemoryDevice, SharedDevice};
use pagecache::CacheOptions;

use crate::row::FILE_BYTES;

/// The size of each volume in bytes.
const IMAGE_BYTES: u64 = 512 << 20;
/// The latency of the slower device.
const LATENCY: Duration = Duration::from_micros(80);
/// The number of requests that this device serves concurrently.
const QUEUE: usize = 32;

/// The sides with f2fs in this process, and the maximum orders of their folios. The first one is
/// the baseline.
pub const ORDERS: [(&str, u8); 3] = [("order 0", 0), ("order 2", 2), ("order 9", 9)];
/// The column of ext4 in this process, with large folios.
pub const EXT4: &str = "ext4";
/// The column of the running kernel's ext4 on a loop device.
const KERNEL: &str = "kernel";

/// A device of the sides in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Memory,
    Latency,
}

impl Kind {
    /// Returns the name in tables and in names of rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Latency => "latency",
        }
    }

    fn open(self, image: &Image) -> SharedDevice {
        let memory = MemoryDevice::new(std::fs::read(image.path()).expect("the image"));
        match self {
            Self::Memory => Arc::new(memory),
            Self::Latency => Arc::new(LatencyDevice::new(Arc::new(memory), LATENCY, QUEUE)),
        }
    }
}

/// Returns the volume of a side with f2fs in this process.
pub fn f2fs(name: &'static str, kind: Kind, order: u8) -> Library {
    Library::on(name, kind.open(&Image::make_f2fs(IMAGE_BYTES)), order, FILE_BYTES)
}

/// Returns the volume of the side with ext4 in this process.
pub fn ext4(kind: Kind) -> Library {
    let order = CacheOptions::default().folio_order_max;
    Library::on(EXT4, kind.open(&Image::make(IMAGE_BYTES, 4096, "")), order, FILE_BYTES)
}

/// Returns the sides that are selected. Mounts are on tmpfs, so they are beside the device in
/// memory only.
pub fn all(selection: &Selection, kind: Kind) -> Vec<Box<dyn Side>> {
    let mut sides: Vec<Box<dyn Side>> = Vec::new();
    for (name, order) in ORDERS.into_iter().filter(|(name, _)| selection.has_side(name)) {
        sides.push(Box::new(f2fs(name, kind, order)));
    }
    if selection.has_side(EXT4) {
        sides.push(Box::new(ext4(kind)));
    }
    if kind == Kind::Memory {
        for (name, mounter) in mounters().into_iter().filter(|(name, _)| selection.has_side(name)) {
            let image = match mounter {
                Mounter::Kernel => Image::make(IMAGE_BYTES, 4096, ""),
                Mounter::Bifolio("rw,io_uring=off") => Image::make_f2fs(IMAGE_BYTES),
                _ => continue,
            };
            sides.push(Box::new(Mounted::new(name, image, mounter)));
        }
    }
    sides
}

/// Returns whether the writing thread does all the work of a side.
pub fn works_alone(side: &str) -> bool {
    [EXT4, KERNEL].contains(&side) || ORDERS.iter().any(|(name, _)| *name == side)
}
