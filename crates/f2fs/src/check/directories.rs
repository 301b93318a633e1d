//! The check of directories: the entries of each block or inline area, and their names, hashes,
//! positions and inodes.

use base::attributes::FileType;
use base::{FileBlock, InodeNumber, Location, Problem};

use super::Check;
use super::inodes::File;
use crate::core::Core;
use crate::dir::entries::{Entries, Entry, EntryFormat, code_of_file_type};
use crate::dir::{Casefold, stored_hash};
use crate::inode::record::{InodeRecord, flags};
use crate::ondisk::node::RawInode;

const STRUCTURE: &str = "directory entry";
const DIRECTORY: &str = "directory";
/// The bit of `inline` of a directory that need not have "." and "..".
const WITHOUT_DOTS: u8 = 0x10;
/// The links of a directory that are not names of directories in it: its name and ".".
const OWN_LINKS: u64 = 2;

/// A directory in the course of its check.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryCheck {
    format: EntryFormat,
    casefold: Option<Casefold>,
    has_dot: bool,
    /// The inode of "..".
    pub(super) dot_dot: Option<InodeNumber>,
    /// The number of names of directories.
    subdirectories: u64,
}

impl DirectoryCheck {
    pub(super) fn new(volume: &Core, record: &InodeRecord) -> Self {
        let inode = record.attributes.inode;
        let inode_max = InodeNumber(volume.geometry().nid_count().saturating_sub(1));
        let encoding = volume.superblock().encoding;
        let encoding = encoding.filter(|_| record.has_flag(flags::CASEFOLDED));
        let casefold = encoding.map(|encoding| Casefold {
            strict: encoding.is_strict,
            linear_fallback: !encoding.is_hash_only,
        });
        let format = EntryFormat { inode, inode_max, encrypted: record.is_encrypted };
        Self { format, casefold, has_dot: false, dot_dot: None, subdirectories: 0 }
    }
}

impl Check<'_> {
    /// Checks the entries of a dentry area, which lies at `location`: that of block `block` of the
    /// directory, or in its inode.
    pub(super) fn check_dentries(
        &mut self,
        file: &mut File<'_>,
        area: &[u8],
        location: Location,
        block: Option<FileBlock>,
    ) {
        let record = file.record;
        let Some(directory) = &mut file.directory else { return };
        let end = self.geometry().block_size.blocks_for(record.attributes.size);
        let mut is_hidden = block.is_some_and(|block| block.0 >= end);
        let mut entries = Entries::new(area, location);
        while let Some(entry) = entries.next() {
            match entry {
                Ok(entry) => {
                    if std::mem::take(&mut is_hidden) {
                        let problem = Problem::Missing("block below the directory's size");
                        self.report.corrupt(STRUCTURE, location, problem);
                    }
                    let checked = entry.check(&directory.format, location);
                    let location = entry.location(location);
                    if self.report.ok(checked).is_some() {
                        self.check_entry(directory, record, &entry, location, block);
                    }
                }
                Err(error) => {
                    self.report.add(error);
                    entries.skip_damaged();
                }
            }
        }
    }

    fn check_entry(
        &mut self,
        directory: &mut DirectoryCheck,
        record: &InodeRecord,
        entry: &Entry<'_>,
        location: Location,
        block: Option<FileBlock>,
    ) {
        let Some(kind) = entry.kind else {
            return self.corrupt_entry(directory, entry, location, Problem::Missing("file type"));
        };
        if let Some(hash) = stored_hash(entry.name, directory.casefold, directory.format.encrypted)
        {
            if entry.hash != hash {
                let (found, expected) = (entry.hash.into(), hash.into());
                let problem = Problem::Mismatch { field: "hash", found, expected };
                self.corrupt_entry(directory, entry, location, problem);
            }
        }
        let is_dot = matches!(entry.name, b"." | b"..");
        // The first block has the entries with hash 0 of the directory itself.
        if let Some(block) = block.filter(|_| !is_dot) {
            if !record.may_have(entry.hash, block) {
                let problem = Problem::Invalid { field: "bucket", found: block.0 };
                self.corrupt_entry(directory, entry, location, problem);
            }
        }
        if is_dot {
            if kind != FileType::Directory {
                let problem = Problem::Missing("type directory");
                self.report.corrupt(STRUCTURE, location, problem);
            }
            return self.check_dot(directory, entry, location);
        }
        if !self.table_inodes.has(entry.inode.0) {
            let problem = Problem::FreeInode { inode: entry.inode.0 };
            return self.corrupt_entry(directory, entry, location, problem);
        }
        self.count_name(directory, entry, kind, location);
    }

    fn check_dot(&mut self, directory: &mut DirectoryCheck, entry: &Entry<'_>, location: Location) {
        let (is_repeated, name) = if entry.name == b"." {
            (std::mem::replace(&mut directory.has_dot, true), "\".\"")
        } else {
            (directory.dot_dot.replace(entry.inode).is_some(), "\"..\"")
        };
        if is_repeated {
            self.report.corrupt(DIRECTORY, location, Problem::Repeated(name));
        }
    }

    /// Counts a name of an inode in use.
    fn count_name(
        &mut self,
        directory: &mut DirectoryCheck,
        entry: &Entry<'_>,
        kind: FileType,
        location: Location,
    ) {
        let inode = entry.inode;
        let known = self.states.change(inode, |state| {
            state.names = state.names.saturating_add(1);
            let known = state.kind.or(state.named_kind);
            state.named_kind.get_or_insert(kind);
            known
        });
        if known.is_some_and(|known| known != kind) {
            let found = code_of_file_type(kind).into();
            let problem = Problem::Invalid { field: "file type", found };
            self.corrupt_entry(directory, entry, location, problem);
        }
        if kind != FileType::Directory {
            return;
        }
        directory.subdirectories += 1;
        let state = self.directories.entry(inode).or_default();
        if state.parent.replace(directory.format.inode).is_some() {
            let problem = Problem::Repeated("name of a directory");
            self.corrupt_entry(directory, entry, location, problem);
        }
    }

    /// Reports an inconsistency of an entry, with its name unless that is encrypted.
    fn corrupt_entry(
        &mut self,
        directory: &DirectoryCheck,
        entry: &Entry<'_>,
        location: Location,
        problem: Problem,
    ) {
        if directory.format.encrypted {
            self.report.corrupt(STRUCTURE, location, problem);
        } else {
            self.report.corrupt_entry(STRUCTURE, location, entry.name, problem);
        }
    }

    /// Checks a directory after all of its entries were seen.
    pub(super) fn check_directory_end(
        &mut self,
        record: &InodeRecord,
        raw: &RawInode,
        directory: &DirectoryCheck,
    ) {
        let location = Location::inode(record.attributes.inode);
        if raw.inline & WITHOUT_DOTS == 0 {
            for (is_there, name) in
                [(directory.has_dot, "\".\""), (directory.dot_dot.is_some(), "\"..\"")]
            {
                if !is_there {
                    self.report.corrupt(DIRECTORY, location, Problem::Missing(name));
                }
            }
        }
        // An orphan has no links any more.
        if !self.orphans.contains(&record.attributes.inode) {
            let (found, expected) = (raw.links.get().into(), OWN_LINKS + directory.subdirectories);
            self.report.compare(DIRECTORY, location, "link count", found, expected);
        }
    }
}
