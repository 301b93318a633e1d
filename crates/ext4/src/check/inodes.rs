//! The check of inodes: fields, blocks and sizes.
//! Not here: names, and the contents of inodes that the format uses itself.

use std::sync::Arc;

use base::attributes::FileType;
use base::view::view_at;
use base::{Error, FsBlock, GroupNumber, InodeNumber, Location, Problem};
use fs::Run;

use super::claims::Claims;
use super::states::Role;
use super::{Check, DirectoryState, Report};
use crate::ROOT_INODE;
use crate::block_validity::BlockValidity;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::inline;
use crate::inode::record::{InodeFlags, InodeRecord};
use crate::layout::geometry::{CreatorOs, Geometry};
use crate::map_walk::{self, MapRoot, MapVisitor};
use crate::ondisk::inode::{BLOCK_OFFSET, RawInode};

const STRUCTURE: &str = "inode";
const BAD_BLOCKS_INODE: InodeNumber = InodeNumber(1);
pub(super) const RESIZE_INODE: InodeNumber = InodeNumber(7);

/// The result of the walk through one inode's map.
#[derive(Clone, Copy, Debug, Default)]
struct MapTotals {
    /// The number of clusters of data and of the map itself.
    clusters: u64,
    /// The file block after the last mapped one.
    end: u64,
    /// The last written file block, if any.
    last_written: Option<u64>,
    /// Whether the map has errors, so that the numbers may be too low.
    is_faulty: bool,
}

impl Check<'_> {
    pub(super) fn check_inodes(&mut self) {
        for group in (0..self.geometry().group_count).map(GroupNumber) {
            // A damaged descriptor was reported by an earlier pass.
            let Ok(descriptor) = self.volume.group(group) else { continue };
            let geometry = self.geometry();
            let unused = if descriptor.inodes_uninitialised {
                geometry.inodes_per_group
            } else if geometry.has_group_checksums() {
                descriptor.unused_inodes.min(geometry.inodes_per_group)
            } else {
                0
            };
            let count = geometry.inodes_per_group - unused;
            let per_block = geometry.block_size.bytes() / geometry.inode_size;
            let first = u64::from(group.0) * u64::from(geometry.inodes_per_group) + 1;
            let mut table_block = 0;
            while table_block < count.div_ceil(per_block) {
                let (done, total) = (group.0.into(), geometry.group_count.into());
                if !self.report.advance("inodes", done, total) {
                    return;
                }
                let index = table_block * per_block;
                let block = FsBlock(descriptor.inode_table.0 + u64::from(table_block));
                table_block += 1;
                // Nothing is to be checked in an inode of zeroes, except in those that must exist.
                if first + u64::from(index) >= u64::from(geometry.first_inode).max(ROOT_INODE.0 + 1)
                {
                    let data = self.holes.next_data(self.volume.metadata(), block);
                    if data > block {
                        let blocks = data.0 - descriptor.inode_table.0;
                        table_block = blocks.try_into().unwrap_or(u32::MAX);
                        continue;
                    }
                }
                let location = Location::group(group).at_block(block);
                let read = self.volume.read_metadata(block, "inode table", location);
                let Some(buffer) = self.report.ok(read) else { continue };
                let size = geometry.inode_size as usize;
                let slots = buffer.chunks_exact(size).take((count - index) as usize).enumerate();
                for (slot, bytes) in slots {
                    let number = InodeNumber(first + u64::from(index) + slot as u64);
                    self.check_inode(number, bytes, location.at_byte((slot * size) as u64));
                }
            }
        }
    }

    fn record(&mut self, number: InodeNumber, role: Role, links: u16) {
        if !self.states.set(number, role, links) {
            self.report.end_early("a check of this many inodes");
        }
    }

    fn check_inode(&mut self, number: InodeNumber, bytes: &[u8], location: Location) {
        let location = location.in_inode(number);
        let record = match InodeRecord::parse(bytes, self.geometry(), number, location) {
            Ok(record) => record,
            Err(Error::NotFound) => {
                self.check_free_inode(number, bytes, location);
                return;
            }
            Err(error) => {
                self.report.add(error);
                self.quota.is_unknown = true;
                self.record(number, Role::Unreadable, 0);
                return;
            }
        };
        let Some(role) = self.role(&record, location) else { return };
        self.check_obsolete_fields(&record, bytes, location);
        self.claim_translator(&record, bytes, location);
        self.record(number, role, record.links);
        if role == Role::Named(FileType::Directory) {
            self.directories.insert(number, DirectoryState::default());
        }
        self.check_flags(&record, location);
        self.count_for_quota(&record, role);
        if number == RESIZE_INODE && self.geometry().features.has(Feature::ResizeInode) {
            // `check_special` checks its blocks.
            return;
        }
        let inode = Inode::new(Arc::clone(self.volume), record);
        let totals = self.check_map(&inode);
        self.check_contents(&inode, &totals);
        self.check_encryption(&inode);
        let sectors = self.check_attributes(&inode);
        let cluster_sectors =
            u64::from(self.geometry().block_size.bytes() / 512) << self.geometry().cluster_shift;
        if self.geometry().creator != CreatorOs::Hurd && !totals.is_faulty {
            if let Some(sectors) = sectors {
                let expected = totals.clusters * cluster_sectors + sectors;
                let found = inode.record().blocks;
                self.report.compare(STRUCTURE, location, "block count", found, expected);
            }
        }
    }

    /// Checks an inode that is not in use. Some reserved inodes have contents nevertheless.
    fn check_free_inode(&mut self, number: InodeNumber, bytes: &[u8], location: Location) {
        if bytes.iter().any(|&byte| byte != 0) {
            self.report.ok(InodeRecord::verify(bytes, self.geometry(), number, location));
        }
        match number {
            BAD_BLOCKS_INODE => self.claim_bad_blocks(bytes),
            ROOT_INODE => {
                self.report.corrupt(STRUCTURE, location, Problem::Missing("root directory"));
            }
            _ if self.geometry().is_reserved_inode(number) => {
                let raw: base::Result<&RawInode> = view_at(bytes, 0, STRUCTURE, location);
                if let Some(raw) = self.report.ok(raw) {
                    let found = raw.blocks_lo.get().into();
                    self.report.compare(STRUCTURE, location, "block count", found, 0);
                }
            }
            _ => {}
        }
    }

    /// Returns the role of the inode, or `None` if it is free. Reports a time of deletion that
    /// contradicts the role.
    fn role(&mut self, record: &InodeRecord, location: Location) -> Option<Role> {
        let number = record.number;
        let is_special = self.volume.superblock().inodes.is_special(number);
        if self.geometry().is_reserved_inode(number) || is_special {
            return Some(Role::Special);
        }
        let is_orphan = self.orphans.contains(&number);
        if record.links == 0 && !is_orphan {
            if record.deleted == 0 {
                self.report.corrupt(STRUCTURE, location, Problem::Missing("time of deletion"));
            }
            return None;
        }
        if record.deleted != 0 && !is_orphan {
            let found = record.deleted.into();
            self.report.corrupt(
                STRUCTURE,
                location,
                Problem::Mismatch { field: "time of deletion", found, expected: 0 },
            );
        }
        if number == ROOT_INODE && record.kind != FileType::Directory {
            let found = record.kind.mode_bits().into();
            self.report.corrupt(STRUCTURE, location, Problem::Invalid { field: "mode", found });
        }
        Some(if record.flags.contains(InodeFlags::EA_INODE) {
            Role::Value
        } else if record.links == 0 {
            Role::Orphan(record.kind)
        } else {
            Role::Named(record.kind)
        })
    }

    /// Checks flags that require a feature or a type.
    fn check_flags(&mut self, record: &InodeRecord, location: Location) {
        let features = &self.geometry().features;
        let is_directory = record.kind == FileType::Directory;
        let is_regular = record.kind == FileType::Regular;
        for (flag, is_allowed) in [
            (InodeFlags::INDEX, is_directory && features.has(Feature::DirIndex)),
            (InodeFlags::EXTENTS, features.has(Feature::Extent)),
            (InodeFlags::INLINE_DATA, features.has(Feature::InlineData)),
            (InodeFlags::ENCRYPTED, features.has(Feature::Encrypt)),
            (InodeFlags::CASEFOLD, is_directory && features.has(Feature::Casefold)),
            (InodeFlags::VERITY, is_regular && features.has(Feature::Verity)),
            (InodeFlags::EA_INODE, is_regular && features.has(Feature::EaInode)),
        ] {
            if record.flags.contains(flag) && !is_allowed {
                let problem = Problem::Invalid { field: "flag", found: flag.0.into() };
                self.report.corrupt(STRUCTURE, location, problem);
            }
        }
        let both = InodeFlags(InodeFlags::INLINE_DATA.0 | InodeFlags::EXTENTS.0);
        if record.flags.contains(both) {
            let problem = Problem::Invalid { field: "flags", found: both.0.into() };
            self.report.corrupt(STRUCTURE, location, problem);
        }
    }

    /// Checks that fields without a meaning on this volume are zero.
    fn check_obsolete_fields(&mut self, record: &InodeRecord, bytes: &[u8], location: Location) {
        let raw: base::Result<&RawInode> = view_at(bytes, 0, STRUCTURE, location);
        let Some(raw) = self.report.ok(raw) else { return };
        let features = &self.geometry().features;
        let is_of_hurd = self.geometry().creator == CreatorOs::Hurd;
        let is_small_directory =
            record.kind == FileType::Directory && !features.has(Feature::LargeDir);
        for (field, is_unused, found) in [
            ("fragment address", true, raw.obso_faddr.get()),
            ("attribute block", !features.has(Feature::ExtAttr), raw.file_acl_lo.get()),
            ("high half of the size", is_small_directory, raw.size_high.get()),
            (
                "high half of the block count",
                !features.has(Feature::HugeFile) && !is_of_hurd,
                raw.blocks_high.get().into(),
            ),
            (
                "high half of the attribute block",
                !features.has(Feature::SixtyFourBit) && !is_of_hurd,
                raw.file_acl_high.get().into(),
            ),
        ] {
            if is_unused {
                self.report.compare(STRUCTURE, location, field, found.into(), 0);
            }
        }
    }

    fn check_map(&mut self, inode: &Inode) -> MapTotals {
        if !inode.has_map() || inode.has(InodeFlags::INLINE_DATA) {
            return MapTotals::default();
        }
        let record = inode.record();
        let root = MapRoot::new(self.volume, &record);
        self.claim_map(&root)
    }

    fn claim_map(&mut self, root: &MapRoot<'_>) -> MapTotals {
        let mut claimer = Claimer {
            geometry: self.volume.geometry(),
            claims: &mut self.claims,
            report: &mut self.report,
            location: Location::inode(root.inode),
            previous: None,
            totals: MapTotals::default(),
        };
        map_walk::walk(self.volume, root, &mut claimer);
        claimer.totals
    }

    /// Claims the bad blocks. They are the map of an inode that is otherwise empty, and may be in
    /// structures.
    fn claim_bad_blocks(&mut self, bytes: &[u8]) {
        let Some(block_area) = bytes.get(BLOCK_OFFSET..).and_then(<[u8]>::first_chunk) else {
            return;
        };
        let root = MapRoot {
            inode: BAD_BLOCKS_INODE,
            block_area,
            has_extents: false,
            checksum_seed: None,
            validity: BlockValidity::of_any_block(self.volume.geometry()),
        };
        self.claim_map(&root);
    }

    /// Claims the block of a passive translator, which inodes of the Hurd may have. The Hurd has no
    /// extents, and e2fsck does not expect such blocks in inodes with extents.
    fn claim_translator(&mut self, record: &InodeRecord, bytes: &[u8], location: Location) {
        let is_of_hurd = self.geometry().creator == CreatorOs::Hurd;
        if !is_of_hurd || record.flags.contains(InodeFlags::EXTENTS) {
            return;
        }
        let raw: base::Result<&RawInode> = view_at(bytes, 0, STRUCTURE, location);
        let Some(raw) = self.report.ok(raw) else { return };
        let block = FsBlock(raw.version_lo.get().into());
        if block.0 == 0 {
            return;
        }
        let structure = "translator reference";
        let is_inside = self.geometry().check_run(structure, location, block, 1);
        if self.report.ok(is_inside).is_none() {
            return;
        }
        if let Some((block, blocks)) = self.claims.claim(block, 1) {
            self.report.corrupt(structure, location.at_block(block), Problem::Shared { blocks });
        }
    }

    /// Checks that the size matches the blocks, or the data in the inode.
    fn check_contents(&mut self, inode: &Inode, totals: &MapTotals) {
        let record = inode.record();
        let location = Location::inode(record.number);
        if inode.has(InodeFlags::INLINE_DATA) {
            self.check_inline(inode, location);
            return;
        }
        let block_size = self.geometry().block_size;
        let bytes = |blocks: u64| blocks << block_size.shift();
        match record.kind {
            FileType::Directory => {
                if !totals.is_faulty {
                    let (found, expected) = (record.size, bytes(totals.end));
                    self.report.compare(STRUCTURE, location, "size", found, expected);
                }
                if totals.end == 0 {
                    self.report.corrupt("directory", location, Problem::Missing("first block"));
                }
            }
            FileType::Regular => {
                let (found, min) = (record.size, bytes(totals.last_written.unwrap_or(0)));
                let max = bytes(inode.map_end().0) - 1;
                // The data of fs-verity is past the end of the file.
                let is_short = found < min && !inode.has(InodeFlags::VERITY);
                if is_short || found > max {
                    let problem = Problem::Range { field: "size", found, min, max };
                    self.report.corrupt(STRUCTURE, location, problem);
                }
                if !self.geometry().allows_size(found) {
                    let problem = Problem::Missing("large_file flag in the superblock");
                    self.report.corrupt(STRUCTURE, location, problem);
                }
            }
            FileType::Symlink => self.check_symlink(inode, location),
            _ if record.size != 0 => {
                self.report.compare(STRUCTURE, location, "size", record.size, 0);
            }
            _ => {}
        }
    }

    fn check_inline(&mut self, inode: &Inode, location: Location) {
        match inode.kind() {
            FileType::Directory => {
                let record = inode.record();
                if let Some(value) = self.report.ok(inline::value(inode.volume(), &record)) {
                    let expected = (inode.record().block_area.len() + value.bytes.len()) as u64;
                    let found = inode.size();
                    self.report.compare(STRUCTURE, location, "size", found, expected);
                }
            }
            FileType::Symlink => self.check_symlink(inode, location),
            // The size may be greater than the length of the data.
            _ => {
                self.report.ok(inline::data(inode));
                let (found, end) = (inode.size(), inode.map_end());
                let max = (end.0 << self.geometry().block_size.shift()) - 1;
                if found > max {
                    let problem = Problem::Range { field: "size", found, min: 0, max };
                    self.report.corrupt(STRUCTURE, location, problem);
                }
            }
        }
    }

    fn check_symlink(&mut self, inode: &Inode, location: Location) {
        if inode.is_fast_symlink() && inode.has(InodeFlags::EXTENTS) {
            let found = InodeFlags::EXTENTS.0.into();
            let problem = Problem::Invalid { field: "flag of a link without blocks", found };
            self.report.corrupt("symbolic link", location, problem);
        }
        if inode.has(InodeFlags::ENCRYPTED) {
            return;
        }
        if self.report.ok(inode.read_link()).is_none() {
            return;
        }
        if let Some(room) = self.report.ok(inode.link_room()) {
            let length = room.iter().position(|&byte| byte == 0).unwrap_or(room.len());
            let (found, expected) = (inode.size(), length as u64);
            self.report.compare("symbolic link", location, "size", found, expected);
        }
    }
}

/// A visitor that claims the blocks of a map.
struct Claimer<'a, 'f> {
    geometry: &'a Geometry,
    claims: &'a mut Claims,
    report: &'a mut Report<'f>,
    location: Location,
    /// The last cluster so far, as a position in the file and a position on the device. The next
    /// run may continue in it.
    previous: Option<(u64, u64)>,
    totals: MapTotals,
}

impl Claimer<'_, '_> {
    /// Returns whether more blocks were claimed repeatedly than the volume has. The remaining runs
    /// are skipped then, which bounds the time for maps that contain the same blocks many times.
    fn has_too_many_shared(&self) -> bool {
        self.claims.shared() > self.geometry.block_count
    }

    /// Returns whether a block of a structure may be a bad block: if it is in a copy of the
    /// superblock or the descriptors.
    fn may_be_bad(&self, block: FsBlock) -> bool {
        let distance = block.0.saturating_sub(self.geometry.first_data_block.0);
        let group = distance / u64::from(self.geometry.blocks_per_group);
        let group = GroupNumber(group as u32);
        group.0 > 0 && self.geometry.leading_zone(group).contains(&block.0)
    }

    fn claim(
        &mut self,
        structure: &'static str,
        start: FsBlock,
        blocks: u64,
        location: Location,
    ) -> bool {
        let Some((first, shared)) = self.claims.claim(start, blocks) else { return true };
        if self.location != Location::inode(BAD_BLOCKS_INODE) || !self.may_be_bad(first) {
            let blocks = shared << self.geometry.cluster_shift;
            self.report.corrupt(structure, location.at_block(first), Problem::Shared { blocks });
        }
        false
    }

    /// Returns the blocks of a run whose clusters this file has not claimed yet. With clusters,
    /// adjacent runs of a file may share one.
    fn unclaimed(&mut self, run: &Run) -> Option<(FsBlock, u64)> {
        let (shift, mask) = (self.geometry.cluster_shift, (1 << self.geometry.cluster_shift) - 1);
        let distance = self.geometry.first_data_block.0;
        let (logical, physical) = (run.start.0, run.block.0 - distance);
        let location = self.location.at_file_block(run.start).at_block(run.block);
        if logical & mask != physical & mask {
            let (found, expected) = (physical & mask, logical & mask);
            let problem = Problem::Mismatch { field: "position in the cluster", found, expected };
            self.report.corrupt("extent", location, problem);
        }
        let last = run.length - 1;
        let previous =
            self.previous.replace(((logical + last) >> shift, (physical + last) >> shift));
        let skipped = match previous {
            Some((at, cluster)) if at == logical >> shift => {
                let (found, expected) = (physical >> shift, cluster);
                self.report.compare("extent", location, "cluster", found, expected);
                (1 << shift) - (logical & mask)
            }
            _ => 0,
        };
        (skipped < run.length).then(|| (FsBlock(run.block.0 + skipped), run.length - skipped))
    }
}

impl MapVisitor for Claimer<'_, '_> {
    fn node(&mut self, block: FsBlock) -> bool {
        self.totals.clusters += 1;
        let is_new = self.claim("block map", block, 1, self.location);
        let goes_on = is_new && self.report.go_on();
        self.totals.is_faulty |= !goes_on;
        goes_on
    }

    fn run(&mut self, run: Run) {
        let end = run.end().0;
        self.totals.end = self.totals.end.max(end);
        if !run.unwritten {
            self.totals.last_written = self.totals.last_written.max(Some(end - 1));
        }
        if self.has_too_many_shared() {
            self.totals.is_faulty = true;
            return;
        }
        let Some((start, blocks)) = self.unclaimed(&run) else { return };
        let shift = self.geometry.cluster_shift;
        let offset = start.0 - self.geometry.first_data_block.0;
        self.totals.clusters += ((offset + blocks - 1) >> shift) - (offset >> shift) + 1;
        if self.geometry.features.has(Feature::SharedBlocks) {
            self.claims.claim(start, blocks);
        } else {
            self.claim("file block", start, blocks, self.location.at_file_block(run.start));
        }
    }

    fn fault(&mut self, error: Error) {
        self.totals.is_faulty = true;
        self.report.add(error);
    }
}
