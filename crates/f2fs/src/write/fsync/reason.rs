//! Why fsync(2) writes a checkpoint, and not only nodes. Linux decides this in `need_do_checkpoint`
//! and names the reason by `cp_reason`. Not here: the decision (`sync.rs`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A reason for a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointReason {
    /// Only regular files are recovered from a chain.
    NotRegular,
    /// A recovery knows one name of a file.
    HardLinks,
    /// A recovery does not replay compressed clusters.
    Compressed,
    /// The inode has a change that a chain has no record of, such as freed nodes.
    UnrecordedChange,
    /// A name in its directory was removed or replaced, which a recovery would bring back.
    RemovedName,
    /// Names that were changed earlier are not durable yet.
    EarlierNames,
    /// Its directory has a change that a chain has no record of.
    DirectoryChanged,
    /// The inode does not store its current name.
    UnknownName,
    /// The last checkpoint does not have its directory.
    NewDirectory,
    /// It has blocks past its end that are not preallocated.
    BlocksPastEnd,
    /// No checkpoint was written since the volume was opened, so that a chain may not be alone.
    FirstSync,
    /// The chain is so long that a recovery would take much time.
    LongChain,
    /// An earlier write of the chain has failed, or its log has moved on.
    BrokenChain,
    /// There is no room for the nodes.
    NoRoom,
    /// The nodes could not be written.
    WriteFailed,
}

impl CheckpointReason {
    /// The number of reasons.
    const COUNT: usize = Self::WriteFailed as usize + 1;

    const ALL: [Self; Self::COUNT] = [
        Self::NotRegular,
        Self::HardLinks,
        Self::Compressed,
        Self::UnrecordedChange,
        Self::RemovedName,
        Self::EarlierNames,
        Self::DirectoryChanged,
        Self::UnknownName,
        Self::NewDirectory,
        Self::BlocksPastEnd,
        Self::FirstSync,
        Self::LongChain,
        Self::BrokenChain,
        Self::NoRoom,
        Self::WriteFailed,
    ];
}

impl fmt::Display for CheckpointReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRegular => "not a regular file",
            Self::HardLinks => "several hard links",
            Self::Compressed => "a compressed file",
            Self::UnrecordedChange => "a change that a chain has no record of",
            Self::RemovedName => "a name in its directory was removed",
            Self::EarlierNames => "earlier changes of names are not durable",
            Self::DirectoryChanged => "its directory has a change that a chain has no record of",
            Self::UnknownName => "the inode does not store its name",
            Self::NewDirectory => "its directory is new",
            Self::BlocksPastEnd => "blocks past the end",
            Self::FirstSync => "the first sync since the volume was opened",
            Self::LongChain => "the chain is long",
            Self::BrokenChain => "the chain does not continue",
            Self::NoRoom => "no room for the nodes",
            Self::WriteFailed => "the nodes could not be written",
        })
    }
}

/// How often fsync(2) has written a checkpoint, by its reason.
#[derive(Debug, Default)]
pub(crate) struct ReasonCounts([AtomicU64; CheckpointReason::COUNT]);

impl ReasonCounts {
    pub(super) fn add(&self, reason: CheckpointReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for ReasonCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = CheckpointReason::ALL.iter().zip(&self.0);
        let counts = counts.map(|(reason, count)| (reason, count.load(Ordering::Relaxed)));
        for (reason, count) in counts.filter(|(_, count)| *count > 0) {
            write!(f, "{reason}: {count}; ")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_by_itself() {
        for (index, reason) in CheckpointReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            let counts = ReasonCounts::default();
            counts.add(reason);
            counts.add(reason);
            assert_eq!(counts.to_string(), format!("{reason}: 2; "));
        }
    }
}
