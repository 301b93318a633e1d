//! The check of superblock copies, of group descriptors and their copies, and of the locations of
//! the format's own structures. Not here: the contents of bitmaps and inode tables.

use base::view::view_at;
use base::{FsBlock, GroupNumber, Location, Problem};
use zerocopy::FromBytes;

use super::Check;
use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::layout::group::{BLOCKS_UNINITIALISED, INODES_UNINITIALISED};
use crate::mmp::MmpBlock;
use crate::ondisk::group_descriptor::RawGroupDescriptor;
use crate::ondisk::superblock::RawSuperblock;

const COPY: &str = "superblock copy";
const DESCRIPTOR: &str = "group descriptor";
/// The fields of a group descriptor that must be equal in all copies, and their offsets. Only
/// e2fsck updates the other fields of copies.
const FIELDS: [(&str, usize); 6] = [
    ("block bitmap", 0x00),
    ("inode bitmap", 0x04),
    ("inode table", 0x08),
    ("block bitmap, high half", 0x20),
    ("inode bitmap, high half", 0x24),
    ("inode table, high half", 0x28),
];

/// The maximum number of groups that are checked: 512 TiB of groups of 128 MiB. Each takes some
/// memory.
const GROUPS_MAX: u32 = 1 << 22;
/// The maximum number of copies of descriptor blocks that are compared. If each group has a copy of
/// all descriptors, the number of copies grows with the square of the volume's size.
const COPIES_MAX: u64 = 1 << 20;

/// The blocks of one structure.
struct Structure {
    start: FsBlock,
    blocks: u64,
    name: &'static str,
    group: GroupNumber,
}

impl Check<'_> {
    pub(super) fn check_groups(&mut self) {
        if self.geometry().group_count > GROUPS_MAX {
            return self.report.end_early("a check of more than 4194304 groups");
        }
        let mut structures = Vec::new();
        let mut copies_left = COPIES_MAX;
        for group in (0..self.geometry().group_count).map(GroupNumber) {
            let (done, total) = (group.0.into(), self.geometry().group_count.into());
            if !self.report.advance("groups", done, total) {
                return;
            }
            self.add_structures(group, &mut structures);
            if group.0 > 0 && self.geometry().has_superblock(group) {
                self.check_superblock_copy(group);
            }
            self.check_descriptor_copies(group, &mut copies_left);
        }
        if self.geometry().features.has(Feature::Mmp) {
            let mmp = self.volume.superblock().raw().mmp_block.get();
            let (start, group) = (FsBlock(mmp), GroupNumber(0));
            let structure = Structure { start, blocks: 1, name: "MMP block", group };
            let location = Location::block(start);
            let checked = self.geometry().check_run("MMP block", location, start, 1);
            if self.report.ok(checked).is_some() {
                structures.push(structure);
                let block = self.report.ok(MmpBlock::of(self.volume)).flatten();
                self.report.ok(block.map_or(Ok(()), |block| block.read().map(drop)));
            }
        }
        self.claim_structures(structures);
    }

    fn add_structures(&mut self, group: GroupNumber, structures: &mut Vec<Structure>) {
        let geometry = self.geometry();
        let mut add = |start, blocks, name| {
            if blocks > 0 {
                structures.push(Structure { start, blocks, name, group });
            }
        };
        let leading = geometry.leading_zone(group);
        let blocks = leading.end - leading.start;
        add(FsBlock(leading.start), blocks, "superblock and descriptors");
        if let Some(descriptor) = self.report.ok(self.volume.group(group)) {
            if !geometry.has_group_checksums() {
                self.check_never_uninitialised(group);
            }
            add(descriptor.block_bitmap, 1, "block bitmap");
            add(descriptor.inode_bitmap, 1, "inode bitmap");
            add(descriptor.inode_table, geometry.inode_table_blocks().into(), "inode table");
        }
    }

    /// Checks, for descriptors without checksums, that they do not mark bitmaps as uninitialised.
    fn check_never_uninitialised(&mut self, group: GroupNumber) {
        let geometry = self.geometry();
        let per_block = geometry.descriptors_per_block();
        let block = geometry.descriptor_block(group.0 / per_block);
        let at = (group.0 % per_block * geometry.descriptor_size) as usize;
        let location = Location::group(group).at_block(block).at_byte(at as u64);
        let raw = self.volume.read_metadata(block, DESCRIPTOR, location).and_then(|buffer| {
            let raw: &RawGroupDescriptor = view_at(&buffer, at, DESCRIPTOR, location)?;
            Ok(raw.clone())
        });
        let Some(raw) = self.report.ok(raw) else { return };
        let uninitialised = INODES_UNINITIALISED | BLOCKS_UNINITIALISED;
        let found = u64::from(raw.flags.get() & uninitialised);
        self.report.compare(DESCRIPTOR, location, "uninitialised flags", found, 0);
    }

    /// Claims the structures, and reports overlaps.
    fn claim_structures(&mut self, mut structures: Vec<Structure>) {
        structures.sort_unstable_by_key(|structure| structure.start);
        let mut end = FsBlock(0);
        for structure in structures {
            if structure.start < end {
                let blocks = (end.0 - structure.start.0).min(structure.blocks);
                let location = Location::group(structure.group).at_block(structure.start);
                self.report.corrupt(structure.name, location, Problem::Shared { blocks });
            }
            // The geometry or the verifier of descriptors has checked that the structure is in the
            // volume.
            end = end.max(FsBlock(structure.start.0 + structure.blocks));
            self.claims.claim_structure(structure.start, structure.blocks);
        }
    }

    /// Reports the error of the first superblock, if a copy is used instead.
    pub(super) fn check_first_superblock(&mut self) {
        if let Some(error) = self.volume.copy().and_then(|copy| copy.reason.clone()) {
            self.report.ok::<()>(Err(error));
        }
    }

    fn check_superblock_copy(&mut self, group: GroupNumber) {
        let block = self.geometry().group_start(group);
        let location = Location::group(group).at_block(block);
        let read = self.volume.read_metadata(block, COPY, location);
        let Some(buffer) = self.report.ok(read) else { return };
        let Ok((copy, _)) = RawSuperblock::ref_from_prefix(&buffer) else { return };
        let first = self.volume.superblock().raw();
        // Not the features, which tools set in the first superblock only, as the kernel does.
        // e2fsck copies them.
        for (field, found, expected) in [
            ("magic number", copy.magic.get().into(), first.magic.get().into()),
            ("inode count", copy.inodes_count.get().into(), first.inodes_count.get().into()),
            ("block count", block_count(copy), block_count(first)),
            ("block size", copy.log_block_size.get().into(), first.log_block_size.get().into()),
            (
                "blocks per group",
                copy.blocks_per_group.get().into(),
                first.blocks_per_group.get().into(),
            ),
            (
                "inodes per group",
                copy.inodes_per_group.get().into(),
                first.inodes_per_group.get().into(),
            ),
        ] {
            self.report.compare(COPY, location, field, found, expected);
        }
        if copy.uuid != first.uuid {
            self.report.corrupt(COPY, location, Problem::Missing("the volume's UUID"));
        }
    }

    /// Checks that the copies of descriptors in this group name the same blocks as the descriptors
    /// themselves. Reports the first difference in each block.
    fn check_descriptor_copies(&mut self, group: GroupNumber, left: &mut u64) {
        if group.0 == 0 {
            return;
        }
        let geometry = self.geometry();
        let before = u64::from(geometry.has_superblock(group));
        let start = geometry.group_start(group).0 + before;
        let first_index = first_descriptor_block(geometry, group);
        let room = geometry.blocks_in_group(group).saturating_sub(before);
        let count = u64::from(geometry.descriptor_blocks_in_group(group)).min(room) as u32;
        for index in 0..count {
            if *left == 0 || !self.report.go_on() {
                return;
            }
            let original = geometry.descriptor_block(first_index + index);
            let copy = FsBlock(start + u64::from(index));
            if original != copy {
                let location = Location::group(group).at_block(copy);
                self.check_descriptor_copy(first_index + index, original, location);
                *left -= 1;
                if *left == 0 {
                    let part = "a check of more than 1048576 copies of descriptor blocks";
                    self.report.skip_part(part);
                }
            }
        }
    }

    /// Compares descriptor block `index` with the copy at `location`.
    fn check_descriptor_copy(&mut self, index: u32, original: FsBlock, location: Location) {
        let geometry = self.geometry();
        let mut read =
            |block| self.report.ok(self.volume.read_metadata(block, "descriptor copy", location));
        let copy = location.block.unwrap_or(original);
        let (Some(original), Some(copy)) = (read(original), read(copy)) else { return };
        let size = geometry.descriptor_size as usize;
        let both = copy.chunks_exact(size).zip(original.chunks_exact(size));
        let first_group = u64::from(index) * u64::from(geometry.descriptors_per_block());
        for ((copy, original), slot) in both.zip(0..) {
            if first_group + slot >= geometry.group_count.into() {
                return;
            }
            let location = location.at_byte(slot * size as u64);
            let before = self.report.findings;
            for (field, at) in FIELDS {
                let number = |descriptor: &[u8]| little_endian(descriptor.get(at..at + 4));
                let (found, expected) = (number(copy), number(original));
                self.report.compare("descriptor copy", location, field, found, expected);
            }
            if self.report.findings != before {
                return;
            }
        }
    }
}

/// Returns the first descriptor block of which the group has a copy.
fn first_descriptor_block(geometry: &Geometry, group: GroupNumber) -> u32 {
    let index = group.0 / geometry.descriptors_per_block();
    if index < geometry.first_meta_descriptor_block { 0 } else { index }
}

fn little_endian(bytes: Option<&[u8]>) -> u64 {
    let bytes = bytes.unwrap_or_default().iter().rev();
    bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn block_count(raw: &RawSuperblock) -> u64 {
    u64::from(raw.blocks_count_hi.get()) << 32 | u64::from(raw.blocks_count_lo.get())
}
