//! Adds and removes names in the blocks of one directory. Not here: names that ignore case,
//! directories in inodes, and the order of an index's leaves: a full one is made linear.

use std::collections::BTreeMap;

use base::attributes::FileType;
use base::{Error, FileBlock, FsBlock, InodeNumber, Location, Problem, Result, Unsupported};
use fs::Run;

use super::Editor;
use super::map::FileMap;
use crate::dir::block::{DirFormat, entry_bytes};
use crate::dir::index::IndexFormat;

const STRUCTURE: &str = "directory block";

/// A directory whose blocks are being changed.
pub(crate) struct DirectoryEdit<'a> {
    pub editor: &'a mut Editor,
    pub format: IndexFormat,
    pub map: &'a mut FileMap,
    /// Whether blocks can be added, which takes an extent tree.
    pub can_grow: bool,
    /// Blocks, holes included.
    pub blocks: u64,
    /// Whether the directory has an index. Goes when the index cannot take a name.
    pub is_hashed: bool,
    /// Whether the index has the hashes of folded names, which are not computed here.
    pub ignores_case: bool,
    /// Where the search for room goes on.
    pub cursor: FileBlock,
}

impl DirectoryEdit<'_> {
    fn location(&self, at: FileBlock) -> Location {
        Location::inode(self.format.dir.inode).at_file_block(at)
    }

    /// The first block at or after `at` that is mapped.
    fn next_block(&self, at: FileBlock) -> Option<FileBlock> {
        let at = self.map.next_block(at)?;
        (at.0 < self.blocks).then_some(at)
    }

    fn read(&self, at: FileBlock) -> Result<Option<Box<[u8]>>> {
        let Some(block) = self.map.block_at(at) else { return Ok(None) };
        self.editor.blocks.read(block, STRUCTURE, self.location(at).at_block(block)).map(Some)
    }

    /// Puts a leaf in its place, with its tail and checksum.
    fn write_leaf(&mut self, at: FileBlock, mut bytes: Box<[u8]>) -> Result<()> {
        self.format.dir.seal_leaf(&mut bytes);
        let Some(block) = self.map.block_at(at) else {
            unreachable!("a leaf is written where it was read or just mapped");
        };
        self.editor.blocks.replace(block, bytes)
    }

    /// Whether the block is part of the index rather than a leaf.
    fn is_index(&self, at: FileBlock, bytes: &[u8]) -> bool {
        self.is_hashed && (at == FileBlock(0) || self.format.dir.is_index_node(bytes))
    }

    /// Removes these names where they stand for these inodes.
    pub(crate) fn remove(&mut self, names: &BTreeMap<&[u8], InodeNumber>) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut next = FileBlock(0);
        while let Some(at) = self.next_block(next) {
            next = FileBlock(at.0 + 1);
            let Some(mut bytes) = self.read(at)? else { continue };
            if self.is_index(at, &bytes) {
                continue;
            }
            let hits = self.find(at, &bytes, names)?;
            for &(previous, start, end) in &hits {
                match previous {
                    Some(previous) => {
                        self.format.dir.set_length(&mut bytes, previous, end - previous)
                    }
                    None => bytes[start..start + 4].fill(0),
                }
            }
            if !hits.is_empty() {
                self.write_leaf(at, bytes)?;
            }
        }
        Ok(())
    }

    /// The entries of the block that are among `names`: where the one before them that stays
    /// begins, and where they begin and end. The first one stays as an unused entry.
    fn find(
        &self,
        at: FileBlock,
        bytes: &[u8],
        names: &BTreeMap<&[u8], InodeNumber>,
    ) -> Result<Vec<(Option<usize>, usize, usize)>> {
        let mut hits = Vec::new();
        let mut previous = None;
        for slot in self.format.dir.slots(self.format.dir.entries(bytes), self.location(at)) {
            let slot = slot?;
            if slot.inode.is_some() && names.get(slot.name).copied() == slot.inode {
                hits.push((previous, slot.start, slot.end));
                previous = previous.or(Some(slot.start));
            } else {
                previous = Some(slot.start);
            }
        }
        Ok(hits)
    }

    /// Begins a directory: its first block, with the entries "." and "..".
    pub(crate) fn begin(&mut self, parent: InodeNumber) -> Result<()> {
        let at = self.append()?;
        let format = self.format.dir;
        self.write_leaf(at, format.new_leaf(format.dot_entries(parent)))
    }

    /// Adds a name, which must not be there.
    pub(crate) fn insert(&mut self, name: &[u8], inode: InodeNumber, kind: FileType) -> Result<()> {
        if self.is_hashed {
            let leaf = if self.ignores_case { None } else { self.leaf_of(name)? };
            if let Some(leaf) = leaf {
                if self.insert_into(leaf, name, inode, kind)? {
                    return Ok(());
                }
            }
            self.make_linear()?;
        }
        while let Some(at) = self.next_block(self.cursor) {
            if self.insert_into(at, name, inode, kind)? {
                return Ok(());
            }
            self.cursor = FileBlock(at.0 + 1);
        }
        let at = self.append()?;
        let format = self.format.dir;
        self.write_leaf(at, format.new_leaf([format.new_entry(name, inode, kind)]))
    }

    /// Adds a name to a leaf. False when there is no room.
    fn insert_into(
        &mut self,
        at: FileBlock,
        name: &[u8],
        inode: InodeNumber,
        kind: FileType,
    ) -> Result<bool> {
        let Some(mut bytes) = self.read(at)? else { return Ok(false) };
        let format = self.format.dir;
        let entry = format.new_entry(name, inode, kind);
        let entries = format.entries(&bytes);
        let Some(room) = format.find_room(entries, self.location(at), entry.bytes())? else {
            return Ok(false);
        };
        format.insert(&mut bytes, room, &entry);
        self.write_leaf(at, bytes)?;
        Ok(true)
    }

    /// The leaf that the index names for a name; `None` when it cannot tell.
    fn leaf_of(&self, name: &[u8]) -> Result<Option<FileBlock>> {
        let Some(root) = self.read(FileBlock(0))? else { return Ok(None) };
        let root = self.format.parse_root(&root, self.location(FileBlock(0)))?;
        let hash = root.hasher.hash(name).major;
        let mut next = root.node.block(root.node.search(hash));
        for _ in 0..root.levels {
            let Some(at) = next else { return Ok(None) };
            let Some(node) = self.read(at)? else { return Ok(None) };
            let node = self.format.parse_node(&node, self.location(at))?;
            next = node.block(node.search(hash));
        }
        // A leaf that the index also uses as a node would be overwritten.
        Ok(match next {
            Some(at) if at.0 < self.blocks => match self.read(at)? {
                Some(bytes) if !self.is_index(at, &bytes) => Some(at),
                _ => None,
            },
            _ => None,
        })
    }

    /// Turns the blocks of the index into leaves: the first keeps "." and "..".
    fn make_linear(&mut self) -> Result<()> {
        let room = self.format.dir.entries_bytes();
        let mut next = FileBlock(0);
        while let Some(at) = self.next_block(next) {
            next = FileBlock(at.0 + 1);
            let Some(mut bytes) = self.read(at)? else { continue };
            if !self.is_index(at, &bytes) {
                continue;
            }
            if at == FileBlock(0) {
                let second = entry_bytes(1);
                bytes[second + entry_bytes(2)..].fill(0);
                self.format.dir.set_length(&mut bytes, second, room - second);
            } else {
                bytes.fill(0);
                self.format.dir.set_length(&mut bytes, 0, room);
            }
            self.write_leaf(at, bytes)?;
        }
        self.is_hashed = false;
        self.cursor = FileBlock(0);
        Ok(())
    }

    /// Maps one more block.
    fn append(&mut self) -> Result<FileBlock> {
        if !self.can_grow {
            let inode = self.format.dir.inode;
            let feature = "fast_commit on a directory without extents";
            return Err(Unsupported::Inode { inode, feature }.into());
        }
        let at = FileBlock(self.blocks);
        if at.0 >= u64::from(u32::MAX) {
            let (found, max) = (at.0, u32::MAX.into());
            let problem = Problem::Range { field: "blocks", found, min: 1, max };
            return Err(Error::corrupt("directory", self.location(at), problem));
        }
        // Within a cluster, blocks lie as they do in the file.
        let per_cluster = u64::from(self.editor.geometry().blocks_per_cluster());
        let within = at.0 % per_cluster;
        let first = FileBlock(at.0 - within);
        let neighbour = self.map.next_block(first).filter(|&neighbour| neighbour < at);
        let neighbour = neighbour.and_then(|at| Some((at, self.map.block_at(at)?)));
        let block = match neighbour {
            Some((neighbour, block)) => FsBlock(block.0 + (at.0 - neighbour.0)),
            None => FsBlock(self.editor.take_block(&mut Vec::new())?.0 + within),
        };
        self.editor.geometry().check_run("directory", self.location(at), block, 1)?;
        self.map.insert(Run { start: at, length: 1, block, unwritten: false });
        self.blocks += 1;
        Ok(at)
    }
}

/// The rules for the entries of directory `inode`.
pub(crate) fn format_of(
    volume: &crate::volume::Volume,
    inode: InodeNumber,
    checksum_seed: Option<u32>,
) -> IndexFormat {
    use crate::features::Feature;

    let superblock = volume.superblock();
    let geometry = &superblock.geometry;
    IndexFormat {
        dir: DirFormat {
            inode,
            block_size: geometry.block_size,
            has_file_types: geometry.features.has(Feature::Filetype),
            inode_max: InodeNumber(geometry.inode_count.into()),
            checksum_seed,
        },
        is_large: geometry.features.has(Feature::LargeDir),
        hash_seed: superblock.directory_hash.seed,
        is_hash_unsigned: superblock.directory_hash.unsigned,
    }
}
