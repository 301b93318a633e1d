//! The choice of the format for a device.

use std::sync::Arc;

use base::{Error, Foreign, Result, Unsupported};
use device::{IncompleteDevice, SharedDevice};
use fs::{FileSystem, Format, FormatOptions};
use pagecache::PageCache;

/// Opens the volume on `device` with the first of `formats` that recognizes its superblock, or else
/// a copy of it.
///
/// Errors: `Unsupported` if none does; the error says what the device has instead. First
/// superblocks come first, because the boot block of a volume may begin like a container. Copies
/// come last: other contents may have replaced their volume.
pub(crate) fn open(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    formats: &[&dyn Format],
    options: &FormatOptions,
) -> Result<Arc<dyn FileSystem>> {
    for format in formats {
        if format.is_on(device)? {
            if let Some(member) = options.writable.then(|| member(device, *format)).flatten() {
                return Err(Error::Unsupported(Unsupported::Member(member)));
            }
            return format.open(device, cache, options);
        }
    }
    if let Some(refusal) = device::refusal(&**device) {
        return Err(refusal);
    }
    for format in formats {
        if format.has_copy_on(device, cache)? {
            return format.open(device, cache, options);
        }
    }
    let remains = || formats.iter().find_map(|format| format.remains_on(device));
    Err(match device::unknown(&**device) {
        Error::Unsupported(unknown @ (Unsupported::Format | Unsupported::Blank(_))) => {
            Error::Unsupported(remains().unwrap_or(unknown))
        }
        // Partitions, or the damage to their table.
        error => error,
    })
}

/// Returns what the device of a volume of the format is a member of.
fn member(device: &SharedDevice, format: &dyn Format) -> Option<Foreign> {
    device::member(&**device, format.volume_bytes(device).unwrap_or(u64::MAX))
}

/// Returns what the device of a volume of one of `formats` is a member of.
pub(crate) fn membership(device: &SharedDevice, formats: &[&dyn Format]) -> Option<Foreign> {
    let format = formats.iter().find(|format| format.is_on(device).unwrap_or(false))?;
    member(device, *format)
}

/// Returns the warning before a partition is changed that was found by a table with this damage.
pub fn table_warning(damage: &Error) -> String {
    format!(
        "the partition table is damaged, and the partition was found by what is left of it: {damage}; repair it with sfdisk or gdisk"
    )
}

/// Returns warnings of changes to the volume on `device`: a user may lose more than what is
/// changed.
pub(crate) fn warnings_of_changes(device: &SharedDevice, formats: &[&dyn Format]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(damage) = device.origin().and_then(|origin| origin.damage) {
        warnings.push(table_warning(damage));
    }
    let end = formats.iter().find_map(|format| format.volume_bytes(device));
    if end.is_some_and(|end| device::has_verified_boot(&**device, end)) {
        warnings.push(
            "it has a footer of Android Verified Boot, and a device that verifies it refuses a changed volume; afterwards, \
             `avbtool erase_footer` and `avbtool add_hashtree_footer` make the footer again"
                .to_owned(),
        );
    }
    warnings
}

/// Opens the volume on `device` for reading, although the device may end before the volume does. If
/// the last changes cannot be recovered, opens it without recovery. Also returns what is missing,
/// for users.
pub(crate) fn open_incomplete(
    device: SharedDevice,
    cache: &Arc<PageCache>,
    formats: &[&dyn Format],
    options: FormatOptions,
) -> Result<(Arc<dyn FileSystem>, Vec<String>)> {
    if options.writable {
        return Err(Error::InvalidArgument("an incomplete image cannot be opened for writing"));
    }
    let size = formats.iter().find_map(|format| format.volume_bytes(&device));
    let mut missing = Vec::new();
    let device: SharedDevice = match size {
        // Positions in files and devices of the host are of 63 bits.
        Some(size) if i64::try_from(size).is_err() => {
            return Err(Unsupported::Operation("a volume of 2^63 bytes or more").into());
        }
        Some(size) if size > device.size() => {
            let lacks = size - device.size();
            missing.push(format!(
                "the image is incomplete: it lacks the last {lacks} bytes of the volume"
            ));
            Arc::new(IncompleteDevice::new(device, size))
        }
        _ => device,
    };
    let error = match open(&device, cache, formats, &options) {
        Err(error @ (Error::Io(_) | Error::Corrupt(_))) if !options.no_recovery => error,
        opened => return Ok((opened?, missing)),
    };
    let unrecovered = FormatOptions { no_recovery: true, ..options };
    let volume = open(&device, cache, formats, &unrecovered).map_err(|_| error.clone())?;
    missing.push(format!("the last changes cannot be recovered, and are not shown: {error}"));
    Ok((volume, missing))
}
