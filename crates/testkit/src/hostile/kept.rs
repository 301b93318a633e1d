//! The contents of the files of a volume, to see that changes of other files leave them. For
//! volumes of any format. Not here: damage, changes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{InodeNumber, Result};
use twox_hash::XxHash64;
use vfs::{Node, Volume};

/// The maximum number of files. The images are small.
const FILES_MAX: usize = 2_000;
/// The maximum number of entries that are read from a directory.
const ENTRIES_MAX: usize = 4_000;
/// The number of bytes that are read from a file. Damaged sizes may be terabytes.
const READ_MAX: usize = 256 << 10;

/// The files and symbolic links that have a name and can be read: hashes of their sizes and
/// contents, by inode.
#[derive(Clone, Debug, Default)]
pub struct Files(BTreeMap<InodeNumber, u64>);

impl Files {
    /// Returns the files of `volume`.
    pub fn of(volume: &Volume) -> Self {
        let (mut files, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut ahead = Vec::from_iter(volume.root());
        let mut buffer = vec![0; READ_MAX];
        while let Some(node) = ahead.pop() {
            if seen.len() >= FILES_MAX || !seen.insert(node.number()) {
                continue;
            }
            if node.kind() == FileType::Directory {
                ahead.extend(children(volume, &node));
            } else if let Ok(Some(hash)) = hash(&node, &mut buffer) {
                files.insert(node.number(), hash);
            }
        }
        Self(files)
    }

    /// Returns descriptions of the files that are not in `after`, or have other contents there,
    /// except for those of the inodes in `touched`.
    pub fn lost_in(&self, after: &Self, touched: &BTreeSet<InodeNumber>) -> Vec<String> {
        let untouched = self.0.iter().filter(|(number, _)| !touched.contains(number));
        let lost = untouched.filter_map(|(number, hash)| match after.0.get(number) {
            None => Some(format!("inode {number} was lost")),
            Some(new) if new != hash => Some(format!("inode {number} has other contents")),
            Some(_) => None,
        });
        lost.collect()
    }
}

/// Returns the nodes of a directory that can be opened, or none if it cannot be read to its end.
fn children(volume: &Volume, directory: &Arc<Node>) -> Vec<Arc<Node>> {
    let mut names = Vec::new();
    let listed = directory.read_dir(DirCursor(0), &mut |entry| {
        names.push(entry.name.to_vec());
        if names.len() < ENTRIES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if listed.is_err() {
        return Vec::new();
    }
    let names = names.iter().filter(|name| ![&b"."[..], b".."].contains(&&name[..]));
    names.filter_map(|name| volume.lookup(directory, name).ok()).collect()
}

/// Returns the hash of a file or of a symbolic link. `None` for other types.
fn hash(node: &Arc<Node>, buffer: &mut [u8]) -> Result<Option<u64>> {
    let mut hasher = XxHash64::default();
    match node.kind() {
        FileType::Symlink => hasher.write(&node.read_link()?),
        FileType::Regular => {
            hasher.write_u64(node.attributes().size);
            let length = node.open()?.read_at(buffer, 0)?;
            hasher.write(&buffer[..length]);
        }
        _ => return Ok(None),
    }
    Ok(Some(hasher.finish()))
}

#[cfg(test)]
mod tests {
    use vfs::{Credentials, Follow, OpenMode, VolumeOptions};

    use super::*;
    use crate::hostile::{Damageable, tiny, written};

    #[test]
    fn changed_and_removed_files_are_lost_unless_they_were_touched() {
        let device = written::over(&Arc::new(tiny(0).bytes().to_vec()));
        let mut options = VolumeOptions::new();
        options.writable(true).cache_bytes_max(16 << 20);
        let volume = Volume::open_device(device, &options).unwrap();
        let before = Files::of(&volume);
        assert_eq!(before.lost_in(&before, &BTreeSet::new()), [""; 0]);
        let find = |path: &[u8]| volume.resolve(path, Follow::No).unwrap();
        let (changed, removed) = (find(b"/dense"), find(b"/small/2"));
        let file = changed.open_for(OpenMode { write: true, append: false }).unwrap();
        file.write_all_at(b"x", 5).unwrap();
        let root = volume.root().unwrap();
        let small = find(b"/small");
        volume.unlink(&small, b"2", &Credentials::ROOT).unwrap();
        // A file that loses one of its names keeps its contents.
        volume.unlink(&small, b"link", &Credentials::ROOT).unwrap();
        volume.lookup(&root, b"sparse").unwrap();
        let after = Files::of(&volume);
        let [changed, removed] = [changed.number(), removed.number()];
        let expected = BTreeSet::from([
            format!("inode {changed} has other contents"),
            format!("inode {removed} was lost"),
        ]);
        let lost = before.lost_in(&after, &BTreeSet::new());
        assert_eq!(BTreeSet::from_iter(lost), expected);
        assert_eq!(before.lost_in(&after, &BTreeSet::from([changed, removed])), [""; 0]);
    }
}
