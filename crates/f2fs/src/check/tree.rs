//! The check of reachability and link counts: every directory is below the root, and every inode
//! has as many names as its link count says.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::attributes::FileType;
use base::{InodeNumber, Location, Problem};

use super::Check;

const DIRECTORY: &str = "directory";
const STRUCTURE: &str = "inode";

impl Check<'_> {
    pub(super) fn check_tree(&mut self) {
        self.check_quota_files();
        // Damaged entries may name other inodes as directories. Such entries were reported.
        let states = &self.states;
        let is_directory = |number| states.get(number).kind == Some(FileType::Directory);
        self.directories.retain(|number, _| is_directory(*number));
        self.check_parents();
        self.check_connections();
        let quota_files: BTreeSet<InodeNumber> = self.quota_inodes().collect();
        let inodes = Rc::clone(&self.table_inodes);
        for number in inodes.numbers().map(InodeNumber) {
            if !self.report.advance("links", number.0, self.geometry().nid_count()) {
                return;
            }
            if !quota_files.contains(&number) {
                self.check_links(number);
            }
        }
    }

    fn check_quota_files(&mut self) {
        for number in self.quota_inodes() {
            let location = Location::inode(number);
            if !self.table_inodes.has(number.0) {
                self.report.corrupt("quota file", location, Problem::Missing("inode"));
            } else if self.states.get(number).kind.is_some_and(|kind| kind != FileType::Regular) {
                let problem = Problem::Missing("type of a regular file");
                self.report.corrupt("quota file", location, problem);
            }
        }
    }

    /// Checks that the ".." of each directory, and the parent in its inode, are the directory with
    /// its name.
    fn check_parents(&mut self) {
        let root = self.geometry().root;
        for (&number, state) in &mut self.directories {
            let location = Location::inode(number);
            if number == root {
                state.parent = Some(root);
                state.stored_parent = root;
            }
            if self.orphans.contains(&number) {
                continue;
            }
            let Some(parent) = state.parent else {
                self.report.corrupt(DIRECTORY, location, Problem::Missing("name"));
                continue;
            };
            if let Some(found) = state.dot_dot {
                self.report.compare(DIRECTORY, location, "\"..\"", found.0, parent.0);
            }
            let stored = state.stored_parent.0;
            self.report.compare(DIRECTORY, location, "parent", stored, parent.0);
        }
    }

    /// Checks that no directory is below itself.
    fn check_connections(&mut self) {
        let root = self.geometry().root;
        let numbers: Vec<InodeNumber> = self.directories.keys().copied().collect();
        for start in numbers {
            let mut at = start;
            // Each directory is passed once, so the time is linear in their number.
            while let Some(state) = self.directories.get_mut(&at) {
                match state.passed_from {
                    None => state.passed_from = Some(start),
                    Some(before) => {
                        if before == start && at != root {
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

    fn check_links(&mut self, number: InodeNumber) {
        let location = Location::inode(number);
        let state = self.states.get(number);
        // An inode that could not be read was reported.
        let Some(kind) = state.kind else { return };
        if self.orphans.contains(&number) {
            self.report.compare("orphan", location, "link count", state.links.into(), 0);
            self.report.compare("orphan", location, "number of names", state.names.into(), 0);
            return;
        }
        if kind == FileType::Directory {
            // Its own entries were counted.
            return;
        }
        if state.names == 0 {
            return self.report.corrupt(STRUCTURE, location, Problem::Missing("name"));
        }
        let (found, expected) = (state.links.into(), state.names.into());
        self.report.compare(STRUCTURE, location, "link count", found, expected);
    }
}
