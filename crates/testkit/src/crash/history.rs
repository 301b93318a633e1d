//! Histories: recorded workloads with their promises. Not here: the states that a cut leaves, and
//! their judges.

use device::{RecordDevice, Recording};

use super::disks::VolumeFormat;
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
    /// The first point at which states are judged.
    pub begun: usize,
    /// The first point at which e2fsck is a judge.
    pub(super) e2fsck_from: usize,
    /// The size of the volume in bytes, if an external journal follows it in the recording.
    pub(super) volume_bytes: Option<u64>,
    /// The volume's format.
    pub(super) format: VolumeFormat,
    /// The size of blocks that a cut writes as a whole or not at all, in bytes.
    pub(super) atomic_bytes: u64,
}

impl RecordedRun {
    /// Ends the recording of a workload that began at `begun` on a volume of `kind`.
    pub fn new(kind: &Kind, recorder: &RecordDevice, begun: usize) -> Self {
        Self {
            recording: recorder.recording(),
            begun,
            e2fsck_from: 0,
            volume_bytes: kind.volume_bytes(),
            format: kind.format,
            atomic_bytes: kind.atomic_bytes,
        }
    }

    /// Excludes e2fsck as a judge before `point`, up to which there are fast commits to be
    /// recovered. e2fsck 1.47 recovers them in another way than the kernel, and does not replay a
    /// log that is followed by older fast commits.
    pub fn with_e2fsck_from(self, point: usize) -> Self {
        Self { e2fsck_from: point, ..self }
    }
}
