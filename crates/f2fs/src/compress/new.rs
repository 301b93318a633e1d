//! The compression of files that have no data yet.

use super::decode::Algorithm;
use crate::ondisk::cluster::LOG_CLUSTER_SIZE_MIN;
use crate::ondisk::node::RawExtraAttributes;

/// How the data of a new file will be compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NewCompression {
    pub(crate) algorithm: Algorithm,
    /// The logarithm to the base 2 of the number of blocks in a cluster.
    pub(crate) log_cluster_size: u8,
}

impl Default for NewCompression {
    /// Returns what Linux chooses without mount options: LZ4, and clusters of 4 blocks.
    fn default() -> Self {
        Self { algorithm: Algorithm::Lz4, log_cluster_size: LOG_CLUSTER_SIZE_MIN }
    }
}

impl RawExtraAttributes {
    pub(crate) fn set_compression(&mut self, new: NewCompression) {
        self.algorithm = new.algorithm.number();
        self.log_cluster_size = new.log_cluster_size;
        self.compress_flags.set(0);
        self.compressed_blocks.set(0);
    }
}
