//! The options of f2fs.

use crate::compress::{CompressedNames, NewCompression};
use crate::write::Mode;

/// The format f2fs.
#[derive(Clone, Debug)]
pub struct Format {
    /// Where data is written that needs new blocks.
    pub mode: Mode,
    /// Whether segments are cleaned while nothing else is done.
    pub cleans_in_background: bool,
    /// How the data of new files is compressed.
    pub compression: NewCompression,
    /// The new files that are compressed, or are not, whatever their directory says.
    pub compressed_names: CompressedNames,
}

impl Default for Format {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            cleans_in_background: true,
            compression: NewCompression::default(),
            compressed_names: CompressedNames::default(),
        }
    }
}
