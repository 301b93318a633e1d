//! The check of reachability and link counts: every directory is below the root, and every inode
//! has as many names as its link count says.

use base::attributes::FileType;
use base::{InodeNumber, Location, Problem};

use super::Check;
use super::states::{InodeState, Role};
use crate::ROOT_INODE;
use crate::features::Feature;
use crate::inode::record::InodeFlags;

const DIRECTORY: &str = "directory";
/// The maximum link count of a directory. With more names, its link count is 1.
const DIRECTORY_LINKS_MAX: u16 = 65_000;

impl Check<'_> {
    pub(super) fn check_tree(&mut self) {
        self.check_parents();
        self.check_connections();
        let states = std::mem::take(&mut self.states);
        for (number, state) in states.in_use(InodeNumber(1), self.geometry().inode_count.into()) {
            if !self.report.advance("links", number.0, self.geometry().inode_count.into()) {
                break;
            }
            self.check_links(number, &state);
        }
        self.states = states;
    }

    /// Checks that the ".." of each directory is the directory with its name.
    fn check_parents(&mut self) {
        for (&number, state) in &mut self.directories {
            let location = Location::inode(number);
            if number == ROOT_INODE {
                state.parent = Some(ROOT_INODE);
            }
            match (state.dot_dot, state.parent) {
                (_, None) => {
                    self.report.corrupt(DIRECTORY, location, Problem::Missing("name"));
                }
                (Some(found), Some(parent)) => {
                    self.report.compare(DIRECTORY, location, "\"..\"", found.0, parent.0);
                }
                // A missing ".." has been reported.
                (None, Some(_)) => {}
            }
        }
    }

    /// Checks that no directory is below itself.
    fn check_connections(&mut self) {
        let numbers: Vec<InodeNumber> = self.directories.keys().copied().collect();
        for start in numbers {
            let mut at = start;
            // Each directory is passed once, so the time is linear in their number.
            while let Some(state) = self.directories.get_mut(&at) {
                match state.passed_from {
                    None => state.passed_from = Some(start),
                    Some(before) => {
                        if before == start && at != ROOT_INODE {
                            self.report.corrupt(DIRECTORY, Location::inode(at), Problem::Cycle);
                        }
                        break;
                    }
                }
                let Some(parent) = state.parent else { break };
                at = parent;
            }
        }
    }

    fn check_links(&mut self, number: InodeNumber, state: &InodeState) {
        let location = Location::inode(number);
        let kind = match state.role {
            Role::Named(kind) => kind,
            Role::Value if !self.value_inodes.contains_key(&number) => {
                let problem = Problem::Missing("attribute with this value");
                return self.report.corrupt("extended attribute value", location, problem);
            }
            _ => return,
        };
        if kind != FileType::Directory && state.names == 0 {
            return self.report.corrupt("inode", location, Problem::Missing("name"));
        }
        let has_overflow = self.geometry().features.has(Feature::DirNlink);
        let is_uncounted = kind == FileType::Directory
            && state.links == 1
            && has_overflow
            && (state.names > DIRECTORY_LINKS_MAX || self.is_hashed(number));
        // A directory without a name has one name too few. The missing name was reported.
        let is_lost = self.directories.get(&number).is_some_and(|state| state.parent.is_none());
        if !is_uncounted && !is_lost {
            let (found, expected) = (state.links.into(), state.names.into());
            self.report.compare("inode", location, "link count", found, expected);
        }
    }

    fn is_hashed(&self, number: InodeNumber) -> bool {
        let record = self.volume.inode_record(number);
        record.is_ok_and(|record| record.flags.contains(InodeFlags::INDEX))
    }
}
