//! Typical bugs of a journaling file system, planted from outside: by a device between the volume and the
//! recorded one. A suite's judge must find each.

use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, SharedDevice};
use parking_lot::Mutex;

/// A bug that a device can imitate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalBug {
    /// A flush that is left out after the last write was one of this kind.
    NoFlushAfter(Written),
    /// A transaction's commit block is durable before the blocks that it completes.
    CommitFirst,
    /// Blocks that were metadata, and are free, are not revoked.
    NoRevokes,
    /// A transaction is reported as durable when the one before it is, so that the space that it frees
    /// is reused too early (J3).
    EarlyReuse,
    /// A flush that is left out when only data was written since the last one, as after an overwrite that is
    /// to be durable.
    NoFlushOfData,
    /// The write of data ends before it reaches the device: it is written after the next flush.
    EarlyEnd,
}

impl JournalBug {
    /// `device` for a volume that has the bug.
    pub fn device(self, device: SharedDevice) -> SharedDevice {
        Arc::new(HookedDevice::new(device, Buggy { bug: self, state: Mutex::default() }))
    }
}

/// The kind of a write, derived from the first bytes of its first block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Written {
    /// The blocks of a transaction but for the last.
    Body,
    /// A transaction's last block.
    Commit,
    /// The journal's superblock.
    LogState,
    /// Any other write: of a checkpoint, or of data.
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

/// Passes on the requests of a volume as if its journal had a bug.
#[derive(Debug)]
struct Buggy {
    bug: JournalBug,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Written,
    /// Anything but data was written since the last flush.
    has_metadata: bool,
    /// Delayed writes: blocks of a transaction until its commit block, or also until the next one; or data.
    waiting: Vec<(DeviceOffset, Vec<u8>)>,
}

impl Buggy {
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

    /// Returns whether the write was done here, in another way.
    fn replace(&self, device: &SharedDevice, bio: &Bio, bytes: &[u8]) -> Result<bool> {
        let mut state = self.state.lock();
        let written = Written::of(bytes);
        // The rest of a transaction that goes round the end of the log is not looked at.
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
                // What goes where it belongs must not come before the log.
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

    /// Writes the data that waits, if any of it is to be read.
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

/// Returns whether a file's data begins so, as suites write it: nothing else has so few zeroes and large bytes.
fn is_data(bytes: &[u8]) -> bool {
    bytes.iter().take(16).all(|byte| (1..=200).contains(byte))
}

impl DeviceHooks for Buggy {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let done = match bio.operation() {
                BioOperation::Read => self.before_read(device, &bio).map(|()| false),
                BioOperation::Write => {
                    let bytes: Vec<u8> =
                        bio.segments().iter().flat_map(|one| one.bytes()).copied().collect();
                    self.replace(device, &bio, &bytes)
                }
            };
            match done.unwrap() {
                true => bio.end(Ok(())),
                false => device.submit(vec![bio]),
            }
        }
    }

    fn flush(&self, device: &SharedDevice) -> Result<()> {
        let mut state = self.state.lock();
        let has_metadata = std::mem::take(&mut state.has_metadata);
        let is_left_out = match self.bug {
            JournalBug::NoFlushOfData => !has_metadata,
            bug => bug == JournalBug::NoFlushAfter(state.last),
        };
        if is_left_out {
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
