//! Attribute blocks that several inodes share.
//! Not here: their contents.

use base::{FsBlock, InodeNumber, Location, Result};
use zerocopy::FromBytes;

use super::body::seal_block;
use super::entries::block_header;
use crate::journal::Handle;
use crate::ondisk::xattr::RawXattrBlockHeader;
use crate::volume::Volume;

/// Returns the number of inodes that use an attribute block.
pub(super) fn references(block: &[u8], location: Location) -> Result<u32> {
    Ok(block_header(block, location)?.reference_count.get())
}

/// Decrements the reference count of a block that was read and has several references.
pub(super) fn count_down(
    volume: &Volume,
    handle: &mut Handle<'_>,
    user: InodeNumber,
    block: FsBlock,
) -> Result<()> {
    let location = Location::inode(user).at_block(block);
    handle.edit(block, "extended attribute block", location, |bytes| {
        let Ok((header, _)) = RawXattrBlockHeader::mut_from_prefix(bytes) else {
            unreachable!("a block has more bytes than the header");
        };
        header.reference_count = (header.reference_count.get() - 1).into();
        seal_block(bytes, block, volume.geometry().metadata_seed());
    })
}
