//! fsync(2) without a checkpoint.
//!
//! - `sync.rs`, `chain.rs`: the chain of synced nodes
//! - `reason.rs`: why a sync writes a checkpoint all the same
//! - `group.rs`: callers that share flushes

pub(crate) mod chain;
pub(crate) mod group;
pub(crate) mod reason;
pub(crate) mod sync;
