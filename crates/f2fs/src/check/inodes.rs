//! The check of inodes: their fields, and the counts in them against what belongs to the inode.

use std::rc::Rc;

use base::attributes::FileType;
use base::view::view_at;
use base::{Error, InodeNumber, Location, Problem};

use super::Check;
use super::directories::DirectoryCheck;
use super::extent::ExtentCheck;
use super::nodes::VersionedNode;
use crate::dir::entries::code_of_file_type;
use crate::features::Feature;
use crate::inode::record::{InodeRecord, flags, impossible_advice, inline};
use crate::node::Node;
use crate::ondisk::node::{NAME_BYTES_MAX, RawExtraAttributes, RawInode};

const STRUCTURE: &str = "inode";
/// The maximum number of levels of a directory.
const DEPTH_MAX: u32 = 63;
/// The least and greatest number of words for inline attributes of an inode that has some.
const XATTR_WORDS_MIN: u64 = 6;
/// The words of an inode that inline attributes leave for other uses: the extra attributes, one
/// address, and one directory entry.
const WORDS_LEFT: u64 = 9 + 1 + 10;

/// A file in the course of its check.
pub(super) struct File<'a> {
    pub(super) record: &'a InodeRecord,
    /// The blocks of the file found so far, nodes included.
    pub(super) blocks: u64,
    /// The blocks that compression saved, as found so far.
    pub(super) saved_blocks: u64,
    /// Whether the saved blocks were given back to the volume.
    pub(super) is_released: bool,
    pub(super) extent: ExtentCheck,
    pub(super) directory: Option<DirectoryCheck>,
}

impl File<'_> {
    pub(super) fn number(&self) -> InodeNumber {
        self.record.attributes.inode
    }

    pub(super) fn location(&self) -> Location {
        Location::inode(self.number())
    }
}

impl Check<'_> {
    /// Checks all inodes, in the order of their numbers.
    pub(super) fn check_inodes(&mut self) {
        let inodes = Rc::clone(&self.table_inodes);
        for number in inodes.numbers() {
            if !self.report.advance("inodes", number, self.geometry().nid_count()) {
                return;
            }
            self.check_inode(InodeNumber(number));
        }
    }

    fn check_inode(&mut self, number: InodeNumber) {
        let location = Location::inode(number);
        // The table has numbers of 32 bits.
        let Some(read) = self.claim_node(number.0 as u32, number, 0, location) else { return };
        let location = read.node.location();
        let raw = view_at::<RawInode>(read.node.bytes(), 0, STRUCTURE, location).cloned();
        let Some(raw) = self.report.ok(raw) else { return };
        let Some(record) = self.inode_record(&read.node) else { return };
        self.counts.inodes += 1;
        self.count_for_quota(&read.node, raw.size.get());
        let kind = record.attributes.kind;
        let named_kind = self.states.change(number, |state| {
            state.kind = Some(kind);
            state.links = raw.links.get();
            state.named_kind
        });
        if let Some(named) = named_kind.filter(|named| *named != kind) {
            let found = code_of_file_type(named).into();
            let problem = Problem::Invalid { field: "file type in its directory entry", found };
            self.report.corrupt(STRUCTURE, location, problem);
        }
        self.check_fields(&read.node, &raw, &record);
        let mut file = File {
            record: &record,
            blocks: 1,
            saved_blocks: 0,
            is_released: raw.inline & inline::RELEASED != 0,
            extent: ExtentCheck::new(&raw.extent),
            directory: (kind == FileType::Directory)
                .then(|| DirectoryCheck::new(self.volume, &record)),
        };
        self.check_xattrs(&mut file, &read.node);
        if matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink) {
            self.check_contents(&mut file, &read);
        }
        self.check_counts_of(&file, &raw, &read.node);
        if let Some(directory) = file.directory {
            self.check_directory_end(&record, &raw, &directory);
            let state = self.directories.entry(number).or_default();
            state.dot_dot = directory.dot_dot;
            state.stored_parent = InodeNumber(raw.parent.get().into());
        }
    }

    /// Returns the inode's record, even if its checksum is wrong.
    fn inode_record(&mut self, node: &Node) -> Option<InodeRecord> {
        let geometry = self.geometry();
        let record = match InodeRecord::parse(node, geometry) {
            Err(Error::Corrupt(corrupt)) if matches!(corrupt.problem, Problem::Checksum { .. }) => {
                self.report.add(Error::Corrupt(corrupt));
                InodeRecord::parse_without_checksum(node, geometry)
            }
            record => record,
        };
        let record = self.report.ok(record);
        self.has_unread_files |= record.is_none();
        record
    }

    fn check_fields(&mut self, node: &Node, raw: &RawInode, record: &InodeRecord) {
        let location = node.location();
        let has = |flag: u8| raw.inline & flag != 0;
        let kind = record.attributes.kind;
        let mut found: Vec<Problem> = Vec::new();
        let inline_flags = Problem::Invalid { field: "inline flags", found: raw.inline.into() };
        let takes_data = matches!(kind, FileType::Regular | FileType::Symlink);
        if has(inline::DATA) && !takes_data || has(inline::DENTRIES) && kind != FileType::Directory
        {
            found.push(inline_flags);
        }
        let features = self.geometry().features;
        if raw.flags.get() & flags::impossible(kind, features) != 0 {
            found.push(Problem::Invalid { field: "flags", found: raw.flags.get().into() });
        }
        if raw.advise & impossible_advice(features) != 0 {
            found.push(Problem::Invalid { field: "advice", found: raw.advise.into() });
        }
        if raw.name_length.get() as usize > NAME_BYTES_MAX {
            let (field, max) = ("name length", NAME_BYTES_MAX as u64);
            let length = raw.name_length.get().into();
            found.push(Problem::Range { field, found: length, min: 0, max });
        }
        if kind == FileType::Directory && record.depth > DEPTH_MAX {
            let (field, max) = ("depth", DEPTH_MAX.into());
            found.push(Problem::Range { field, found: record.depth.into(), min: 0, max });
        }
        let is_flexible = self.geometry().features.has(Feature::FlexibleInlineXattr);
        if has(inline::XATTR) && is_flexible && has(inline::EXTRA) {
            let words = (record.inline_xattrs.len() / 4) as u64;
            let (min, max) =
                (XATTR_WORDS_MIN, u64::from(self.geometry().inode_words()) - WORDS_LEFT);
            if !(min..=max).contains(&words) {
                let field = "inline extended attributes' size";
                found.push(Problem::Range { field, found: words, min, max });
            }
        }
        for problem in found {
            self.report.corrupt(STRUCTURE, location, problem);
        }
    }

    /// Checks the contents in the inode, or the blocks and nodes.
    fn check_contents(&mut self, file: &mut File<'_>, read: &VersionedNode) {
        let Some(area) = file.record.inline_area.clone() else {
            let (at, count) = (file.record.addresses_at, file.record.address_count);
            self.check_addresses(file, read, at, count, 0);
            return self.check_file_nodes(file, file.record.nodes);
        };
        let location = read.node.location();
        let reserved = read.node.word(file.record.addresses_at, 0);
        let reserved = self.report.ok(reserved).unwrap_or_default().into();
        self.report.compare(STRUCTURE, location, "word before inline contents", reserved, 0);
        let contents = read.node.bytes().get(area).unwrap_or_default();
        if file.directory.is_some() {
            return self.check_dentries(file, contents, location, None);
        }
        let (size, max) = (file.record.attributes.size, contents.len() as u64);
        if size > max {
            let problem = Problem::Range { field: "size of inline data", found: size, min: 0, max };
            self.report.corrupt(STRUCTURE, location, problem);
        }
        if !file.record.has_inline_data && contents.iter().any(|byte| *byte != 0) {
            let problem = Problem::Missing("flag of inline data");
            self.report.corrupt(STRUCTURE, location, problem);
        }
    }

    /// Checks the counts in the inode.
    fn check_counts_of(&mut self, file: &File<'_>, raw: &RawInode, node: &Node) {
        let location = node.location();
        if let Some(problem) = file.extent.problem(file.record.inline_area.is_some()) {
            self.report.corrupt("cached extent", location, problem);
        }
        self.report.compare(STRUCTURE, location, "block count", raw.blocks.get(), file.blocks);
        if file.record.compression.is_some() {
            let at = size_of::<RawInode>();
            let extra = view_at::<RawExtraAttributes>(node.bytes(), at, STRUCTURE, location);
            if let Some(extra) = self.report.ok(extra) {
                let (found, expected) = (extra.compressed_blocks.get(), file.saved_blocks);
                self.report.compare(STRUCTURE, location, "compressed blocks", found, expected);
            }
        }
        let is_empty = file.record.attributes.size == 0;
        if file.record.attributes.kind == FileType::Symlink && is_empty {
            self.report.corrupt(STRUCTURE, location, Problem::Missing("target"));
        }
    }
}
