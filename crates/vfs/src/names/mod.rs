//! Names in directories.
//!
//! - `namespace.rs`, `rename.rs`: changes of names in a directory
//! - `path.rs`, `path_change.rs`: walks along paths, and changes by path
//! - `tree.rs`: directories with their parents, or with their contents

pub(crate) mod namespace;
pub(crate) mod path;
pub(crate) mod path_change;
pub(crate) mod rename;
pub(crate) mod tree;
