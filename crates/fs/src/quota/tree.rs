//! Reading of quota files: the header, the entry of an id, and all entries.

use std::collections::{HashMap, HashSet};

use base::view::view_at;
use base::{Error, Location, Problem, Result};

use super::layout::{
    BLOCK_BYTES, ENTRIES, LEVELS, REFERENCES, ROOT, RawEntry, RawHeader, RawLeaf, VERSION,
};
use super::{Place, QuotaBlock, QuotaKind, ReadBlocks, Usage};

const STRUCTURE: &str = "quota file";

/// A quota file.
#[derive(Debug)]
pub struct QuotaFile<B> {
    pub(super) blocks: B,
    pub(super) header: RawHeader,
}

impl<B: ReadBlocks> QuotaFile<B> {
    /// Opens a quota file of this kind. Errors: `Corrupt`, and those of reading.
    pub fn open(kind: QuotaKind, blocks: B) -> Result<Self> {
        let first = blocks.read(0)?;
        let location = blocks.location();
        let header: RawHeader = view_at::<RawHeader>(&first, 0, STRUCTURE, location)?.clone();
        let (found, expected) = (header.magic.get().into(), kind.magic().into());
        if found != expected {
            return Err(Error::corrupt(STRUCTURE, location, Problem::Magic { found, expected }));
        }
        let file = Self { blocks, header };
        if file.header.version.get() != VERSION {
            let found = file.header.version.get().into();
            return Err(file.fault(Problem::Invalid { field: "version", found }));
        }
        let max = file.blocks.size().div_ceil(BLOCK_BYTES as u64);
        file.in_range("blocks", file.header.blocks.get().into(), u64::from(ROOT) + 1, max)?;
        for (field, block) in [
            ("first free block", file.header.free_block.get()),
            ("first block with free entries", file.header.free_entry.get()),
        ] {
            file.reference(field, block)?;
        }
        Ok(file)
    }

    /// Calls `visit` for each id with an entry, and what it uses. Errors: `Corrupt` if the tree,
    /// the entries or the lists of free ones contradict each other.
    pub fn for_each(&self, visit: &mut dyn FnMut(u32, Usage)) -> Result<()> {
        let mut walk =
            Walk { file: self, visit, tree: HashSet::from([ROOT]), leaves: HashMap::new() };
        walk.level(ROOT, 0, 0)?;
        walk.check_leaves()?;
        walk.check_lists()
    }

    /// Returns the place of an id's entry, if it has one.
    pub(super) fn place_of(&self, id: u32) -> Result<Option<Place>> {
        let mut block = ROOT;
        for index in id.to_be_bytes() {
            block = self.child(&self.blocks.read(block)?, index.into())?;
            if block == 0 {
                return Ok(None);
            }
        }
        self.place_in(&self.blocks.read(block)?, block, id).map(Some)
    }

    /// Returns the place of an id's entry in its block, whose contents are `leaf`.
    fn place_in(&self, leaf: &QuotaBlock, block: u32, id: u32) -> Result<Place> {
        for index in 0..ENTRIES {
            let entry = self.entry(leaf, index)?;
            if entry.id.get() == id && entry.is_used() {
                return Ok(Place { block, index });
            }
        }
        Err(self.fault(Problem::Missing("entry of an id")))
    }

    pub(super) fn entry(&self, leaf: &QuotaBlock, index: usize) -> Result<RawEntry> {
        view_at::<RawEntry>(leaf, entry_at(index), STRUCTURE, self.location()).cloned()
    }

    pub(super) fn leaf(&self, contents: &QuotaBlock) -> Result<RawLeaf> {
        view_at::<RawLeaf>(contents, 0, STRUCTURE, self.location()).cloned()
    }

    /// Returns the reference at `index` in a block of the tree. 0 stands for none.
    pub(super) fn child(&self, contents: &QuotaBlock, index: usize) -> Result<u32> {
        let word = contents.get(index * size_of::<u32>()..).and_then(|rest| rest.first_chunk());
        let child = word.map_or(0, |word| u32::from_le_bytes(*word));
        self.reference("reference to a block", child)
    }

    /// Returns a reference to a block behind the root, or 0. Errors: `Corrupt` for any other
    /// number.
    pub(super) fn reference(&self, field: &'static str, block: u32) -> Result<u32> {
        if block != 0 {
            let max = u64::from(self.header.blocks.get()).saturating_sub(1);
            self.in_range(field, block.into(), u64::from(ROOT) + 1, max)?;
        }
        Ok(block)
    }

    fn in_range(&self, field: &'static str, found: u64, min: u64, max: u64) -> Result<()> {
        if (min..=max).contains(&found) {
            return Ok(());
        }
        Err(self.fault(Problem::Range { field, found, min, max }))
    }

    fn location(&self) -> Location {
        self.blocks.location()
    }

    pub(super) fn fault(&self, problem: Problem) -> Error {
        Error::corrupt(STRUCTURE, self.location(), problem)
    }
}

/// Returns the byte of an entry in its block.
pub(super) fn entry_at(index: usize) -> usize {
    size_of::<RawLeaf>() + index * size_of::<RawEntry>()
}

fn usage_of(entry: &RawEntry) -> Usage {
    Usage { bytes: entry.bytes.get(), inodes: entry.inodes.get() }
}

/// A walk through the whole file.
struct Walk<'w, B> {
    file: &'w QuotaFile<B>,
    visit: &'w mut dyn FnMut(u32, Usage),
    /// The blocks of the tree that were visited.
    tree: HashSet<u32>,
    /// The blocks with entries, and how often each is referred to.
    leaves: HashMap<u32, u64>,
}

impl<B: ReadBlocks> Walk<'_, B> {
    /// Visits a block of the tree, and all below it. `prefix` has the first `level` bytes of its
    /// ids.
    fn level(&mut self, block: u32, level: usize, prefix: u32) -> Result<()> {
        let contents = self.file.blocks.read(block)?;
        for index in 0..REFERENCES {
            let child = self.file.child(&contents, index)?;
            if child == 0 {
                continue;
            }
            // A block has 256 references.
            let ids = prefix << 8 | index as u32;
            if level + 1 == LEVELS {
                self.entry(child, ids)?;
            } else if self.tree.insert(child) {
                self.level(child, level + 1, ids)?;
            } else {
                return Err(self.file.fault(Problem::Repeated("reference to a block")));
            }
        }
        Ok(())
    }

    fn entry(&mut self, block: u32, id: u32) -> Result<()> {
        let leaf = self.file.blocks.read(block)?;
        let place = self.file.place_in(&leaf, block, id)?;
        *self.leaves.entry(block).or_insert(0) += 1;
        (self.visit)(id, usage_of(&self.file.entry(&leaf, place.index)?));
        Ok(())
    }

    /// Checks that each block with entries has as many as its header says, and as refer to it.
    fn check_leaves(&self) -> Result<()> {
        for (block, references) in &self.leaves {
            if self.tree.contains(block) {
                return Err(self.file.fault(Problem::Repeated("reference to a block")));
            }
            let leaf = self.file.blocks.read(*block)?;
            let found = u64::from(self.file.leaf(&leaf)?.entries.get());
            let mut used = 0;
            for index in 0..ENTRIES {
                used += u64::from(self.file.entry(&leaf, index)?.is_used());
            }
            for expected in [used, *references] {
                if found != expected {
                    let field = "number of entries in a block";
                    return Err(self.file.fault(Problem::Mismatch { field, found, expected }));
                }
            }
        }
        Ok(())
    }

    /// Checks that the lists have all blocks with free entries, and no others, and only blocks that
    /// are not in use.
    fn check_lists(&self) -> Result<()> {
        let has_room = |references: &u64| *references < ENTRIES as u64;
        let header = &self.file.header;
        let with_room = self.list(header.free_entry.get(), true, &|block| {
            self.leaves.get(&block).is_some_and(has_room)
        })?;
        let expected =
            self.leaves.values().filter(|references| has_room(references)).count() as u64;
        if with_room != expected {
            let (field, found) = ("number of blocks with free entries", with_room);
            return Err(self.file.fault(Problem::Mismatch { field, found, expected }));
        }
        let is_free = |block| !self.leaves.contains_key(&block) && !self.tree.contains(&block);
        self.list(header.free_block.get(), false, &is_free).map(|_| ())
    }

    /// Follows a list from its first block on. Returns the number of its blocks, for each of which
    /// `fits` must be true.
    fn list(&self, first: u32, is_doubly_linked: bool, fits: &dyn Fn(u32) -> bool) -> Result<u64> {
        let (mut seen, mut previous, mut at) = (HashSet::new(), 0, first);
        while at != 0 {
            if !seen.insert(at) {
                return Err(self.file.fault(Problem::Cycle));
            }
            let leaf = self.file.leaf(&self.file.blocks.read(at)?)?;
            let is_wrong = is_doubly_linked && leaf.previous.get() != previous;
            if is_wrong || !fits(at) {
                let field = "block in a list of free ones";
                return Err(self.file.fault(Problem::Invalid { field, found: at.into() }));
            }
            previous = at;
            at = self.file.reference("next free block", leaf.next.get())?;
        }
        Ok(seen.len() as u64)
    }
}
