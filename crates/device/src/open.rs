//! Opens an image: chooses the backend, and the part of the image that is the volume.

use std::path::Path;
use std::sync::Arc;

use base::{DeviceOffset, Result};

use crate::SharedDevice;
use crate::file::FileDevice;
use crate::partition::PartitionTable;
use crate::slice::Slice;

/// How to open an image.
#[derive(Clone, Copy, Debug)]
pub struct OpenDevice {
    /// Refuse every write, and let others read the image at the same time.
    pub read_only: bool,
    /// Which part of the image to open.
    pub part: Part,
}

impl Default for OpenDevice {
    fn default() -> Self {
        Self { read_only: true, part: Part::Whole }
    }
}

/// A part of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// From a byte to the end.
    From(DeviceOffset),
    /// The partition of this number in the image's partition table.
    Partition(u32),
}

/// Opens the file or block device at `path`.
pub fn open(path: &Path, options: OpenDevice) -> Result<SharedDevice> {
    let file = FileDevice::open(path, options.read_only)?;
    let sector_size = file.sector_size();
    let device: SharedDevice = Arc::new(file);
    match options.part {
        Part::Whole => Ok(device),
        Part::From(start) => Ok(Arc::new(Slice::from(device, start)?)),
        Part::Partition(number) => {
            let table = PartitionTable::read(&*device, sector_size)?;
            Ok(Arc::new(table.open(device, number)?))
        }
    }
}
