//! Symbolic links to directories in the way of a copy into an image. A copy never replaces such a link by a directory, and
//! follows it only on request, and not out of its destination.
//!
//! As in a chroot, the targets of absolute links begin at the destination: it is often the root of a system.

use std::sync::Arc;

use base::Error;
use base::attributes::FileType;
use vfs::{Follow, Node, Volume};

/// Maximum number of links on the way to a directory, as in Linux.
const LINKS_MAX: usize = 40;

/// Where a symbolic link leads.
#[derive(Debug)]
pub enum Leads {
    /// To a directory below the destination. The directories from the destination down to it.
    Directory(Vec<Arc<Node>>),
    /// Out of the destination.
    Outside,
    /// To no directory.
    Nowhere,
}

/// Returns where `link` leads, which is in the last one of `directories`. The first one is the destination.
pub fn follow(volume: &Volume, directories: &[Arc<Node>], link: &Node) -> Result<Leads, Error> {
    let Some(top) = directories.first() else { return Ok(Leads::Nowhere) };
    let is_whole = volume.root()?.number() == top.number();
    let mut at = directories.to_vec();
    // In reverse.
    let mut names = Vec::new();
    let mut absolute = begin(&link.read_link()?, &mut at, &mut names);
    let mut links = 1;
    while let Some(name) = names.pop() {
        let Some(directory) = at.last() else { return Ok(Leads::Outside) };
        if name == b".." {
            if at.len() > 1 {
                at.pop();
            } else if !is_whole {
                return Ok(Leads::Outside);
            }
            continue;
        }
        let node = match volume.lookup(directory, &name) {
            Ok(node) => node,
            Err(Error::NotFound | Error::NameTooLong) => return nowhere(volume, absolute),
            Err(error) => return Err(error),
        };
        match node.kind() {
            FileType::Directory => at.push(node),
            FileType::Symlink if links < LINKS_MAX => {
                links += 1;
                absolute = begin(&node.read_link()?, &mut at, &mut names).or(absolute);
            }
            _ => return nowhere(volume, absolute),
        }
    }
    Ok(Leads::Directory(at))
}

/// Adds the names of a link's target. Returns the target if it is absolute; then, it begins at the first of the directories.
fn begin(target: &[u8], at: &mut Vec<Arc<Node>>, names: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let parts = target.split(|&byte| byte == b'/').rev();
    names.extend(parts.filter(|name| !matches!(name, [] | [b'.'])).map(<[u8]>::to_vec));
    let is_absolute = target.first() == Some(&b'/');
    if is_absolute {
        at.truncate(1);
    }
    is_absolute.then(|| target.to_vec())
}

/// Returns where a link leads that does not lead to a directory below the destination: out of it, if its absolute target is a
/// directory of the image.
fn nowhere(volume: &Volume, absolute: Option<Vec<u8>>) -> Result<Leads, Error> {
    let Some(path) = absolute else { return Ok(Leads::Nowhere) };
    match volume.resolve(&path, Follow::Yes) {
        Ok(node) if node.kind() == FileType::Directory => Ok(Leads::Outside),
        _ => Ok(Leads::Nowhere),
    }
}
