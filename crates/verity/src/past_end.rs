//! Reads of what a file has past its end: the Merkle tree and the descriptor, in blocks like those
//! of data.

use base::{BlockSize, Error, FileOffset, InodeNumber, Location, Problem, Result};
use device::SharedDevice;
use iomap::{IomapKind, MapRead};

/// A file, for reads past its end.
#[derive(Clone, Copy)]
pub struct PastEnd<'f> {
    /// The inode.
    pub inode: InodeNumber,
    /// The map of the file.
    pub mapper: &'f dyn MapRead,
    /// The device of its blocks.
    pub device: &'f SharedDevice,
    /// The size of its blocks.
    pub block_size: BlockSize,
}

impl PastEnd<'_> {
    /// Reads the bytes from `at` on, and decrypts them if the file is encrypted. Errors: `Corrupt`
    /// if a block has no data of its own; those of the device.
    pub fn read(&self, at: FileOffset, into: &mut [u8]) -> Result<()> {
        let Some(transform) = self.mapper.transform() else { return self.read_stored(at, into) };
        let block = u64::from(self.block_size.bytes());
        let start = at.0 / block * block;
        let before = (at.0 - start) as usize;
        let mut blocks = vec![0; (before + into.len()).next_multiple_of(self.block_size.len())];
        self.read_stored(FileOffset(start), &mut blocks)?;
        transform.load(FileOffset(start), &mut blocks)?;
        into.copy_from_slice(&blocks[before..before + into.len()]);
        Ok(())
    }

    /// Reads the stored bytes from `at` on.
    fn read_stored(&self, at: FileOffset, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let here = FileOffset(at.0.saturating_add(done as u64));
            let map = self.mapper.map_read(here, (into.len() - done) as u64)?;
            let within = here.0.checked_sub(map.offset.0);
            let address =
                within.and_then(|within| map.address.and_then(|start| start.checked_add(within)));
            let left = map.end().saturating_sub(here.0);
            let (IomapKind::Mapped, Some(address), 1..) = (map.kind, address, left) else {
                let location =
                    Location::inode(self.inode).at_file_block(self.block_size.file_block(here));
                let problem = Problem::Missing("data block");
                return Err(Error::corrupt("Merkle tree or verity descriptor", location, problem));
            };
            let run = usize::try_from(left).unwrap_or(usize::MAX).min(into.len() - done);
            self.device.read_at(address, &mut into[done..done + run])?;
            done += run;
        }
        Ok(())
    }
}
