//! Compressed clusters of files: their addresses in a node, and their data.
//! Not here: the search for the node.

mod cluster;
mod decode;
mod encode;
mod lzo;
mod new;
mod zstd;

pub use cluster::{Cluster, ClusterSize};
pub(crate) use decode::check_header;
pub use decode::{Algorithm, ClusterCodec};
pub use new::{CompressedNames, NewCompression};
