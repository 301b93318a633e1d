//! Path walks: from a path to a node.

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, Result};

use crate::node::Node;
use crate::volume::Volume;

/// The maximum number of symbolic links in one walk, as in Linux.
const LINKS_MAX: u32 = 40;
/// The maximum length of a path with all of its symbolic links expanded, in bytes.
const PATH_BYTES_MAX: usize = 64 * 1024;

/// Whether a walk follows a symbolic link at the end of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// The walk returns the node to which the link leads.
    Yes,
    /// The walk returns the link itself.
    No,
}

/// Fails for a path that a user gives if it contains NUL.
pub(crate) fn check(path: &[u8]) -> Result<()> {
    if path.contains(&0) {
        return Err(Error::InvalidArgument("the path contains NUL"));
    }
    Ok(())
}

/// [`check`], which also fails with `NotFound` for an empty path, as the kernel does.
pub(crate) fn check_nonempty(path: &[u8]) -> Result<()> {
    check(path)?;
    if path.is_empty() { Err(Error::NotFound) } else { Ok(()) }
}

/// Returns the node at `path`, which begins at the root. Symbolic links that are followed are
/// accessed. Absolute targets stay within the volume. ".." leads back to the directory that the
/// walk came from, whatever parent the directory itself names.
pub(crate) fn walk(volume: &Volume, path: &[u8], follow: Follow) -> Result<Arc<Node>> {
    let root = volume.root()?;
    let mut parents: Vec<Arc<Node>> = Vec::new();
    let mut here = Arc::clone(&root);
    // The remaining components, the next one last.
    let mut ahead: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0;
    push_components(&mut ahead, path, &mut bytes)?;
    let mut must_be_directory = path.ends_with(b"/");
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if here.kind() != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                here = parents.pop().unwrap_or_else(|| Arc::clone(&root));
                continue;
            }
            _ => {}
        }
        let next = volume.lookup(&here, &name)?;
        let is_last = ahead.is_empty();
        let is_followed = !is_last || follow == Follow::Yes || must_be_directory;
        if next.kind() != FileType::Symlink || !is_followed {
            parents.push(std::mem::replace(&mut here, next));
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Error::SymlinkLoop);
        }
        let target = next.read_link()?;
        next.note_access();
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.starts_with(b"/") {
            parents.clear();
            here = Arc::clone(&root);
        }
        must_be_directory |= is_last && target.ends_with(b"/");
        push_components(&mut ahead, &target, &mut bytes)?;
    }
    if must_be_directory && here.kind() != FileType::Directory {
        return Err(Error::NotDirectory);
    }
    Ok(here)
}

/// Adds the components of `path` to the end of `ahead`, the first one last. `bytes` is the length
/// of all paths so far.
fn push_components(ahead: &mut Vec<Vec<u8>>, path: &[u8], bytes: &mut usize) -> Result<()> {
    *bytes += path.len();
    if *bytes > PATH_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    ahead.extend(names.rev().map(<[u8]>::to_vec));
    Ok(())
}
