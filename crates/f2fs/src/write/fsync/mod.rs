//! fsync(2) without a checkpoint.
//!
//! - `sync.rs`, `chain.rs`: the chain of synced nodes
//! - `group.rs`: callers that share flushes

pub(crate) mod chain;
pub(crate) mod group;
pub(crate) mod sync;
