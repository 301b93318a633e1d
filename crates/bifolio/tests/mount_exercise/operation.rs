//! Operations on a file of a mount. Not here: running them (`subject`).

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Read,
    ReadDirect,
    Load,
    SeekHoles,
    Write,
    /// Through a file that is open for writing only.
    WriteOnly,
    WriteDirect,
    Append,
    Store(Flush),
    CopyTo,
    Truncate,
    Allocate {
        keep_size: bool,
    },
    PunchHole,
    ZeroRange {
        keep_size: bool,
    },
    Sync {
        data_only: bool,
    },
    DropCache,
    CloseFile,
}

/// How stores to a mapping are flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    Nothing,
    Begin,
    Wait,
}

/// Operations and their relative frequencies.
pub const SHARES: [(Operation, u64); 22] = [
    (Operation::Read, 10),
    (Operation::ReadDirect, 6),
    (Operation::Load, 6),
    (Operation::SeekHoles, 3),
    (Operation::Write, 12),
    (Operation::WriteOnly, 6),
    (Operation::WriteDirect, 8),
    (Operation::Append, 3),
    (Operation::Store(Flush::Nothing), 6),
    (Operation::Store(Flush::Begin), 2),
    (Operation::Store(Flush::Wait), 2),
    (Operation::CopyTo, 5),
    (Operation::Truncate, 5),
    (Operation::Allocate { keep_size: false }, 2),
    (Operation::Allocate { keep_size: true }, 3),
    (Operation::PunchHole, 6),
    (Operation::ZeroRange { keep_size: false }, 2),
    (Operation::ZeroRange { keep_size: true }, 3),
    (Operation::Sync { data_only: false }, 1),
    (Operation::Sync { data_only: true }, 1),
    (Operation::DropCache, 3),
    (Operation::CloseFile, 2),
];

impl Operation {
    /// Returns whether the operation is limited to the current size of the file.
    pub fn is_within(self) -> bool {
        matches!(self, Self::Load | Self::Store(_))
    }
}
