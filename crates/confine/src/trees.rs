//! Trees of the host that a process copies, and what is different for it. Not here: the layers.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::Layer;
use super::rights::Rights;

/// The trees of the host that a process accesses by paths. The files that it creates, or may read,
/// depend on its user, so it does not become another one.
#[derive(Clone, Copy, Debug)]
pub enum Trees<'a> {
    /// None.
    None,
    /// Files and directories that are read.
    Read {
        /// The files, and the directories with all that is in them.
        trees: &'a [OwnedFd],
        /// Whether attributes are read that only root may read.
        attributes: bool,
    },
    /// A directory in which files are created.
    Create {
        /// The directory.
        tree: BorrowedFd<'a>,
        /// Whether owners and other attributes of the files are set.
        attributes: bool,
        /// Whether device files are created, and attributes are set that give rights.
        privileged: bool,
    },
}

impl Trees<'_> {
    /// Returns whether there are none.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns whether `layer` applies to a process with these trees that has these rights.
    pub(crate) fn needs_layer(&self, layer: Layer, rights: &Rights) -> bool {
        match layer {
            Layer::User => self.is_none(),
            // Other users have no right to another root directory. Root owns files that it can
            // change without any capability.
            Layer::Chroot => {
                matches!(self, Self::Create { .. }) && (rights.is_root || rights.may_change_root())
            }
            _ => true,
        }
    }
}

/// Returns what still holds without the layer, for a process that accesses trees.
pub(crate) fn without(layer: Layer) -> &'static str {
    match layer {
        Layer::User | Layer::Capabilities | Layer::NoNewPrivileges => {
            "Landlock and the filter on system calls would still deny access to other files, the network and other processes"
        }
        Layer::Landlock => {
            "the filter on system calls would still deny connecting, and signals to other processes, but not access to other files"
        }
        Layer::Chroot => {
            "Landlock would still deny opening and creating other files, but not changes of their owners and times"
        }
        Layer::Limits => "the size of the cache would still be limited",
        Layer::SystemCalls => "Landlock would still deny access to other files and the network",
    }
}
