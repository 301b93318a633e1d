//! Hard links of a copy. The first name of an inode is copied; later names wait for this copy and are linked to it.
//! Not here: creating copies and links.

use std::collections::HashMap;

use base::InodeNumber;
use base::attributes::Attributes;
use parking_lot::{Condvar, Mutex};

use super::destination::Directory;

/// First copies of inodes with several names.
#[derive(Default)]
pub struct Links {
    known: Mutex<HashMap<InodeNumber, Link>>,
    ended: Condvar,
}

struct Link {
    state: LinkState,
    /// The number of names that are not copied yet.
    expected: u32,
    /// The path of the first copy: the names of its directories, and its own name.
    location: (Vec<Vec<u8>>, Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Pending,
    Complete,
    Failed,
}

/// Whether a name is the first name of its inode in the copy.
pub enum First {
    /// It is the first name.
    Yes,
    /// It is a later name. The names of the directories of the first copy, and its own name.
    No(Vec<Vec<u8>>, Vec<u8>),
}

impl Links {
    /// Returns whether `name` is the first name of its inode. If so, the caller copies it and calls
    /// [`end`](Self::end). Otherwise waits for the end of the first copy.
    pub fn first(&self, attributes: &Attributes, directory: &Directory, name: &[u8]) -> First {
        let mut known = self.known.lock();
        while let Some(link) = known.get_mut(&attributes.inode) {
            match link.state {
                LinkState::Pending => self.ended.wait(&mut known),
                LinkState::Failed => break,
                LinkState::Complete => {
                    let (names, first_name) = link.location.clone();
                    link.expected = link.expected.saturating_sub(1);
                    if link.expected == 0 {
                        known.remove(&attributes.inode);
                    }
                    return First::No(names, first_name);
                }
            }
        }
        let location = (directory.names(), name.to_vec());
        let expected = attributes.links.saturating_sub(1);
        known.insert(attributes.inode, Link { state: LinkState::Pending, expected, location });
        First::Yes
    }

    /// Records the end of the first copy, and wakes waiting threads.
    pub fn end(&self, inode: InodeNumber, is_complete: bool) {
        if let Some(link) = self.known.lock().get_mut(&inode) {
            link.state = if is_complete { LinkState::Complete } else { LinkState::Failed };
        }
        self.ended.notify_all();
    }
}

/// A first copy in progress. It has failed if it is dropped before [`end`](Self::end), for example by a panic.
pub struct FirstCopy<'a> {
    links: &'a Links,
    inode: InodeNumber,
    is_complete: bool,
}

impl<'a> FirstCopy<'a> {
    /// Begins the first copy of `inode`.
    pub fn new(links: &'a Links, inode: InodeNumber) -> Self {
        Self { links, inode, is_complete: false }
    }

    /// Ends the copy.
    pub fn end(mut self, is_complete: bool) {
        self.is_complete = is_complete;
    }
}

impl Drop for FirstCopy<'_> {
    fn drop(&mut self) {
        self.links.end(self.inode, self.is_complete);
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
        for is_complete in [None, Some(true), Some(false)] {
            let location = (Vec::new(), b"first".to_vec());
            let link = Link { state: LinkState::Pending, expected: 1, location };
            links.known.lock().insert(inode, link);
            let copy = FirstCopy::new(&links, inode);
            let outcome = catch_unwind(AssertUnwindSafe(|| match is_complete {
                Some(is_complete) => copy.end(is_complete),
                None => {
                    let _copy = copy;
                    panic!("expected by the test");
                }
            }));
            assert_eq!(outcome.is_ok(), is_complete.is_some());
            assert!(
                state()
                    == if is_complete == Some(true) {
                        LinkState::Complete
                    } else {
                        LinkState::Failed
                    }
            );
        }
    }
}
