//! The contents of a volume, for comparisons of before and after. Not here: the data of large
//! files.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::{Attributes, DirCursor, FileType};
use vfs::{Node, Volume};

/// Files up to this size are compared byte by byte.
const DATA_BYTES_MAX: u64 = 64 << 10;
/// The flag of files with inline data.
const INLINE_DATA: u32 = 0x1000_0000;

#[derive(PartialEq, Debug)]
struct Fact {
    attributes: Attributes,
    names: Vec<Vec<u8>>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    data: Vec<u8>,
}

/// All inodes by number, and the counts of free blocks and inodes.
pub struct Facts {
    inodes: BTreeMap<u64, Fact>,
    blocks_free: u64,
    inodes_free: u64,
    block_size: u32,
}

impl Facts {
    /// Collects the facts of a volume. Panics if the check finds an inconsistency.
    pub fn of(volume: &Volume, place: &str) -> Self {
        let mut wrong = Vec::new();
        volume.check(&mut |error| {
            wrong.push(error.to_string());
            ControlFlow::Continue(())
        });
        assert!(wrong.is_empty(), "{place}: {wrong:#?}");
        let statfs = volume.statfs();
        let mut inodes = BTreeMap::new();
        let mut ahead = vec![volume.root().unwrap()];
        while let Some(node) = ahead.pop() {
            if inodes.contains_key(&node.number().0) {
                continue;
            }
            let names = names(&node);
            let others = names.iter().filter(|name| **name != b"." && **name != b"..");
            ahead.extend(others.map(|name| volume.lookup(&node, name).unwrap()));
            inodes.insert(node.number().0, fact(&node, names));
        }
        Self {
            inodes,
            blocks_free: statfs.blocks_free,
            inodes_free: statfs.inodes_free,
            block_size: statfs.block_size,
        }
    }

    /// Panics if the contents differ. Directories may have grown for a name that was not added, as
    /// on Linux. With `may_touch`, regular files may have other times, and inline data may have
    /// been moved to a block.
    pub fn assert_same(&self, after: &Self, may_touch: bool, place: &str) {
        assert_eq!(after.inodes_free, self.inodes_free, "{place}: free inodes");
        assert!(self.inodes.keys().eq(after.inodes.keys()), "{place}: other inodes");
        let mut grown = 0;
        for (number, before) in &self.inodes {
            let after = &after.inodes[number];
            let mut expected = before.attributes.clone();
            if may_touch && expected.kind == FileType::Regular {
                expected.modified = after.attributes.modified;
                expected.changed = after.attributes.changed;
                if expected.flags & INLINE_DATA != 0 && after.attributes.flags & INLINE_DATA == 0 {
                    // The attribute also counts inline data.
                    grown +=
                        after.attributes.blocks + expected.size.div_ceil(512) - expected.blocks;
                    expected.blocks = after.attributes.blocks;
                    expected.flags = after.attributes.flags;
                }
            }
            if expected.kind == FileType::Directory && expected.size < after.attributes.size {
                grown += after.attributes.blocks - expected.blocks;
                expected.size = after.attributes.size;
                expected.blocks = after.attributes.blocks;
                expected.flags = after.attributes.flags;
            }
            assert_eq!(after.attributes, expected, "{place}: inode {number}");
            assert!(after.names == before.names, "{place}: names in inode {number}");
            assert!(after.xattrs == before.xattrs, "{place}: attributes of inode {number}");
            assert!(after.data == before.data, "{place}: data of inode {number}");
        }
        let allocated = grown / u64::from(self.block_size / 512);
        assert_eq!(after.blocks_free + allocated, self.blocks_free, "{place}: free blocks");
    }
}

fn names(node: &Arc<Node>) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    if node.kind() == FileType::Directory {
        node.read_dir(DirCursor::default(), &mut |entry| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    names.sort();
    names
}

fn fact(node: &Arc<Node>, names: Vec<Vec<u8>>) -> Fact {
    let attributes = node.attributes();
    let xattrs = node.list_xattrs().unwrap().into_iter();
    let xattrs = xattrs.map(|name| (name.clone(), node.get_xattr(&name).unwrap())).collect();
    let is_small = attributes.kind == FileType::Regular && attributes.size <= DATA_BYTES_MAX;
    let data = match attributes.kind {
        FileType::Symlink => node.read_link().unwrap(),
        _ if is_small => {
            let mut data = vec![0; attributes.size as usize];
            let read = node.open().unwrap().read_at(&mut data, 0).unwrap();
            assert_eq!(read, data.len());
            data
        }
        _ => Vec::new(),
    };
    Fact { attributes, names, xattrs, data }
}
