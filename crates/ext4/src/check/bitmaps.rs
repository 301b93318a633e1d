//! The check of the bitmaps and counts of groups, and of the superblock's counts, against the
//! clusters and inodes found in use.

use base::attributes::FileType;
use base::{GroupNumber, InodeNumber, Location, Problem};

use super::states::Role;
use super::{Check, SUPERBLOCK};
use crate::alloc::bitmap::Bitmap;
use crate::features::Feature;
use crate::layout::group::GroupDescriptor;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET;

const WORD_BITS: u32 = u64::BITS;

/// What is free in the groups so far.
#[derive(Clone, Copy, Default)]
struct Free {
    clusters: u64,
    inodes: u64,
}

impl Check<'_> {
    pub(super) fn check_bitmaps(&mut self) {
        let mut free = Some(Free::default());
        for group in (0..self.geometry().group_count).map(GroupNumber) {
            let (done, total) = (group.0.into(), self.geometry().group_count.into());
            if !self.report.advance("bitmaps", done, total) {
                return;
            }
            // A damaged descriptor was reported by an earlier pass.
            let Ok(descriptor) = self.volume.group(group) else {
                free = None;
                continue;
            };
            let clusters = self.check_clusters(&descriptor);
            let inodes = self.check_group_inodes(&descriptor);
            if let Some(free) = &mut free {
                free.clusters = free.clusters.saturating_add(clusters);
                free.inodes = free.inodes.saturating_add(inodes);
            }
        }
        if let Some(free) = free.filter(|_| self.volume.has_exact_counts()) {
            self.check_superblock_counts(free);
        }
    }

    fn check_superblock_counts(&mut self, free: Free) {
        let raw = self.volume.superblock().raw();
        let high = match self.geometry().features.has(Feature::SixtyFourBit) {
            true => raw.free_blocks_count_hi.get(),
            false => 0,
        };
        let blocks = u64::from(high) << 32 | u64::from(raw.free_blocks_count_lo.get());
        // As in Linux, a last cluster that is not whole counts as one.
        let expected = free.clusters.saturating_mul(self.geometry().blocks_per_cluster().into());
        let inodes = raw.free_inodes_count.get().into();
        let location = Location::byte(SUPERBLOCK_OFFSET.0);
        self.report.compare(SUPERBLOCK, location, "free block count", blocks, expected);
        self.report.compare(SUPERBLOCK, location, "free inode count", inodes, free.inodes);
    }

    /// Returns the number of free clusters.
    fn check_clusters(&mut self, descriptor: &GroupDescriptor) -> u64 {
        let group = descriptor.group;
        let length = self.geometry().clusters_for(self.geometry().blocks_in_group(group)) as u32;
        let mut used = vec![0; length.div_ceil(WORD_BITS) as usize];
        self.claims.copy_group(group, &mut used);
        let location = Location::group(group).at_block(descriptor.block_bitmap);
        if let Some(bitmap) = self.report.ok(self.volume.block_bitmap(descriptor)) {
            for (marked, first, count) in differences(&bitmap, &used) {
                let block = self.claims.block(group, first.into());
                self.report_marks("block bitmap", location.at_block(block), marked, count);
            }
            if !descriptor.blocks_uninitialised {
                self.check_padding("block bitmap", &bitmap, location);
            }
        }
        let free = u64::from(length) - count_bits(&used, length);
        let found = descriptor.free_clusters.into();
        let location = Location::group(group);
        self.report.compare("group descriptor", location, "free block count", found, free);
        free
    }

    /// Checks, for descriptors without checksums, that no inode in use is among those that were
    /// never used. Nothing reads this number, and mke2fs does not set it.
    fn check_unused_inodes(&mut self, descriptor: &GroupDescriptor, used: &[u64]) {
        let length = u64::from(self.geometry().inodes_per_group);
        let found = u64::from(descriptor.unused_inodes);
        if self.geometry().has_group_checksums() || found > length {
            return;
        }
        let last = used.iter().rposition(|word| *word != 0);
        let end = last.map_or(0, |at| {
            let zeroes = used.get(at).map_or(0, |word| word.leading_zeros());
            (at as u64 + 1) * u64::from(WORD_BITS) - u64::from(zeroes)
        });
        let max = length.saturating_sub(end);
        if found > max {
            let problem = Problem::Range { field: "never used inode count", found, min: 0, max };
            let location = Location::group(descriptor.group);
            self.report.corrupt("group descriptor", location, problem);
        }
    }

    /// Returns the number of free inodes.
    fn check_group_inodes(&mut self, descriptor: &GroupDescriptor) -> u64 {
        let (group, length) = (descriptor.group, self.geometry().inodes_per_group);
        let first = u64::from(group.0) * u64::from(length) + 1;
        let mut used = vec![0; length.div_ceil(WORD_BITS) as usize];
        let mut mark = |index: u64| {
            if let Some(word) = used.get_mut((index / u64::from(WORD_BITS)) as usize) {
                *word |= 1 << (index % u64::from(WORD_BITS));
            }
        };
        let states = || self.states.in_use(InodeNumber(first), length.into());
        states().for_each(|(number, _)| mark(number.0 - first));
        (first..u64::from(self.geometry().first_inode).min(first + u64::from(length)))
            .for_each(|number| mark(number - first));
        let directories = states().filter(|(_, state)| {
            let kind = match state.role {
                Role::Named(kind) | Role::Orphan(kind) => Some(kind),
                _ => None,
            };
            kind == Some(FileType::Directory)
        });
        let directories = directories.count() as u64;
        self.check_unused_inodes(descriptor, &used);

        let location = Location::group(group).at_block(descriptor.inode_bitmap);
        if let Some(bitmap) = self.report.ok(self.volume.inode_bitmap(descriptor)) {
            for (marked, index, count) in differences(&bitmap, &used) {
                let location = location.in_inode(InodeNumber(first + u64::from(index)));
                self.report_marks("inode bitmap", location, marked, count);
            }
            if !descriptor.inodes_uninitialised {
                self.check_padding("inode bitmap", &bitmap, location);
            }
        }
        let free = u64::from(length) - count_bits(&used, length);
        for (field, found, expected) in [
            ("free inode count", descriptor.free_inodes, free),
            ("directory count", descriptor.directories, directories),
        ] {
            let location = Location::group(group);
            self.report.compare("group descriptor", location, field, found.into(), expected);
        }
        free
    }

    fn report_marks(
        &mut self,
        name: &'static str,
        location: Location,
        is_marked: bool,
        count: u32,
    ) {
        let count = count.into();
        let problem =
            if is_marked { Problem::MarkedUsed { count } } else { Problem::MarkedFree { count } };
        self.report.corrupt(name, location, problem);
    }

    /// Checks that the bits behind the last cluster or inode of a group are set, so that they do
    /// not count as free.
    fn check_padding(&mut self, name: &'static str, bitmap: &Bitmap, location: Location) {
        let (bytes, length) = (bitmap.bytes(), bitmap.length() as usize);
        let whole = bytes.get(length.div_ceil(8)..).unwrap_or_default();
        let part = bytes.get(length / 8).filter(|_| length % 8 != 0);
        let is_part_set = part.is_none_or(|byte| byte >> (length % 8) == u8::MAX >> (length % 8));
        if !is_part_set || whole.iter().any(|&byte| byte != u8::MAX) {
            self.report.corrupt(name, location, Problem::Missing("padding of ones"));
        }
    }
}

/// Counts the set bits among the first `length` bits.
fn count_bits(words: &[u64], length: u32) -> u64 {
    let words = words.iter().zip(0..).map(|(word, index)| word & mask(length, index));
    words.map(|word| u64::from(word.count_ones())).sum()
}

/// Returns a mask of the bits of word `index` that are below `length`.
fn mask(length: u32, index: u32) -> u64 {
    match length.saturating_sub(index * WORD_BITS) {
        0 => 0,
        bits if bits >= WORD_BITS => u64::MAX,
        bits => (1 << bits) - 1,
    }
}

/// Returns the runs of bits in which `bitmap` differs from `used`: whether they are set in
/// `bitmap`, the first bit, and the number of bits.
fn differences(bitmap: &Bitmap, used: &[u64]) -> Vec<(bool, u32, u32)> {
    let mut runs: Vec<(bool, u32, u32)> = Vec::new();
    let stored = bitmap
        .bytes()
        .chunks(8)
        .map(|bytes| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    for ((stored, &used), index) in stored.zip(used).zip(0..) {
        let mut differs = (stored ^ used) & mask(bitmap.length(), index);
        while differs != 0 {
            let bit = differs.trailing_zeros();
            differs &= differs - 1;
            let (is_set, at) = (stored >> bit & 1 == 1, index * WORD_BITS + bit);
            match runs.last_mut() {
                Some((last, first, count)) if *last == is_set && *first + *count == at => {
                    *count += 1;
                }
                _ => runs.push((is_set, at, 1)),
            }
        }
    }
    runs
}
