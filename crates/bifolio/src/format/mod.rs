//! How things out of an image are shown to people and to scripts. Pure functions.

pub mod acl;
pub mod json;
pub mod mode;
pub mod size;
pub mod text;
pub mod time;
pub mod xattr;
