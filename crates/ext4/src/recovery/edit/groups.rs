//! Changes of bitmaps, of the counts and checksums of their groups, and of the sums in the superblock. Not here:
//! the users of blocks and inodes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::checksum::crc32c;
use base::{Error, FsBlock, GroupNumber, InodeNumber, Location, Problem, Result};

use super::blocks::Blocks;
use crate::features::Feature;
use crate::layout::geometry::Geometry;
use crate::layout::group::GroupDescriptor;
use crate::ondisk::superblock::RawSuperblock;
use crate::superblock;
use crate::volume::Volume;

/// With more groups, the superblock keeps the sums that it has.
const GROUPS_MAX: u32 = 1 << 20;

/// The groups of a volume and their changes.
pub(crate) struct Groups {
    volume: Arc<Volume>,
    changed: BTreeMap<GroupNumber, Group>,
    /// The first cluster of the volume that may be free.
    search_from: u64,
    /// The number of bitmaps in `changed`.
    bitmaps: u64,
}

struct Group {
    descriptor: GroupDescriptor,
    blocks: Option<Bits>,
    inodes: Option<Bits>,
}

/// A bitmap in memory.
struct Bits {
    bytes: Box<[u8]>,
    /// The bits that stand for something.
    length: u32,
}

impl Bits {
    fn is_set(&self, bit: u32) -> bool {
        self.bytes.get(bit as usize / 8).is_none_or(|byte| byte >> (bit % 8) & 1 == 1)
    }

    fn set(&mut self, bit: u32, value: bool) {
        if let Some(byte) = self.bytes.get_mut(bit as usize / 8) {
            let mask = 1 << (bit % 8);
            *byte = if value { *byte | mask } else { *byte & !mask };
        }
    }

    fn set_range(&mut self, bits: Range<u32>, value: bool) {
        let whole = bits.start.next_multiple_of(8)..bits.end & !7;
        if whole.start >= whole.end {
            return bits.for_each(|bit| self.set(bit, value));
        }
        (bits.start..whole.start).chain(whole.end..bits.end).for_each(|bit| self.set(bit, value));
        if let Some(bytes) = self.bytes.get_mut(whole.start as usize / 8..whole.end as usize / 8) {
            bytes.fill(if value { u8::MAX } else { 0 });
        }
    }

    fn free(&self) -> u32 {
        let whole = self.length as usize / 8;
        let zeros: u32 = self.bytes.iter().take(whole).map(|byte| byte.count_zeros()).sum();
        zeros + (self.length & !7..self.length).filter(|&bit| !self.is_set(bit)).count() as u32
    }

    fn pad(&mut self) {
        self.set_range(self.length..self.bytes.len() as u32 * 8, true);
    }
}

impl Groups {
    pub(super) fn new(volume: Arc<Volume>) -> Self {
        Self { volume, changed: BTreeMap::new(), search_from: 0, bitmaps: 0 }
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    fn group(&mut self, number: GroupNumber) -> Result<&mut Group> {
        if !self.changed.contains_key(&number) {
            let descriptor = self.volume.group(number)?;
            self.changed.insert(number, Group { descriptor, blocks: None, inodes: None });
        }
        Ok(self.changed.get_mut(&number).expect("it is there or was just inserted"))
    }

    /// Refuses to hold more bitmaps than could be written.
    fn check_room(&self) -> Result<()> {
        let max = super::blocks::BYTES_MAX >> self.geometry().block_size.shift();
        if self.bitmaps < max { Ok(()) } else { Err(Error::OutOfMemory) }
    }

    fn blocks(&mut self, number: GroupNumber) -> Result<&mut Bits> {
        let volume = Arc::clone(&self.volume);
        if self.group(number)?.blocks.is_none() {
            self.check_room()?;
            self.bitmaps += 1;
        }
        let group = self.group(number)?;
        if group.blocks.is_none() {
            let bitmap = volume.block_bitmap(&group.descriptor)?;
            group.blocks = Some(Bits { bytes: bitmap.bytes().into(), length: bitmap.length() });
        }
        Ok(group.blocks.as_mut().expect("it was just loaded"))
    }

    fn inodes(&mut self, number: GroupNumber) -> Result<&mut Bits> {
        let volume = Arc::clone(&self.volume);
        if self.group(number)?.inodes.is_none() {
            self.check_room()?;
            self.bitmaps += 1;
        }
        let group = self.group(number)?;
        if group.inodes.is_none() {
            let bitmap = volume.inode_bitmap(&group.descriptor)?;
            group.inodes = Some(Bits { bytes: bitmap.bytes().into(), length: bitmap.length() });
        }
        Ok(group.inodes.as_mut().expect("it was just loaded"))
    }

    /// Marks clusters, counted from the volume's first, as in use or not.
    pub(crate) fn set_clusters(&mut self, clusters: Range<u64>, in_use: bool) -> Result<()> {
        let per_group = u64::from(self.geometry().clusters_per_group());
        if !in_use {
            self.search_from = self.search_from.min(clusters.start);
        }
        if !in_use {
            self.check_no_zone(&clusters)?;
        }
        let mut at = clusters.start;
        while at < clusters.end {
            let group = at / per_group;
            let end = clusters.end.min((group + 1) * per_group);
            // Clusters of runs that were checked to lie in the volume.
            let bits = self.blocks(GroupNumber(group as u32))?;
            let start = (at % per_group) as u32;
            bits.set_range(start..start + (end - at) as u32, in_use);
            at = end;
        }
        Ok(())
    }

    /// Refuses to free blocks of system zones.
    fn check_no_zone(&self, clusters: &Range<u64>) -> Result<()> {
        let geometry = self.geometry();
        let [start, end] = [clusters.start, clusters.end].map(|at| geometry.cluster_start(at).0);
        let Some(zone) = self.volume.system_zones().first_within(start..end) else { return Ok(()) };
        let (first, last) = (zone.start, zone.end - 1);
        let problem = Problem::SystemZone { first, last };
        Err(Error::corrupt("blocks to be freed", Location::block(FsBlock(first)), problem))
    }

    /// Returns whether a cluster is in use.
    pub(crate) fn is_cluster_set(&mut self, cluster: u64) -> Result<bool> {
        let per_group = u64::from(self.geometry().clusters_per_group());
        // A cluster of the volume, as above.
        let bits = self.blocks(GroupNumber((cluster / per_group) as u32))?;
        Ok(bits.is_set((cluster % per_group) as u32))
    }

    /// Allocates a free cluster. Returns its number, counted from the volume's first.
    pub(crate) fn allocate_cluster(&mut self) -> Result<u64> {
        let per_group = u64::from(self.geometry().clusters_per_group());
        let groups = self.geometry().group_count;
        let first = u32::try_from(self.search_from / per_group).unwrap_or(groups);
        for number in first..groups {
            let number = GroupNumber(number);
            let is_known = self.changed.get(&number).is_some_and(|group| group.blocks.is_some());
            if !is_known && self.group(number)?.descriptor.free_clusters == 0 {
                continue;
            }
            let bits = self.blocks(number)?;
            let free = (0..bits.length).find(|&bit| !bits.is_set(bit));
            if let Some(bit) = free {
                bits.set(bit, true);
                let cluster = u64::from(number.0) * per_group + u64::from(bit);
                self.search_from = cluster + 1;
                return Ok(cluster);
            }
        }
        let problem = Problem::Missing("free cluster that recovery needs");
        Err(Error::corrupt("block bitmap", Location::default(), problem))
    }

    /// Marks an inode as in use or not.
    pub(crate) fn set_inode(&mut self, inode: InodeNumber, in_use: bool) -> Result<()> {
        let (group, index) = self.geometry().inode_position(inode)?;
        let per_group = self.geometry().inodes_per_group;
        self.inodes(group)?.set(index, in_use);
        let descriptor = &mut self.group(group)?.descriptor;
        if in_use {
            descriptor.unused_inodes = descriptor.unused_inodes.min(per_group - 1 - index);
        }
        Ok(())
    }

    /// Returns whether an inode is marked as in use.
    pub(crate) fn is_inode_set(&mut self, inode: InodeNumber) -> Result<bool> {
        let (group, index) = self.geometry().inode_position(inode)?;
        Ok(self.inodes(group)?.is_set(index))
    }

    /// Counts one directory more or less in the group of `inode`.
    pub(crate) fn count_directory(&mut self, inode: InodeNumber, more: bool) -> Result<()> {
        let (group, _) = self.geometry().inode_position(inode)?;
        let descriptor = &mut self.group(group)?.descriptor;
        descriptor.directories = if more {
            descriptor.directories.saturating_add(1)
        } else {
            descriptor.directories.saturating_sub(1)
        };
        Ok(())
    }

    /// Puts bitmaps, descriptors and the sums into `blocks`, and has `finish` change the
    /// superblock before its checksum is made.
    pub(super) fn write(
        mut self,
        blocks: &mut Blocks,
        finish: impl FnOnce(&mut RawSuperblock),
    ) -> Result<()> {
        let volume = Arc::clone(&self.volume);
        let geometry = volume.geometry();
        for (&number, group) in &mut self.changed {
            write_bitmaps(geometry, group, blocks)?;
            write_descriptor(geometry, number, group, blocks)?;
        }
        let sums = self.sums();
        write_superblock(geometry, blocks, |raw| {
            if let Some((clusters, inodes)) = sums {
                let free = clusters << geometry.cluster_shift;
                raw.free_blocks_count_lo = (free as u32).into();
                if geometry.features.has(Feature::SixtyFourBit) {
                    raw.free_blocks_count_hi = ((free >> 32) as u32).into();
                }
                raw.free_inodes_count = inodes.into();
            }
            finish(raw);
        })
    }
}

impl Groups {
    /// Returns the numbers of free clusters and inodes, or `None` if counting takes too long or a descriptor is
    /// damaged: the volume can be read without these sums.
    fn sums(&self) -> Option<(u64, u32)> {
        let groups = Some(self.geometry().group_count).filter(|&count| count <= GROUPS_MAX)?;
        let (mut clusters, mut inodes) = (0u64, 0u32);
        for number in (0..groups).map(GroupNumber) {
            let unchanged;
            let descriptor = match self.changed.get(&number) {
                Some(group) => &group.descriptor,
                None => {
                    unchanged = self.volume.group(number).ok()?;
                    &unchanged
                }
            };
            clusters += u64::from(descriptor.free_clusters);
            inodes = inodes.saturating_add(descriptor.free_inodes);
        }
        Some((clusters, inodes))
    }
}

fn write_bitmaps(geometry: &Geometry, group: &mut Group, blocks: &mut Blocks) -> Result<()> {
    let descriptor = &mut group.descriptor;
    let checksum = |bytes: &[u8], covered: u32| {
        let covered = bytes.get(..covered as usize / 8).unwrap_or_default();
        geometry.metadata_seed().map_or(0, |seed| crc32c(seed, covered))
    };
    if let Some(bits) = &mut group.blocks {
        bits.pad();
        descriptor.free_clusters = bits.free();
        descriptor.blocks_uninitialised = false;
        descriptor.block_bitmap_checksum = checksum(&bits.bytes, geometry.clusters_per_group());
        blocks.replace(descriptor.block_bitmap, bits.bytes.clone())?;
    }
    if let Some(bits) = &mut group.inodes {
        bits.pad();
        descriptor.free_inodes = bits.free();
        descriptor.inodes_uninitialised = false;
        descriptor.inode_bitmap_checksum = checksum(&bits.bytes, geometry.inodes_per_group);
        blocks.replace(descriptor.inode_bitmap, bits.bytes.clone())?;
    }
    Ok(())
}

fn write_descriptor(
    geometry: &Geometry,
    number: GroupNumber,
    group: &Group,
    blocks: &mut Blocks,
) -> Result<()> {
    const STRUCTURE: &str = "group descriptor";
    let (block, at) = geometry.descriptor_position(number);
    let bytes = blocks.edit(block, STRUCTURE, Location::group(number).at_block(block))?;
    // A block holds a whole number of descriptors.
    group.descriptor.store(&mut bytes[at..at + geometry.descriptor_size as usize], geometry);
    Ok(())
}

/// Changes the superblock and makes its checksum.
pub(super) fn write_superblock(
    geometry: &Geometry,
    blocks: &mut Blocks,
    change: impl FnOnce(&mut RawSuperblock),
) -> Result<()> {
    let block = geometry.superblock_block();
    let bytes = blocks.edit(block, "superblock", Location::block(block))?;
    superblock::edit(bytes, geometry, change);
    Ok(())
}

/// Returns the clusters that `count` blocks from `block` lie in, counted from the volume's first.
pub(crate) fn clusters_of(geometry: &Geometry, block: FsBlock, count: u64) -> Range<u64> {
    geometry.clusters_of(block, count)
}
