//! Blocks of data that is on its way to the device, and how many nodes the ends of these writes
//! change.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use base::{FileBlock, FsBlock, InodeNumber};

/// The nodes of a part of a file with as many blocks as a node has addresses: the inode, and two
/// nodes with its addresses.
pub(crate) const NODES_OF_PART: u64 = 3;

/// The blocks for a write of a part of a file.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) inode: InodeNumber,
    /// The first block of the file.
    pub(crate) at: FileBlock,
    pub(crate) range: Range<FsBlock>,
    /// Whether the file has these blocks already.
    pub(crate) is_overwrite: bool,
}

impl Placed {
    pub(crate) fn blocks(&self) -> impl Iterator<Item = FsBlock> + use<> {
        (self.range.start.0..self.range.end.0).map(FsBlock)
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> u64 {
        self.range.end.0 - self.range.start.0
    }

    /// Adds the write of the next part of the same file, if it goes to the next blocks. Returns
    /// whether it does.
    pub(crate) fn extend(&mut self, next: &Self) -> bool {
        let is_next = (next.inode, next.at.0, next.range.start)
            == (self.inode, self.at.0 + self.len(), self.range.end);
        if is_next {
            self.range.end = next.range.end;
        }
        is_next
    }
}

/// The placements of writes that have not ended.
#[derive(Debug)]
pub(crate) struct Placements {
    by_token: HashMap<u64, Placed>,
    next_token: u64,
    /// The number of placements in each part of a file, with as many blocks as a node has
    /// addresses.
    in_parts: BTreeMap<(InodeNumber, u64), u32>,
    addresses_per_node: u64,
}

impl Placements {
    pub(crate) fn new(addresses_per_node: u64) -> Self {
        let (by_token, in_parts) = Default::default();
        Self { by_token, next_token: 0, in_parts, addresses_per_node }
    }

    /// Adds a placement. Returns its token.
    pub(crate) fn add(&mut self, placed: Placed) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.put_back(token, placed);
        token
    }

    /// Adds a placement that was removed, with its token.
    pub(crate) fn put_back(&mut self, token: u64, placed: Placed) {
        for part in self.parts(&placed) {
            *self.in_parts.entry((placed.inode, part)).or_insert(0) += 1;
        }
        self.by_token.insert(token, placed);
    }

    /// Removes a placement.
    pub(crate) fn remove(&mut self, token: u64) -> Option<Placed> {
        let placed = self.by_token.remove(&token)?;
        for part in self.parts(&placed) {
            let key = (placed.inode, part);
            if let Some(count) = self.in_parts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.in_parts.remove(&key);
                }
            }
        }
        Some(placed)
    }

    /// Removes a placement if it overwrites blocks. Returns whether it does.
    pub(crate) fn remove_overwrite(&mut self, token: u64) -> bool {
        let is_overwrite = self.by_token.get(&token).is_some_and(|placed| placed.is_overwrite);
        is_overwrite && self.remove(token).is_some()
    }

    /// Returns the blocks that are overwritten.
    pub(crate) fn overwritten(&self) -> impl Iterator<Item = FsBlock> {
        self.by_token.values().filter(|placed| placed.is_overwrite).flat_map(Placed::blocks)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_token.is_empty()
    }

    /// Returns all blocks.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = FsBlock> {
        self.by_token.values().flat_map(Placed::blocks)
    }

    /// Returns how many nodes change at most when all writes have ended.
    pub(crate) fn nodes(&self) -> u64 {
        NODES_OF_PART * self.in_parts.len() as u64
    }

    fn parts(&self, placed: &Placed) -> Range<u64> {
        let end = placed.at.0 + placed.len();
        placed.at.0 / self.addresses_per_node..end.div_ceil(self.addresses_per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(inode: u64, at: u64, count: u64) -> Placed {
        Placed {
            inode: InodeNumber(inode),
            at: FileBlock(at),
            range: FsBlock(0)..FsBlock(count),
            is_overwrite: false,
        }
    }

    #[test]
    fn nodes_are_counted_once_for_all_writes_that_change_them() {
        let mut placements = Placements::new(100);
        let tokens: Vec<u64> = (0..50).map(|at| placements.add(placed(3, at, 1))).collect();
        assert_eq!(placements.nodes(), 3);
        let across = placements.add(placed(3, 99, 2));
        let other = placements.add(placed(4, 0, 1));
        assert_eq!(placements.nodes(), 9);
        assert_eq!(placements.blocks().count(), 53);
        for token in tokens {
            assert!(placements.remove(token).is_some());
        }
        assert_eq!(placements.nodes(), 9);
        assert!(placements.remove(across).is_some() && placements.remove(across).is_none());
        assert_eq!(placements.nodes(), 3);
        placements.remove(other);
        assert!(placements.is_empty());
        assert_eq!((placements.nodes(), placements.blocks().count()), (0, 0));
    }
}
