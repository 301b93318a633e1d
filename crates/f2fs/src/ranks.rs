//! Ranks of this format's locks, in the order in which a thread takes them.

use base::locks::Rank;

/// The number of calls that delay checkpoints. Never held while anything else is done.
pub(crate) const DELAYS: Rank = Rank::Format(0);
/// The volume's changes since the last checkpoint. Held alone by each operation that changes nodes,
/// and by checkpoints.
pub(crate) const CHANGES: Rank = Rank::Format(1);
/// One inode's delayed blocks.
pub(crate) const DELAYED: Rank = Rank::Format(2);
/// One inode's noted times.
pub(crate) const NOTED: Rank = Rank::Format(3);
/// One inode's record, while it is replaced.
pub(crate) const RECORD: Rank = Rank::Format(4);
/// The overlay. Held while a node is looked up and read, so that its block is not used for
/// something else.
pub(crate) const OVERLAY: Rank = Rank::Format(5);
/// The last checkpoint, while it is replaced.
pub(crate) const CHECKPOINT: Rank = Rank::Format(6);
/// One inode's atomic write. No other lock is taken under it.
pub(crate) const ATOMIC: Rank = Rank::Format(7);
/// The callers of fsync(2). Taken under the lock of changes, and never held while anything else is
/// done.
pub(crate) const SYNCS: Rank = Rank::Format(8);
/// The inodes in memory, by number. Never held while anything else is done.
pub(crate) const REGISTRY: Rank = Rank::Format(9);
/// One inode's files. Never held while anything else is done.
pub(crate) const FILES: Rank = Rank::Format(10);
/// One inode's placements of whole clusters. Never held while anything else is done.
pub(crate) const CLUSTERS: Rank = Rank::Format(11);
