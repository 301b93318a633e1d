//! Node blocks: their footers, and the words with addresses or node numbers.

use base::view::view_at;
use base::{Error, FsBlock, InodeNumber, Location, Problem, Result};
use iomap::MetadataBuffer;
use zerocopy::FromBytes;

use crate::geometry::WORD_BYTES;
use crate::nat::Nid;
use crate::ondisk::node::RawNodeFooter;

const STRUCTURE: &str = "node footer";
/// The bits of a footer's flags before the node's position.
pub(crate) const FLAG_BITS: u32 = 3;
/// The position of a node with extended attributes, in the bits of a footer's flags that hold it.
pub(crate) const XATTR_POSITION: u32 = u32::MAX >> FLAG_BITS;

/// A node block with a valid footer.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    buffer: MetadataBuffer,
    pub(crate) nid: Nid,
    pub(crate) inode: InodeNumber,
}

impl Node {
    /// Checks the footer of a node: it must be the node `nid`, and belong to `inode`.
    pub(crate) fn new(buffer: MetadataBuffer, nid: Nid, inode: InodeNumber) -> Result<Self> {
        let location = Location::inode(inode).at_block(buffer.block());
        let footer = footer(&buffer, location)?;
        for (field, found, expected) in [
            ("node number", u64::from(footer.nid.get()), u64::from(nid.0)),
            ("inode number", footer.inode.get().into(), inode.0),
        ] {
            if found != expected {
                let problem = Problem::Mismatch { field, found, expected };
                return Err(Error::corrupt(STRUCTURE, location, problem));
            }
        }
        Ok(Self { buffer, nid, inode })
    }

    /// Returns the node's position in its file.
    pub(crate) fn position(&self) -> Result<u32> {
        Ok(footer(&self.buffer, self.location())?.flags.get() >> FLAG_BITS)
    }

    /// Checks the node's position in its file.
    pub(crate) fn at_position(self, position: u32) -> Result<Self> {
        let found = self.position()?;
        if found != position {
            let (found, expected) = (found.into(), position.into());
            let problem = Problem::Mismatch { field: "node offset", found, expected };
            return Err(Error::corrupt(STRUCTURE, self.location(), problem));
        }
        Ok(self)
    }

    pub(crate) fn location(&self) -> Location {
        Location::inode(self.inode).at_block(self.buffer.block())
    }

    /// Returns the block that the node was read from.
    pub(crate) fn block(&self) -> FsBlock {
        self.buffer.block()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Calls `verify` unless it has succeeded since the block was read.
    pub(crate) fn verify_once(&self, verify: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        self.buffer.verify_once(verify)
    }

    /// Returns the word at `index`, counted from byte `start`. Errors: `Corrupt` for a word outside
    /// the block.
    pub(crate) fn word(&self, start: usize, index: u32) -> Result<u32> {
        let byte = start + index as usize * WORD_BYTES;
        let word: &zerocopy::little_endian::U32 =
            view_at(self.bytes(), byte, "node", self.location())?;
        Ok(word.get())
    }

    /// Returns `count` words, from `index` on, counted from byte `start`.
    pub(crate) fn words(
        &self,
        start: usize,
        index: u32,
        count: u32,
    ) -> impl Iterator<Item = u32> + '_ {
        let byte = start + index as usize * WORD_BYTES;
        let bytes = self.bytes().get(byte..).unwrap_or_default();
        let words = bytes.chunks_exact(WORD_BYTES).take(count as usize);
        words.filter_map(|word| word.first_chunk().copied().map(u32::from_le_bytes))
    }
}

/// Returns the footer of a node block.
pub(crate) fn footer(block: &[u8], location: Location) -> Result<&RawNodeFooter> {
    let at = block.len().saturating_sub(size_of::<RawNodeFooter>());
    view_at(block, at, STRUCTURE, location)
}

/// Returns the footer of a node block in memory, for changes.
pub(crate) fn footer_mut(block: &mut [u8]) -> &mut RawNodeFooter {
    let at = block.len() - size_of::<RawNodeFooter>();
    RawNodeFooter::mut_from_bytes(&mut block[at..]).expect("of this size")
}
