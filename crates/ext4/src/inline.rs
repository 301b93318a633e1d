//! Data that lies in the inode itself (`inline_data`).

use base::{Error, Place, Problem, Result};

use crate::inode::Inode;

/// The whole inline data: `size` bytes.
pub(crate) fn data(inode: &Inode) -> Result<Vec<u8>> {
    let record = inode.record();
    let available = record.block_area.len() as u64;
    match usize::try_from(record.size).ok().and_then(|size| record.block_area.get(..size)) {
        Some(data) => Ok(data.to_vec()),
        None => {
            let problem = Problem::Truncated { needed: record.size, available };
            Err(Error::corrupt("inline data", Place::inode(record.number), problem))
        }
    }
}
