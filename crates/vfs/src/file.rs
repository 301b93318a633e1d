//! An open regular file.

use std::sync::Arc;

use base::{Error, FileOffset, Result};
use iomap::{Iomap, IomapKind};

use crate::node::Node;

/// A regular file, open for reading. Shared freely between threads.
#[derive(Debug)]
pub struct File {
    node: Arc<Node>,
}

impl File {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// The inode behind it.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Reads at byte `at`. Gives the number of bytes, less than the buffer's only at the end of the
    /// file.
    pub fn read_at(&self, at: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        let data = self.node.inode().data()?;
        let available = data.size.saturating_sub(at.0);
        let length = (buffer.len() as u64).min(available) as usize;
        let mut done = 0;
        while done < length {
            let here = FileOffset(at.0 + done as u64);
            let map = data.mapper.map_read(here, (length - done) as u64)?;
            let run = ((map.end() - here.0) as usize).min(length - done);
            let target = &mut buffer[done..done + run];
            match (map.kind, map.address) {
                (IomapKind::Mapped, Some(address)) => {
                    let from = address.checked_add(here.0 - map.offset.0);
                    let from = from.ok_or(Error::InvalidArgument("device offset overflow"))?;
                    self.node.volume().file_system.device().read_at(from, target)?;
                }
                (IomapKind::Inline, _) => {
                    let bytes = data.mapper.inline_data()?;
                    for (index, byte) in target.iter_mut().enumerate() {
                        *byte = bytes.get(here.0 as usize + index).copied().unwrap_or(0);
                    }
                }
                _ => target.fill(0),
            }
            done += run;
        }
        Ok(length)
    }

    /// The first byte of data at or after `at`; unwritten blocks are not data.
    pub fn seek_data(&self, at: FileOffset) -> Result<FileOffset> {
        let data = self.node.inode().data()?;
        let mut here = at.0;
        while here < data.size {
            let map = data.mapper.map_read(FileOffset(here), data.size - here)?;
            if matches!(map.kind, IomapKind::Mapped | IomapKind::Inline) {
                return Ok(FileOffset(here));
            }
            here = map.end();
        }
        Err(Error::NoSuchOffset)
    }

    /// The first byte of a hole at or after `at`; the end of the file is one.
    pub fn seek_hole(&self, at: FileOffset) -> Result<FileOffset> {
        let data = self.node.inode().data()?;
        if at.0 >= data.size {
            return Err(Error::NoSuchOffset);
        }
        let mut here = at.0;
        while here < data.size {
            let map = data.mapper.map_read(FileOffset(here), data.size - here)?;
            if !matches!(map.kind, IomapKind::Mapped | IomapKind::Inline) {
                return Ok(FileOffset(here));
            }
            here = map.end();
        }
        Ok(FileOffset(data.size))
    }

    /// Calls `emit` for each allocated range that touches `range`, in order.
    pub fn extents(&self, range: std::ops::Range<u64>, emit: &mut dyn FnMut(Iomap)) -> Result<()> {
        let data = self.node.inode().data()?;
        let mut here = range.start;
        while here < range.end {
            let map = data.mapper.map_read(FileOffset(here), range.end - here)?;
            if map.kind != IomapKind::Hole {
                emit(map);
            }
            here = map.end();
        }
        Ok(())
    }
}
