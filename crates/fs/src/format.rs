//! Formats: recognition on a device, and opening.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use base::{Result, Unsupported, WaitCallback};
use device::SharedDevice;
use fscrypt::Keys;
use iomap::PageCache;

use crate::FileSystem;

/// An on-disk format, with the options that only this format has.
pub trait Format: Debug {
    /// Returns whether `device` holds a volume of this format, damaged or not, as its first
    /// superblock shows. Errors: those of reading the device.
    fn is_on(&self, device: &SharedDevice) -> Result<bool>;

    /// Returns whether there is a copy of a superblock of this format on `device`. Only asked if no
    /// format [is on](Self::is_on) the device, since another format may leave such a copy there.
    /// Errors: those of reading the device.
    fn has_copy_on(&self, device: &SharedDevice, cache: &Arc<PageCache>) -> Result<bool>;

    /// Returns the size of the volume on `device` in bytes, as its superblock or a copy of it says.
    /// The device may be smaller.
    fn volume_bytes(&self, device: &SharedDevice) -> Option<u64>;

    /// Returns the error that names remains of a volume of this format, if `device` has no
    /// superblock of it from which the volume can be opened.
    fn remains_on(&self, device: &SharedDevice) -> Option<Unsupported>;

    /// Opens the volume on `device`, and keeps its metadata in `cache`. Recovers a volume that was
    /// not closed: on the device if the volume is opened for writing, and otherwise in memory.
    fn open(
        &self,
        device: &SharedDevice,
        cache: &Arc<PageCache>,
        options: &FormatOptions,
    ) -> Result<Arc<dyn FileSystem>>;
}

/// The options for opening a volume of any format.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// Whether the volume is opened for writing. Otherwise the device is never written.
    pub writable: bool,
    /// Whether the volume is read without recovery.
    pub no_recovery: bool,
    /// Whether the end of the device may be missing, and with it any metadata. Only for reading.
    pub incomplete: bool,
    /// Whether freed blocks are discarded on the device once their freeing is durable. `None` for
    /// the volume's own default.
    pub discard: Option<bool>,
    /// The age at which changes are committed without a sync. Zero means the default of 5 s.
    pub commit_interval: Duration,
    /// The reaction to corruption, instead of the volume's own policy.
    pub errors: Option<ErrorPolicy>,
    /// The keys of encrypted files. Without its key, a file cannot be read, and its name is shown
    /// in another form.
    pub keys: Arc<Keys>,
    /// Called repeatedly while the opening waits to see whether another host has the volume open
    /// for writing. `false` cancels the wait.
    pub wait_callback: WaitCallback,
}

/// The mount options that a volume has of its own, as far as the format does not apply them itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DefaultOptions {
    /// Whether new files get the group of their directory.
    pub bsd_groups: bool,
    /// The others, as in a list of mount options. This project may have them or not.
    pub others: Vec<String>,
}

/// The reaction to corrupt metadata that is found while a volume is open for writing. Under every
/// policy, errors that leave the state in memory inconsistent, and errors of the device in writing
/// metadata, shut the volume down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorPolicy {
    /// Record the error and go on.
    Continue,
    /// Record the error and shut the volume down.
    ReadOnly,
    /// As [`ReadOnly`](Self::ReadOnly). A kernel panics.
    Panic,
}

impl ErrorPolicy {
    /// Returns the name in mount options, such as `remount-ro`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::ReadOnly => "remount-ro",
            Self::Panic => "panic",
        }
    }
}
