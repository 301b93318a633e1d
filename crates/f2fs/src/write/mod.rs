//! Writing of a new checkpoint: blocks in use, logs, tables and packs.
//!
//! The order of writes is that of the format. Nodes, data and summaries go to blocks that the last checkpoint does not
//! use, and changed blocks of the tables to their other copies (`tables`). Then all blocks of the new pack but its last
//! one are written. After a flush, the last block makes the pack valid, and a second flush makes it durable (`pack`).
//! Until then, the last checkpoint and the nodes synced after it are untouched, so a power cut at any time leaves one
//! of both states.
//!
//! Not here: what a checkpoint contains (`recovery/in_place.rs`).

mod logs;
mod pack;
mod space;
mod summary_blocks;
mod tables;

pub(crate) use self::logs::{LogName, Logs};
pub(crate) use self::pack::{Pack, PackCounts};
pub(crate) use self::space::{Space, segment_of};
pub(crate) use self::summary_blocks::SummaryBlocks;
pub(crate) use self::tables::{NodeTable, read_nat_entry, write_nodes, write_segments};
