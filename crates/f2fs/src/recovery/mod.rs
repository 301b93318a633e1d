//! Recovery of a volume that was not unmounted, which Linux calls roll-forward.
//!
//! First, the inodes that had no name at the time of the checkpoint are deleted (`orphans`). Then
//! the nodes that fsync(2) wrote after the checkpoint are found (`chain`), chosen (`plan`) and
//! replayed (`replay`). All changes go to the overlay (`overlay/`), through which the volume reads
//! nodes and directories. The changes stay in memory, or become a new checkpoint if the volume is
//! opened for writing.

mod chain;
mod names;
mod orphans;
mod owners;
mod plan;
mod replay;
mod segments;
mod slots;

use std::collections::HashMap;
use std::sync::Arc;

use base::{Error, FsBlock, InodeNumber, Location, Result};
use iomap::MetadataBuffer;

use self::chain::ChainNode;
pub(crate) use self::chain::{ChainVersion, mark};
pub(crate) use self::names::stored_name;
use self::replay::Replay;
use crate::core::Core;
use crate::edit::Editor;
use crate::inode::record::InodeRecord;
use crate::nat::Nid;
use crate::node::{Node, footer};
use crate::ondisk::checkpoint::DISABLED;
use crate::ondisk::node::RawNodeFooter;
use crate::quota::Quotas;
use crate::summaries::BlockKind;

/// The name in errors of a node that fsync(2) wrote after the checkpoint.
const STRUCTURE: &str = "synced node";
/// Index of the log of warm nodes.
const WARM_NODES: usize = 1;
/// The number of blocks that are read ahead of a chain without gaps.
const READAHEAD_BLOCKS: u64 = 64;

/// A report of the recovery of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// The number of deleted inodes without a name: those of the checkpoint, and those whose name a
    /// recovered file has now.
    pub orphans_deleted: u64,
    /// The first error of an orphan that could not be deleted completely. No reader can see it, but
    /// its space is not counted as free.
    pub orphan_failure: Option<Error>,
    /// The error of quota files that are damaged or cannot be read, so that what was recovered is
    /// not charged.
    pub quota_failure: Option<Error>,
    /// The number of inodes with replayed nodes.
    pub inodes_recovered: u64,
    /// The number of inodes among them that the checkpoint does not have.
    pub inodes_created: u64,
    /// The number of replayed nodes.
    pub nodes_replayed: u64,
    /// The number of names that were added to directories.
    pub names_added: u64,
    /// The number of names among them that belonged to another inode in the checkpoint.
    pub names_replaced: u64,
    /// The number of inodes that keep their old extended attributes, since the new ones were not
    /// synced completely.
    pub xattrs_kept: u64,
}

/// Recovers what was synced after the last checkpoint, in the volume's overlay. Returns `None` if
/// there is nothing to recover.
///
/// # Errors
///
/// `Corrupt` if the chain of synced nodes contradicts itself or the checkpoint, and `Unsupported`
/// if it needs too much memory. The volume can be opened without recovery then, as Linux does it by
/// itself.
pub(crate) fn recover(volume: &Arc<Core>) -> Result<Option<RecoveryReport>> {
    let mut report = RecoveryReport::default();
    let chain = if volume.checkpoint().has(DISABLED) { Vec::new() } else { read_chain(volume)? };
    let orphans = &volume.checkpoint().orphans;
    if orphans.is_empty() && chain.iter().all(|node| !node.is_fsynced) {
        return Ok(None);
    }
    let mut editor = Editor::new(volume);
    for orphan in orphans {
        match orphans::delete_orphan(&editor, *orphan) {
            Ok(()) => report.orphans_deleted += 1,
            // One warning is enough: a hostile list can have hundreds of thousands of invalid
            // numbers.
            Err(error) => {
                report.orphan_failure.get_or_insert_with(|| {
                    tracing::warn!(%error, inode = orphan.0, "an orphan cannot be deleted completely");
                    error
                });
            }
        }
    }
    let planned = plan::plan(&chain, |inode| exists(volume, inode))?;
    let (chain, planned) = (&chain, &planned);
    Replay {
        editor: &mut editor,
        chain,
        planned,
        report: &mut report,
        segments: None,
        xattrs_before: HashMap::new(),
    }
    .run()?;
    let mut quotas = Quotas::of(volume, None);
    quotas.charge_recovery(&mut editor)?;
    report.quota_failure = quotas.failure().cloned();
    Ok(Some(report))
}

/// Returns the nodes that were written after the checkpoint.
fn read_chain(volume: &Core) -> Result<Vec<ChainNode>> {
    let main = &volume.geometry().main;
    let version = ChainVersion::of(&volume.checkpoint());
    let start = chain_start(volume);
    let mut ahead_to = start;
    chain::scan(start, |at| {
        if !main.contains(&at) {
            return Ok(None);
        }
        if at > start && at >= ahead_to {
            ahead_to = FsBlock((at.0 + READAHEAD_BLOCKS).min(main.end.0));
            volume.metadata().read_ahead(at, at..ahead_to);
        }
        let block = volume.metadata().read(at, STRUCTURE, Location::block(at))?;
        let footer = footer(&block, Location::block(at))?;
        if !version.matches(footer.checkpoint_version.get()) || is_torn(volume, footer, &block) {
            return Ok(None);
        }
        let next = FsBlock(footer.next_block.get().into());
        if next.0 != at.0 + 1 {
            ahead_to = next;
        }
        Ok(Some((ChainNode::new(at, footer), next)))
    })
}

/// Returns whether a node of the chain is an inode with a wrong checksum. A device that writes less
/// than a block at once can leave the footer of an inode with older contents. The chain ends before
/// it: no sync that has succeeded wrote it, or a node after it. Linux verifies no checksum here,
/// and recovers what it finds.
pub(crate) fn is_torn(volume: &Core, footer: &RawNodeFooter, block: &MetadataBuffer) -> bool {
    let (nid, inode) = (footer.nid.get(), footer.inode.get());
    nid == inode && {
        let node = Node::new(block.clone(), Nid(nid), InodeNumber(inode.into()));
        !node.is_ok_and(|node| InodeRecord::has_valid_checksum(&node, volume.geometry()))
    }
}

/// Returns the blocks that a checkpoint after a recovery must not write to: the chain, and data
/// that it refers to.
pub(crate) fn blocks_to_keep(volume: &Core) -> Result<Vec<(FsBlock, BlockKind)>> {
    let chain = read_chain(volume)?;
    let data = volume.overlay_or_new().read().owned_blocks();
    let nodes = chain.iter().map(|node| (node.block, BlockKind::Node));
    Ok(nodes.chain(data.into_iter().map(|block| (block, BlockKind::Data))).collect())
}

/// Returns the block in which the chain of synced nodes begins: the next one of the log of warm
/// nodes.
pub(crate) fn chain_start(volume: &Core) -> FsBlock {
    let checkpoint = volume.checkpoint();
    let raw = &checkpoint.raw;
    let start = volume.geometry().segment_start(raw.node_segments[WARM_NODES].get());
    FsBlock(start.0 + u64::from(raw.node_offsets[WARM_NODES].get()))
}

/// Returns whether the volume has an inode.
fn exists(volume: &Arc<Core>, inode: InodeNumber) -> Result<bool> {
    match volume.inode(inode) {
        Ok(_) => Ok(true),
        Err(Error::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}
