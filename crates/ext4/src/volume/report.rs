//! What a recovery in memory has done.

use base::Error;

use crate::jbd2::Recovery;

/// A report of the recovery of a volume.
#[derive(Clone, Debug)]
pub struct RecoveryReport {
    /// The recovery of the journal's log.
    pub log: Recovery,
    /// The number of fast commits that followed the log's transactions.
    pub fast_commits: usize,
    /// The last corruption that the replay of fast commits found, if any. It is in files that the
    /// replay has deleted nevertheless. Blocks that it could not reach are left to e2fsck.
    pub fast_commit_failure: Option<Error>,
    /// The orphans: inodes that were being deleted or truncated.
    pub orphans: OrphanReport,
}

/// A report of the processed orphans.
#[derive(Clone, Debug, Default)]
pub struct OrphanReport {
    /// The number of deleted inodes, which had no name.
    pub deleted: u32,
    /// The number of files whose truncation was completed.
    pub truncated: u32,
    /// The first error of an orphan that could not be completed. The volume can be read
    /// nevertheless: such inodes have no names, or have blocks past the end of the file.
    pub failure: Option<Error>,
}
