//! Writing of volumes: blocks in use, logs, tables, packs, and the changes between checkpoints.
//!
//! The order of writes is that of the format. Nodes, data and summaries go to blocks that the last
//! checkpoint does not use, and changed blocks of the tables to their other copies
//! (`checkpoint/tables.rs`). Then all blocks of the new pack but its last one are written. After a
//! flush, the last block makes the pack valid, and a second flush makes it durable
//! (`checkpoint/pack.rs`). Until then, the last checkpoint and the nodes synced after it are
//! untouched, so a power cut at any time leaves one of both states.
//!
//! - `writer.rs`: the state of a volume that is open for writing; `health.rs`: what errors do to it
//! - `segments/`: what each segment and section has
//! - `allocate/`: the choice of new blocks
//! - `checkpoint/`, `fsync/`: what makes changes durable
//! - `gc/`: cleaning
//!
//! Not here: the changes of nodes in memory (`edit`).

mod allocate;
mod checkpoint;
mod clock;
mod fsync;
mod gc;
mod health;
mod label;
mod segments;
mod writer;

pub use self::allocate::mode::Mode;
pub(crate) use self::allocate::placements::Placed;
pub(crate) use self::allocate::reserved::Reserved;
pub(crate) use self::allocate::room::Demand;
pub(crate) use self::fsync::sync::follows_removal;
pub(crate) use self::writer::Writer;
