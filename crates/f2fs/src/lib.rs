//! The f2fs format.
//!
//! Each module covers one on-disk concept: [`ondisk`] has the layouts, the other modules turn bytes into validated
//! values. All data from the device is checked before it is used; an inconsistency is a located
//! [`base::Error::Corrupt`].
#![forbid(unsafe_code)]

pub mod dir;
pub mod ondisk;
pub mod xattr;
