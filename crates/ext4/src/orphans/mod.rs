//! Orphans: inodes whose deletion or truncation a crash may interrupt.
//!
//! The superblock's list ([`list`]) and the orphan file ([`file`]) name them on the disk; [`write`] adds and removes
//! them, and [`found`] holds those that recovery has found.

pub(crate) mod file;
pub(crate) mod found;
pub(crate) mod list;
pub(crate) mod write;
