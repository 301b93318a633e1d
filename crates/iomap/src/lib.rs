//! The file I/O path over folios, for any format that can map a file range to the device.
//! Not here: which format that is, and how it maps.

mod mapping;
mod metadata;

pub use mapping::{Iomap, IomapKind, MapFlags, MapRead};
pub use metadata::{MetadataBuffer, MetadataCache};
