//! Options for opening a volume.

use std::sync::Arc;
use std::time::Duration;

use base::WaitCallback;
use fs::{ErrorPolicy, FormatOptions};
use fscrypt::Keys;
use iomap::{DirectOptions, ReadOptions};
use pagecache::CacheOptions;

use crate::node::access::AccessOptions;

/// Options for opening a volume, in the style of [`std::fs::OpenOptions`]. Options without a method
/// are set as fields.
///
/// ```no_run
/// let mut options = vfs::VolumeOptions::new();
/// let volume = options.writable(true).cache_bytes_max(64 << 20).open("disk.img")?;
/// # Ok::<(), base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Options of the folio cache.
    pub cache: CacheOptions,
    /// Options of the read path.
    pub read: ReadOptions,
    /// Options of direct writes.
    pub direct: DirectOptions,
    /// Whether the volume is opened for writing. Otherwise the device is never written.
    pub writable: bool,
    /// Whether freed blocks are discarded on the device once their freeing is durable. An image
    /// file becomes sparse there, and a disk need not keep their contents. `None` for the volume's
    /// own default, which is not to.
    pub discard: Option<bool>,
    /// Whether new files get the group of their directory. `None` for the volume's own default,
    /// which is that of their creator, unless the directory has the setgid bit.
    pub bsd_groups: Option<bool>,
    /// Whether files that replace others are written back early: before a rename over another file,
    /// and at the close of a file that was truncated to zero. After a crash, the file has its old
    /// or its new contents, and is not empty. The kernel's option of this name is on by default,
    /// too.
    pub auto_da_alloc: bool,
    /// The age at which dirty data is written back and committed without a sync. Zero means the
    /// default of 5 s.
    pub commit_interval: Duration,
    /// The reaction to corruption, instead of the volume's own policy.
    pub errors: Option<ErrorPolicy>,
    /// Whether all files and directories are changed as if they had the flag +S.
    pub sync: bool,
    /// Whether all directories are changed as if they had the flag +D.
    pub dirsync: bool,
    /// Whether the volume is read without recovery: no journal is replayed, and no synced files are
    /// recovered.
    pub no_recovery: bool,
    /// Whether an image is read that ends before its volume does. Reads of what is missing fail. If
    /// the last changes cannot be recovered, the volume is read without them. Refused for writing.
    pub incomplete: bool,
    /// Called repeatedly while the opening waits to see whether another host has the volume open
    /// for writing. `false` cancels the wait.
    pub wait_callback: WaitCallback,
    /// The keys of encrypted files. Without its key, a file cannot be read, and its name is shown
    /// in another form.
    pub keys: Arc<Keys>,
    /// The options of ext4.
    pub ext4: ext4::Format,
    /// The options of f2fs.
    pub f2fs: f2fs::Format,
    /// The options for access times. By default, they are not kept.
    pub access: AccessOptions,
    /// The maximum number of inodes in memory, unless more are in use.
    pub nodes_max: usize,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            cache: CacheOptions::default(),
            read: ReadOptions::default(),
            direct: DirectOptions::default(),
            writable: false,
            discard: None,
            bsd_groups: None,
            auto_da_alloc: true,
            commit_interval: Duration::ZERO,
            errors: None,
            sync: false,
            dirsync: false,
            no_recovery: false,
            incomplete: false,
            wait_callback: WaitCallback::default(),
            keys: Arc::default(),
            ext4: ext4::Format::default(),
            f2fs: f2fs::Format::default(),
            access: AccessOptions::default(),
            nodes_max: 16_384,
        }
    }
}

impl VolumeOptions {
    /// Returns the default options, which open a volume for reading.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the volume is opened for writing.
    pub fn writable(&mut self, writable: bool) -> &mut Self {
        self.writable = writable;
        self
    }

    /// Sets the limit of the cache's memory, in bytes.
    pub fn cache_bytes_max(&mut self, bytes: u64) -> &mut Self {
        self.cache.bytes_max = bytes;
        self
    }

    /// Sets whether freed blocks are discarded.
    pub fn discard(&mut self, discard: bool) -> &mut Self {
        self.discard = Some(discard);
        self
    }

    /// Sets the age at which dirty data is written back and committed without a sync.
    pub fn commit_interval(&mut self, interval: Duration) -> &mut Self {
        self.commit_interval = interval;
        self
    }

    /// Sets the reaction to corruption.
    pub fn errors(&mut self, policy: ErrorPolicy) -> &mut Self {
        self.errors = Some(policy);
        self
    }

    /// Sets whether the volume is read without recovery: no journal is replayed, and no synced
    /// files are recovered.
    pub fn no_recovery(&mut self, no_recovery: bool) -> &mut Self {
        self.no_recovery = no_recovery;
        self
    }

    /// Sets whether an image is read that ends before its volume does.
    pub fn incomplete(&mut self, incomplete: bool) -> &mut Self {
        self.incomplete = incomplete;
        self
    }

    /// Returns those of the options that a format needs.
    pub(crate) fn format_options(&self) -> FormatOptions {
        FormatOptions {
            writable: self.writable,
            no_recovery: self.no_recovery,
            incomplete: self.incomplete,
            discard: self.discard,
            commit_interval: self.commit_interval,
            errors: self.errors,
            keys: Arc::clone(&self.keys),
            wait_callback: self.wait_callback.clone(),
        }
    }
}
