//! Names of one inode that are copied as hard links: the first name is copied, and later ones wait for it and are
//! linked to it. Not here: making the copies and the links.

use std::collections::HashMap;

use base::InodeNumber;
use base::attributes::Attributes;
use parking_lot::{Condvar, Mutex};

use super::destination::Directory;

/// The first copies of inodes with several names.
#[derive(Default)]
pub struct Links {
    known: Mutex<HashMap<InodeNumber, Link>>,
    ended: Condvar,
}

struct Link {
    state: LinkState,
    /// The names that are still to come.
    expected: u32,
    /// Where the first copy is: the names that lead to its directory, and its own.
    place: (Vec<Vec<u8>>, Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Pending,
    Made,
    Failed,
}

/// Whether a name is the first of its inode to be copied.
pub enum First {
    Yes,
    /// The directories that lead to the first copy, and its name.
    No(Vec<Vec<u8>>, Vec<u8>),
}

impl Links {
    /// Returns whether `name` is the first of its inode; the caller then copies it and calls [`end`](Self::end). Waits
    /// while the first is still being copied.
    pub fn first(&self, of: &Attributes, directory: &Directory, name: &[u8]) -> First {
        let mut known = self.known.lock();
        while let Some(link) = known.get_mut(&of.inode) {
            match link.state {
                LinkState::Pending => self.ended.wait(&mut known),
                LinkState::Failed => break,
                LinkState::Made => {
                    let (names, first_name) = link.place.clone();
                    link.expected = link.expected.saturating_sub(1);
                    if link.expected == 0 {
                        known.remove(&of.inode);
                    }
                    return First::No(names, first_name);
                }
            }
        }
        let place = (directory.names(), name.to_vec());
        let expected = of.links.saturating_sub(1);
        known.insert(of.inode, Link { state: LinkState::Pending, expected, place });
        First::Yes
    }

    /// Records that the first copy has ended.
    pub fn end(&self, inode: InodeNumber, is_made: bool) {
        if let Some(link) = self.known.lock().get_mut(&inode) {
            link.state = if is_made { LinkState::Made } else { LinkState::Failed };
        }
        self.ended.notify_all();
    }
}

/// A first copy in progress. If it is dropped before [`end`](Self::end), as by a panic, it has failed.
pub struct FirstCopy<'a> {
    links: &'a Links,
    inode: InodeNumber,
    is_made: bool,
}

impl<'a> FirstCopy<'a> {
    /// Begins the first copy of `inode`.
    pub fn new(links: &'a Links, inode: InodeNumber) -> Self {
        Self { links, inode, is_made: false }
    }

    /// Ends the copy.
    pub fn end(mut self, is_made: bool) {
        self.is_made = is_made;
    }
}

impl Drop for FirstCopy<'_> {
    fn drop(&mut self) {
        self.links.end(self.inode, self.is_made);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_first_copy_that_panics_has_failed() {
        let (links, inode) = (Links::default(), InodeNumber(12));
        let state = || links.known.lock()[&inode].state;
        for is_made in [None, Some(true), Some(false)] {
            let place = (Vec::new(), b"first".to_vec());
            let link = Link { state: LinkState::Pending, expected: 1, place };
            links.known.lock().insert(inode, link);
            let copy = FirstCopy::new(&links, inode);
            let outcome = catch_unwind(AssertUnwindSafe(|| match is_made {
                Some(is_made) => copy.end(is_made),
                None => {
                    let _copy = copy;
                    panic!("as the test has it");
                }
            }));
            assert_eq!(outcome.is_ok(), is_made.is_some());
            assert!(
                state() == if is_made == Some(true) { LinkState::Made } else { LinkState::Failed }
            );
        }
    }
}
