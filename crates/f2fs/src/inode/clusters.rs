//! The clusters of a compressed file: their stored form, for the map and for reads.
//! Not here: parsing of a cluster's addresses, and decoding (`compress`).

use std::sync::Arc;

use base::{FileBlock, FileOffset, Location, Result, Unsupported};
use iomap::{Cluster, Decode, Encoding, FOLIO_BYTES_MAX, StoredRun};
use smallvec::SmallVec;

use super::Inode;
use super::map::{BlockState, Leaf, Piece};
use super::record::Compression;
use crate::compress::{self, ClusterCodec, ClusterSize};
use crate::ondisk::node::{COMPRESS_ADDRESS, NEW_ADDRESS};

impl Inode {
    /// Returns the piece with `at`, at most up to the end of its cluster, whose addresses are in
    /// `leaf`. `None` if the cluster's blocks have addresses of their own.
    pub(super) fn piece_of_cluster(
        &self,
        leaf: &Leaf,
        size: ClusterSize,
        at: FileBlock,
    ) -> Result<Option<Piece>> {
        let first = size.first_block(at);
        let end = FileBlock(first.0 + u64::from(size.blocks()));
        Ok(match self.stored_cluster(leaf, size, first)? {
            compress::Cluster::Hole => Some(Piece { start: at, end, state: BlockState::Hole }),
            compress::Cluster::Compressed(blocks) => {
                let data = blocks.first().copied().unwrap_or_default();
                Some(Piece { start: first, end, state: BlockState::Compressed(data) })
            }
            compress::Cluster::Plain => None,
        })
    }

    /// Returns the encoding of the file's clusters, if it is compressed.
    pub(super) fn cluster_encoding(&self) -> Option<Encoding> {
        let decode = Arc::clone(self.codec()?) as Arc<dyn Decode>;
        Some(Encoding { decode, pool: Arc::clone(self.volume().decode_pool()) })
    }

    /// Returns the form in which the cluster with `data` is stored ([`iomap::MapWrite::encode`]).
    pub(crate) fn encode_cluster(&self, at: FileOffset, data: &[u8]) -> Result<Option<Vec<u8>>> {
        self.codec().map_or(Ok(None), |codec| codec.encode(at, data))
    }

    /// Returns the number of bytes in each cluster, if the file is compressed, and a folio can
    /// contain a whole one.
    pub(super) fn bytes_of_clusters(&self) -> Option<u64> {
        let size = self.record().compression?.cluster_size;
        let bytes = u64::from(size.blocks()) << self.volume().geometry().block_size.shift();
        (bytes <= FOLIO_BYTES_MAX).then_some(bytes)
    }

    fn codec(&self) -> Option<&Arc<ClusterCodec>> {
        let compression = self.record().compression?;
        if let Some(codec) = self.codec.get() {
            return Some(codec);
        }
        let block_size = self.volume().geometry().block_size;
        let Compression { algorithm, flags, .. } = compression;
        let codec = ClusterCodec::new(self.number(), block_size, algorithm, flags);
        // Without the key, no data is mapped.
        let codec = codec.with_cipher(self.contents_cipher().ok()?.cloned());
        Some(self.codec.get_or_init(|| Arc::new(codec)))
    }

    /// Returns the compressed cluster with byte `at`.
    pub(super) fn cluster_at(&self, at: FileOffset) -> Result<Cluster> {
        let no_cluster = Unsupported::Operation("decoding a file that is not compressed");
        let size = self.record().compression.ok_or(no_cluster)?.cluster_size;
        let block_size = self.volume().geometry().block_size;
        let first = size.first_block(block_size.file_block(at));
        let bytes = |blocks: u64| blocks << block_size.shift();
        let mut stored: SmallVec<[StoredRun; 1]> = SmallVec::new();
        if let compress::Cluster::Compressed(blocks) =
            self.stored_cluster(&self.leaf_at(first)?, size, first)?
        {
            for address in blocks.iter().filter_map(|block| block_size.device_offset(*block)) {
                match stored.last_mut() {
                    Some(run) if run.address.checked_add(run.length) == Some(address) => {
                        run.length += bytes(1);
                    }
                    _ => stored.push(StoredRun { address, length: bytes(1) }),
                }
            }
        }
        Ok(Cluster {
            offset: FileOffset(bytes(first.0)),
            length: bytes(size.blocks().into()),
            stored,
        })
    }

    /// Returns how many blocks compression saves in the compressed cluster whose first block is
    /// `first`: the mark and the reserved blocks.
    pub(crate) fn saved_in_cluster(&self, first: FileBlock) -> Result<u64> {
        let record = self.record();
        let Some(compression) = record.compression else { return Ok(0) };
        let leaf = self.leaf_at(first)?;
        let Some(node) = &leaf.node else { return Ok(0) };
        let index = (first.0 - leaf.start) as u32;
        let slots = node.words(leaf.addresses_at, index, compression.cluster_size.blocks());
        let saves = |address: &u32| [COMPRESS_ADDRESS, NEW_ADDRESS].contains(address);
        Ok(slots.filter(saves).count() as u64)
    }

    /// Returns the stored form of the cluster whose first block is `first`, and whose addresses are
    /// in `leaf`.
    fn stored_cluster(
        &self,
        leaf: &Leaf,
        size: ClusterSize,
        first: FileBlock,
    ) -> Result<compress::Cluster> {
        let Some(node) = &leaf.node else { return Ok(compress::Cluster::Hole) };
        // A node maps whole clusters, and has some thousand addresses at most.
        let index = (first.0 - leaf.start) as u32;
        let slots: SmallVec<[u32; 16]> =
            node.words(leaf.addresses_at, index, size.blocks()).collect();
        let main = &self.volume().geometry().main;
        compress::Cluster::parse(&slots, first, main, Location::inode(self.number()))
    }
}
