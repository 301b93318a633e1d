//! The contents of a volume after a power cut, as a user sees them.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use base::attributes::{Attributes, DirCursor, FileType, Timestamp};
use base::{FileOffset, InodeNumber};
use device::SharedDevice;
use fs::{FileData, FileSystem, OnFinding};
use iomap::{Iomap, IomapKind, MapRead, ReadContext, ReadOptions, Readahead};

use crate::must;

/// A tree: entries by path.
pub type Paths = BTreeMap<String, Entry>;

/// The inode of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The inode number.
    pub inode: u64,
    /// The type.
    pub kind: FileType,
    /// The number of links.
    pub links: u32,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

/// Attributes of an inode that changes of its names leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owned {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The last change of the contents.
    pub modified: Timestamp,
}

impl From<Attributes> for Owned {
    fn from(attributes: Attributes) -> Self {
        Self { uid: attributes.uid, gid: attributes.gid, modified: attributes.modified }
    }
}

/// The contents of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// All paths.
    pub tree: Paths,
    /// The attributes of inodes that are not in `tree`.
    pub owned: BTreeMap<u64, Owned>,
    /// The extended attributes of inodes that have any.
    pub xattrs: BTreeMap<u64, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// The contents of regular files.
    pub contents: BTreeMap<u64, Vec<u8>>,
    /// The ranges of regular files that have blocks, also past their ends, in bytes.
    pub allocated: BTreeMap<u64, Vec<Range<u64>>>,
    /// Paths that are in their directory more than once, for the same inode.
    pub repeated: Vec<String>,
}

impl Snapshot {
    /// Reads a whole volume, which must be consistent.
    pub fn read(volume: &dyn FileSystem) -> base::Result<Self> {
        let (tree, repeated) = read_paths(volume);
        let mut owned = BTreeMap::new();
        let mut xattrs = BTreeMap::new();
        let mut files = BTreeMap::new();
        let mut allocated = BTreeMap::new();
        for entry in tree.values() {
            if owned.contains_key(&entry.inode) {
                continue;
            }
            let inode = volume.load_inode(InodeNumber(entry.inode))?;
            owned.insert(entry.inode, inode.attributes().into());
            if entry.kind == FileType::Regular {
                let data = inode.data()?;
                let maps = maps(data.mapper);
                let is_encoded = maps.iter().any(|map| map.kind == IomapKind::Encoded);
                let is_encrypted = data.mapper.transform().is_some();
                let contents = if is_encoded || is_encrypted {
                    read_through_cache(volume, data)?
                } else {
                    read_maps(volume.device(), data.mapper, data.size, &maps)
                };
                files.insert(entry.inode, contents);
                allocated.insert(entry.inode, allocated_ranges(&maps));
            }
            let names = inode.list_xattrs()?;
            if !names.is_empty() {
                let values =
                    names.into_iter().map(|name| Ok((name.clone(), inode.get_xattr(&name)?)));
                xattrs.insert(entry.inode, values.collect::<base::Result<_>>()?);
            }
        }
        Ok(Self { tree, owned, xattrs, contents: files, allocated, repeated })
    }

    /// Returns the contents of the regular file at `path`.
    ///
    /// # Errors
    ///
    /// There is no such path.
    pub fn file(&self, path: &str) -> Result<&[u8], String> {
        let entry = self.tree.get(path).ok_or_else(|| format!("{path} is missing"))?;
        Ok(&self.contents[&entry.inode])
    }
}

/// Checks the volume with the library's own check.
///
/// # Errors
///
/// All findings.
pub fn findings(volume: &dyn FileSystem) -> Result<(), String> {
    let mut wrong = Vec::new();
    volume.check(&mut OnFinding(&mut |error| {
        wrong.push(error.to_string());
        ControlFlow::Continue(())
    }));
    if wrong.is_empty() { Ok(()) } else { Err(format!("the check finds {wrong:?}")) }
}

/// Returns all paths of the volume.
///
/// # Panics
///
/// If a path is in its directory more than once.
pub fn read_tree(volume: &dyn FileSystem) -> Paths {
    let (tree, repeated) = read_paths(volume);
    assert!(repeated.is_empty(), "repeated: {repeated:?}");
    tree
}

/// Returns all paths of the volume, and those that are repeated for the same inode.
fn read_paths(volume: &dyn FileSystem) -> (Paths, Vec<String>) {
    let mut tree = Paths::new();
    let mut repeated = Vec::new();
    let mut ahead = vec![(String::new(), volume.root())];
    while let Some((path, number)) = ahead.pop() {
        let directory = volume.load_inode(number).unwrap();
        let mut names = Vec::new();
        directory
            .read_dir(DirCursor::default(), &mut |entry| {
                names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.inode));
                ControlFlow::Continue(())
            })
            .unwrap();
        for (name, number) in names.into_iter().filter(|(name, _)| name != "." && name != "..") {
            let inode = volume.load_inode(number).unwrap();
            let attributes = inode.attributes();
            let path = format!("{path}/{name}");
            assert_eq!(directory.lookup(name.as_bytes()), Ok(number), "{path}");
            if attributes.kind == FileType::Directory {
                assert_eq!(inode.lookup(b".."), Ok(directory.attributes().inode), "{path}");
                ahead.push((path.clone(), number));
            }
            let target = match attributes.kind {
                FileType::Symlink => inode.read_link().unwrap(),
                _ => Vec::new(),
            };
            let entry = Entry {
                inode: number.0,
                kind: attributes.kind,
                links: attributes.links,
                permissions: attributes.permissions,
                target,
            };
            let path_again = path.clone();
            if let Some(before) = tree.insert(path, entry) {
                assert_eq!(before.inode, number.0, "{path_again} has two inodes");
                repeated.push(path_again);
            }
        }
    }
    (tree, repeated)
}

/// Returns the mappings of all ranges of the file up to its last allocated block. Requests each one
/// by its first byte.
pub fn maps(file: &dyn MapRead) -> Vec<Iomap> {
    let mut maps: Vec<Iomap> = Vec::new();
    while !maps.last().is_some_and(|map| map.flags.last) {
        let at = maps.last().map_or(0, Iomap::end);
        let map = must(file.map_read(FileOffset(at), u64::MAX - at), "a map");
        assert!(map.offset.0 <= at && map.end() > at, "{map:?} at {at}");
        maps.push(map);
    }
    maps
}

/// Returns the contents of a file of `size` bytes, read by its map.
pub fn contents(device: &SharedDevice, file: &dyn MapRead, size: u64) -> Vec<u8> {
    read_maps(device, file, size, &maps(file))
}

/// Adds a range to ranges in ascending order. Ranges that follow each other become one.
pub fn merge(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Returns the ranges that have blocks, with data or without.
fn allocated_ranges(maps: &[Iomap]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let has_blocks = |map: &&Iomap| {
        matches!(map.kind, IomapKind::Mapped | IomapKind::Unwritten | IomapKind::Encoded)
    };
    for map in maps.iter().filter(has_blocks) {
        merge(&mut ranges, map.offset.0..map.end());
    }
    ranges
}

/// Returns the contents of a file with encoded or encrypted data.
fn read_through_cache(volume: &dyn FileSystem, data: FileData<'_>) -> base::Result<Vec<u8>> {
    let mapping = super::judge::cache().new_mapping(volume.block_size());
    let context = ReadContext {
        mapping: &mapping,
        mapper: data.mapper,
        device: volume.device(),
        size: data.size,
        options: ReadOptions::default(),
    };
    let mut contents = vec![0; data.size as usize];
    let read = iomap::read(&context, &Readahead::default(), FileOffset(0), &mut contents)?;
    assert_eq!(read, contents.len(), "a short read");
    Ok(contents)
}

/// Returns the contents of a file of `size` bytes with these mappings.
fn read_maps(device: &SharedDevice, file: &dyn MapRead, size: u64, maps: &[Iomap]) -> Vec<u8> {
    let size = size as usize;
    let mut data = vec![0; size];
    for map in maps {
        let end = size.min(map.end() as usize);
        let start = end.min(map.offset.0 as usize);
        match map.kind {
            IomapKind::Hole | IomapKind::Delalloc | IomapKind::Unwritten => {}
            IomapKind::Mapped => {
                device.read_at(map.address.unwrap(), &mut data[start..end]).unwrap();
            }
            IomapKind::Inline => data.copy_from_slice(&file.inline_data().unwrap()),
            IomapKind::Encoded => panic!("encoded data is read through the cache"),
        }
    }
    data
}
