//! The operations of the exercise, and how often each is chosen. Not here: running them
//! (`subject.rs`).

/// An operation on a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Read,
    ReadUncached,
    ReadDirect,
    Load,
    SeekHoles,
    Write,
    WriteUncached,
    WriteDirect,
    Store,
    Truncate,
    Allocate { keep_size: bool },
    PunchHole,
    ZeroRange { keep_size: bool },
    Collapse,
    Insert,
    MoveExtents,
    Sync { data_only: bool },
    SyncRange,
    CloseFile,
}

/// The weight of each operation in the random choice.
pub const SHARES: [(Operation, u64); 22] = [
    (Operation::Read, 8),
    (Operation::ReadUncached, 4),
    (Operation::ReadDirect, 5),
    (Operation::Load, 5),
    (Operation::SeekHoles, 2),
    (Operation::Write, 12),
    (Operation::WriteUncached, 6),
    (Operation::WriteDirect, 8),
    (Operation::Store, 8),
    (Operation::Truncate, 4),
    (Operation::Allocate { keep_size: false }, 2),
    (Operation::Allocate { keep_size: true }, 2),
    (Operation::PunchHole, 5),
    (Operation::ZeroRange { keep_size: false }, 2),
    (Operation::ZeroRange { keep_size: true }, 3),
    (Operation::Collapse, 3),
    (Operation::Insert, 3),
    (Operation::MoveExtents, 5),
    (Operation::Sync { data_only: false }, 1),
    (Operation::Sync { data_only: true }, 1),
    (Operation::SyncRange, 2),
    (Operation::CloseFile, 1),
];

impl Operation {
    /// Returns whether the operation moves data within a file, or makes a range read as zeroes.
    pub fn moves_or_clears(self) -> bool {
        matches!(self, Self::PunchHole | Self::ZeroRange { .. } | Self::Collapse | Self::Insert)
    }

    /// Returns whether the operation needs a range within the file.
    pub fn is_within(self) -> bool {
        matches!(self, Self::Load | Self::Store)
    }
}
