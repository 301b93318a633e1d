//! Histories: recorded workloads with their promises. Not here: the states that a cut leaves of them, and how these
//! are judged.

use device::{RecordDevice, Recording};

use super::kinds::Kind;
use super::snapshot::Snapshot;

/// A recorded workload, and its promises.
pub trait History {
    /// Returns the recorded run.
    fn run(&self) -> &RecordedRun;

    /// Fails with a description if `found` breaks a promise after a cut at `point`.
    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String>;
}

/// The recording of a workload on one kind of volume.
#[derive(Debug)]
pub struct RecordedRun {
    /// The writes and flushes.
    pub recording: Recording,
    /// The point from which on there is something to be judged.
    pub begun: usize,
    /// The point from which on e2fsck is a judge.
    pub(super) e2fsck_from: usize,
    /// The bytes of the volume, if a journal on a device of its own follows them in the recording.
    pub(super) volume_bytes: Option<u64>,
}

impl RecordedRun {
    /// Ends the recording of a workload that began at `begun` on a volume of `kind`.
    pub fn new(kind: &Kind, recorder: &RecordDevice, begun: usize) -> Self {
        let (recording, volume_bytes) = (recorder.recording(), kind.volume_bytes());
        Self { recording, begun, e2fsck_from: 0, volume_bytes }
    }

    /// Excludes e2fsck as a judge before `point`. Until then there are fast commits to be recovered: e2fsck 1.47
    /// does not do that as the kernel does, and replays no log that has older ones behind it.
    pub fn with_e2fsck_from(self, point: usize) -> Self {
        Self { e2fsck_from: point, ..self }
    }
}
