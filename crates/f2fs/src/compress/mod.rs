//! Compressed clusters of files: their addresses in a node, and their data.
//! Not here: the search for the node, and the writing of clusters.

mod cluster;
mod decode;
mod lzo;
mod zstd;

pub use cluster::{Cluster, ClusterSize};
pub use decode::{Algorithm, ClusterDecoder};
