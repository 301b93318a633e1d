//! The check of quota files: what each owner, group and project uses, against the inodes found.
//! Not here: the type and the blocks of the files (`tree`, `data`).

use std::collections::BTreeMap;

use base::{FileBlock, FsBlock, InodeNumber, Location, Result};
use fs::quota::{BLOCK_BYTES, QuotaBlock, QuotaFile, QuotaKind, ReadBlocks, Usage, compare_usage};

use super::Check;
use crate::core::Core;
use crate::node::Node;
use crate::quota::Charged;

const STRUCTURE: &str = "quota file";

/// What the check of quota files compares.
#[derive(Debug)]
pub(super) struct QuotaCheck {
    files: [Option<InodeNumber>; QuotaKind::ALL.len()],
    /// What the inodes of each id use.
    used: [BTreeMap<u32, Usage>; QuotaKind::ALL.len()],
    /// The blocks of the quota files.
    blocks: BTreeMap<(InodeNumber, FileBlock), FsBlock>,
    sizes: BTreeMap<InodeNumber, u64>,
}

impl QuotaCheck {
    pub(super) fn new(volume: &Core) -> Self {
        Self {
            files: volume.superblock().quota_files(),
            used: Default::default(),
            blocks: BTreeMap::new(),
            sizes: BTreeMap::new(),
        }
    }

    fn is_file(&self, number: InodeNumber) -> bool {
        self.files.contains(&Some(number))
    }

    /// Counts an inode. `size` is that of its data.
    pub(super) fn count(&mut self, number: InodeNumber, charged: &Charged, size: u64) {
        if self.is_file(number) {
            // Quota files are not charged.
            self.sizes.insert(number, size);
            return;
        }
        for ((used, id), file) in self.used.iter_mut().zip(charged.ids).zip(self.files) {
            if file.is_some() {
                let used = used.entry(id).or_default();
                used.bytes = used.bytes.saturating_add(charged.usage.bytes);
                used.inodes += charged.usage.inodes;
            }
        }
    }

    /// Records a block of a file, if it is a quota file.
    pub(super) fn see_block(&mut self, number: InodeNumber, at: FileBlock, block: FsBlock) {
        if self.is_file(number) {
            self.blocks.insert((number, at), block);
        }
    }
}

impl Check<'_> {
    /// Counts an inode for the quota of its owner, group and project.
    pub(super) fn count_for_quota(&mut self, node: &Node, size: u64) {
        let charged = Charged::of(node, self.geometry());
        if let Some(charged) = self.report.ok(charged) {
            self.quota.count(node.inode, &charged, size);
        }
    }

    /// Compares the quota files with the inodes found.
    pub(super) fn check_quota(&mut self) {
        for (index, kind) in (0..).zip(QuotaKind::ALL) {
            let Some(number) = self.quota.files[index] else { continue };
            // A file that is missing was reported.
            let Some(size) = self.quota.sizes.get(&number).copied() else { continue };
            let mut stored = BTreeMap::new();
            let file = CheckedFile { check: self, number, size };
            let read = QuotaFile::open(kind, file).and_then(|file| {
                file.for_each(&mut |id, usage| {
                    stored.insert(id, usage);
                })
            });
            // The usage of files that could not be read is not known.
            if self.report.ok(read).is_none() || self.has_unread_files {
                continue;
            }
            let used = std::mem::take(&mut self.quota.used[index]);
            compare_usage(&mut self.report, Location::inode(number), &stored, &used);
        }
    }
}

/// A quota file whose blocks the check has seen.
struct CheckedFile<'c, 'v> {
    check: &'c Check<'v>,
    number: InodeNumber,
    size: u64,
}

impl ReadBlocks for CheckedFile<'_, '_> {
    fn location(&self) -> Location {
        Location::inode(self.number)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, block: u32) -> Result<QuotaBlock> {
        let per_block = self.check.geometry().block_size.len() / BLOCK_BYTES;
        let at = FileBlock(u64::from(block) / per_block as u64);
        let mut contents = [0; BLOCK_BYTES];
        let Some(address) = self.check.quota.blocks.get(&(self.number, at)) else {
            return Ok(contents);
        };
        let location = self.location().at_file_block(at);
        let buffer = self.check.volume.metadata().read(*address, STRUCTURE, location)?;
        let start = block as usize % per_block * BLOCK_BYTES;
        contents.copy_from_slice(&buffer[start..start + BLOCK_BYTES]);
        Ok(contents)
    }
}
