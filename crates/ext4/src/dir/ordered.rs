//! Lists a directory that can change meanwhile, in the order of its names' hashes.
//!
//! A name's cursor is made of its hash alone, so it stays when the entry moves: when a leaf is
//! divided, when a directory of one block gets an index, or an inline one becomes a block. That is
//! why those are listed in this order too, where they are to have an index when they grow.
//! Directories that never get one are listed by position (`list.rs`), and nothing moves in them.
//!
//! Cursors: 0 is ".", 1 is "..", and all others have bit 62 set, which no position has. Below it
//! are 31 bits of the hash that the index orders by, and 31 bits that order names of the same:
//! another hash, or the next number that is free when those are the same too. Only when a name of
//! two such goes while the directory is listed can the other be missed.

use base::attributes::{DirCursor, DirEntry, FileType};
use base::checksum::crc32c;
use base::{Error, FileBlock, InodeNumber, Location, Problem, Result};

use super::Directory;
use super::hash::NameHasher;
use super::leaf::NewEntry;
use super::list::Emit;
use super::lookup::Path;
use crate::inode::inline::InlineDirectory;
use crate::inode::record::InodeFlags;

const STRUCTURE: &str = "directory index";
const MARK: u64 = 1 << 62;
/// Bits of a cursor that order names of one hash.
const TIE_BITS: u32 = 31;
/// The second hash leaves room at the end for names whose hashes are all the same.
const SECOND_BITS: u32 = TIE_BITS - 1;
const PARENT_CURSOR: DirCursor = DirCursor(1);
/// Names of one hash that are held in memory, at most.
const ALIKE_MAX: usize = 1 << 20;

/// A name on its way to being listed.
struct Name {
    major: u32,
    second: u32,
    bytes: Box<[u8]>,
    inode: InodeNumber,
    kind: Option<FileType>,
}

/// The hashes that a leaf may have.
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

    /// Whether names of this hash go on in the next leaf.
    fn goes_on(self, major: u32) -> bool {
        self.next == Some(major | 1)
    }
}

impl Directory<'_> {
    /// How the names of a directory that is listed in the order of hashes are hashed; `None` for
    /// one that is listed by position.
    pub(super) fn listing_hasher(&self) -> Result<Option<NameHasher>> {
        let volume = self.inode.volume();
        // Nothing moves in a directory that cannot be changed.
        if volume.writer().is_err() || self.inode.has(InodeFlags::CASEFOLD) {
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
        let (root, location) = self.read_named(FileBlock(0), self.location())?;
        // An index that makes no sense is not used, and its directory not changed.
        Ok(self.format.parse_root(&root, location).ok().map(|root| root.hasher))
    }

    /// Lists from a cursor on in the order of hashes.
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
        // What is no cursor of a name comes before all of those.
        listing.from = listing.from.max(MARK);
        if self.is_hashed {
            return self.list_leaves(&mut listing);
        }
        let everything = Bounds { low: 0, next: None };
        if self.inode.has(InodeFlags::INLINE_DATA) {
            let record = self.inode.record();
            for (bytes, location) in InlineDirectory::open(self.inode.volume(), &record)?.parts() {
                listing.add(self, bytes, location, everything)?;
            }
        } else if let Some((block, location)) = self.read(FileBlock(0))? {
            listing.add(self, &block, location, everything)?;
        }
        listing.give(everything);
        Ok(())
    }

    /// Lists "." and ".."; true when that is enough.
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

    /// Lists the leaves from the one on that can have the first name wanted.
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
            if listing.give(bounds) {
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

    /// The least hash of the leaf that a path leads to: what the lowest of its slots says that is
    /// not the first of its block.
    fn low_of(&self, path: &Path) -> Result<u32> {
        for step in path.steps.iter().rev() {
            if let Some(hash) = self.node(step)?.hash(step.slot) {
                return Ok(hash);
            }
        }
        Ok(0)
    }
}

struct Listing<'e> {
    /// The first cursor wanted.
    from: u64,
    hasher: NameHasher,
    /// Read, but not yet given.
    names: Vec<Name>,
    emit: Emit<'e>,
}

impl Listing<'_> {
    /// The hash of the first name wanted.
    fn major(&self) -> u32 {
        // 31 bits are left.
        (((self.from & !MARK) >> TIE_BITS) as u32) << 1
    }

    /// Adds the names of a block that are wanted.
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
            if super::lookup::is_dots(name) {
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
        if self.names.len() > ALIKE_MAX + bytes.len() {
            let (found, max) = (self.names.len() as u64, ALIKE_MAX as u64);
            let problem = Problem::Range { field: "names of one hash", found, min: 0, max };
            return Err(Error::corrupt(STRUCTURE, location, problem));
        }
        Ok(())
    }

    /// Gives what was added, but for names that go on in the next leaf; true when that is enough.
    fn give(&mut self, bounds: Bounds) -> bool {
        self.names.sort_by(|one, other| {
            (one.major, one.second, &one.bytes).cmp(&(other.major, other.second, &other.bytes))
        });
        let end = self.names.partition_point(|name| !bounds.goes_on(name.major));
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
