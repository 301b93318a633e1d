//! Operations on names and their inodes: create, link, remove and rename. Each operation is one
//! transaction. The caller holds the locks of all inodes of an operation exclusively. Not here: the
//! blocks of directories (`dir`), and permissions.

mod create;
mod damaged;
mod names;
mod release;
mod rename;

pub use rename::{Named, RenameMode};

use base::Result;
use base::attributes::{FileType, Timestamp};

use crate::features::Feature;
use crate::inode::Inode;
use crate::journal::Handle;

/// Maximum number of links of an inode. Directories with more are not counted any further.
const LINKS_MAX: u16 = 65_000;
/// Credits for a change of an inode: its table block.
const INODE_CREDITS: u32 = 1;

/// Records that the contents of a directory changed at `time`.
fn touch(handle: &mut Handle<'_>, directory: &Inode, time: Timestamp) -> Result<()> {
    directory.update(handle, |record| {
        record.modified = time;
        record.changed = time;
        record.version = record.version.wrapping_add(1);
    })
}

/// Returns whether `directory` may have one more subdirectory.
fn can_have_more(directory: &Inode) -> bool {
    let is_uncounted = directory.volume().geometry().features.has(Feature::DirNlink);
    directory.record().links < LINKS_MAX || is_uncounted
}

/// Counts a new subdirectory. A directory with more subdirectories than can be counted has 1 link.
fn count_subdirectory(handle: &mut Handle<'_>, directory: &Inode) -> Result<()> {
    directory.update(handle, |record| {
        record.links = match record.links {
            1 => 1,
            links if links >= LINKS_MAX => 1,
            links => links + 1,
        };
    })
}

/// Counts a removed subdirectory.
fn uncount_subdirectory(handle: &mut Handle<'_>, directory: &Inode) -> Result<()> {
    directory.update(handle, |record| {
        if record.links > 2 {
            record.links -= 1;
        }
    })
}

fn is_directory(inode: &Inode) -> bool {
    inode.kind() == FileType::Directory
}
