//! The check of directories: every entry, and the inode that it names.
//! Not here: whether every directory and inode is reachable (`tree`).

use base::{FileBlock, InodeNumber, Location, Problem};

use super::Check;
use super::encryption::NameEncryption;
use super::index::{BlockRole, HashRange, Index};
use super::states::Role;
use crate::ROOT_INODE;
use crate::dir::Directory;
use crate::dir::block::{DirFormat, HEADER_BYTES, Slot, code_from_file_type};
use crate::dir::hash::NameHasher;
use crate::dir::inline::InlineDirectory;
use crate::features::Feature;
use crate::inode::Inode;
use crate::inode::record::InodeFlags;

const ENTRY: &str = "directory entry";
const BLOCK: &str = "directory block";

/// The properties of a part of a directory.
struct Part<'a> {
    /// The inode of the directory.
    number: InodeNumber,
    format: &'a DirFormat,
    encryption: NameEncryption,
    /// Whether "." and ".." are its first entries.
    begins_with_dots: bool,
    /// The hasher and the valid hashes, if they are checked.
    hashes: Option<(&'a NameHasher, HashRange)>,
}

impl Check<'_> {
    pub(super) fn check_directories(&mut self) {
        let numbers: Vec<InodeNumber> = self.directories.keys().copied().collect();
        let total = numbers.len() as u64;
        for (number, done) in numbers.into_iter().zip(0..) {
            if !self.report.advance("directories", done, total) {
                return;
            }
            if let Some(inode) = self.report.ok(self.volume.special_inode(number)) {
                self.check_directory(&inode);
            }
        }
    }

    fn check_directory(&mut self, inode: &Inode) {
        let directory = Directory::new(inode);
        if inode.has(InodeFlags::INLINE_DATA) {
            return self.check_inline_directory(inode, &directory);
        }
        // A damaged map was reported with the inode.
        let Ok(first) = directory.next_block(FileBlock(0)) else { return };
        if first != Some(FileBlock(0)) {
            let location = Location::inode(inode.number()).at_file_block(FileBlock(0));
            self.report.corrupt(BLOCK, location, Problem::Missing("block"));
            return;
        }
        let is_hashed =
            inode.has(InodeFlags::INDEX) && self.geometry().features.has(Feature::DirIndex);
        let index = if is_hashed { Index::walk(&directory, &mut self.report) } else { None };
        let (mut at, mut blocks_read) = (FileBlock(0), 0);
        while let Ok(Some(block)) = directory.next_block(at) {
            if block != at {
                let location = Location::inode(inode.number()).at_file_block(at);
                self.report.corrupt(BLOCK, location, Problem::Missing("block"));
            }
            if self.report.ok(directory.count_read(&mut blocks_read)).is_none()
                || !self.report.go_on()
            {
                return;
            }
            self.check_block(inode, &directory, block, index.as_ref());
            at = FileBlock(block.0 + 1);
        }
    }

    fn check_block(
        &mut self,
        inode: &Inode,
        directory: &Directory<'_>,
        at: FileBlock,
        index: Option<&Index>,
    ) {
        let Some(Some((buffer, location))) = self.report.ok(directory.block(at)) else { return };
        self.report.ok(directory.verify(at, &buffer, location));
        let is_first = at == FileBlock(0);
        let role = index.and_then(|index| index.blocks.get(&at).copied());
        let range = match role {
            Some(BlockRole::Index) => return,
            Some(BlockRole::Leaf(range)) => Some(range),
            None => {
                if index.is_some() && !is_first {
                    let problem = Problem::Missing("reference in the index");
                    self.report.corrupt(BLOCK, location, problem);
                }
                None
            }
        };
        // In a directory that ignores case, the hash is that of the folded name, and is not
        // checked.
        let hasher = index.map(|index| &index.hasher);
        let hasher = hasher.filter(|_| !inode.has(InodeFlags::CASEFOLD));
        let part = Part {
            number: inode.number(),
            format: &directory.format().dir,
            encryption: NameEncryption::of(inode),
            begins_with_dots: is_first,
            hashes: hasher.zip(range),
        };
        self.check_entries(&part, &buffer, location);
    }

    fn check_inline_directory(&mut self, inode: &Inode, directory: &Directory<'_>) {
        let format = &directory.format().dir;
        // Missing data was reported with the inode.
        let record = inode.record();
        let Ok(inline) = InlineDirectory::open(inode.volume(), &record) else { return };
        self.states.add_name(inode.number());
        if let Some(parent) = self.report.ok(inline.parent(format)) {
            self.set_dot_dot(inode.number(), parent);
        }
        for (bytes, location) in inline.parts() {
            let part = Part {
                number: inode.number(),
                format,
                encryption: NameEncryption::of(inode),
                begins_with_dots: false,
                hashes: None,
            };
            self.check_entries(&part, bytes, location);
        }
    }

    fn check_entries(&mut self, part: &Part<'_>, bytes: &[u8], location: Location) {
        let mut names: Vec<&[u8]> = Vec::new();
        for (position, slot) in part.format.slots(bytes, location).enumerate() {
            let Some(slot) = self.report.ok(slot) else { break };
            let location = location.at_byte(location.byte.unwrap_or(0) + slot.start as u64);
            let dots: Option<&[u8]> = match position {
                0 if part.begins_with_dots => Some(b"."),
                1 if part.begins_with_dots => Some(b".."),
                _ => None,
            };
            if let Some(expected) = dots {
                if slot.inode.is_none() || slot.name != expected {
                    let missing = if position == 0 { "\".\"" } else { "\"..\"" };
                    self.report.corrupt(BLOCK, location, Problem::Missing(missing));
                } else {
                    if bytes.get(slot.start + HEADER_BYTES + slot.name.len()) != Some(&0) {
                        let problem = Problem::Missing("the NUL after \".\" or \"..\"");
                        self.report.corrupt(ENTRY, location, problem);
                    }
                    self.check_dots(part, &slot, location);
                    continue;
                }
            }
            let Some(target) = slot.inode else { continue };
            if part.encryption.is_plain() {
                self.report.ok(slot.checked_name(location_of_part(location, &slot)));
            }
            names.push(slot.name);
            self.check_hash(part, &slot, location);
            self.check_target(part, &slot, target, location);
        }
        names.sort_unstable();
        if names.windows(2).any(|pair| pair.first() == pair.last()) {
            self.report.corrupt(BLOCK, location, Problem::Repeated("a name"));
        }
    }

    /// Checks "." or "..", which name the directory itself and its parent.
    fn check_dots(&mut self, part: &Part<'_>, slot: &Slot<'_>, location: Location) {
        let Some(target) = slot.inode else { return };
        if slot.name == b"." {
            self.report.compare(ENTRY, location, "inode", target.0, part.number.0);
        } else {
            self.set_dot_dot(part.number, target);
        }
        self.check_file_type(part, slot, target, location);
        // The target of ".." is checked with the tree. `set_dot_dot` has counted it as a name.
        if slot.name == b"." {
            self.states.add_name(part.number);
        }
    }

    fn set_dot_dot(&mut self, directory: InodeNumber, parent: InodeNumber) {
        if let Some(state) = self.directories.get_mut(&directory) {
            state.dot_dot = Some(parent);
        }
        self.states.add_name(parent);
    }

    fn check_hash(&mut self, part: &Part<'_>, slot: &Slot<'_>, location: Location) {
        let Some((hasher, range)) = part.hashes else { return };
        let hash = hasher.hash(slot.name).major;
        if !range.contains(hash) {
            let problem = Problem::Invalid { field: "hash for its block", found: hash.into() };
            self.corrupt_entry(part, slot, location, problem);
        }
    }

    /// Checks that the inode that an entry names is in use, can have a name, and has the entry's
    /// type.
    fn check_target(
        &mut self,
        part: &Part<'_>,
        slot: &Slot<'_>,
        target: InodeNumber,
        location: Location,
    ) {
        let is_misused = matches!(slot.name, b"." | b"..") || target == ROOT_INODE;
        match self.states.get(target).role {
            Role::Named(_) | Role::Unreadable if !is_misused => {}
            Role::Free | Role::Orphan(_) => {
                let problem = Problem::FreeInode { inode: target.0 };
                return self.corrupt_entry(part, slot, location, problem);
            }
            _ => {
                let problem = Problem::Invalid { field: "inode", found: target.0 };
                return self.corrupt_entry(part, slot, location, problem);
            }
        }
        self.check_file_type(part, slot, target, location);
        let kind = self.states.get(target).role.named();
        if let (NameEncryption::Encrypted(policy), Some(kind)) = (part.encryption, kind) {
            self.check_encrypted_entry(policy, slot, (target, kind), location);
        }
        self.states.add_name(target);
        if let Some(state) = self.directories.get_mut(&target) {
            match state.parent {
                None => state.parent = Some(part.number),
                Some(_) => {
                    let problem = Problem::Repeated("the name of a directory");
                    self.corrupt_entry(part, slot, location, problem);
                }
            }
        }
    }

    fn check_file_type(
        &mut self,
        part: &Part<'_>,
        slot: &Slot<'_>,
        target: InodeNumber,
        location: Location,
    ) {
        let expected = match self.states.get(target).role.named() {
            Some(kind) if part.format.has_file_types => code_from_file_type(kind),
            Some(_) => 0,
            None => return,
        };
        // Zero is always allowed, and means that the entry has no type.
        if slot.file_type != 0 && slot.file_type != expected {
            let (found, expected) = (slot.file_type.into(), expected.into());
            let problem = Problem::Mismatch { field: "file type", found, expected };
            self.corrupt_entry(part, slot, location, problem);
        }
    }

    /// Reports an inconsistency of an entry, with its name unless that is encrypted.
    fn corrupt_entry(
        &mut self,
        part: &Part<'_>,
        slot: &Slot<'_>,
        location: Location,
        problem: Problem,
    ) {
        if part.encryption.is_plain() {
            self.report.corrupt_entry(ENTRY, location, slot.name, problem);
        } else {
            self.report.corrupt(ENTRY, location, problem);
        }
    }
}

/// Returns the location of a part, to which the positions of slots are relative, from the location
/// of a slot.
fn location_of_part(location: Location, slot: &Slot<'_>) -> Location {
    location.at_byte(location.byte.unwrap_or(0).saturating_sub(slot.start as u64))
}
