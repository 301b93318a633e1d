//! An open volume: its format, its cache, its nodes in memory.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use ::ext4::ErrorPolicy;
use base::attributes::{CheckSummary, StatFs, VolumeInfo};
use base::locks::{Rank, RankedMutex, RankedRwLock};
use base::space::{self, Acting};
use base::{BlockSize, Error, InodeNumber, Patience, Place, Problem, Result};
use device::SharedDevice;
use iomap::{DirectOptions, ReadOptions};
use pagecache::{CacheOptions, Mapping, PageCache};

use crate::access::AccessOptions;
use crate::file_system::{FileSystem, Inode};
use crate::node::{Life, Node};
use crate::node_table::NodeTable;
use crate::path::{self, Follow};
use crate::rights::Credentials;
use crate::synchronous;
use crate::writeback::Writeback;

/// Where a superblock lies, as `e2fsck -b` and `-B` take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuperblockPlace {
    /// The number of its block.
    pub block: u64,
    /// The size of blocks; without, all sizes are tried.
    pub block_size: Option<BlockSize>,
}

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// The folio cache.
    pub cache: CacheOptions,
    /// The read path's switches and bounds.
    pub read: ReadOptions,
    /// How direct writes are done.
    pub direct: DirectOptions,
    /// Open it for writing; otherwise the device is not written at all.
    pub writable: bool,
    /// Tell the device of blocks that were freed, once that is durable: an image file becomes sparse,
    /// and a disk need not keep what they hold.
    pub discard: bool,
    /// Write back a file before it is renamed over another one, and a file that was truncated to zero when it
    /// is closed. After a crash, the file has its old contents or the new ones, and is not empty. The kernel
    /// does this by default, under the same name.
    pub auto_da_alloc: bool,
    /// The age at which written data is written back and committed without a sync. Zero means the default of
    /// 5 s.
    pub commit_interval: Duration,
    /// The reaction to corruption, instead of the volume's own policy.
    pub errors: Option<ErrorPolicy>,
    /// All files and directories are changed as those with the flag +S are.
    pub sync: bool,
    /// All directories are changed as those with the flag +D are.
    pub dirsync: bool,
    /// Look at the volume as it lies, without replaying its journal.
    pub no_recovery: bool,
    /// The device of the journal, when the volume has it outside.
    pub journal_device: Option<SharedDevice>,
    /// The superblock to read the volume by; by default the first one, or if that is damaged, a copy of it
    /// that is found where such copies usually lie.
    pub superblock: Option<SuperblockPlace>,
    /// Asked while it is uncertain whether another host has the volume open for writing.
    pub patience: Patience,
    /// How access times are kept. By default, they are not.
    pub access: AccessOptions,
    /// How many inodes stay in memory while nobody uses them.
    pub nodes_max: usize,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            cache: CacheOptions::default(),
            read: ReadOptions::default(),
            direct: DirectOptions::default(),
            writable: false,
            discard: false,
            auto_da_alloc: true,
            commit_interval: Duration::ZERO,
            errors: None,
            sync: false,
            dirsync: false,
            no_recovery: false,
            journal_device: None,
            superblock: None,
            patience: Patience::default(),
            access: AccessOptions::default(),
            nodes_max: 16_384,
        }
    }
}

/// An open volume. One that is open for writing has to be closed; dropped without that it is like
/// after a crash.
#[derive(Debug)]
pub struct Volume {
    pub(crate) shared: Arc<Shared>,
}

/// What nodes and files need of their volume.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) read_options: ReadOptions,
    pub(crate) direct_options: DirectOptions,
    pub(crate) is_writable: bool,
    /// The flags that all inodes have in effect.
    pub(crate) flags: u32,
    pub(crate) auto_da_alloc: bool,
    pub(crate) access: AccessOptions,
    pub(crate) nodes: NodeTable,
    /// Held while a directory moves to another one: the way from any directory to the root stays
    /// as it is meanwhile.
    pub(crate) moves: RankedMutex<()>,
    /// Held together with others while an inode is made and put into the table, and alone to load one that no
    /// name was found for: there must not be two nodes of one inode.
    pub(crate) making: RankedRwLock<()>,
    /// On a volume that is open for writing.
    pub(crate) writeback: Option<Writeback>,
    cache: Arc<PageCache>,
    block_size: BlockSize,
}

impl Shared {
    pub(crate) fn new_mapping(&self) -> Arc<Mapping> {
        self.cache.new_mapping(self.block_size)
    }
}

impl Volume {
    /// Opens the volume on `device`, whatever its format. A dirty journal is replayed: into memory,
    /// so that the device is not written, or in its place when the volume is opened for writing.
    pub fn open(device: SharedDevice, options: &VolumeOptions) -> Result<Self> {
        let cache = PageCache::new(options.cache)?;
        let file_system = crate::probe::open(device, &cache, options)?;
        Self::with_file_system(file_system, cache, options)
    }

    /// A volume of a file system that is open already and keeps its metadata in `cache`.
    pub fn with_file_system(
        file_system: Arc<dyn FileSystem>,
        cache: Arc<PageCache>,
        options: &VolumeOptions,
    ) -> Result<Self> {
        let block_size = file_system.block_size();
        let writeback = match file_system.is_writable() {
            true => Some(Writeback::start(&cache, &file_system, options.commit_interval)?),
            false => None,
        };
        let shared = Shared {
            is_writable: file_system.is_writable(),
            flags: synchronous::flags(options.sync, options.dirsync),
            file_system,
            read_options: options.read,
            direct_options: options.direct,
            auto_da_alloc: options.auto_da_alloc,
            access: options.access,
            nodes: NodeTable::new(options.nodes_max),
            moves: RankedMutex::new(Rank::Rename, ()),
            making: RankedRwLock::new(Rank::Making, ()),
            writeback,
            cache,
            block_size,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The root directory.
    pub fn root(&self) -> Result<Arc<Node>> {
        self.node(self.shared.file_system.root())
    }

    /// The node of an inode number. `NotFound` when the inode is not in use. Where the volume is
    /// open for writing, the number is of an inode that the caller knows will stay:
    /// [`lookup`](Self::lookup) is the way to one that has just been found by its name.
    pub fn node(&self, number: InodeNumber) -> Result<Arc<Node>> {
        self.node_or_load(number, |file_system| file_system.load_inode(number))
    }

    /// Returns the node of an inode number from a file handle of any age, such as NFS keeps. Fails with
    /// `NotFound` if the inode has no name. The generation tells whether the number has been reused.
    pub fn kept_node(&self, number: InodeNumber) -> Result<Arc<Node>> {
        let node = match self.shared.nodes.find(number) {
            Some(node) => node,
            None => {
                // An inode that is being made has a record before it has a node: this must not be another one.
                let _making = self.shared.making.write();
                self.node_or_load(number, |file_system| file_system.load_kept_inode(number))?
            }
        };
        if node.attributes().links == 0 { Err(Error::NotFound) } else { Ok(node) }
    }

    fn node_or_load(
        &self,
        number: InodeNumber,
        load: impl Fn(&dyn FileSystem) -> Result<Arc<dyn Inode>>,
    ) -> Result<Arc<Node>> {
        let nodes = &self.shared.nodes;
        loop {
            let serial = match nodes.get(number) {
                Ok(node) => return Ok(node),
                Err(serial) => serial,
            };
            let inode = load(&*self.shared.file_system);
            let inode = inode.inspect_err(|_| nodes.not_loaded(number, serial))?;
            let node = Node::new(number, inode, Arc::clone(&self.shared), Life::Named);
            if let Some(node) = nodes.loaded(Arc::new(node), serial) {
                return Ok(node);
            }
        }
    }

    /// The node that `name` stands for in `directory`.
    pub fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Arc<Node>> {
        // Under the lock the name stays, and with it the inode.
        let _lock = directory.lock_shared();
        self.entry_node(directory.number(), directory.lookup_locked(name)?)
    }

    /// The node that an entry of `directory` stands for. An entry must stand for one in use.
    pub fn entry_node(&self, directory: InodeNumber, number: InodeNumber) -> Result<Arc<Node>> {
        self.node(number).map_err(|error| match error {
            Error::NotFound => Error::corrupt(
                "directory entry",
                Place::inode(directory),
                Problem::Missing("the inode that it names"),
            ),
            error => error,
        })
    }

    /// The node that `path`, taken from the root, leads to.
    pub fn resolve(&self, path: &[u8], follow: Follow) -> Result<Arc<Node>> {
        path::walk(self, path, follow)
    }

    /// Space and inode counts.
    pub fn statfs(&self) -> StatFs {
        self.shared.file_system.statfs()
    }

    /// Returns the granularity of inode times, in nanoseconds.
    pub fn time_granularity(&self) -> u32 {
        self.shared.file_system.time_granularity()
    }

    /// Has this thread take space for `by`, until the result is dropped: what is kept for root is not
    /// for everybody. A thread that does not say for whom it acts may have it all.
    pub fn act_for(&self, by: &Credentials) -> Acting {
        space::act_with(self.shared.file_system.privilege_of(by))
    }

    /// Discards the blocks in `bytes` that are free, of runs of at least `bytes_min`: an image file becomes
    /// sparse there, and a disk need not keep what they hold. Returns how many bytes that were.
    ///
    /// `InvalidArgument` for a range of less than a block or behind the volume's end.
    pub fn trim(&self, bytes: Range<u64>, bytes_min: u64) -> Result<u64> {
        self.shared.file_system.check_writable()?;
        self.shared.file_system.trim(bytes, bytes_min)
    }

    /// The label as it is now, without padding.
    pub fn label(&self) -> Result<Vec<u8>> {
        self.shared.file_system.label()
    }

    /// Sets the label, durably. `InvalidArgument` for one that the format has no room for.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.shared.file_system.check_writable()?;
        self.shared.file_system.set_label(label)
    }

    /// What the volume is, for people.
    pub fn info(&self) -> VolumeInfo {
        self.shared.file_system.info()
    }

    /// What people should know before they rely on what they read: that the superblock is damaged, and a
    /// copy of it in use.
    pub fn warning(&self) -> Option<String> {
        self.shared.file_system.warning()
    }

    /// Walks the whole volume, which stays as it is, and tells `found` of everything that is wrong;
    /// it may break the check off.
    pub fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.shared.file_system.check(found)
    }

    /// Whether the volume is open for writing.
    pub fn is_writable(&self) -> bool {
        self.shared.is_writable
    }

    /// Makes every change up to now durable. An error in writing any file's data back since the
    /// last time is told here, too.
    pub fn sync(&self) -> Result<()> {
        let flushed = self.flush_data();
        if matches!(flushed, Err(Error::Interrupted)) {
            return flushed;
        }
        let synced = self.shared.file_system.sync();
        if let (Err(Error::Interrupted), Some(writeback)) = (&synced, &self.shared.writeback) {
            writeback.note_uncommitted();
        }
        flushed.and(synced)
    }

    fn flush_data(&self) -> Result<()> {
        self.shared.writeback.as_ref().map_or(Ok(()), |writeback| writeback.flush_all())
    }

    /// Ends writing: everything is durable, and the volume says that it is sound. What is changed
    /// afterwards fails. Files without a name that are still in use are deleted when the volume is
    /// opened for writing next.
    pub fn close(&self) -> Result<()> {
        if let Some(writeback) = &self.shared.writeback {
            writeback.close();
            // What goes around the cache and was admitted before.
            self.shared.nodes.all().iter().for_each(|node| node.end_direct_requests());
        }
        let flushed = self.flush_data();
        flushed.and(self.shared.file_system.close())
    }

    /// The folio cache.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.shared.cache
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Nodes know their volume, and the volume knows them.
        if let Some(writeback) = &self.shared.writeback {
            writeback.clear();
        }
        self.shared.nodes.clear();
    }
}
