//! The check of inodes that the format uses itself: orphans (list and file), journal, quota files,
//! and the resize inode.

use std::iter;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result, Unsupported};
use zerocopy::little_endian::U32;

use super::Check;
use super::inodes::RESIZE_INODE;
use crate::features::Feature;
use crate::indirect::DIRECT;
use crate::inode::Inode;
use crate::inode::record::InodeRecord;
use crate::orphans::block::ORPHAN_FILE;
use crate::orphans::file;
use crate::volume::Volume;

const ORPHAN_LIST: &str = "orphan list";
const RESIZE: &str = "resize inode";
/// The index of the pointer to the tree of two levels in an inode.
const TREE_OF_TWO: usize = 13;

impl Check<'_> {
    /// Reports damage at which the replay of the journal ended early.
    pub(super) fn check_replay(&mut self) {
        if let Some(error) = self.volume.journal_damage().cloned() {
            self.report.add(error);
        }
    }

    /// Collects the orphans, before the pass over the inodes.
    pub(super) fn check_orphans(&mut self) {
        let mut next = self.volume.superblock().inodes.last_orphan;
        let mut location = Location::default();
        while let Some(number) = next {
            if !self.add_orphan(ORPHAN_LIST, number, location) {
                return;
            }
            location = Location::inode(number);
            let record = match self.volume.inode_record(number) {
                // Reported with the inode.
                Err(Error::Corrupt(_)) => return,
                Err(Error::NotFound) => {
                    self.report.corrupt(ORPHAN_LIST, location, Problem::Missing("inode"));
                    return;
                }
                record => self.report.ok(record),
            };
            // The time of deletion of an orphan is the number of the next orphan.
            next = record
                .map(|record| InodeNumber(record.deleted.into()))
                .filter(|&number| number != InodeNumber(0));
        }
        if let Some(file) = self.volume.superblock().inodes.orphan_file {
            if let Some(inode) = self.report.ok(self.volume.special_inode(file)) {
                self.check_orphan_file(&inode);
            }
        }
    }

    /// Adds an orphan. Returns false if the number is out of range, or already in the set.
    fn add_orphan(
        &mut self,
        structure: &'static str,
        number: InodeNumber,
        location: Location,
    ) -> bool {
        let geometry = self.geometry();
        let (min, max) = (u64::from(geometry.first_inode), u64::from(geometry.inode_count));
        if !(min..=max).contains(&number.0) {
            let problem = Problem::Range { field: "inode", found: number.0, min, max };
            self.report.corrupt(structure, location, problem);
            return false;
        }
        let is_new = self.orphans.insert(number);
        if !is_new {
            self.report.corrupt(structure, Location::inode(number), Problem::Cycle);
        }
        is_new
    }

    fn check_orphan_file(&mut self, file: &Inode) {
        let is_marked = self.geometry().features.has(Feature::OrphanPresent);
        let Some(blocks) = self.report.ok(file::blocks(file)) else { return };
        for block in blocks {
            let Some(block) = self.report.ok(block) else { continue };
            if self.geometry().metadata_seed().is_none() {
                let (structure, found) = ("orphan file block", block.stored_checksum().into());
                self.report.compare(structure, block.location, "checksum", found, 0);
            }
            let numbers = block.numbers().iter().map(|number| number.get());
            for number in numbers.filter(|&number| number != 0) {
                if !is_marked {
                    let problem = Problem::Missing("mark in the superblock");
                    self.report.corrupt(ORPHAN_FILE, block.location, problem);
                }
                self.add_orphan(ORPHAN_FILE, InodeNumber(number.into()), block.location);
            }
        }
    }

    /// Checks the contents of inodes that the format uses itself, after the pass over all inodes.
    pub(super) fn check_special(&mut self) {
        self.check_journal();
        let named = self.volume.superblock().inodes;
        for (name, number) in [
            ("user quota", named.user_quota),
            ("group quota", named.group_quota),
            ("project quota", named.project_quota),
            ("orphan file", named.orphan_file),
        ] {
            if let Some(number) = number {
                self.check_regular(name, number);
            }
        }
        if self.geometry().features.has(Feature::ResizeInode) {
            let checked = ResizeInode::of(self.volume).and_then(|inode| inode.check());
            if let Some(tree) = self.report.ok(checked) {
                let location = Location::inode(RESIZE_INODE).at_block(tree);
                if let Some((_, blocks)) = self.claims.claim(tree, 1) {
                    self.report.corrupt(RESIZE, location, Problem::Shared { blocks });
                }
            }
        }
    }

    /// Checks that an inode that the superblock names is a regular file in use.
    fn check_regular(&mut self, name: &'static str, number: InodeNumber) {
        match self.volume.inode_record(number) {
            Ok(record) if record.kind == FileType::Regular && record.links > 0 => {}
            // Reported with the inode.
            Err(Error::Corrupt(_)) => {}
            _ => {
                let problem = Problem::Missing("regular file");
                self.report.corrupt(name, Location::inode(number), problem);
            }
        }
    }

    fn check_journal(&mut self) {
        if let Some(number) = self.volume.superblock().inodes.journal {
            self.check_regular("journal", number);
        }
        let location =
            Location { inode: self.volume.superblock().inodes.journal, ..Location::default() };
        match self.volume.journal(None) {
            Ok(Some(journal)) => {
                let superblock = self.volume.superblock();
                let is_expected =
                    superblock.has(Feature::NeedsRecovery) || self.volume.recovery().is_some();
                if let Some(number) = superblock.inodes.journal {
                    match self.volume.check_journal_inode(number) {
                        // `check_regular` reports it.
                        Err(Error::NotFound) => {}
                        checked => {
                            self.report.ok(checked);
                        }
                    }
                }
                if journal.superblock().start.is_some() && !is_expected {
                    let problem = Problem::Missing("needs_recovery flag in the superblock");
                    self.report.corrupt("journal", location, problem);
                }
                let users = journal.superblock().users;
                if users > 1 {
                    self.report.compare("journal", location, "number of users", users.into(), 1);
                }
            }
            // An external journal is not checked.
            Ok(None) | Err(Error::Unsupported(Unsupported::Operation(_))) => {}
            Err(error) => self.report.add(error),
        }
    }
}

/// The resize inode, which owns the blocks that are reserved for the descriptors of further groups.
/// Those behind the first superblock are blocks of pointers, which point to those behind each
/// superblock copy.
struct ResizeInode<'v> {
    volume: &'v Arc<Volume>,
    record: InodeRecord,
    tree: FsBlock,
}

impl<'v> ResizeInode<'v> {
    fn of(volume: &'v Arc<Volume>) -> Result<Self> {
        let location = Location::inode(RESIZE_INODE);
        let record = match volume.inode_record(RESIZE_INODE) {
            Err(Error::NotFound) => {
                return Err(Error::corrupt(RESIZE, location, Problem::Missing("inode")));
            }
            record => record?,
        };
        if record.kind != FileType::Regular || record.links == 0 {
            return Err(Error::corrupt(RESIZE, location, Problem::Missing("regular file")));
        }
        let mut tree = FsBlock(0);
        for (slot, pointer) in pointers(&record.block_area).enumerate() {
            match slot {
                TREE_OF_TWO => tree = pointer,
                _ if pointer.0 == 0 => {}
                _ => {
                    let problem = Problem::Invalid { field: "block pointer", found: pointer.0 };
                    return Err(Error::corrupt(RESIZE, location, problem));
                }
            }
        }
        volume.geometry().check_run(RESIZE, location, tree, 1)?;
        Ok(Self { volume, record, tree })
    }

    /// Checks the pointers and the block count. Returns the root of the tree, the only block of
    /// this inode that is not reserved for descriptors.
    fn check(&self) -> Result<FsBlock> {
        let geometry = self.volume.geometry();
        let location = Location::inode(RESIZE_INODE);
        let per_block = geometry.block_size.len() / size_of::<U32>();
        let copies: Vec<GroupNumber> = (1..geometry.group_count)
            .map(GroupNumber)
            .filter(|&group| geometry.has_superblock(group))
            .take(per_block)
            .collect();
        let tree = self.read(self.tree)?;
        let descriptors = geometry.descriptor_blocks();
        let first = geometry.superblock_block().0 + 1 + u64::from(descriptors);
        let mut expected_tree = vec![0; per_block];
        for index in 0..geometry.reserved_descriptor_blocks {
            let block = first + u64::from(index);
            if let Some(slot) = expected_tree.get_mut((descriptors + index) as usize % per_block) {
                *slot = block;
            }
            let expected = copies
                .iter()
                .map(|group| block + u64::from(group.0) * u64::from(geometry.blocks_per_group));
            let found = self.read(FsBlock(block))?;
            compare_pointers(&found, expected, location.at_block(FsBlock(block)))?;
        }
        compare_pointers(&tree, expected_tree.iter().copied(), location.at_block(self.tree))?;
        let blocks = 1 + u64::from(geometry.reserved_descriptor_blocks) * (1 + copies.len() as u64);
        self.check_size(&expected_tree, copies.len())?;
        if !geometry.allows_size(self.record.size) {
            let problem = Problem::Missing("large_file flag in the superblock");
            return Err(Error::corrupt(RESIZE, location, problem));
        }
        // Each block counts as a whole cluster.
        let sectors = u64::from(geometry.block_size.bytes() / 512) << geometry.cluster_shift;
        let expected = blocks * sectors;
        if self.record.blocks != expected {
            let found = self.record.blocks;
            let problem = Problem::Mismatch { field: "block count", found, expected };
            return Err(Error::corrupt(RESIZE, location, problem));
        }
        Ok(self.tree)
    }

    /// Checks, as e2fsck, that the file reaches to its last block, which is in the last block of
    /// pointers that `tree` refers to, for the last of `copies`.
    fn check_size(&self, tree: &[u64], copies: usize) -> Result<()> {
        let Some(slot) = tree.iter().rposition(|pointer| *pointer != 0) else { return Ok(()) };
        let Some(last_copy) = copies.checked_sub(1) else { return Ok(()) };
        let last = DIRECT + (1 + slot) * tree.len() + last_copy;
        let (found, min) =
            (self.record.size, (last as u64) << self.volume.geometry().block_size.shift());
        if found < min {
            let problem = Problem::Range { field: "size", found, min, max: u64::MAX };
            return Err(Error::corrupt(RESIZE, Location::inode(RESIZE_INODE), problem));
        }
        Ok(())
    }

    fn read(&self, block: FsBlock) -> Result<iomap::MetadataBuffer> {
        self.volume.read_metadata(block, RESIZE, Location::inode(RESIZE_INODE).at_block(block))
    }
}

fn pointers(bytes: &[u8]) -> impl Iterator<Item = FsBlock> {
    bytes.chunks_exact(4).map(|bytes| {
        FsBlock(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    })
}

/// Checks that the pointers of a block are those in `expected`, and 0 behind them.
fn compare_pointers(
    bytes: &[u8],
    expected: impl Iterator<Item = u64>,
    location: Location,
) -> Result<()> {
    for (slot, (found, expected)) in
        pointers(bytes).zip(expected.chain(iter::repeat(0))).enumerate()
    {
        if found.0 != expected {
            let found = found.0;
            let problem = Problem::Mismatch { field: "block pointer", found, expected };
            return Err(Error::corrupt(RESIZE, location.at_byte(4 * slot as u64), problem));
        }
    }
    Ok(())
}
