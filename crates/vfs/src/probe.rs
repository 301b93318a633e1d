//! Finds out which format a device holds, and opens it.

use std::sync::Arc;

use base::{Error, Result, Unsupported};
use device::SharedDevice;
use pagecache::PageCache;

use crate::file_system::FileSystem;

/// Opens the file system on `device`, or says that there is none.
pub(crate) fn open(
    _device: SharedDevice,
    _cache: &Arc<PageCache>,
    _no_recovery: bool,
) -> Result<Arc<dyn FileSystem>> {
    Err(Error::Unsupported(Unsupported::Format))
}
