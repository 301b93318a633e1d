//! Volumes, nodes, open files and paths: the interface to file systems of any format.
//! Not here: formats, and transports.
#![forbid(unsafe_code)]

mod file;
mod names;
mod node;
mod optional;
mod std;
mod volume;
mod writeback;

pub use ::ext4::{Format as Ext4Format, SuperblockLocation};
pub use ::f2fs::compress::{
    Algorithm as F2fsAlgorithm, CompressedNames as F2fsCompressedNames,
    NewCompression as F2fsCompression,
};
pub use ::f2fs::{Format as F2fsFormat, Mode as F2fsMode};
pub use ::fs::{
    AtomicWrite, CheckObserver, CheckProgress, Cleaning, Compression, Credentials, DefaultOptions,
    ErrorPolicy, FileSystem, RangeCleaning,
};
pub use ::fscrypt::Keys;
pub use base::attributes::XattrMode;
pub use file::direct::DirectIo;
pub use file::fallocate::Fallocate;
pub use file::map::{FileMap, MapAccess, MapAdvice, MapSync};
pub use file::rw_flags::{RwFlags, WriteAt, WriteSync};
pub use file::synchronous::SyncRange;
pub use file::{File, OpenMode};
pub use names::namespace::Creation;
pub use names::path::Follow;
pub use names::rename::RenameFlags;
pub use node::Node;
pub use node::access::{AccessOptions, AccessTimes};
pub use node::rights::Privileges;
pub use optional::defragment::{Defragmented, Layout};
pub use std::open_options::OpenOptions;
pub use std::read_dir::{DirEntry, ReadDir};
pub use volume::Volume;
pub use volume::clock::{now, tick};
pub use volume::lost_files::{LostFile, LostFiles};
pub use volume::options::VolumeOptions;
pub use volume::probe::table_warning;
