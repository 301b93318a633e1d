//! The chain of nodes that fsync(2) has written since the last checkpoint. Not here: its writes
//! (`sync.rs`).

use base::FsBlock;

/// The chain since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    /// The number of its nodes.
    pub(crate) nodes: u64,
    /// The block of the next node. `None` before the first one, and after an error.
    pub(crate) next: Option<FsBlock>,
    /// Whether the last checkpoint was written since the volume was opened. Otherwise, nodes that
    /// an earlier writer has written after it may lie where the chain leads to, if a power cut has
    /// kept them and not those before. They have its version, and a recovery would take them for a
    /// part of this chain.
    is_alone: bool,
}

impl Chain {
    /// Returns the chain after a checkpoint.
    pub(crate) fn after_checkpoint() -> Self {
        Self { is_alone: true, ..Self::default() }
    }

    /// Returns whether all nodes with the version of the last checkpoint are in this chain.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }
}
