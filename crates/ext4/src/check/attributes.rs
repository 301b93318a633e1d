//! The check of extended attributes: entries, hashes, shared blocks, and values in inodes.
//!
//! Attribute blocks and value inodes are shared. Their references are counted here, and compared
//! with the stored counts after all inodes were checked.

use base::{Error, FsBlock, Location, Problem};

use super::states::Role;
use super::{AttributeBlock, Check};
use crate::inode::Inode;
use crate::xattr::entries::{
    Entries, Entry, NameBytes, Value, block_header, entry_hash, verify_block,
};
use crate::xattr::value;
use fs::xattr::NameIndex;

const STRUCTURE: &str = "extended attribute";

impl Check<'_> {
    /// Checks the attributes of an inode. Returns what they add to its block count, in units of 512
    /// bytes, or `None` if that is unknown because of damage.
    pub(super) fn check_attributes(&mut self, inode: &Inode) -> Option<u64> {
        let location = Location::inode(inode.number());
        let record = inode.record();
        let here = self.report.ok(inode.attributes_in_inode(&record))?;
        let values_here = self.check_attribute_entries(inode, &here, true, location)?;
        let in_block = match inode.record().attribute_block {
            Some(block) => self.check_attribute_block(inode, block)?,
            None => 0,
        };
        Some(values_here + in_block)
    }

    fn check_attribute_block(&mut self, inode: &Inode, block: FsBlock) -> Option<u64> {
        let geometry = self.geometry();
        let cluster_sectors = self.cluster_bytes() / 512;
        if let Some(known) = self.attribute_blocks.get_mut(&block) {
            known.found = known.found.saturating_add(1);
            return Some(cluster_sectors + known.value_sectors);
        }
        let location = Location::inode(inode.number()).at_block(block);
        if let Some((block, blocks)) = self.claims.claim(block, 1) {
            let problem = Problem::Shared { blocks };
            self.report.corrupt("extended attribute block", location.at_block(block), problem);
        }
        let mut state =
            AttributeBlock { inode: inode.number(), stored: 1, found: 1, value_sectors: 0 };
        let read = self.volume.read_metadata(block, "extended attribute block", location);
        let buffer = self.report.ok(read);
        let mut is_sound = false;
        if let Some(buffer) = &buffer {
            if let Some(seed) = geometry.metadata_seed() {
                self.report.ok(verify_block(buffer, block, seed, location));
            }
            if let Ok(header) = block_header(buffer, location) {
                state.stored = header.reference_count.get();
            }
            if let Some(entries) = self.report.ok(inode.attributes_in_block(Some(buffer))) {
                let sectors = self.check_attribute_entries(inode, &entries, false, location);
                state.value_sectors = sectors.unwrap_or(0);
                is_sound = sectors.is_some();
            }
        }
        self.attribute_blocks.insert(block, state);
        is_sound.then_some(cluster_sectors + state.value_sectors)
    }

    /// Checks entries. Returns what their values in inodes add to the block count, in units of 512
    /// bytes, or `None` if that is unknown because of damage.
    fn check_attribute_entries(
        &mut self,
        inode: &Inode,
        entries: &Entries<'_>,
        is_in_inode: bool,
        location: Location,
    ) -> Option<u64> {
        let mut sectors = Some(0);
        // The byte ranges of values, which must not overlap.
        let mut values: Vec<(usize, usize)> = Vec::new();
        for entry in entries.iter() {
            if !is_in_inode && entry.index == NameIndex(0) {
                let problem = Problem::Invalid { field: "name index", found: 0 };
                self.report.corrupt(STRUCTURE, location, problem);
            }
            match entry.value {
                Value::Here(value) => {
                    // Older versions of the kernel stored no hashes in inodes.
                    let may_lack_hash = is_in_inode && entry.hash == 0;
                    if !may_lack_hash && !hashes(&entry, value).contains(&entry.hash) {
                        let (found, [expected, _]) = (entry.hash.into(), hashes(&entry, value));
                        let expected = expected.into();
                        let problem = Problem::Mismatch { field: "hash", found, expected };
                        self.report.corrupt(STRUCTURE, location, problem);
                    }
                    if !value.is_empty() {
                        let end = entry.value_start + value.len().next_multiple_of(4);
                        values.push((entry.value_start, end));
                    }
                }
                Value::InInode { size, .. } => match self.check_value(inode, &entry) {
                    Ok(()) => {
                        let added = u64::from(size).next_multiple_of(self.cluster_bytes()) / 512;
                        sectors = sectors.map(|sum| sum + added);
                    }
                    Err(error) => {
                        sectors = None;
                        self.report.add(error);
                    }
                },
            }
        }
        values.sort_unstable();
        for pair in values.windows(2) {
            if let [(_, previous), (found, _)] = *pair {
                if found < previous {
                    let (previous, found) = (previous as u64, found as u64);
                    let problem = Problem::Disorder { field: "value at byte", previous, found };
                    self.report.corrupt(STRUCTURE, location, problem);
                }
            }
        }
        sectors
    }

    /// Counts and checks a reference to a value in an inode. At the first reference, reads and
    /// verifies the value, too.
    fn check_value(&mut self, owner: &Inode, entry: &Entry<'_>) -> Result<(), Error> {
        let Value::InInode { inode: number, size } = entry.value else { return Ok(()) };
        let references = self.value_inodes.entry(number).or_insert(0);
        *references += 1;
        if *references == 1 {
            return value::read(owner, entry, number, size).map(|_| ());
        }
        value::check_reference(owner, entry, number, size)
    }

    /// Compares the reference counts of attribute blocks and value inodes with the references
    /// found.
    pub(super) fn check_references(&mut self) {
        for (&block, state) in &self.attribute_blocks {
            let (found, expected) = (state.stored.into(), state.found.into());
            let location = Location::inode(state.inode).at_block(block);
            let structure = "extended attribute block";
            self.report.compare(structure, location, "reference count", found, expected);
        }
        for (&number, &expected) in &self.value_inodes {
            // If the record cannot be read, that was reported with the inode.
            let Ok(record) = self.volume.inode_record(number) else { continue };
            if self.states.get(number).role == Role::Value {
                let (found, location) = (value::reference_count(&record), Location::inode(number));
                let structure = "extended attribute value";
                self.report.compare(structure, location, "reference count", found, expected);
            }
        }
    }

    fn cluster_bytes(&self) -> u64 {
        u64::from(self.geometry().block_size.bytes()) << self.geometry().cluster_shift
    }
}

/// Returns the hashes that an entry may have.
fn hashes(entry: &Entry<'_>, value: &[u8]) -> [u32; 2] {
    [NameBytes::Unsigned, NameBytes::Signed].map(|bytes| entry_hash(entry.name, value, bytes))
}
