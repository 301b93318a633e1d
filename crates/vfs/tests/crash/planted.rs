//! Typical bugs of a file system, planted from outside: by a device between the volume and the recorded one,
//! or by a mount option. The judge must find each.

use std::sync::Arc;

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, BlockDevice, SharedDevice};
use parking_lot::Mutex;
use testkit::crash::JournalBug;

/// A bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// One of the log's, or of the end of I/O.
    Journal(JournalBug),
    /// A page is made clean before it is protected: what is stored to it in between is in memory, but not
    /// in what is written, and nobody writes it again.
    CleanBeforeProtect,
    /// What replaces other data, by a rename or after a truncation, is written back when it is old only.
    LateReplacement,
}

/// A bug on its way into a volume.
pub struct Planted {
    bug: Bug,
    late: Arc<Late>,
}

/// A store that comes late.
#[derive(Debug, Default)]
pub struct Late(Mutex<Option<(Vec<u8>, Vec<u8>)>>);

impl Planted {
    pub fn new(bug: Bug) -> Self {
        Self { bug, late: Arc::default() }
    }

    /// `device` for a volume that has the bug.
    pub fn device(&self, device: SharedDevice) -> SharedDevice {
        match self.bug {
            Bug::None | Bug::LateReplacement => device,
            Bug::Journal(bug) => bug.device(device),
            Bug::CleanBeforeProtect => {
                Arc::new(LateDevice { inner: device, late: Arc::clone(&self.late) })
            }
        }
    }

    /// Has the store of `new` in the place of `old`, as many bytes, come after its page was made clean, if
    /// that is the bug.
    pub fn come_late(&self, old: &[u8], new: &[u8]) {
        if self.bug == Bug::CleanBeforeProtect && !new.is_empty() {
            *self.late.0.lock() = Some((old.to_vec(), new.to_vec()));
        }
    }
}

/// A device that does not get what is stored late.
#[derive(Debug)]
struct LateDevice {
    inner: SharedDevice,
    late: Arc<Late>,
}

impl LateDevice {
    /// The bytes of a write as they were before the late store, if they have that.
    fn before_store(&self, bio: &Bio) -> Option<Vec<u8>> {
        let mut late = self.late.0.lock();
        let (old, new) = late.as_ref()?;
        let mut bytes: Vec<u8> =
            bio.segments().iter().flat_map(|one| one.bytes()).copied().collect();
        let at = bytes.windows(new.len()).position(|window| window == new)?;
        bytes[at..at + old.len()].copy_from_slice(old);
        *late = None;
        Some(bytes)
    }
}

impl BlockDevice for LateDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn submit(&self, batch: Vec<Bio>) {
        for bio in batch {
            let before = match bio.operation() {
                BioOperation::Write => self.before_store(&bio),
                BioOperation::Read => None,
            };
            match before {
                Some(bytes) => {
                    self.inner.write_at(bio.offset(), &bytes).unwrap();
                    bio.end(Ok(()));
                }
                None => self.inner.submit(vec![bio]),
            }
        }
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: DeviceOffset, length: u64) -> Result<()> {
        self.inner.write_zeroes(offset, length)
    }
}
