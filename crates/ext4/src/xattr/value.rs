//! Reading of attribute values that are in their own inodes (`ea_inode`).
//!
//! Source: `fs/ext4/xattr.c`, functions `ext4_xattr_inode_*`. A flag marks such an inode. The time
//! of the last access is the crc32c of its value. Lustre wrote value inodes before that hash
//! existed. In these, the time of the last change is the number of the inode with the attribute,
//! and both inodes have the same generation.

use base::attributes::{FileType, Timestamp};
use base::checksum::crc32c;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};

use super::entries::{Entry, NameBytes, VALUE_BYTES_MAX, entry_hash};
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};

const STRUCTURE: &str = "extended attribute value";

/// Reads the value of `entry`, an attribute of `owner`, from inode `number`.
pub(crate) fn read(
    owner: &Inode,
    entry: &Entry<'_>,
    number: InodeNumber,
    size: u32,
) -> Result<Vec<u8>> {
    let volume = owner.volume();
    let holder = match volume.special_inode(number) {
        Err(Error::NotFound) => return Err(fault(number, Problem::Missing("inode"))),
        holder => holder?,
    };
    check_value_inode(&holder.record(), size)?;
    let block_size = volume.geometry().block_size;
    let mut value = Vec::new();
    for at in 0..block_size.blocks_for(size.into()) {
        let block = holder.read_block(FileBlock(at), STRUCTURE)?;
        let block = block.ok_or_else(|| fault(number, Problem::Missing("block")))?;
        let rest = (size as usize).saturating_sub(value.len());
        value.extend(block.iter().take(rest));
    }
    if !is_of_lustre(&holder.record(), &owner.record(), entry) {
        check_hashes(&holder.record(), entry, &value, volume.geometry().checksum_seed)?;
    }
    Ok(value)
}

/// Checks a reference to a value without reading it. The value's contents are known to match its
/// checksum.
pub(crate) fn check_reference(
    owner: &Inode,
    entry: &Entry<'_>,
    number: InodeNumber,
    size: u32,
) -> Result<()> {
    let holder = owner.volume().inode_record(number)?;
    check_value_inode(&holder, size)?;
    if is_of_lustre(&holder, &owner.record(), entry) {
        return Ok(());
    }
    check_entry_hash(&holder, entry, word(holder.accessed))
}

/// Returns the number of attributes that refer to this inode. It is stored in place of a time and
/// the version.
pub(crate) fn reference_count(holder: &InodeRecord) -> u64 {
    u64::from(word(holder.changed)) << 32 | u64::from(holder.version as u32)
}

/// Returns an error if an inode cannot hold a value of this size.
fn check_value_inode(holder: &InodeRecord, size: u32) -> Result<()> {
    check_kind(holder)?;
    if holder.size != u64::from(size) || size > VALUE_BYTES_MAX {
        let problem =
            Problem::Mismatch { field: "size", found: holder.size, expected: size.into() };
        return Err(fault(holder.number, problem));
    }
    Ok(())
}

/// Returns an error if an inode cannot hold a value.
pub(super) fn check_kind(holder: &InodeRecord) -> Result<()> {
    let problem = if !holder.flags.contains(InodeFlags::EA_INODE)
        || holder.flags.contains(InodeFlags::INLINE_DATA)
        || holder.flags.contains(InodeFlags::ENCRYPTED)
    {
        Problem::Invalid { field: "flags", found: holder.flags.0.into() }
    } else if holder.kind != FileType::Regular {
        Problem::Invalid { field: "mode", found: holder.kind.mode_bits().into() }
    } else {
        return Ok(());
    };
    Err(fault(holder.number, problem))
}

/// Returns the 32 bits that are stored in place of a time's seconds.
fn word(time: Timestamp) -> u32 {
    time.seconds as u32
}

/// Returns whether Lustre wrote the value inode `holder`.
fn is_of_lustre(holder: &InodeRecord, owner: &InodeRecord, entry: &Entry<'_>) -> bool {
    word(holder.accessed) != entry.hash
        && u64::from(word(holder.modified)) == owner.number.0
        && holder.generation == owner.generation
}

/// Verifies the value's checksum, which the value inode has, and the entry's hash.
fn check_hashes(
    holder: &InodeRecord,
    entry: &Entry<'_>,
    value: &[u8],
    volume_seed: u32,
) -> Result<()> {
    let (stored, computed) = (word(holder.accessed), crc32c(volume_seed, value));
    if stored != computed {
        return Err(fault(holder.number, Problem::Checksum { stored, computed }));
    }
    check_entry_hash(holder, entry, computed)
}

/// Verifies the entry's hash, which is made from its name and the value's checksum.
fn check_entry_hash(holder: &InodeRecord, entry: &Entry<'_>, checksum: u32) -> Result<()> {
    let hash = |bytes| entry_hash(entry.name, &checksum.to_le_bytes(), bytes);
    if [NameBytes::Unsigned, NameBytes::Signed].into_iter().any(|bytes| hash(bytes) == entry.hash) {
        return Ok(());
    }
    let (found, expected) = (entry.hash.into(), hash(NameBytes::Unsigned).into());
    Err(fault(holder.number, Problem::Mismatch { field: "hash", found, expected }))
}

fn fault(holder: InodeNumber, problem: Problem) -> Error {
    Error::corrupt(STRUCTURE, Location::inode(holder), problem)
}
