//! An open regular file: a thin binding of a node's data to the read path.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use base::{FileOffset, Result};
use iomap::{FiemapExtent, FolioSlice, ReadContext, Readahead};

use crate::file_system::FileData;
use crate::node::Node;

/// What a file is opened for, besides reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// Writing.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
}

/// An open regular file. Shared freely between threads, which then share its readahead.
#[derive(Debug)]
pub struct File {
    node: Arc<Node>,
    mode: OpenMode,
    readahead: Readahead,
}

impl File {
    pub(crate) fn new(node: Arc<Node>, mode: OpenMode) -> Self {
        Self { node, mode, readahead: Readahead::default() }
    }

    /// What it was opened for.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// Makes the file durable; with `data_only`, as far as its data can be read back.
    pub fn sync(&self, data_only: bool) -> Result<()> {
        self.node.sync(data_only)
    }

    /// The inode behind it.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Reads at byte `at`. Gives the number of bytes, less than the buffer's only at the end of the
    /// file.
    pub fn read_at(&self, at: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::read(&self.context(data), &self.readahead, at, buffer)
    }

    /// Lends at most `length_max` cached bytes from byte `at`, without a copy; empty at or past the
    /// end of the file, and possibly shorter than asked for anywhere.
    pub fn lend(&self, at: FileOffset, length_max: usize) -> Result<FolioSlice> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::lend(&self.context(data), &self.readahead, at, length_max)
    }

    /// The first byte of data at or after `at`; unwritten blocks are not data.
    pub fn seek_data(&self, at: FileOffset) -> Result<FileOffset> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::seek_data(&self.context(data), at)
    }

    /// The first byte of a hole at or after `at`; the end of the file is one.
    pub fn seek_hole(&self, at: FileOffset) -> Result<FileOffset> {
        let _lock = self.node.lock_shared();
        let data = self.node.data()?;
        iomap::seek_hole(&self.context(data), at)
    }

    /// Calls `emit` for each allocated extent that touches `range`, in order.
    pub fn extents(
        &self,
        range: Range<FileOffset>,
        emit: &mut dyn FnMut(FiemapExtent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.node.extents(range, emit)
    }

    fn context<'a>(&'a self, data: FileData<'a>) -> ReadContext<'a> {
        let volume = self.node.volume();
        ReadContext {
            mapping: self.node.mapping(),
            mapper: data.mapper,
            device: volume.file_system.device(),
            size: data.size,
            options: volume.read_options,
        }
    }
}
