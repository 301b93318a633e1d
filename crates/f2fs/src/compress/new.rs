//! The compression of files that have no data yet.

use super::decode::Algorithm;
use crate::ondisk::cluster::{COMPRESS_CHECKSUM, LOG_CLUSTER_SIZE_MIN};
use crate::ondisk::node::RawExtraAttributes;

/// How the data of a new file will be compressed, if its directory says that it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewCompression {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The logarithm to the base 2 of the number of blocks in a cluster, 2 to 8.
    pub log_cluster_size: u8,
    /// Whether clusters have checksums.
    pub has_checksums: bool,
}

impl Default for NewCompression {
    /// Returns what Linux chooses without mount options: LZ4, and clusters of 4 blocks.
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Lz4,
            log_cluster_size: LOG_CLUSTER_SIZE_MIN,
            has_checksums: false,
        }
    }
}

impl RawExtraAttributes {
    pub(crate) fn set_compression(&mut self, new: NewCompression) {
        self.algorithm = new.algorithm.number();
        self.log_cluster_size = new.log_cluster_size;
        self.compress_flags.set(if new.has_checksums { COMPRESS_CHECKSUM } else { 0 });
        self.compressed_blocks.set(0);
    }
}
