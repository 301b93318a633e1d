//! The foundations of all other crates: units, errors, checksums, bounds-checked views, sets of
//! ranges, and ranked locks. Not here: any I/O.
#![forbid(unsafe_code)]

pub mod attributes;
pub mod cancellation;
pub mod checksum;
mod container;
mod errno;
pub mod error;
mod foreign;
pub mod locks;
mod on_drop;
pub mod ranges;
pub mod space;
pub mod sync;
pub mod text;
pub mod units;
pub mod view;
pub mod wait_callback;
pub mod waiting;

pub use container::Container;
pub use error::{
    Blank, Corrupt, Error, HostError, IoError, IoOperation, Location, Problem, Result, Unsupported,
};
pub use foreign::Foreign;
pub use on_drop::OnDrop;
pub use ranges::Ranges;
pub use units::{
    BlockSize, DeviceOffset, FileBlock, FileOffset, FsBlock, GroupNumber, InodeNumber,
    TransactionId,
};
pub use wait_callback::WaitCallback;
