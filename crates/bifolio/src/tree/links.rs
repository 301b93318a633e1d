//! Symbolic links of an image below one directory. A copy never replaces a link to a directory by a
//! directory, and follows it only on request; neither a copy nor the restoration of attributes
//! follows links out of their directory.
//!
//! As in a chroot, the targets of absolute links begin at that directory: it is often the root of a
//! system.

use std::sync::Arc;

use base::Error;
use base::attributes::FileType;
use vfs::{Follow, Node, Volume};

/// Maximum number of links on the way of one path, as in Linux.
pub const LINKS_MAX: usize = 40;
/// Maximum size of a path in a link, as in Linux. An image can have longer ones.
const TARGET_BYTES_MAX: usize = 4095;

/// Where a symbolic link leads.
#[derive(Debug)]
pub enum Leads {
    /// To a directory below the top. The directories from the top down to it.
    Directory(Vec<Arc<Node>>),
    /// To another file below the top.
    File(Arc<Node>),
    /// Out of the top.
    Outside,
    /// To nothing that exists, or through more links than allowed.
    Nowhere,
}

/// What is at a path below a directory.
#[derive(Debug)]
pub enum Found {
    /// This file.
    File(Arc<Node>),
    /// What a symbolic link leads to that leads out of the directory.
    Outside,
}

/// Returns what is at the path `names` below `top`. Follows symbolic links on the way, and at its
/// end if `last` says so. The caller has refused `..`.
pub fn resolve(
    volume: &Volume,
    top: &Arc<Node>,
    names: &[&[u8]],
    last: Follow,
) -> Result<Found, Error> {
    let mut directories = vec![Arc::clone(top)];
    let mut links_left = LINKS_MAX;
    let mut names = names.iter().peekable();
    while let Some(name) = names.next() {
        let directory = directories.last().unwrap_or(top);
        let node = volume.lookup(directory, name)?;
        let is_last = names.peek().is_none();
        match node.kind() {
            FileType::Directory => directories.push(node),
            FileType::Symlink if !is_last || last == Follow::Yes => {
                match follow(volume, &directories, &node, &mut links_left)? {
                    Leads::Directory(found) => directories = found,
                    Leads::File(file) if is_last => return Ok(Found::File(file)),
                    Leads::File(_) => return Err(Error::NotDirectory),
                    Leads::Outside => return Ok(Found::Outside),
                    Leads::Nowhere if links_left == 0 => return Err(Error::SymlinkLoop),
                    Leads::Nowhere => return Err(Error::NotFound),
                }
            }
            _ if is_last => return Ok(Found::File(node)),
            _ => return Err(Error::NotDirectory),
        }
    }
    Ok(Found::File(directories.pop().unwrap_or_else(|| Arc::clone(top))))
}

/// Returns where `link` leads, which is in the last one of `directories`. The first one is the top.
/// Takes the links on the way from `links_left`.
pub fn follow(
    volume: &Volume,
    directories: &[Arc<Node>],
    link: &Node,
    links_left: &mut usize,
) -> Result<Leads, Error> {
    let Some(top) = directories.first() else { return Ok(Leads::Nowhere) };
    let is_whole = volume.root()?.number() == top.number();
    let mut at = directories.to_vec();
    // In reverse.
    let mut names = Vec::new();
    let mut absolute = None;
    let mut next = link.read_link()?;
    loop {
        *links_left = match links_left.checked_sub(1) {
            Some(left) if next.len() <= TARGET_BYTES_MAX => left,
            _ => return nowhere(volume, absolute),
        };
        absolute = begin(&next, &mut at, &mut names).or(absolute);
        next = match walk(volume, is_whole, &mut at, &mut names)? {
            Stop::AtLink(target) => target,
            Stop::At(node) => return Ok(node.map_or(Leads::Directory(at), Leads::File)),
            Stop::Above => return Ok(Leads::Outside),
            Stop::Missing => return nowhere(volume, absolute),
        };
    }
}

/// Where a walk has stopped.
enum Stop {
    /// After the last name, in the last directory, or at this file.
    At(Option<Arc<Node>>),
    /// At a symbolic link, which has this target.
    AtLink(Vec<u8>),
    /// Above the top.
    Above,
    /// At a name that does not exist.
    Missing,
}

/// Walks down `names`, which are in reverse, from the last one of the directories `at`, up to the
/// next symbolic link.
fn walk(
    volume: &Volume,
    is_whole: bool,
    at: &mut Vec<Arc<Node>>,
    names: &mut Vec<Vec<u8>>,
) -> Result<Stop, Error> {
    while let Some(name) = names.pop() {
        let Some(directory) = at.last() else { return Ok(Stop::Above) };
        if name == b".." {
            if at.len() > 1 {
                at.pop();
            } else if !is_whole {
                return Ok(Stop::Above);
            }
            continue;
        }
        let node = match volume.lookup(directory, &name) {
            Ok(node) => node,
            Err(Error::NotFound | Error::NameTooLong) => return Ok(Stop::Missing),
            Err(error) => return Err(error),
        };
        match node.kind() {
            FileType::Directory => at.push(node),
            FileType::Symlink => return Ok(Stop::AtLink(node.read_link()?)),
            _ if names.is_empty() => return Ok(Stop::At(Some(node))),
            _ => return Ok(Stop::Missing),
        }
    }
    Ok(Stop::At(None))
}

/// Adds the names of a link's target. Returns the target if it is absolute; then, it begins at the
/// first of the directories.
fn begin(target: &[u8], at: &mut Vec<Arc<Node>>, names: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let parts = target.split(|&byte| byte == b'/').rev();
    names.extend(parts.filter(|name| !matches!(name, [] | [b'.'])).map(<[u8]>::to_vec));
    let is_absolute = target.first() == Some(&b'/');
    if is_absolute {
        at.truncate(1);
    }
    is_absolute.then(|| target.to_vec())
}

/// Returns where a link leads that does not lead to a file below the top: out of it, if its
/// absolute target is a directory of the image.
fn nowhere(volume: &Volume, absolute: Option<Vec<u8>>) -> Result<Leads, Error> {
    let Some(path) = absolute else { return Ok(Leads::Nowhere) };
    match volume.resolve(&path, Follow::Yes) {
        Ok(node) if node.kind() == FileType::Directory => Ok(Leads::Outside),
        _ => Ok(Leads::Nowhere),
    }
}
