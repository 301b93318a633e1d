//! Listing of a directory in the order of its names' hashes.
//!
//! A directory can change during a listing. A name's cursor is made of its hash alone, so the
//! cursor stays valid if the entry moves: when a leaf is split, when a directory of one block gets
//! an index, or when an inline directory is converted to a block. So directories without an index
//! are listed by hash, too, if they get an index when they grow. Directories that never get one are
//! listed by position (`list.rs`): in these, no entry moves.
//!
//! Cursors: 0 is ".", 1 is "..", and all others have bit 62 set, which no position has. The bits
//! below it are 31 bits of the hash in the index, and 31 bits that order names of equal hash: a
//! second hash, or the next free number if the second hashes are equal, too. Only if one of two
//! such names is removed during a listing can the other be missed.

use base::attributes::{DirCursor, DirEntry, FileType};
use base::checksum::crc32c;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};

use super::Directory;
use super::hash::NameHasher;
use super::leaf::NewEntry;
use super::lookup::Path;
use super::slots::Emit;
use crate::dir::inline::InlineDirectory;
use crate::inode::record::InodeFlags;

const STRUCTURE: &str = "directory index";
const MARK: u64 = 1 << 62;
/// Bits of a cursor that order names of equal hash.
const TIE_BITS: u32 = 31;
/// Bits of the second hash. It leaves room at the end for names whose hashes are all equal.
const SECOND_BITS: u32 = TIE_BITS - 1;
const PARENT_CURSOR: DirCursor = DirCursor(1);
/// Maximum number of names with one hash that are in memory.
const NAMES_OF_ONE_HASH_MAX: usize = 1 << 20;

/// A name that was read, and is not emitted yet.
struct Name {
    major: u32,
    second: u32,
    bytes: Box<[u8]>,
    inode: InodeNumber,
    kind: Option<FileType>,
}

/// The range of hashes in a leaf.
#[derive(Clone, Copy)]
struct Bounds {
    low: u32,
    /// The next leaf's least hash, with the mark of continued hashes.
    next: Option<u32>,
}

impl Bounds {
    fn contains(self, major: u32) -> bool {
        major >= self.low && self.next.is_none_or(|next| major < next)
    }

    /// Returns whether names of this hash continue in the next leaf.
    fn continues(self, major: u32) -> bool {
        self.next == Some(major | 1)
    }
}

impl Directory<'_> {
    /// Returns the hasher of a directory that is listed by hash; `None` if it is listed by
    /// position.
    pub(super) fn listing_hasher(&self) -> Result<Option<NameHasher>> {
        let volume = self.inode.volume();
        // Nothing moves in a directory that cannot be changed.
        let has_writers = volume.writer().is_ok() && !volume.is_recovering();
        if has_writers { self.hasher() } else { Ok(None) }
    }

    /// Returns the hasher of the directory's names; `None` if it has no order by hash, or that of
    /// folded names.
    pub(super) fn hasher(&self) -> Result<Option<NameHasher>> {
        let volume = self.inode.volume();
        if self.inode.has(InodeFlags::CASEFOLD) {
            return Ok(None);
        }
        let Some(algorithm) = self.new_hash() else { return Ok(None) };
        if self.inode.has(InodeFlags::INLINE_DATA) || (!self.is_hashed && self.blocks.0 <= 1) {
            let hash = &volume.superblock().directory_hash;
            return Ok(Some(NameHasher { algorithm, is_unsigned: hash.unsigned, seed: hash.seed }));
        }
        if !self.is_hashed {
            return Ok(None);
        }
        let (root, location) = self.read_referenced(FileBlock(0), self.location())?;
        // An inconsistent index is not used, and its directory is not changed.
        Ok(self.format.parse_root(&root, location).ok().map(|root| root.hasher))
    }

    /// Lists the names from a cursor on, in the order of hashes.
    pub(super) fn list_ordered(
        &self,
        hasher: &NameHasher,
        from: DirCursor,
        emit: Emit<'_>,
    ) -> Result<()> {
        let mut listing = Listing { from: from.0, hasher: *hasher, names: Vec::new(), emit };
        if from.0 <= PARENT_CURSOR.0 && self.list_dots(&mut listing)? {
            return Ok(());
        }
        // A position that is not a cursor of this kind comes before all names.
        listing.from = listing.from.max(MARK);
        if self.is_hashed {
            return self.list_leaves(&mut listing);
        }
        let all_hashes = Bounds { low: 0, next: None };
        if self.inode.has(InodeFlags::INLINE_DATA) {
            let record = self.inode.record();
            for (bytes, location) in InlineDirectory::open(self.inode.volume(), &record)?.parts() {
                listing.add(self, bytes, location, all_hashes)?;
            }
        } else if let Some((block, location)) = self.read(FileBlock(0))? {
            listing.add(self, &block, location, all_hashes)?;
        }
        listing.emit_complete(all_hashes);
        Ok(())
    }

    /// Lists "." and "..". Returns true if `emit` breaks.
    fn list_dots(&self, listing: &mut Listing<'_>) -> Result<bool> {
        let kind = self.format.dir.has_file_types.then_some(FileType::Directory);
        let names =
            [(&b"."[..], DirCursor(0), PARENT_CURSOR), (b"..", PARENT_CURSOR, DirCursor(MARK))];
        for (name, cursor, next) in names {
            let inode = if self.inode.has(InodeFlags::INLINE_DATA) {
                let record = self.inode.record();
                InlineDirectory::open(self.inode.volume(), &record)?.find(&self.format.dir, name)?
            } else {
                self.find(name)?.map(|located| located.found.inode)
            };
            let Some(inode) = inode.filter(|_| cursor.0 >= listing.from) else { continue };
            if (listing.emit)(DirEntry { name, inode, kind, next }).is_break() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lists the leaves from the first one on that can have the first name of the listing.
    fn list_leaves(&self, listing: &mut Listing<'_>) -> Result<()> {
        let mut leaves_read = 0;
        let mut path = self.path_by(|_| listing.major())??;
        let mut low = self.low_of(&path)?;
        loop {
            self.count_read(&mut leaves_read)?;
            let leaf = self.leaf_of(&path)?;
            let next = self.advance(&mut path)?;
            let bounds = Bounds { low: low & !1, next };
            listing.add(self, &leaf.buffer, leaf.location, bounds)?;
            if listing.emit_complete(bounds) {
                return Ok(());
            }
            let Some(next) = next else { return Ok(()) };
            if next & !1 < bounds.low {
                let (previous, found) = (bounds.low.into(), next.into());
                let problem = Problem::Disorder { field: "hash", previous, found };
                return Err(Error::corrupt(STRUCTURE, leaf.location, problem));
            }
            low = next;
            self.descend(&mut path, None)??;
        }
    }

    /// Returns the least hash of the leaf at the end of a path: the hash of the lowest slot of the
    /// path that is not the first slot of its block.
    fn low_of(&self, path: &Path) -> Result<u32> {
        for entry in path.entries.iter().rev() {
            if let Some(hash) = self.node(entry)?.hash(entry.slot) {
                return Ok(hash);
            }
        }
        Ok(0)
    }
}

struct Listing<'e> {
    /// The first cursor to emit.
    from: u64,
    hasher: NameHasher,
    /// Names that were read, and are not emitted yet.
    names: Vec<Name>,
    emit: Emit<'e>,
}

impl Listing<'_> {
    /// Returns the hash of the first name to emit.
    fn major(&self) -> u32 {
        // 31 bits are left.
        (((self.from & !MARK) >> TIE_BITS) as u32) << 1
    }

    /// Adds a block's names, from the first name to emit on.
    fn add(
        &mut self,
        directory: &Directory<'_>,
        bytes: &[u8],
        location: Location,
        bounds: Bounds,
    ) -> Result<()> {
        let (format, wanted) = (&directory.format.dir, self.major());
        for entry in format.used(bytes, location) {
            let NewEntry { name, inode, code } = entry?;
            if super::is_dots(name) {
                continue;
            }
            let major = self.hasher.hash(name).major;
            if !bounds.contains(major) {
                let found = major.into();
                let (min, max) = (bounds.low.into(), bounds.next.unwrap_or(u32::MAX).into());
                let problem = Problem::Range { field: "hash of a name", found, min, max };
                return Err(Error::corrupt(STRUCTURE, location, problem));
            }
            if major >= wanted {
                let second = crc32c(0, name) >> (u32::BITS - SECOND_BITS);
                let kind = format.file_type_of(code);
                self.names.push(Name { major, second, bytes: name.into(), inode, kind });
            }
        }
        if self.names.len() > NAMES_OF_ONE_HASH_MAX + bytes.len() {
            let (found, max) = (self.names.len() as u64, NAMES_OF_ONE_HASH_MAX as u64);
            let problem = Problem::Range { field: "names of one hash", found, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        Ok(())
    }

    /// Emits the added names, except names that continue in the next leaf. Returns true if `emit`
    /// breaks.
    fn emit_complete(&mut self, bounds: Bounds) -> bool {
        self.names.sort_by(|one, other| {
            (one.major, one.second, &one.bytes).cmp(&(other.major, other.second, &other.bytes))
        });
        let end = self.names.partition_point(|name| !bounds.continues(name.major));
        let mut last = None;
        for name in self.names.drain(..end) {
            let hash = MARK | u64::from(name.major >> 1) << TIE_BITS;
            let own = hash | u64::from(name.second);
            let cursor = last.filter(|&last| last >= own).map_or(own, |last| last + 1);
            last = Some(cursor);
            if cursor < self.from {
                continue;
            }
            let entry = DirEntry {
                name: &name.bytes,
                inode: name.inode,
                kind: name.kind,
                next: DirCursor(cursor + 1),
            };
            if (self.emit)(entry).is_break() {
                return true;
            }
        }
        false
    }
}
