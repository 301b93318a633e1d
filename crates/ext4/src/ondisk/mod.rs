//! Raw layouts: bytes as they lie on the volume. Not here: their meaning.

pub mod dir;
pub mod xattr;
