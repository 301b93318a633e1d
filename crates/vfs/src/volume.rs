//! An open volume: its format, its cache, its nodes in memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{CheckSummary, StatFs, VolumeInfo};
use base::{BlockSize, Error, InodeNumber, Place, Problem, Result};
use device::SharedDevice;
use iomap::ReadOptions;
use pagecache::{CacheOptions, Mapping, PageCache};

use crate::file_system::FileSystem;
use crate::node::Node;
use crate::node_table::NodeTable;
use crate::path::{self, Follow};

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// The folio cache.
    pub cache: CacheOptions,
    /// The read path's switches and bounds.
    pub read: ReadOptions,
    /// Look at the volume as it lies, without replaying its journal.
    pub no_recovery: bool,
    /// The device of the journal, when the volume has it outside.
    pub journal_device: Option<SharedDevice>,
    /// How many inodes stay in memory while nobody uses them.
    pub nodes_max: usize,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            cache: CacheOptions::default(),
            read: ReadOptions::default(),
            no_recovery: false,
            journal_device: None,
            nodes_max: 16_384,
        }
    }
}

/// An open volume.
#[derive(Debug)]
pub struct Volume {
    shared: Arc<Shared>,
    nodes: NodeTable,
}

/// What nodes and files need of their volume.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) file_system: Arc<dyn FileSystem>,
    pub(crate) read_options: ReadOptions,
    cache: Arc<PageCache>,
    block_size: BlockSize,
}

impl Shared {
    pub(crate) fn new_mapping(&self) -> Arc<Mapping> {
        self.cache.new_mapping(self.block_size)
    }
}

impl Volume {
    /// Opens the volume on `device`, read-only, whatever its format. A dirty journal is replayed
    /// into memory; the device is not written.
    pub fn open(device: SharedDevice, options: &VolumeOptions) -> Result<Self> {
        let cache = PageCache::new(options.cache)?;
        let file_system = crate::probe::open(device, &cache, options)?;
        Ok(Self::with_file_system(file_system, cache, options))
    }

    /// A volume of a file system that is open already and keeps its metadata in `cache`.
    pub fn with_file_system(
        file_system: Arc<dyn FileSystem>,
        cache: Arc<PageCache>,
        options: &VolumeOptions,
    ) -> Self {
        let block_size = file_system.block_size();
        let shared = Shared { file_system, read_options: options.read, cache, block_size };
        Self { shared: Arc::new(shared), nodes: NodeTable::new(options.nodes_max) }
    }

    /// The root directory.
    pub fn root(&self) -> Result<Arc<Node>> {
        self.node(self.shared.file_system.root())
    }

    /// The node of an inode number. `NotFound` when the inode is not in use.
    pub fn node(&self, number: InodeNumber) -> Result<Arc<Node>> {
        if let Some(node) = self.nodes.get(number) {
            return Ok(node);
        }
        let inode = self.shared.file_system.load_inode(number)?;
        Ok(self.nodes.insert(Arc::new(Node::new(number, inode, Arc::clone(&self.shared)))))
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

    /// What the volume is, for people.
    pub fn info(&self) -> VolumeInfo {
        self.shared.file_system.info()
    }

    /// Walks the whole volume, which stays as it is, and tells `found` of everything that is wrong;
    /// it may break the check off.
    pub fn check(&self, found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        self.shared.file_system.check(found)
    }

    /// The folio cache.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.shared.cache
    }
}
