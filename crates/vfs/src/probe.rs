//! The choice of the format for a device.

use std::sync::Arc;

use base::{Error, Result, Unsupported};
use device::SharedDevice;
use fs::{FileSystem, Format, FormatOptions};
use pagecache::PageCache;

/// Opens the volume on `device` with the first of `formats` that recognizes its superblock, or else a copy of it.
/// Errors: `Unsupported` if none does; the error names a container of disk images if the device has one. Formats come
/// first, because the boot block of a volume may begin like a container.
pub(crate) fn open(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    formats: &[&dyn Format],
    options: &FormatOptions,
) -> Result<Arc<dyn FileSystem>> {
    for format in formats {
        if format.is_on(device)? {
            return format.open(device, cache, options);
        }
    }
    for format in formats {
        if format.has_copy_on(device, cache)? {
            return format.open(device, cache, options);
        }
    }
    Err(device::refusal(&**device).unwrap_or(Error::Unsupported(Unsupported::Format)))
}
