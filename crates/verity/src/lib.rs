//! Verification of files by fs-verity: the descriptor, the Merkle tree, and the check of data
//! against them. Not here: the location of the descriptor in a file, which each format defines.
//!
//! Source of the format: <https://docs.kernel.org/filesystems/fsverity.html>.

#![forbid(unsafe_code)]

mod descriptor;
mod hash;
mod levels;
mod ondisk;
mod past_end;
mod verifier;

pub use descriptor::{DESCRIPTOR_BYTES_MAX, Descriptor};
pub use past_end::PastEnd;
pub use verifier::{TREE_ALIGNMENT, TreeRead, Verifier};
