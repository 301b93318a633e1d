//! Orphans: inodes whose deletion or truncation a crash may interrupt.
//!
//! On the disk, they are in the superblock's list ([`list`]) and in the orphan file ([`file`]). In
//! memory, they are a [`set`]. [`write`] adds and removes them. [`found`] finds and validates the
//! orphans of a volume that is being opened, and [`adopt`] adds them.

pub(crate) mod adopt;
pub(crate) mod block;
pub(crate) mod file;
pub(crate) mod found;
mod list;
pub(crate) mod numbers;
pub(crate) mod set;
pub(crate) mod write;
