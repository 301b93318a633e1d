//! The block of a node as it is written: its contents in the overlay, with a new footer and
//! checksum. Not here: the place of the block, and when it is written (`checkpoint`, `sync`).

use base::FsBlock;
use zerocopy::FromBytes;

use crate::geometry::Geometry;
use crate::inode::checksum::seal;
use crate::nat::Nid;
use crate::node::{FLAG_BITS, footer_mut};
use crate::ondisk::node::RawInode;
use crate::overlay::OverlayNode;
use crate::recovery::mark;
use crate::write::allocate::logs::LogName;

/// What a node's footer says about the chain of synced nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The marks of the last node of a call of fsync(2), and of an inode with a new name.
    pub(crate) marks: u32,
    /// The version of the chain.
    pub(crate) version: u64,
    /// The block of the chain's next node.
    pub(crate) next: FsBlock,
}

impl Link {
    /// That of a node in no chain: no checkpoint has the version zero.
    pub(crate) const NONE: Self = Self { marks: 0, version: 0, next: FsBlock(0) };
}

/// Returns the block of a node in `log`.
pub(crate) fn stored_node(
    geometry: &Geometry,
    (nid, node): (Nid, &OverlayNode),
    log: LogName,
    link: Link,
) -> Vec<u8> {
    let mut bytes = node.contents.to_vec();
    let cold = if log == LogName::WarmNodes { mark::COLD } else { 0 };
    let footer = footer_mut(&mut bytes);
    footer.flags.set(node.position() << FLAG_BITS | cold | link.marks);
    footer.checkpoint_version.set(link.version);
    // Addresses have 32 bits.
    footer.next_block.set(link.next.0 as u32);
    if node.inode.0 == u64::from(nid.0) {
        let (raw, _) = RawInode::mut_from_prefix(&mut bytes).expect("a block is larger");
        // The cached extent may have other blocks now.
        raw.extent = Default::default();
        seal(&mut bytes, nid, geometry);
    }
    bytes
}
