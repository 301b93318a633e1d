//! Members of an archive that were unpacked to casefolded directories, in which names that differ in case are one.

use std::collections::HashSet;
use std::sync::Arc;

use base::{Error, InodeNumber};
use vfs::{Node, Volume};

/// The flag of casefolded directories, as FS_IOC_GETFLAGS numbers it.
const CASEFOLD: u32 = 0x4000_0000;

/// The members below casefolded directories.
#[derive(Debug, Default)]
pub struct Casefolded {
    /// The names of each member.
    paths: HashSet<Vec<Vec<u8>>>,
    numbers: HashSet<InodeNumber>,
}

impl Casefolded {
    /// Records the member that was unpacked as the last one of `names`, to the last one of `directories`.
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
            self.numbers.insert(volume.lookup(directory, name)?.number());
            self.paths.insert(names.iter().map(|name| name.to_vec()).collect());
        }
        Ok(())
    }

    /// Returns whether `existing`, which has the name of a member with `names`, is an earlier member with other names.
    pub fn is_other(&self, names: &[&[u8]], existing: &Node) -> bool {
        let is_member = || {
            let names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
            self.paths.contains(&names)
        };
        self.numbers.contains(&existing.number()) && !is_member()
    }
}
