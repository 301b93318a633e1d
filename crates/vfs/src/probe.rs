//! Finds out which format a device holds, and opens it.

use std::sync::Arc;

use base::{Error, Result, Unsupported};
use device::SharedDevice;
use pagecache::PageCache;

use crate::file_system::FileSystem;
use crate::volume::VolumeOptions;

/// Opens the file system on `device`, or says that there is none.
pub(crate) fn open(
    device: SharedDevice,
    cache: &Arc<PageCache>,
    options: &VolumeOptions,
) -> Result<Arc<dyn FileSystem>> {
    let found = crate::ext4::open(&device, cache, options)?;
    found.ok_or(Error::Unsupported(Unsupported::Format))
}
