//! Transforms between the data of a file and the data that the device stores, such as encryption
//! and verification. Not here: compression, which changes lengths (`read/decode.rs`).

use std::fmt::Debug;

use base::{FileOffset, Result};

/// The transform of a file's data, which keeps its length. Blocks are transformed one by one, so
/// that each can be read and written without others. Files with a transform are read and written
/// through the cache, never directly.
pub trait Transform: Send + Sync + Debug {
    /// Writes the stored form of `data`, whole blocks from byte `at` of the file on, to `stored`,
    /// which is as long.
    fn store(&self, at: FileOffset, data: &[u8], stored: &mut [u8]) -> Result<()>;

    /// Replaces the stored form of whole blocks, from byte `at` of the file on, by the data.
    /// Errors: `Corrupt` if the stored form is not valid. Called by a thread of the device, and so
    /// does not wait for other I/O.
    fn load(&self, at: FileOffset, stored: &mut [u8]) -> Result<()>;
}
