//! Quota: what each inode is charged to its owner, group and project. The superblock names the
//! quota files.
//!
//! - `charges.rs`: the charges of operations and recoveries
//! - `edited.rs`: the quota files in the overlay
//!
//! Not here: the format of quota files (`fs::quota`).

mod charges;
mod edited;

use std::mem::offset_of;

use base::Result;
use base::view::view_at;
use fs::quota::{QuotaKind, Usage};

use crate::features::Feature;
use crate::geometry::{Geometry, WORD_BYTES};
use crate::inode::record::inline;
use crate::node::Node;
use crate::ondisk::node::{RawExtraAttributes, RawInode};

pub(crate) use self::charges::Quotas;

/// What an inode is charged, and to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Charged {
    /// The owner, the group and the project.
    pub(crate) ids: [u32; QuotaKind::ALL.len()],
    pub(crate) usage: Usage,
}

impl Charged {
    /// Returns what the inode with the block `node` is charged: its blocks, but not that of the
    /// inode itself.
    pub(crate) fn of(node: &Node, geometry: &Geometry) -> Result<Self> {
        let raw: &RawInode = view_at(node.bytes(), 0, "inode", node.location())?;
        // A damaged inode must not overflow sums.
        let blocks = raw.blocks.get().saturating_sub(1).min(geometry.block_count);
        let bytes = blocks << geometry.block_size.shift();
        Ok(Self {
            ids: [raw.uid.get(), raw.gid.get(), project_of(raw, node, geometry)?],
            usage: Usage { bytes, inodes: 1 },
        })
    }
}

/// Returns the project of an inode. One without the field has project 0.
fn project_of(raw: &RawInode, node: &Node, geometry: &Geometry) -> Result<u32> {
    const END: usize = offset_of!(RawExtraAttributes, project) + WORD_BYTES;
    if raw.inline & inline::EXTRA == 0 || !geometry.features.has(Feature::ProjectQuota) {
        return Ok(0);
    }
    let at = size_of::<RawInode>();
    let extra: &RawExtraAttributes = view_at(node.bytes(), at, "inode", node.location())?;
    let has_project = usize::from(extra.size.get()) >= END;
    Ok(if has_project { extra.project.get() } else { 0 })
}
