//! The check of quota files: what each owner, group and project uses, against the inodes found.
//! Not here: the type and the blocks of the files (`special`, `inodes`).

use std::collections::BTreeMap;

use base::attributes::FileType;
use base::{FileBlock, InodeNumber, Location, Result};
use fs::quota::{BLOCK_BYTES, QuotaBlock, QuotaFile, QuotaKind, ReadBlocks, Usage, compare_usage};

use super::Check;
use super::states::Role;
use crate::ROOT_INODE;
use crate::inode::Inode;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::volume::Volume;

const STRUCTURE: &str = "quota file";

/// What the inodes of each id use, for the kinds of quota with a file.
#[derive(Debug)]
pub(super) struct QuotaUsage {
    files: [Option<InodeNumber>; QuotaKind::ALL.len()],
    used: [BTreeMap<u32, Usage>; QuotaKind::ALL.len()],
    /// The number of symbolic links with inline data.
    inline_links: [BTreeMap<u32, u64>; QuotaKind::ALL.len()],
    /// Whether the usage is not known, since an inode could not be read. That was reported.
    pub(super) is_unknown: bool,
}

impl QuotaUsage {
    pub(super) fn new(volume: &Volume) -> Self {
        let named = &volume.superblock().inodes;
        let files = [named.user_quota, named.group_quota, named.project_quota];
        Self {
            files,
            used: Default::default(),
            inline_links: Default::default(),
            is_unknown: false,
        }
    }
}

impl Check<'_> {
    /// Counts an inode for the quota of its owner, group and project. Inodes of the format itself
    /// are not charged.
    pub(super) fn count_for_quota(&mut self, record: &InodeRecord, role: Role) {
        let is_charged = matches!(role, Role::Named(_) | Role::Orphan(_))
            && (record.number == ROOT_INODE || !self.geometry().is_reserved_inode(record.number));
        if !is_charged {
            return;
        }
        let ids = [record.uid, record.gid, record.project.unwrap_or(0)];
        let is_inline_link =
            record.kind == FileType::Symlink && record.flags.contains(InodeFlags::INLINE_DATA);
        for (index, id) in ids.into_iter().enumerate() {
            if self.quota.files[index].is_some() {
                let used = self.quota.used[index].entry(id).or_default();
                used.bytes = used.bytes.saturating_add(record.blocks.saturating_mul(512));
                used.inodes += 1;
                if is_inline_link {
                    *self.quota.inline_links[index].entry(id).or_default() += 1;
                }
            }
        }
    }

    /// Checks the quota files, and compares them with the inodes found.
    pub(super) fn check_quota(&mut self) {
        for (index, kind) in (0..).zip(QuotaKind::ALL) {
            let Some(number) = self.quota.files[index] else { continue };
            // Reported with the inode.
            let Ok(inode) = self.volume.special_inode(number) else { continue };
            let mut stored = BTreeMap::new();
            let read = QuotaFile::open(kind, FileBlocks(&inode)).and_then(|file| {
                file.for_each(&mut |id, usage| {
                    stored.insert(id, usage);
                })
            });
            if self.report.ok(read).is_none() || !self.is_usage_known() {
                continue;
            }
            let used = std::mem::take(&mut self.quota.used[index]);
            // The kernel charges symbolic links with inline data like other inodes. e2fsck 1.47
            // does not, and corrects the usage accordingly.
            for (id, links) in &self.quota.inline_links[index] {
                if let (Some(stored), Some(used)) = (stored.get_mut(id), used.get(id)) {
                    if stored.inodes.checked_add(*links) == Some(used.inodes) {
                        stored.inodes = used.inodes;
                    }
                }
            }
            compare_usage(&mut self.report, Location::inode(number), &stored, &used);
        }
    }

    /// Returns whether the inodes found tell the usage. A recovery in memory does not write what
    /// fast commits and orphans change to the quota files. Orphans are charged until they are
    /// deleted. Attribute values in inodes are charged to each inode that refers to them.
    fn is_usage_known(&self) -> bool {
        let has_changed = self.volume.recovery().is_some_and(|report| {
            let orphans = &report.orphans;
            report.fast_commits > 0 || orphans.deleted > 0 || orphans.truncated > 0
        });
        let has_orphans = !self.orphans.is_empty();
        !self.quota.is_unknown && !has_changed && !has_orphans && self.value_inodes.is_empty()
    }
}

/// The blocks of a quota file.
struct FileBlocks<'a>(&'a Inode);

impl ReadBlocks for FileBlocks<'_> {
    fn location(&self) -> Location {
        Location::inode(self.0.number())
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, block: u32) -> Result<QuotaBlock> {
        let per_block = self.0.volume().geometry().block_size.len() / BLOCK_BYTES;
        let at = FileBlock(u64::from(block) / per_block as u64);
        let mut contents = [0; BLOCK_BYTES];
        if let Some(buffer) = self.0.read_block(at, STRUCTURE)? {
            let start = block as usize % per_block * BLOCK_BYTES;
            contents.copy_from_slice(&buffer[start..start + BLOCK_BYTES]);
        }
        Ok(contents)
    }
}
