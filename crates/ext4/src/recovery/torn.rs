//! A first superblock that a power cut has torn: finds what it was to be. Not here: damage of other kinds, for
//! which there are copies (`superblock/copy.rs`).
//!
//! The superblock takes two sectors, and a power cut may leave one as it was before a write and the other one as it
//! is after it. With `metadata_csum`, the second sector holds a checksum of both, which is wrong then: Linux does not
//! mount such a volume. So that the superblock can be found again, a volume with a journal is written in two ways only:
//!
//! - **Flags.** Opening and closing change nothing but [`FLAGS`], all of which are in the first sector. The superblock
//!   is found by changing them back, or as they were to be, until the checksum is right.
//! - **By the log.** All other changes are committed before they are written in place, so that the log holds the
//!   superblock as long as it may be torn. It is found by replaying the log in memory. What is left of the torn one
//!   says where the log is. Each of its sectors is either old or new, so one at least must be the log's.
//!
//! Both end with a superblock whose checksum is right. Anything else is damage, also a superblock that was torn
//! where nothing can be committed: without a journal, and when an error is kept after a failure
//! (`journal/failure.rs`).

use std::sync::Arc;

use base::{Error, Problem, Result};
use device::SharedDevice;
use iomap::PageCache;
use zerocopy::FromBytes;

use super::overlay;
use crate::features::Feature;
use crate::ondisk::superblock::{RawSuperblock, STATE_ERRORS, STATE_VALID};
use crate::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use crate::volume::Volume;

/// The bytes that a device writes as a whole.
const SECTOR_BYTES: usize = 512;

/// Changes one flag.
type Flip = fn(&mut RawSuperblock);

/// The flags that are changed in place without being in the log.
const FLAGS: [Flip; 4] = [
    |raw| raw.feature_incompat = (raw.feature_incompat.get() ^ bit(Feature::NeedsRecovery)).into(),
    |raw| {
        raw.feature_ro_compat = (raw.feature_ro_compat.get() ^ bit(Feature::OrphanPresent)).into()
    },
    |raw| raw.state = (raw.state.get() ^ STATE_VALID).into(),
    |raw| raw.state = (raw.state.get() ^ STATE_ERRORS).into(),
];

/// Returns the bytes that the torn superblock of `device` was to have, if `error`, met in reading it, is that its
/// checksum is wrong, and a tear explains this.
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
    by_flags(&torn, device.size())
        .or_else(|| by_log(&torn, device, cache, journal_device).ok().flatten())
        .inspect(|_| tracing::warn!("the superblock was torn by a power cut, and is put together"))
}

fn is_wrong_checksum(error: &Error) -> bool {
    match error {
        Error::Corrupt(corrupt) => {
            corrupt.structure == "superblock" && matches!(corrupt.problem, Problem::Checksum { .. })
        }
        _ => false,
    }
}

/// Returns `torn` with other flags, if the checksum is right with them.
fn by_flags(torn: &[u8; SUPERBLOCK_BYTES], device_bytes: u64) -> Option<[u8; SUPERBLOCK_BYTES]> {
    (1..1_u32 << FLAGS.len()).find_map(|chosen| {
        let mut bytes = *torn;
        let raw = RawSuperblock::mut_from_bytes(&mut bytes).expect("the array has its size");
        for (_, flip) in FLAGS.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1) {
            flip(raw);
        }
        Superblock::parse(&bytes, device_bytes).is_ok().then_some(bytes)
    })
}

/// Returns the superblock that the log holds, if `torn` can have become of it.
fn by_log(
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
    journal.recover(&replayed)?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    replayed.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let found = Superblock::parse(&bytes, device.size())?;
    let mut sectors = bytes.chunks(SECTOR_BYTES).zip(torn.chunks(SECTOR_BYTES));
    let explains = sectors.any(|(whole, torn)| whole == torn)
        && found.geometry.uuid == geometry.uuid
        // Otherwise the log would not be replayed.
        && found.has(Feature::NeedsRecovery);
    Ok(explains.then_some(bytes))
}

/// Returns the bit of `feature` in the field that holds it.
fn bit(feature: Feature) -> u32 {
    1 << feature.position().1
}
