//! Hard links of a copy. The first name of an inode is copied; later names wait for this copy and
//! are linked to it. Not here: creating copies and links (`destination.rs`).

use std::collections::HashMap;
use std::sync::Arc;

use base::InodeNumber;
use base::attributes::Attributes;
use parking_lot::{Condvar, Mutex};

use super::destination::{Directory, Identity};
use super::names::Names;

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
    /// The path of the first copy: the names of its directory, and its own name.
    location: (Option<Arc<Names>>, Vec<u8>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Pending,
    Complete(Identity),
    Failed,
}

/// Whether a name is the first name of its inode in the copy.
pub enum First {
    /// It is the first name.
    Yes,
    /// It is a later name.
    No(FirstName),
}

/// The name of a first copy.
pub struct FirstName {
    /// The names of its directory.
    pub directory: Option<Arc<Names>>,
    /// Its own name.
    pub name: Vec<u8>,
    /// The copy. Another process may give its name to another file.
    pub identity: Identity,
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
                LinkState::Complete(identity) => {
                    let (directory, name) = link.location.clone();
                    link.expected = link.expected.saturating_sub(1);
                    if link.expected == 0 {
                        known.remove(&attributes.inode);
                    }
                    return First::No(FirstName { directory, name, identity });
                }
            }
        }
        let location = (directory.names.clone(), name.to_vec());
        let expected = attributes.links.saturating_sub(1);
        known.insert(attributes.inode, Link { state: LinkState::Pending, expected, location });
        First::Yes
    }

    /// Records the end of the first copy, and wakes waiting threads. `copy` is `None` if it has
    /// failed.
    pub fn end(&self, inode: InodeNumber, copy: Option<Identity>) {
        if let Some(link) = self.known.lock().get_mut(&inode) {
            link.state = copy.map_or(LinkState::Failed, LinkState::Complete);
        }
        self.ended.notify_all();
    }
}

/// A first copy in progress. It has failed if it is dropped before [`end`](Self::end), for example
/// by a panic.
pub struct FirstCopy<'a> {
    links: &'a Links,
    inode: InodeNumber,
    copy: Option<Identity>,
}

impl<'a> FirstCopy<'a> {
    /// Begins the first copy of `inode`.
    pub fn new(links: &'a Links, inode: InodeNumber) -> Self {
        Self { links, inode, copy: None }
    }

    /// Ends the copy, which has failed if `copy` is `None`.
    pub fn end(mut self, copy: Option<Identity>) {
        self.copy = copy;
    }
}

impl Drop for FirstCopy<'_> {
    fn drop(&mut self) {
        self.links.end(self.inode, self.copy);
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
        let identity = Identity::of(&rustix::fs::stat("/").unwrap());
        for outcome in [None, Some(Some(identity)), Some(None)] {
            let location = (None, b"first".to_vec());
            let link = Link { state: LinkState::Pending, expected: 1, location };
            links.known.lock().insert(inode, link);
            let copy = FirstCopy::new(&links, inode);
            let ended = catch_unwind(AssertUnwindSafe(|| match outcome {
                Some(outcome) => copy.end(outcome),
                None => {
                    let _copy = copy;
                    panic!("expected by the test");
                }
            }));
            assert_eq!(ended.is_ok(), outcome.is_some());
            let expected = outcome.flatten().map_or(LinkState::Failed, LinkState::Complete);
            assert!(state() == expected);
        }
    }
}
