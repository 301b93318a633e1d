//! The compression of files that have no data yet.

use super::decode::Algorithm;
use crate::extension;
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

/// The names of new files that are compressed, or are not, whatever their directory says.
///
/// As in Linux, both lists have extensions without their dot, which may be anywhere in a name, and
/// the cases of letters may differ. Encrypted names have no extensions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CompressedNames {
    /// The extensions of files that are compressed. [`ALL_NAMES`](Self::ALL_NAMES) is one of all
    /// files.
    pub compressed: Vec<String>,
    /// The extensions of files that are not compressed, whatever other extensions they have.
    pub uncompressed: Vec<String>,
}

impl CompressedNames {
    /// The extension of all names.
    pub const ALL_NAMES: &'static str = "*";

    /// Returns whether a new file is compressed. `None` if its directory decides.
    pub(crate) fn is_compressed(&self, name: &[u8]) -> Option<bool> {
        let is_listed =
            |one: &String| one == Self::ALL_NAMES || extension::is_one(name, one.as_bytes());
        if self.uncompressed.iter().any(is_listed) {
            return Some(false);
        }
        self.compressed.iter().any(is_listed).then_some(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_decide_before_the_directory() {
        let list = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect();
        let names =
            CompressedNames { compressed: list(&["so", "txt"]), uncompressed: list(&["gz"]) };
        for (name, expected) in [
            ("library.so", Some(true)),
            ("library.SO.tmp", Some(true)),
            ("library.so.gz", Some(false)),
            ("library.gz.so", Some(false)),
            ("library.gzip.so", Some(true)),
            ("library.soup", None),
            ("library", None),
            (".so", None),
            (".gz", None),
        ] {
            assert_eq!(names.is_compressed(name.as_bytes()), expected, "{name}");
        }
        let names = CompressedNames { compressed: list(&["*"]), ..names };
        assert_eq!(names.is_compressed(b"library"), Some(true));
        assert_eq!(names.is_compressed(b"library.gz"), Some(false));
        assert_eq!(CompressedNames::default().is_compressed(b"library"), None);
    }
}
