//! Ranks of this format's locks, in the order in which a thread takes them.

use base::locks::Rank;

/// One inode's delayed blocks while they are allocated or removed.
pub(crate) const ALLOCATION: Rank = Rank::Format(0);
/// An open handle of the journal. It is not a lock, but a thread may wait for room in the journal
/// as it waits for a lock.
pub(crate) const TRANSACTION: Rank = Rank::Format(1);
/// The inodes that share an attribute block or value.
pub(crate) const SHARED_ATTRIBUTES: Rank = Rank::Format(2);
/// The list of orphans.
pub(crate) const ORPHANS: Rank = Rank::Format(3);
/// One inode's delayed blocks.
pub(crate) const DELAYED: Rank = Rank::Format(4);
/// One inode's cached extents, and its map on disk.
pub(crate) const EXTENT_MAP: Rank = Rank::Format(5);
/// One inode's record.
pub(crate) const INODE_RECORD: Rank = Rank::Format(6);
/// One group's free blocks and inodes.
pub(crate) const GROUP: Rank = Rank::Format(7);
/// The journal's own state.
pub(crate) const JOURNAL: Rank = Rank::Format(8);
