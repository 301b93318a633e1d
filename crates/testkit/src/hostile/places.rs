//! Where the structures of a valid ext4 image are, and their checksums. Independent of the reader
//! under test. Not here: checks, since the images are valid; the fields of structures.

use std::collections::BTreeSet;

use base::checksum::crc32c;

use super::fields::Structure;

const SUPERBLOCK: usize = 1024;
const RO_METADATA_CSUM: u32 = 0x400;
const INCOMPAT_64BIT: u32 = 0x80;
/// The flags of inodes.
const INDEXED: u32 = 0x1000;
const EXTENTS: u32 = 0x8_0000;
const INLINE: u32 = 0x1000_0000;
/// The offset of the map in an inode.
const MAP: usize = 0x28;
/// The offset of the checksum of a block whose last four bytes have it, and its size.
const TAIL: usize = 4;
/// The maximum number of blocks of the log that are places.
const LOG_BLOCKS_MAX: usize = 96;
/// The feature of journals with checksums, in versions 2 and 3.
const JOURNAL_CHECKSUMS: u32 = 0x8 | 0x10;

/// A structure in an image.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The kind of structure.
    pub structure: Structure,
    /// The name of its file or its role, for messages. May be empty.
    pub name: &'static str,
    /// Its offset in the image.
    pub at: usize,
    /// The inode that has it, or 0.
    pub inode: u32,
}

pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from(half(bytes, at)) | u32::from(half(bytes, at + 2)) << 16
}

fn big_word(bytes: &[u8], at: usize) -> u32 {
    word(bytes, at).swap_bytes()
}

fn set_half(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The shape of a valid image.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The size of a block in bytes.
    pub block: usize,
    /// The size of an inode in bytes.
    pub inode_size: usize,
    inodes_per_group: usize,
    clusters_per_group: usize,
    descriptors_at: usize,
    descriptor_size: usize,
    groups: usize,
    has_checksums: bool,
    /// The seed of most checksums: that of the UUID.
    seed: u32,
}

impl Shape {
    /// Returns the shape of a valid image.
    pub fn of(image: &[u8]) -> Self {
        let superblock = &image[SUPERBLOCK..];
        let block = 1024 << word(superblock, 0x18);
        let first = word(superblock, 0x14);
        let blocks = word(superblock, 0x04) - first;
        let is_64bit = word(superblock, 0x60) & INCOMPAT_64BIT != 0;
        let revision = word(superblock, 0x4C);
        Self {
            block,
            inode_size: if revision == 0 { 128 } else { half(superblock, 0x58).into() },
            inodes_per_group: word(superblock, 0x28) as usize,
            clusters_per_group: word(superblock, 0x24) as usize,
            // Without meta groups, or in the first one.
            descriptors_at: (first as usize + 1) * block,
            descriptor_size: if is_64bit { half(superblock, 0xFE).into() } else { 32 },
            groups: blocks.div_ceil(word(superblock, 0x20)) as usize,
            has_checksums: word(superblock, 0x64) & RO_METADATA_CSUM != 0,
            seed: crc32c(!0, &superblock[0x68..0x78]),
        }
    }

    /// Returns the range of the group descriptors.
    pub(super) fn descriptors(&self) -> std::ops::Range<usize> {
        self.descriptors_at..self.descriptor(self.groups)
    }

    fn descriptor(&self, group: usize) -> usize {
        self.descriptors_at + group * self.descriptor_size
    }

    fn block_in(&self, image: &[u8], at: usize) -> usize {
        word(image, at) as usize * self.block
    }

    /// Returns the offset of an inode.
    pub fn inode(&self, image: &[u8], number: u32) -> usize {
        let index = number as usize - 1;
        let table = self.block_in(image, self.descriptor(index / self.inodes_per_group) + 8);
        table + index % self.inodes_per_group * self.inode_size
    }

    /// Returns the number of the inode that has the byte `at`.
    fn inode_at(&self, image: &[u8], at: usize) -> Option<u32> {
        (0..self.groups).find_map(|group| {
            let table = self.block_in(image, self.descriptor(group) + 8);
            let index = at.checked_sub(table)? / self.inode_size;
            let is_in = index < self.inodes_per_group;
            is_in.then_some((group * self.inodes_per_group + index) as u32 + 1)
        })
    }

    /// Returns the numbers of the inodes in use.
    fn inodes(&self, image: &[u8]) -> Vec<u32> {
        let mut numbers = Vec::new();
        for group in 0..self.groups {
            // Not initialized: the bitmap is not on the disk.
            if half(image, self.descriptor(group) + 0x12) & 1 != 0 && group > 0 {
                continue;
            }
            let bitmap = self.block_in(image, self.descriptor(group) + 4);
            let used = (0..self.inodes_per_group)
                .filter(|index| image[bitmap + index / 8] & 1 << (index % 8) != 0);
            numbers.extend(used.map(|index| (group * self.inodes_per_group + index) as u32 + 1));
        }
        numbers
    }

    /// Returns all structures of a valid image.
    pub fn places(&self, image: &[u8]) -> Vec<Place> {
        let mut finder = Finder { shape: self, image, places: Vec::new() };
        finder.add(Structure::Superblock, "", SUPERBLOCK, 0);
        for group in 0..self.groups {
            let descriptor = self.descriptor(group);
            finder.add(Structure::Descriptor, "", descriptor, 0);
            for (name, field) in [("blocks", 0), ("inodes", 4)] {
                finder.add(Structure::Bitmap, name, self.block_in(image, descriptor + field), 0);
            }
        }
        let special = [
            (Structure::JournalSuperblock, "journal", 0xE0),
            (Structure::QuotaFile, "user quota", 0x240),
            (Structure::QuotaFile, "group quota", 0x244),
            (Structure::OrphanFile, "orphan file", 0x280),
        ];
        for number in self.inodes(image) {
            let at = self.inode(image, number);
            if half(image, at) == 0 {
                continue;
            }
            let role =
                special.iter().find(|(_, _, field)| word(image, SUPERBLOCK + field) == number);
            finder.add(Structure::Inode, role.map_or("", |role| role.1), at, number);
            let blocks = finder.map(number, at);
            match role {
                Some((structure, name, _)) => finder.special(*structure, name, &blocks, number),
                None if half(image, at) & 0xF000 == 0x4000 => {
                    finder.directory(number, at, &blocks);
                }
                None => {}
            }
            let attributes = self.block_in(image, at + 0x68);
            if attributes != 0 {
                finder.add(Structure::Attributes, "", attributes, number);
            }
        }
        let mmp = self.block_in(image, SUPERBLOCK + 0x168);
        if mmp != 0 {
            finder.add(Structure::Mmp, "", mmp, 0);
        }
        finder.places
    }

    /// Sets the checksum of a structure to that of its contents, on a volume that has checksums of
    /// metadata. `sound` is the image before the damage.
    pub fn mend(&self, bytes: &mut [u8], sound: &[u8], place: &Place) {
        let (at, block) = (place.at, place.at / self.block * self.block);
        if place.structure == Structure::JournalSuperblock {
            if big_word(sound, at + 0x28) & JOURNAL_CHECKSUMS != 0 {
                bytes[at + 0xFC..at + 0x100].fill(0);
                let sum = crc32c(!0, &bytes[at..at + 1024]);
                set_word(bytes, at + 0xFC, sum.swap_bytes());
            }
            return;
        }
        if !self.has_checksums {
            return;
        }
        let seed = self.seed;
        match place.structure {
            Structure::Superblock => set_last(bytes, at, 1024, !0),
            Structure::Descriptor => {
                let group = (at - self.descriptors_at) / self.descriptor_size;
                self.mend_descriptor(bytes, group);
            }
            Structure::Bitmap => self.mend_bitmap(bytes, sound, at),
            Structure::Inode => self.mend_inode(bytes, place.inode, at),
            Structure::Extents => match self.inode_at(sound, at) {
                Some(number) => self.mend_inode(bytes, number, self.inode(sound, number)),
                None => {
                    let end = 12 + 12 * usize::from(half(sound, at + 4));
                    let sum = crc32c(self.of_inode(sound, place.inode), &bytes[at..at + end]);
                    set_word(bytes, at + end, sum);
                }
            },
            // The last eight bytes of the tail, which looks like an entry, are its type and the
            // checksum.
            Structure::Entry => {
                let end = block + self.block - 12;
                let sum = crc32c(self.of_inode(sound, place.inode), &bytes[block..end]);
                set_word(bytes, end + 8, sum);
            }
            Structure::Index => self.mend_index(bytes, sound, place, 32),
            Structure::IndexNode => self.mend_index(bytes, sound, place, 8),
            Structure::Attributes => {
                bytes[at + 0x10..at + 0x14].fill(0);
                let number = (at / self.block) as u64;
                let seed = crc32c(seed, &number.to_le_bytes());
                let sum = crc32c(seed, &bytes[at..at + self.block]);
                set_word(bytes, at + 0x10, sum);
            }
            Structure::OrphanFile => {
                let number = (at / self.block) as u64;
                let seed = crc32c(self.of_inode(sound, place.inode), &number.to_le_bytes());
                let sum = crc32c(seed, &bytes[at..at + self.block - 8]);
                set_word(bytes, at + self.block - TAIL, sum);
            }
            Structure::Mmp => set_last(bytes, at, 1024, seed),
            Structure::Pointers
            | Structure::JournalSuperblock
            | Structure::Log
            | Structure::QuotaFile => {}
        }
    }

    /// Returns the seed of the checksums of an inode's blocks.
    fn of_inode(&self, image: &[u8], number: u32) -> u32 {
        let generation = word(image, self.inode(image, number) + 0x64);
        crc32c(crc32c(self.seed, &number.to_le_bytes()), &generation.to_le_bytes())
    }

    fn mend_descriptor(&self, bytes: &mut [u8], group: usize) {
        let at = self.descriptor(group);
        set_half(bytes, at + 0x1E, 0);
        let seed = crc32c(self.seed, &(group as u32).to_le_bytes());
        let sum = crc32c(seed, &bytes[at..at + self.descriptor_size]);
        set_half(bytes, at + 0x1E, sum);
    }

    fn mend_bitmap(&self, bytes: &mut [u8], sound: &[u8], at: usize) {
        for group in 0..self.groups {
            let descriptor = self.descriptor(group);
            let bitmaps = [(0, 0x18, self.clusters_per_group), (4, 0x1A, self.inodes_per_group)];
            for (field, sum_at, bits) in bitmaps {
                if self.block_in(sound, descriptor + field) == at {
                    let sum = crc32c(self.seed, &bytes[at..at + bits / 8]);
                    set_half(bytes, descriptor + sum_at, sum);
                    if self.descriptor_size >= 64 {
                        set_half(bytes, descriptor + sum_at + 0x20, sum >> 16);
                    }
                    self.mend_descriptor(bytes, group);
                }
            }
        }
    }

    fn mend_inode(&self, bytes: &mut [u8], number: u32, at: usize) {
        set_half(bytes, at + 0x7C, 0);
        let is_large = self.inode_size > 128 && half(bytes, at + 0x80) >= 4;
        if is_large {
            set_half(bytes, at + 0x82, 0);
        }
        let generation = word(bytes, at + 0x64);
        let seed = crc32c(crc32c(self.seed, &number.to_le_bytes()), &generation.to_le_bytes());
        let sum = crc32c(seed, &bytes[at..at + self.inode_size]);
        set_half(bytes, at + 0x7C, sum);
        if is_large {
            set_half(bytes, at + 0x82, sum >> 16);
        }
    }

    /// Mends a block of an index, whose entries begin at `start`. The checksum stays wrong if there
    /// are too many.
    fn mend_index(&self, bytes: &mut [u8], sound: &[u8], place: &Place, start: usize) {
        let (at, seed) = (place.at, self.of_inode(sound, place.inode));
        let [limit, count] = [0, 2].map(|field| usize::from(half(bytes, at + start + field)));
        let tail = start + 8 * limit;
        if tail + 8 <= self.block && start + 8 * count <= self.block {
            let sum = crc32c(seed, &bytes[at..at + start + 8 * count]);
            let sum = crc32c(sum, &bytes[at + tail..at + tail + 4]);
            let sum = crc32c(sum, &[0; 4]);
            set_word(bytes, at + tail + 4, sum);
        }
    }
}

/// Sets the last four of `length` bytes to the checksum of the others.
fn set_last(bytes: &mut [u8], at: usize, length: usize, seed: u32) {
    let end = at + length - TAIL;
    let sum = crc32c(seed, &bytes[at..end]);
    set_word(bytes, end, sum);
}

struct Finder<'a> {
    shape: &'a Shape,
    image: &'a [u8],
    places: Vec<Place>,
}

impl Finder<'_> {
    fn add(&mut self, structure: Structure, name: &'static str, at: usize, inode: u32) {
        self.places.push(Place { structure, name, at, inode });
    }

    /// Adds the blocks of an inode's map. Returns the offsets of its data blocks, in order.
    fn map(&mut self, number: u32, inode: usize) -> Vec<usize> {
        let (image, flags) = (self.image, word(self.image, inode + 0x20));
        let mut data = Vec::new();
        if flags & EXTENTS != 0 {
            self.extents(number, inode + MAP, &mut data);
        } else if flags & INLINE == 0 && [0x4000, 0x8000].contains(&(half(image, inode) & 0xF000)) {
            for index in 0..15 {
                let at = self.shape.block_in(image, inode + MAP + 4 * index);
                self.pointers(at, (index as u32).saturating_sub(11), &mut data);
            }
        }
        data
    }

    fn extents(&mut self, number: u32, at: usize, data: &mut Vec<usize>) {
        let image = self.image;
        let [entries, depth] = [2, 6].map(|field| usize::from(half(image, at + field)));
        self.add(Structure::Extents, if depth > 0 { "node" } else { "leaf" }, at, number);
        for entry in (1..=entries).map(|index| at + 12 * index) {
            if depth > 0 {
                self.extents(number, self.shape.block_in(image, entry + 4), data);
            } else {
                let start = self.shape.block_in(image, entry + 8);
                let length = usize::from(half(image, entry + 4) & 0x7FFF);
                data.extend((0..length).map(|block| start + block * self.shape.block));
            }
        }
    }

    fn pointers(&mut self, at: usize, levels: u32, data: &mut Vec<usize>) {
        if at == 0 {
            return;
        }
        if levels == 0 {
            data.push(at);
            return;
        }
        self.add(Structure::Pointers, "", at, 0);
        for pointer in (at..at + self.shape.block).step_by(4) {
            self.pointers(self.shape.block_in(self.image, pointer), levels - 1, data);
        }
    }

    fn special(&mut self, structure: Structure, name: &'static str, blocks: &[usize], inode: u32) {
        let Some((first, rest)) = blocks.split_first() else { return };
        self.add(structure, name, *first, inode);
        if structure == Structure::JournalSuperblock {
            let is_used = |at: &&usize| {
                let block = &self.image[**at..**at + self.shape.block];
                block.iter().any(|byte| *byte != 0)
            };
            let used: Vec<usize> =
                rest.iter().filter(is_used).take(LOG_BLOCKS_MAX).copied().collect();
            used.into_iter().for_each(|at| self.add(Structure::Log, "", at, 0));
        }
    }

    fn directory(&mut self, number: u32, inode: usize, blocks: &[usize]) {
        let (image, size) = (self.image, self.shape.block);
        let is_indexed = word(image, inode + 0x20) & INDEXED != 0;
        for (index, block) in blocks.iter().enumerate() {
            if is_indexed && index == 0 {
                self.add(Structure::Index, "", *block, number);
            } else if is_indexed
                && word(image, *block) == 0
                && usize::from(half(image, block + 4)) == size
            {
                self.add(Structure::IndexNode, "", *block, number);
            } else {
                self.entries(number, *block);
            }
        }
    }

    fn entries(&mut self, number: u32, block: usize) {
        let mut at = block;
        while at + 12 < block + self.shape.block {
            let length = usize::from(half(self.image, at + 4));
            self.add(Structure::Entry, "", at, number);
            if length < 12 {
                break;
            }
            at += length;
        }
    }
}

/// Returns the structures that an image has.
pub fn structures(places: &[Place]) -> Vec<Structure> {
    let mut known = BTreeSet::new();
    let new = places.iter().filter(|place| known.insert(place.structure));
    new.map(|place| place.structure).collect()
}
