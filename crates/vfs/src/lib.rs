//! Volumes, nodes, open files and paths: the interface to file systems of any format.
//! Not here: formats, and transports.
#![forbid(unsafe_code)]

mod access;
mod atomic;
mod atomic_writes;
mod change;
mod clock;
mod compression;
mod copy;
mod data;
mod defragment;
mod direct;
mod fallocate;
mod file;
mod locked;
mod lost_files;
mod map;
mod move_extents;
mod namespace;
mod node;
mod node_table;
mod note_access;
mod open_options;
mod path;
mod path_change;
mod pinned;
mod probe;
mod quiesced;
mod read_dir;
mod removals;
mod rename;
mod replacing;
mod rights;
mod rw_flags;
mod shared;
mod std_file;
mod std_path;
mod std_xattr;
mod synchronous;
mod tree;
mod volume;
mod volume_options;
mod write_again;
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
pub use access::{AccessOptions, AccessTimes};
pub use base::attributes::XattrMode;
pub use clock::{now, tick};
pub use defragment::{Defragmented, Layout};
pub use direct::DirectIo;
pub use fallocate::Fallocate;
pub use file::{File, OpenMode};
pub use lost_files::{LostFile, LostFiles};
pub use map::{FileMap, MapAccess, MapAdvice, MapSync};
pub use namespace::Creation;
pub use node::Node;
pub use open_options::OpenOptions;
pub use path::Follow;
pub use probe::table_warning;
pub use read_dir::{DirEntry, ReadDir};
pub use rename::RenameFlags;
pub use rights::Privileges;
pub use rw_flags::{RwFlags, WriteAt, WriteSync};
pub use synchronous::SyncRange;
pub use volume::Volume;
pub use volume_options::VolumeOptions;
