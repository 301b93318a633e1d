//! Reconstruction of a first superblock that a power cut has torn. Not here: other damage, for
//! which there are copies (`superblock/copy.rs`).
//!
//! The superblock has two sectors. A power cut during a write may leave an old sector and a new
//! one. With `metadata_csum`, the second sector contains a checksum of both, which is then wrong,
//! and Linux does not mount such a volume. To allow a reconstruction, the superblock of a volume
//! with a journal is written in two ways only:
//!
//! - **Flags.** Opening and closing a volume change only [`FLAGS`], which are all in the first
//!   sector. The reconstruction tries all combinations of these flags until the checksum is
//!   correct.
//! - **Through the log.** All other changes are committed before they are written in place, so the
//!   log contains the superblock while it may be torn. The reconstruction replays the log in
//!   memory; the torn superblock shows where the log is. Each torn sector is either old or new, so
//!   at least one must be equal to the log's.
//!
//! A reconstructed superblock has a correct checksum. In all other cases the superblock is damaged.
//! This includes superblocks that were torn when they could not be committed: without a journal,
//! and when an error is stored after a failure (`journal/failure.rs`).

use std::sync::Arc;

use base::{Error, Problem, Result};
use device::SharedDevice;
use iomap::PageCache;
use zerocopy::FromBytes;

use super::overlay;
use crate::features::Feature;
use crate::ondisk::superblock::{RawSuperblock, STATE_ERRORS, STATE_VALID, SUPERBLOCK_OFFSET};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::volume::Volume;

/// The number of bytes that a device writes atomically.
const SECTOR_BYTES: usize = 512;

/// A function that inverts one flag.
type Flip = fn(&mut RawSuperblock);

/// The flags that are changed in place without a commit to the log.
const FLAGS: [Flip; 4] = [
    |raw| raw.feature_incompat = (raw.feature_incompat.get() ^ bit(Feature::NeedsRecovery)).into(),
    |raw| {
        raw.feature_ro_compat = (raw.feature_ro_compat.get() ^ bit(Feature::OrphanPresent)).into()
    },
    |raw| raw.state = (raw.state.get() ^ STATE_VALID).into(),
    |raw| raw.state = (raw.state.get() ^ STATE_ERRORS).into(),
];

/// Returns the intended bytes of the torn superblock of `device`. `error` is the error of reading
/// it. `None` unless the error is a wrong checksum, and a torn write explains it.
pub(crate) fn untorn(
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    journal_device: Option<&SharedDevice>,
    error: &Error,
) -> Option<[u8; SUPERBLOCK_BYTES]> {
    if !is_wrong_checksum(error) {
        return None;
    }
    let mut torn = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut torn).ok()?;
    restore_flags(&torn, device.size())
        .or_else(|| restore_from_log(&torn, device, cache, journal_device).ok().flatten())
        .inspect(|_| tracing::warn!("a power cut has torn the superblock; it is reconstructed"))
}

fn is_wrong_checksum(error: &Error) -> bool {
    match error {
        Error::Corrupt(corrupt) => {
            corrupt.structure == "superblock" && matches!(corrupt.problem, Problem::Checksum { .. })
        }
        _ => false,
    }
}

/// Returns `torn` with the flags for which its checksum is correct, if there are such flags.
fn restore_flags(
    torn: &[u8; SUPERBLOCK_BYTES],
    device_bytes: u64,
) -> Option<[u8; SUPERBLOCK_BYTES]> {
    (1..1_u32 << FLAGS.len()).find_map(|chosen| {
        let mut bytes = *torn;
        let raw = RawSuperblock::mut_from_bytes(&mut bytes).expect("the array has its size");
        for (_, flip) in FLAGS.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1) {
            flip(raw);
        }
        Superblock::parse(&bytes, device_bytes).is_ok().then_some(bytes)
    })
}

/// Returns the superblock in the log, if a torn write of it can have resulted in `torn`.
fn restore_from_log(
    torn: &[u8; SUPERBLOCK_BYTES],
    device: &SharedDevice,
    cache: &Arc<PageCache>,
    journal_device: Option<&SharedDevice>,
) -> Result<Option<[u8; SUPERBLOCK_BYTES]>> {
    let superblock = Superblock::parse_torn(torn, device.size())?;
    let geometry = superblock.geometry.clone();
    let volume = Arc::new(Volume::with_superblock(Arc::clone(device), cache, superblock));
    let Some(journal) = volume.journal(journal_device)? else { return Ok(None) };
    let replayed: SharedDevice = overlay(device, &journal, geometry.block_size);
    journal.recover(&replayed, volume.superblock().logged_volume())?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    replayed.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let found = Superblock::parse(&bytes, device.size())?;
    let mut sectors = bytes.chunks(SECTOR_BYTES).zip(torn.chunks(SECTOR_BYTES));
    let explains = sectors.any(|(whole, torn)| whole == torn)
        && found.geometry.uuid == geometry.uuid
        // Without this feature, recovery would not replay the log.
        && found.has(Feature::NeedsRecovery);
    Ok(explains.then_some(bytes))
}

/// Returns the bit of `feature` in its field.
fn bit(feature: Feature) -> u32 {
    1 << feature.position().1
}
