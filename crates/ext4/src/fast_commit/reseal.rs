//! Correction of inode checksums that an interrupted replay has left. Linux's replay copies an
//! image of an inode to the table together with the image's old checksum, makes that durable, and
//! only later updates the checksum. Not here: inodes that were damaged in another way.
//!
//! The old checksum covers also what the replay does not copy: the block area, and extended
//! attributes in the inode. It was computed when the block area was another one, so no checksum on
//! the disk covers these bytes in this state. Damage in them is accepted, unless an extent tree's
//! root or an attribute is invalid. A refusal would lose access to all files because of a power cut
//! at that moment; e2fsck accepts such inodes, too.

use std::sync::Arc;

use base::{Location, Result};

use super::Change;
use super::image::{InodeImage, seal_image};
use crate::inode::record::InodeRecord;
use crate::volume::Volume;

/// Updates the checksum of each inode on the volume that agrees with one of its images in
/// `commits`, and has a wrong checksum.
pub(super) fn reseal(volume: &Arc<Volume>, commits: &[Vec<Change>]) -> Result<()> {
    let geometry = volume.geometry();
    if !geometry.has_inode_checksums() {
        return Ok(());
    }
    for change in commits.iter().flatten() {
        let Change::Inode { inode: number, image } = change else { continue };
        let number = *number;
        // An image that cannot be parsed is an error later.
        let Ok(image) = InodeImage::parse(image, geometry, Location::inode(number)) else {
            continue;
        };
        if geometry.is_reserved_inode(number) || volume.is_inode_unwritten(number)? {
            continue;
        }
        let (buffer, at, location) = volume.raw_inode(number)?;
        let block = buffer.block();
        let found = buffer[at..at + geometry.inode_size as usize].to_vec();
        drop(buffer);
        let parse = |bytes: &[u8]| InodeRecord::parse(bytes, geometry, number, location);
        if !image.was_copied_to(&found) || parse(&found).is_ok() {
            continue;
        }
        let mut copied = found;
        seal_image(&mut copied, geometry, number);
        if parse(&copied).is_err() {
            continue;
        }
        volume.change(1, |handle| {
            handle.edit(block, "inode", location, |table| {
                table[at..at + copied.len()].copy_from_slice(&copied);
            })
        })?;
    }
    Ok(())
}
