//! Typical bugs of a file system, planted from outside: by a device between the volume and the recorded one,
//! or by a mount option. The judge must find each.

use std::sync::Arc;

use device::{Bio, BioOperation, SharedDevice};
use parking_lot::Mutex;
use testkit::crash::JournalBug;
use testkit::{DeviceHooks, HookedDevice};

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
    late: Arc<LateStore>,
}

/// A store that comes after its page was made clean: the old bytes and the new ones.
#[derive(Debug, Default)]
struct LateStore(Mutex<Option<(Vec<u8>, Vec<u8>)>>);

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
                Arc::new(HookedDevice::new(device, WithoutLateStore(Arc::clone(&self.late))))
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

/// Keeps a late store from the device.
#[derive(Debug)]
struct WithoutLateStore(Arc<LateStore>);

impl WithoutLateStore {
    /// The bytes of a write as they were before the late store, if they have that.
    fn before_store(&self, bio: &Bio) -> Option<Vec<u8>> {
        let mut late = self.0.0.lock();
        let (old, new) = late.as_ref()?;
        let mut bytes: Vec<u8> =
            bio.segments().iter().flat_map(|one| one.bytes()).copied().collect();
        let at = bytes.windows(new.len()).position(|window| window == new)?;
        bytes[at..at + old.len()].copy_from_slice(old);
        *late = None;
        Some(bytes)
    }
}

impl DeviceHooks for WithoutLateStore {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let before = match bio.operation() {
                BioOperation::Write => self.before_store(&bio),
                BioOperation::Read => None,
            };
            match before {
                Some(bytes) => {
                    device.write_at(bio.offset(), &bytes).unwrap();
                    bio.end(Ok(()));
                }
                None => device.submit(vec![bio]),
            }
        }
    }
}
