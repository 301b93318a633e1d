//! What segments and sections have: blocks in use, summaries, and blocks that become free.
//!
//! - `space.rs`, `block_set.rs`: the blocks in use, and those that a checkpoint frees
//! - `sit_entries.rs`, `segment_changes.rs`, `summary_blocks.rs`: entries of the tables in memory
//! - `section_use.rs`, `sections.rs`: sections of data or of nodes, and whole sections for pinned
//!   files
//! - `held.rs`, `unread.rs`: old blocks that a read in flight may still read
//! - `discard.rs`: discards of free blocks
//!
//! Not here: the choice of new blocks (`write/allocate/`).

pub(crate) mod block_set;
pub(crate) mod discard;
pub(crate) mod held;
pub(crate) mod section_use;
pub(crate) mod sections;
pub(crate) mod segment_changes;
pub(crate) mod sit_entries;
pub(crate) mod space;
pub(crate) mod summary_blocks;
pub(crate) mod unread;
