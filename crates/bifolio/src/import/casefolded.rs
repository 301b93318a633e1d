//! Members of an archive that were unpacked to casefolded directories, in which names that differ
//! in case are one.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use base::{Error, InodeNumber, Unsupported};
use vfs::{Node, Volume};

/// The flag of casefolded directories, as FS_IOC_GETFLAGS numbers it.
const CASEFOLD: u32 = 0x4000_0000;

/// The maximum number of members below casefolded directories.
const MEMBERS_MAX: usize = 1 << 24;

/// The members below casefolded directories.
#[derive(Debug, Default)]
pub struct Casefolded {
    /// A hash of the names of each member.
    paths: HashSet<u64>,
    state: RandomState,
    numbers: HashSet<InodeNumber>,
}

impl Casefolded {
    /// Records the member that was unpacked as the last one of `names`, to the last one of
    /// `directories`.
    pub fn add(
        &mut self,
        volume: &Volume,
        names: &[&[u8]],
        directories: &[Arc<Node>],
    ) -> Result<(), Error> {
        if !directories.iter().any(|node| node.attributes().flags & CASEFOLD != 0) {
            return Ok(());
        }
        if let (Some(name), Some(directory)) = (names.last(), directories.last()) {
            if self.paths.len() == MEMBERS_MAX {
                return Err(
                    Unsupported::Operation("so many members in casefolded directories").into()
                );
            }
            self.numbers.insert(volume.lookup(directory, name)?.number());
            self.paths.insert(self.state.hash_one(names));
        }
        Ok(())
    }

    /// Returns whether `existing`, which has the name of a member with `names`, is an earlier
    /// member with other names.
    pub fn is_other(&self, names: &[&[u8]], existing: &Node) -> bool {
        self.numbers.contains(&existing.number())
            && !self.paths.contains(&self.state.hash_one(names))
    }
}
