//! Writing of volumes: blocks in use, logs, tables, packs, and the changes between checkpoints.
//!
//! The order of writes is that of the format. Nodes, data and summaries go to blocks that the last checkpoint does not
//! use, and changed blocks of the tables to their other copies (`tables`). Then all blocks of the new pack but its last
//! one are written. After a flush, the last block makes the pack valid, and a second flush makes it durable (`pack`).
//! Until then, the last checkpoint and the nodes synced after it are untouched, so a power cut at any time leaves one
//! of both states.
//!
//! Not here: the changes of nodes in memory (`edit`).

mod background;
mod batch;
mod block_set;
mod chain;
mod changes;
mod checkpoint;
mod clean;
mod clock;
mod defragment;
mod discard;
mod group;
mod health;
mod held;
mod label;
mod logs;
pub(crate) mod mode;
mod owned;
mod pack;
mod pending;
mod place;
mod placements;
mod reserved;
mod room;
mod section_use;
mod sections;
mod segment_changes;
mod shifted;
mod sit_entries;
mod space;
mod stored_node;
mod summary_blocks;
mod sync;
mod tables;
mod unread;
mod writer;

pub use self::mode::Mode;
pub(crate) use self::placements::Placed;
pub(crate) use self::reserved::Reserved;
pub(crate) use self::room::Demand;
pub(crate) use self::sync::follows_removal;
pub(crate) use self::writer::Writer;
