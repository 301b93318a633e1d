//! What a file system offers to its users, whatever its format: volumes, nodes, open files, paths.
//! Not here: any format beyond a thin adapter, any transport.
#![forbid(unsafe_code)]

mod errno;
mod ext4;
mod file;
mod file_system;
mod node;
mod node_table;
mod path;
mod probe;
mod volume;

pub use errno::errno;
pub use file::File;
pub use file_system::{FileData, FileSystem, Inode, NewInode, RenameMode, RenameTarget, XattrMode};
pub use node::Node;
pub use path::Follow;
pub use volume::{Volume, VolumeOptions};
