//! Options for opening a volume.

use std::sync::Arc;
use std::time::Duration;

use base::WaitCallback;
use device::SharedDevice;
use fs::ErrorPolicy;
use fscrypt::Keys;

use crate::superblock::copy::SuperblockLocation;

/// Options for opening a volume.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Whether to read the volume without recovery, even if its journal must be replayed.
    pub no_recovery: bool,
    /// Whether to discard freed blocks on the device once their freeing is durable, instead of the
    /// superblock's default.
    pub discard: Option<bool>,
    /// The reaction to corruption, instead of the superblock's.
    pub errors: Option<ErrorPolicy>,
    /// The age at which changes are committed without a sync. Zero means the default of 5 s.
    pub commit_interval: Duration,
    /// The device of the journal, if that is external.
    pub journal_device: Option<SharedDevice>,
    /// The location of the superblock to use instead of the first one.
    pub superblock: Option<SuperblockLocation>,
    /// The keys of encrypted files.
    pub keys: Arc<Keys>,
    /// Called while another host may have the volume open, to decide whether to continue the wait.
    pub wait_callback: WaitCallback,
}
