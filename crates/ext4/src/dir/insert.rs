//! Insertion of a name into a directory. If there is no room, rounds of changes make room. After
//! each round, the directory is valid.
//!
//! Not here: the bytes of entries (`leaf.rs`) and of the index (`node.rs`), and the first index
//! (`build.rs`).

use base::attributes::FileType;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result, Unsupported};
use iomap::MetadataBuffer;

use super::hash::HashAlgorithm;
use super::leaf::NewEntry;
use super::lookup::Path;
use super::node::{INDEXED_BLOCKS_MAX, NodeKind};
use super::{Directory, STRUCTURE, check_new_name};
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;
use crate::journal::Handle;

/// Bound on the rounds of an insertion. None takes as many: the inline directory becomes a block,
/// the block gets an index, the index gets its levels, one node of each level and a leaf are split.
const ROUNDS_MAX: u32 = 12;

/// Outcome of a round.
pub(super) enum Progress {
    /// The name was inserted.
    Inserted,
    /// There is more room. The next round searches for it again.
    MadeRoom,
}

impl Inode {
    /// Adds a name to this directory. Errors: `Exists` if the name exists; nothing is changed.
    /// `NoSpace` if the directory must grow and cannot: the names are unchanged. If this was the
    /// handle's first change, [`Handle::mark_undone`] is called; otherwise the caller undoes its
    /// earlier changes.
    pub(crate) fn dir_insert(
        &self,
        handle: &mut Handle<'_>,
        name: &[u8],
        number: InodeNumber,
        kind: FileType,
    ) -> Result<()> {
        self.check_name_to_insert(name)?;
        Directory::for_change(self)?.check_absent(name)?;
        self.insert_or_undo(handle, name, number, kind, &mut FileBlock(0))
    }

    /// [`dir_insert`](Self::dir_insert) of a name that does not exist. In a directory without an
    /// index, the search for room begins at `cursor`, which is moved past blocks without room.
    pub(crate) fn dir_insert_absent(
        &self,
        handle: &mut Handle<'_>,
        name: &[u8],
        number: InodeNumber,
        kind: FileType,
        cursor: &mut FileBlock,
    ) -> Result<()> {
        self.check_name_to_insert(name)?;
        self.insert_or_undo(handle, name, number, kind, cursor)
    }

    /// Adds a name that is valid and does not exist. Errors: as in
    /// [`dir_insert`](Self::dir_insert).
    fn insert_or_undo(
        &self,
        handle: &mut Handle<'_>,
        name: &[u8],
        number: InodeNumber,
        kind: FileType,
        cursor: &mut FileBlock,
    ) -> Result<()> {
        let is_first = !handle.has_changes();
        let outcome = self.insert_in_rounds(handle, name, number, kind, cursor);
        if outcome == Err(Error::NoSpace) && is_first {
            handle.mark_undone();
        }
        outcome
    }

    fn check_name_to_insert(&self, name: &[u8]) -> Result<()> {
        // Encrypted names have any bytes.
        if self.has(InodeFlags::ENCRYPTED) { Ok(()) } else { check_new_name(name) }
    }

    fn insert_in_rounds(
        &self,
        handle: &mut Handle<'_>,
        name: &[u8],
        number: InodeNumber,
        kind: FileType,
        cursor: &mut FileBlock,
    ) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            // Opened again, to see the changes of the last round.
            let directory = Directory::for_change(self)?;
            let entry = directory.format.dir.new_entry(name, number, kind);
            let progress = if self.has(InodeFlags::INLINE_DATA) {
                directory.insert_inline(handle, &entry)?
            } else if directory.is_hashed {
                directory.insert_by_hash(handle, &entry)?
            } else {
                directory.insert_anywhere(handle, &entry, cursor)?
            };
            if let Progress::Inserted = progress {
                return Ok(());
            }
        }
        let problem = Problem::Missing("room after a leaf was split");
        Err(Error::corrupt("directory", Location::inode(self.number()), problem))
    }

    /// Returns the credits that one insertion needs.
    pub(crate) fn credits_for_insert(&self) -> u32 {
        let is_large = self.volume().geometry().features.has(Feature::LargeDir);
        let levels = if is_large { 3 } else { 2 };
        // A new block on each level of the index, one block for a new level, one leaf, and the
        // block of an inline directory.
        let new_blocks = levels + 3;
        // The index blocks on the path and the inode change, too.
        self.credits_for_map(new_blocks) + new_blocks + levels + 2
    }
}

/// A leaf that was read.
pub(super) struct Leaf {
    pub buffer: MetadataBuffer,
    pub location: Location,
}

impl<'a> Directory<'a> {
    /// Opens a directory to change it. Errors: `Unsupported` if this kind of directory cannot be
    /// changed yet, except in a recovery.
    pub(super) fn for_change(inode: &'a Inode) -> Result<Self> {
        let directory = Self::open(inode)?;
        if inode.volume().is_recovering() {
            return Ok(directory);
        }
        if inode.has(InodeFlags::CASEFOLD) {
            let (inode, feature) = (inode.number(), Feature::Casefold.name());
            return Err(Unsupported::Inode { inode, feature }.into());
        }
        if directory.is_hashed && !inode.volume().superblock().has(Feature::DirIndex) {
            let problem = Problem::Invalid { field: "flags", found: InodeFlags::INDEX.0.into() };
            return Err(Error::corrupt("inode", directory.location(), problem));
        }
        Ok(directory)
    }

    /// Returns `Exists` if the directory has the name.
    fn check_absent(&self, name: &[u8]) -> Result<()> {
        let is_present = if self.inode.has(InodeFlags::INLINE_DATA) {
            self.find_inline(name)?.is_some()
        } else {
            self.find(name)?.is_some()
        };
        if is_present { Err(Error::Exists) } else { Ok(()) }
    }

    /// Returns the hash algorithm of a new index; `None` if directories get no index.
    pub(super) fn new_hash(&self) -> Option<HashAlgorithm> {
        let superblock = self.inode.volume().superblock();
        superblock
            .has(Feature::DirIndex)
            .then(|| HashAlgorithm::from_disk(superblock.directory_hash.default_version))?
    }

    /// Adds an entry to a directory without an index, in the first block from `cursor` on that has
    /// room, to which `cursor` moves.
    fn insert_anywhere(
        &self,
        handle: &mut Handle<'_>,
        entry: &NewEntry<'_>,
        cursor: &mut FileBlock,
    ) -> Result<Progress> {
        let mut blocks_read = 0;
        while let Some(block) = self.next_block(*cursor)? {
            self.count_read(&mut blocks_read)?;
            if let Some((buffer, location)) = self.read(block)? {
                if self.insert_into(handle, &Leaf { buffer, location }, entry)? {
                    return Ok(Progress::Inserted);
                }
            }
            *cursor = FileBlock(block.0 + 1);
        }
        // Hashes of names that ignore case are not computed.
        let can_be_hashed = self.blocks == FileBlock(1) && !self.inode.has(InodeFlags::CASEFOLD);
        match self.new_hash().filter(|_| can_be_hashed) {
            Some(algorithm) => self.build_index(handle, algorithm)?,
            None => {
                let leaf = self.format.dir.new_leaf([*entry]);
                self.append(handle, leaf)?;
                return Ok(Progress::Inserted);
            }
        }
        Ok(Progress::MadeRoom)
    }

    /// Adds an entry to a leaf. Returns false if there is no room.
    pub(super) fn insert_into(
        &self,
        handle: &mut Handle<'_>,
        leaf: &Leaf,
        entry: &NewEntry<'_>,
    ) -> Result<bool> {
        let format = self.format.dir;
        let entries = format.entries(&leaf.buffer);
        let Some(room) = format.find_room(entries, leaf.location, entry.bytes())? else {
            return Ok(false);
        };
        self.edit_leaf(handle, leaf.buffer.block(), leaf.location, |bytes| {
            format.insert(bytes, room, entry);
        })?;
        Ok(true)
    }

    /// Adds an entry to the leaf of its hash, or makes one change that makes room for it.
    fn insert_by_hash(&self, handle: &mut Handle<'_>, entry: &NewEntry<'_>) -> Result<Progress> {
        let (path, _) = self.path_to(entry.name)??;
        let leaf = self.leaf_of(&path)?;
        if self.insert_into(handle, &leaf, entry)? || self.insert_packed(handle, &leaf, entry)? {
            return Ok(Progress::Inserted);
        }
        if self.has_room(&path, path.entries.len() - 1)? {
            self.split_leaf(handle, &path, &leaf)?;
        } else {
            self.make_room_in_index(handle, &path)?;
        }
        Ok(Progress::MadeRoom)
    }

    /// Returns the leaf at the end of a path. Errors: `Corrupt` if it is an index block.
    pub(super) fn leaf_of(&self, path: &Path) -> Result<Leaf> {
        let fault = |location, problem| Error::corrupt("directory index", location, problem);
        let Some((at, reference)) = self.child(path)? else {
            let location = Location::inode(self.inode.number());
            return Err(fault(location, Problem::Missing("the slot of a leaf")));
        };
        let (buffer, location) = self.read_referenced(at, reference)?;
        let is_same = |block: FsBlock| block == buffer.block();
        if path.entries.iter().any(|entry| entry.block == at || is_same(entry.buffer.block())) {
            return Err(fault(reference, Problem::Cycle));
        }
        // An empty leaf can look like an index block, but its slots do not parse.
        if self.format.parse_node(&buffer, location).is_ok() {
            return Err(fault(location, Problem::Repeated("the index block")));
        }
        Ok(Leaf { buffer, location })
    }

    /// Packs a leaf's entries and adds an entry. Returns false if there is no room even then.
    fn insert_packed(
        &self,
        handle: &mut Handle<'_>,
        leaf: &Leaf,
        entry: &NewEntry<'_>,
    ) -> Result<bool> {
        let format = self.format.dir;
        let mut entries = Vec::new();
        for known in format.used(format.entries(&leaf.buffer), leaf.location) {
            entries.push(known?);
        }
        entries.push(*entry);
        let needed: usize = entries.iter().map(NewEntry::bytes).sum();
        if needed > format.entries_bytes() {
            return Ok(false);
        }
        let packed = format.new_leaf(entries);
        self.rewrite(handle, leaf.buffer.block(), leaf.location, &packed)?;
        Ok(true)
    }

    /// Returns whether the path's block of this level has room for another slot.
    fn has_room(&self, path: &Path, level: usize) -> Result<bool> {
        let entry = &path.entries[level];
        Ok(self.node(entry)?.len() < self.format.slots_max(NodeKind::of(entry.block)))
    }

    /// Moves half of a leaf's names to a new leaf. The last index block of the path has room for
    /// the new slot.
    fn split_leaf(&self, handle: &mut Handle<'_>, path: &Path, leaf: &Leaf) -> Result<()> {
        let split = self.format.dir.split_leaf(&path.hasher, &leaf.buffer, leaf.location)?;
        let split = split.ok_or_else(|| {
            let problem = Problem::Missing("a second entry in a full leaf");
            Error::corrupt(STRUCTURE, leaf.location, problem)
        })?;
        let at = self.append(handle, split.high)?;
        self.rewrite(handle, leaf.buffer.block(), leaf.location, &split.low)?;
        self.insert_slot(handle, path, path.entries.len() - 1, split.hash, at)
    }

    /// Splits the block below the last block of the path that has room, or adds a level if all are
    /// full.
    fn make_room_in_index(&self, handle: &mut Handle<'_>, path: &Path) -> Result<()> {
        let mut parent = None;
        for level in 0..path.entries.len() {
            if self.has_room(path, level)? {
                parent = Some(level);
            }
        }
        let full = parent.map_or(0, |parent| parent + 1);
        let entry = &path.entries[full];
        let mut node: Box<[u8]> = Box::from(&entry.buffer[..]);
        match parent {
            Some(parent) => {
                let (upper, hash) = self.format.split_node(&mut node);
                let at = self.append(handle, upper)?;
                self.rewrite(handle, entry.buffer.block(), entry.location, &node)?;
                self.insert_slot(handle, path, parent, hash, at)
            }
            None if path.levels < self.format.levels_max() => {
                let (at, block) = self.append_blank(handle)?;
                let lower = self.format.deepen_root(&mut node, at);
                handle.replace(block, lower);
                self.rewrite(handle, entry.buffer.block(), entry.location, &node)
            }
            None => Err(Error::NoSpace),
        }
    }

    /// Adds a slot for `child` after the path's slot of this level.
    fn insert_slot(
        &self,
        handle: &mut Handle<'_>,
        path: &Path,
        level: usize,
        hash: u32,
        child: FileBlock,
    ) -> Result<()> {
        let (entry, format) = (&path.entries[level], self.format);
        let kind = NodeKind::of(entry.block);
        let is_done = handle.edit(entry.buffer.block(), STRUCTURE, entry.location, |node| {
            format.insert_slot(node, kind, entry.slot, hash, child)
        })?;
        if !is_done {
            let problem = Problem::Shared { blocks: 1 };
            return Err(Error::corrupt("directory index", entry.location, problem));
        }
        Ok(())
    }

    /// Changes a leaf that was read, and its checksum.
    pub(super) fn edit_leaf(
        &self,
        handle: &mut Handle<'_>,
        block: FsBlock,
        location: Location,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let format = self.format.dir;
        handle.edit(block, STRUCTURE, location, |leaf| {
            change(leaf);
            format.seal_leaf(leaf);
        })
    }

    /// Replaces the contents of a block that was read.
    pub(super) fn rewrite(
        &self,
        handle: &mut Handle<'_>,
        block: FsBlock,
        location: Location,
        contents: &[u8],
    ) -> Result<()> {
        handle.edit(block, STRUCTURE, location, |bytes| bytes.copy_from_slice(contents))
    }

    /// Adds a block with these contents to the end of the directory.
    pub(super) fn append(&self, handle: &mut Handle<'_>, contents: Box<[u8]>) -> Result<FileBlock> {
        let (at, block) = self.append_blank(handle)?;
        handle.replace(block, contents);
        Ok(at)
    }

    /// Adds a block to the end of the directory. The caller writes its contents.
    fn append_blank(&self, handle: &mut Handle<'_>) -> Result<(FileBlock, FsBlock)> {
        let geometry = self.inode.volume().geometry();
        let size = (self.blocks.0 + 1) << geometry.block_size.shift();
        let is_large = geometry.features.has(Feature::LargeDir);
        // Without the feature, the upper half of the size field has another meaning in directories.
        if (!is_large && u32::try_from(size).is_err()) || self.blocks.0 >= INDEXED_BLOCKS_MAX {
            return Err(Error::NoSpace);
        }
        let (at, block) = self.inode.append_block(handle)?;
        debug_assert_eq!(at, self.blocks, "a directory grows at its end");
        Ok((at, block))
    }
}
