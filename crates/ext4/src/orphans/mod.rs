//! Orphans: inodes whose deletion or truncation a crash may interrupt.
//!
//! On the disk, they are in the superblock's list ([`list`]) and in the orphan file ([`file`]). [`write`] adds and
//! removes them. [`found`] finds and validates the orphans of a volume that is being opened.

pub(crate) mod file;
pub(crate) mod found;
pub(crate) mod list;
pub(crate) mod write;
