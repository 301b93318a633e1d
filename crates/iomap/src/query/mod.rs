//! Questions about a file's data: where it is, and where it is not.

pub(crate) mod fiemap;
pub(crate) mod seek;
