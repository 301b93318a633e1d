//! Parsing of a directory's hash index blocks: checksum, bounds, search within one block.
//! Not here: the walk from block to block (`lookup`), and the leaves (`block`).
//!
//! Source: kernel documentation, `filesystems/ext4/directory.rst`, "Hash Tree Directories".

use base::checksum::crc32c;
use base::view::view_at;
use base::{Error, FileBlock, Location, Problem, Result};
use zerocopy::FromBytes;

use super::block::{DirFormat, Slot, entry_bytes};
use super::hash::{HashAlgorithm, NameHasher};
use crate::ondisk::dir::{RawIndexCount, RawIndexEntry, RawIndexInfo, RawIndexTail};

const STRUCTURE: &str = "directory index";
pub(super) const ENTRY_BYTES: usize = size_of::<RawIndexEntry>();
/// Offset of an index node's slots: after the unused entry that hides them.
pub(super) const NODE_SLOTS_AT: usize = 8;
/// Offset of the root's information: after the entries "." and "..", each with a short record.
pub(super) const ROOT_INFO_AT: usize = 2 * entry_bytes(2);
/// Offset of the root's slots.
pub(super) const ROOT_SLOTS_AT: usize = ROOT_INFO_AT + size_of::<RawIndexInfo>();
/// Bits of a slot's block number. The other bits are reserved.
pub(super) const BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// Properties of a volume and a directory that the index is parsed and verified by.
#[derive(Clone, Copy, Debug)]
pub struct IndexFormat {
    /// The directory.
    pub dir: DirFormat,
    /// Whether the volume allows one more level (`large_dir`).
    pub is_large: bool,
    /// The volume's seed for hashes.
    pub hash_seed: [u32; 4],
    /// Whether the volume hashes names as unsigned bytes.
    pub is_hash_unsigned: bool,
}

/// The root of a hash index.
#[derive(Clone, Copy, Debug)]
pub struct IndexRoot<'a> {
    /// Hashes names with this directory's parameters.
    pub hasher: NameHasher,
    /// Index levels below the root: 0 if its slots refer to leaves.
    pub levels: u8,
    /// The root's slots.
    pub node: IndexNode<'a>,
}

/// The slots of one index block, at least one. The first slot has no hash.
#[derive(Clone, Copy, Debug)]
pub struct IndexNode<'a> {
    first: FileBlock,
    rest: &'a [RawIndexEntry],
}

impl<'a> IndexNode<'a> {
    /// Returns the number of slots.
    #[expect(clippy::len_without_is_empty, reason = "there is always a first slot")]
    pub fn len(&self) -> usize {
        1 + self.rest.len()
    }

    /// Returns the last slot whose block can have names of this hash.
    pub fn search(&self, hash: u32) -> usize {
        self.rest.partition_point(|entry| entry.hash.get() <= hash)
    }

    /// Returns the block that a slot refers to; `None` past the last slot.
    pub fn block(&self, slot: usize) -> Option<FileBlock> {
        match slot.checked_sub(1) {
            None => Some(self.first),
            Some(rest) => self.rest.get(rest).map(|entry| block_of(entry.block.get())),
        }
    }

    /// Returns the least hash in a slot's block. Its lowest bit is set if names of that hash begin
    /// in the block before. `None` for the first slot: its parent has the least hash.
    pub fn hash(&self, slot: usize) -> Option<u32> {
        self.rest.get(slot.checked_sub(1)?).map(|entry| entry.hash.get())
    }
}

fn block_of(raw: u32) -> FileBlock {
    FileBlock((raw & BLOCK_MASK).into())
}

impl IndexFormat {
    /// Returns the maximum number of levels below the root.
    pub fn levels_max(&self) -> u8 {
        if self.is_large { 2 } else { 1 }
    }

    /// Parses block 0 of a hashed directory. Does not verify its checksum.
    pub fn parse_root<'a>(&self, block: &'a [u8], location: Location) -> Result<IndexRoot<'a>> {
        self.check_root_entries(block, location)?;
        let info: &RawIndexInfo = view_at(block, ROOT_INFO_AT, STRUCTURE, location)?;
        let fault = |problem| Error::corrupt(STRUCTURE, location, problem);
        let must_be = |field, found: u64, expected| {
            if found == expected {
                Ok(())
            } else {
                Err(fault(Problem::Mismatch { field, found, expected }))
            }
        };
        must_be("reserved field", info.reserved.get().into(), 0)?;
        must_be("info length", info.info_length.into(), size_of::<RawIndexInfo>() as u64)?;
        must_be("flags", (info.unused_flags & 1).into(), 0)?;
        let Some(algorithm) = HashAlgorithm::from_disk(info.hash_version) else {
            let found = info.hash_version.into();
            return Err(fault(Problem::Invalid { field: "hash version", found }));
        };
        let (levels, max) = (info.indirect_levels, self.levels_max());
        if levels > max {
            let (found, max) = (levels.into(), max.into());
            return Err(fault(Problem::Range { field: "levels", found, min: 0, max }));
        }
        let hasher =
            NameHasher { algorithm, is_unsigned: self.is_hash_unsigned, seed: self.hash_seed };
        Ok(IndexRoot { hasher, levels, node: self.parse_slots(block, ROOT_SLOTS_AT, location)? })
    }

    /// Parses an index block below the root. Does not verify its checksum.
    pub fn parse_node<'a>(&self, block: &'a [u8], location: Location) -> Result<IndexNode<'a>> {
        if !self.dir.is_index_node(block) {
            let problem = Problem::Missing("the unused entry that hides the slots");
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        self.parse_slots(block, NODE_SLOTS_AT, location)
    }

    /// Verifies an index block's checksum, if the volume has checksums.
    pub fn verify(&self, block: &[u8], is_root: bool, location: Location) -> Result<()> {
        let Some(seed) = self.dir.checksum_seed else { return Ok(()) };
        if is_root {
            self.check_root_entries(block, location)?;
        }
        let slots_at = if is_root { ROOT_SLOTS_AT } else { NODE_SLOTS_AT };
        let (limit, count) = self.limit_and_count(block, slots_at, location)?;
        let tail: &RawIndexTail =
            view_at(block, slots_at + limit * ENTRY_BYTES, STRUCTURE, location)?;
        let used = block.get(..slots_at + count * ENTRY_BYTES).unwrap_or_default();
        let computed = crc32c(crc32c(seed, used), &tail.reserved.get().to_le_bytes());
        let computed = crc32c(computed, &[0; 4]);
        match tail.checksum.get() {
            stored if stored == computed => Ok(()),
            stored => {
                Err(Error::corrupt(STRUCTURE, location, Problem::Checksum { stored, computed }))
            }
        }
    }

    /// Verifies the entries "." and "..". The second one's record hides the index from linear
    /// readers.
    fn check_root_entries(&self, block: &[u8], location: Location) -> Result<()> {
        let mut slots = self.dir.slots(block, location);
        let ends: [Option<Slot<'_>>; 2] = [slots.next().transpose()?, slots.next().transpose()?];
        match ends.map(|slot| slot.map_or(0, |slot| slot.end)) {
            [12, end] if end == block.len() => Ok(()),
            _ => {
                let problem = Problem::Missing("the two entries that hide the index");
                Err(Error::corrupt(STRUCTURE, location, problem))
            }
        }
    }

    /// Parses the slots, which begin at `slots_at`.
    fn parse_slots<'a>(
        &self,
        block: &'a [u8],
        slots_at: usize,
        location: Location,
    ) -> Result<IndexNode<'a>> {
        let (limit, count) = self.limit_and_count(block, slots_at, location)?;
        let head: &RawIndexCount = view_at(block, slots_at, STRUCTURE, location)?;
        let slots = block.get(slots_at + ENTRY_BYTES..).unwrap_or_default();
        let Ok((rest, _)) = <[RawIndexEntry]>::ref_from_prefix_with_elems(slots, count - 1) else {
            let (needed, available) = ((limit * ENTRY_BYTES) as u64, slots.len() as u64);
            let problem = Problem::Truncated { needed, available };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        };
        Ok(IndexNode { first: block_of(head.block.get()), rest })
    }

    /// Returns the number of slots that fit in a block whose slots begin at `slots_at`.
    pub(super) fn limit(&self, block_bytes: usize, slots_at: usize) -> usize {
        let tail = if self.dir.checksum_seed.is_some() { size_of::<RawIndexTail>() } else { 0 };
        block_bytes.saturating_sub(slots_at + tail) / ENTRY_BYTES
    }

    /// Returns the number of slots that fit and the number in use. Verifies that the first number
    /// matches the block size, and that the second one is from 1 to the first.
    fn limit_and_count(
        &self,
        block: &[u8],
        slots_at: usize,
        location: Location,
    ) -> Result<(usize, usize)> {
        let head: &RawIndexCount = view_at(block, slots_at, STRUCTURE, location)?;
        let location = location.at_byte(slots_at as u64);
        let expected = self.limit(block.len(), slots_at);
        let (limit, count) = (usize::from(head.limit.get()), usize::from(head.count.get()));
        if limit != expected {
            let (found, expected) = (limit as u64, expected as u64);
            let problem = Problem::Mismatch { field: "limit", found, expected };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        if count == 0 || count > limit {
            let (found, max) = (count as u64, limit as u64);
            let problem = Problem::Range { field: "count", found, min: 1, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        Ok((limit, count))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::block::tests::{block, format};
    use super::*;

    fn index_format(checksum_seed: Option<u32>) -> IndexFormat {
        IndexFormat {
            dir: DirFormat { checksum_seed, ..format(1024) },
            is_large: false,
            hash_seed: [0; 4],
            is_hash_unsigned: false,
        }
    }

    /// Returns a root of 1024 bytes with these slots.
    fn root(limit: u16, slots: &[(u32, u32)]) -> Vec<u8> {
        let mut block = block(1024, &[(12, 12, b"."), (2, 1012, b"..")]);
        block[24..32].copy_from_slice(&[0, 0, 0, 0, 1, 8, 0, 0]);
        for (at, (hash, child)) in (32..).step_by(8).zip(slots) {
            block[at..at + 4].copy_from_slice(&hash.to_le_bytes());
            block[at + 4..at + 8].copy_from_slice(&child.to_le_bytes());
        }
        block[32..34].copy_from_slice(&limit.to_le_bytes());
        block[34..36].copy_from_slice(&(slots.len() as u16).to_le_bytes());
        block
    }

    #[test]
    fn search_finds_the_last_slot_at_or_below_the_hash() {
        let block = root(124, &[(0, 1), (10, 2), (10, 3), (11, 4), (50, 0xF000_0005)]);
        let root = index_format(None).parse_root(&block, Location::default()).unwrap();
        let found = |hash| root.node.block(root.node.search(hash)).unwrap().0;
        let blocks: Vec<u64> = [0, 9, 10, 11, 49, 50, u32::MAX].into_iter().map(found).collect();
        assert_eq!(blocks, [1, 1, 3, 4, 4, 5, 5]);
        assert_eq!(
            (root.node.hash(0), root.node.hash(3), root.node.hash(5)),
            (None, Some(11), None)
        );
        assert_eq!(root.node.block(5), None);
    }

    #[test]
    fn a_damaged_root_is_refused() {
        let format = index_format(None);
        let good = root(124, &[(0, 1)]);
        format.parse_root(&good, Location::default()).unwrap();
        for (byte, value) in
            [(24, 1), (28, 6), (29, 9), (30, 2), (31, 1), (32, 125), (34, 0), (35, 1)]
        {
            let mut bad = good.clone();
            bad[byte] = value;
            assert!(format.parse_root(&bad, Location::default()).is_err(), "byte {byte}");
        }
        let deep = {
            let mut deep = good.clone();
            deep[30] = 2;
            deep
        };
        let large = IndexFormat { is_large: true, ..format };
        assert_eq!(large.parse_root(&deep, Location::default()).unwrap().levels, 2);
    }

    #[test]
    fn the_checksum_covers_the_slots_in_use() {
        let format = index_format(Some(5));
        let mut block = root(123, &[(0, 1), (8, 2)]);
        let sum = crc32c(crc32c(5, &block[..48]), &[0; 8]);
        block[1020..].copy_from_slice(&sum.to_le_bytes());
        format.verify(&block, true, Location::default()).unwrap();
        block[48] ^= 1;
        format.verify(&block, true, Location::default()).unwrap();
        block[47] ^= 1;
        assert!(format.verify(&block, true, Location::default()).is_err());
    }

    proptest! {
        #[test]
        fn random_slots_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 1024),
            limit in 120_u16..128,
            count in 0_u16..128,
            is_root: bool,
            checksum: bool,
            hash: u32,
        ) {
            let format = index_format(checksum.then_some(9));
            let mut block = if is_root { root(limit, &[]) } else { block(1024, &[(0, 1024, b"")]) };
            let at = if is_root { 32 } else { 8 };
            block[at..].copy_from_slice(&bytes[at..]);
            block[at..at + 2].copy_from_slice(&limit.to_le_bytes());
            block[at + 2..at + 4].copy_from_slice(&count.to_le_bytes());
            let _ = format.verify(&block, is_root, Location::default());
            let node = match is_root {
                true => format.parse_root(&block, Location::default()).map(|root| root.node),
                false => format.parse_node(&block, Location::default()),
            };
            if let Ok(node) = node {
                prop_assert!(node.search(hash) < node.len());
                prop_assert!(node.block(node.search(hash)).is_some());
            }
            let _ = format.parse_root(&bytes, Location::default());
            let _ = format.parse_node(&bytes, Location::default());
        }
    }
}
