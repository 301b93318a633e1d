//! Typical bugs of a journaling file system, planted from outside by a device between the volume
//! and the recorded device. A suite's judge must find each of them.

use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, SharedDevice};
use parking_lot::Mutex;

/// A bug that a device can imitate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalBug {
    /// A flush is omitted if the last write was of this kind.
    NoFlushAfter(Written),
    /// A transaction's commit block is durable before its other blocks.
    CommitFirst,
    /// Metadata blocks that were freed are not revoked.
    NoRevokes,
    /// A transaction is reported as durable when the previous one is, so that the space that it
    /// frees is reused too early (J3).
    EarlyReuse,
    /// A flush is omitted if only data was written since the last one, as after an overwrite with a
    /// sync.
    NoFlushOfData,
    /// A write of data ends before it reaches the device: it is written after the next flush.
    EarlyEnd,
}

impl JournalBug {
    /// Returns `device` as a volume with the bug would use it.
    pub fn device(self, device: SharedDevice) -> SharedDevice {
        Arc::new(HookedDevice::new(device, Buggy { bug: self, state: Mutex::default() }))
    }
}

/// The kind of a write, derived from the first bytes of its first block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Written {
    /// The blocks of a transaction except for the commit block.
    Body,
    /// A transaction's last block.
    Commit,
    /// The journal's superblock.
    LogState,
    /// Any other write: a checkpoint, or data.
    #[default]
    Other,
}

const MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();
const DESCRIPTOR: u8 = 1;
const COMMIT: u8 = 2;
const REVOKE: u8 = 5;
const REVOKE_HEADER_BYTES: u8 = 16;

fn is_control_block(bytes: &[u8], kind: u8) -> bool {
    bytes.starts_with(&MAGIC) && bytes.get(7) == Some(&kind)
}

impl Written {
    fn of(bytes: &[u8]) -> Self {
        if is_control_block(bytes, DESCRIPTOR) || is_control_block(bytes, REVOKE) {
            Self::Body
        } else if is_control_block(bytes, COMMIT) {
            Self::Commit
        } else if bytes.starts_with(&MAGIC) {
            Self::LogState
        } else {
            Self::Other
        }
    }
}

/// Hooks that pass on the requests of a volume as if its journal had a bug.
#[derive(Debug)]
struct Buggy {
    bug: JournalBug,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Written,
    /// Whether metadata was written since the last flush.
    has_metadata: bool,
    /// Delayed writes: data, or blocks of a transaction, which are delayed until its commit block
    /// or until the next transaction.
    waiting: Vec<(DeviceOffset, Vec<u8>)>,
}

impl Buggy {
    /// Does the delayed writes.
    fn write_waiting(device: &SharedDevice, state: &mut State) -> Result<()> {
        for (offset, bytes) in std::mem::take(&mut state.waiting) {
            let completes = is_control_block(&bytes, COMMIT);
            if completes {
                device.flush()?;
            }
            device.write_at(offset, &bytes)?;
            if completes {
                device.flush()?;
            }
        }
        Ok(())
    }

    /// Replaces a write, as the bug requires. Returns whether it did; otherwise the caller passes
    /// the write on.
    fn replace(&self, device: &SharedDevice, bio: &Bio, bytes: &[u8]) -> Result<bool> {
        let mut state = self.state.lock();
        let written = Written::of(bytes);
        // Only the first block of a write is examined. If a transaction wraps around the end of the
        // log, its second write is not recognized.
        state.last = written;
        state.has_metadata |= !is_data(bytes);
        match (self.bug, written) {
            (JournalBug::CommitFirst, Written::Body) => {
                state.waiting.push((bio.offset(), bytes.to_vec()));
                Ok(true)
            }
            (JournalBug::EarlyReuse, Written::Body | Written::Commit) => {
                let next = written == Written::Body;
                if next && state.waiting.iter().any(|it| is_control_block(&it.1, COMMIT)) {
                    Self::write_waiting(device, &mut state)?;
                }
                state.waiting.push((bio.offset(), bytes.to_vec()));
                Ok(true)
            }
            (JournalBug::EarlyReuse, Written::LogState | Written::Other) if !is_data(bytes) => {
                // A checkpoint must not precede the log.
                Self::write_waiting(device, &mut state).map(|()| false)
            }
            (JournalBug::CommitFirst, Written::Commit) => {
                device.write_at(bio.offset(), bytes)?;
                device.flush()?;
                Self::write_waiting(device, &mut state).map(|()| true)
            }
            (JournalBug::NoRevokes, Written::Body) if is_control_block(bytes, REVOKE) => {
                let mut bytes = bytes.to_vec();
                bytes[12..16].copy_from_slice(&[0, 0, 0, REVOKE_HEADER_BYTES]);
                device.write_at(bio.offset(), &bytes)?;
                Ok(true)
            }
            (JournalBug::EarlyEnd, Written::Other) if is_data(bytes) => {
                state.waiting.push((bio.offset(), bytes.to_vec()));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Does the delayed writes of data if `bio` reads any of it.
    fn before_read(&self, device: &SharedDevice, bio: &Bio) -> Result<()> {
        let mut state = self.state.lock();
        if self.bug != JournalBug::EarlyEnd || state.waiting.is_empty() {
            return Ok(());
        }
        let length: usize = bio.segments().iter().map(|one| one.bytes().len()).sum();
        let end = bio.offset().0 + length as u64;
        let is_read = |(at, bytes): &(DeviceOffset, Vec<u8>)| {
            at.0 < end && bio.offset().0 < at.0 + bytes.len() as u64
        };
        if state.waiting.iter().any(is_read) {
            Self::write_waiting(device, &mut state)
        } else {
            Ok(())
        }
    }
}

/// Returns whether a write has a file's data. Data of the suites has no zeroes and no bytes above
/// 200, unlike all metadata.
pub fn is_data(bytes: &[u8]) -> bool {
    bytes.iter().take(16).all(|byte| (1..=200).contains(byte))
}

impl DeviceHooks for Buggy {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let done = match bio.operation() {
                BioOperation::Read => self.before_read(device, &bio).map(|()| false),
                BioOperation::Write => self.replace(device, &bio, &bio.to_vec()),
            };
            if done.unwrap() {
                bio.end(Ok(()));
            } else {
                device.submit(vec![bio]);
            }
        }
    }

    fn flush(&self, device: &SharedDevice) -> Result<()> {
        let mut state = self.state.lock();
        let has_metadata = std::mem::take(&mut state.has_metadata);
        let is_omitted = match self.bug {
            JournalBug::NoFlushOfData => !has_metadata,
            bug => bug == JournalBug::NoFlushAfter(state.last),
        };
        if is_omitted {
            return Ok(());
        }
        if self.bug != JournalBug::EarlyEnd {
            drop(state);
            return device.flush();
        }
        device.flush()?;
        Self::write_waiting(device, &mut state)
    }
}
