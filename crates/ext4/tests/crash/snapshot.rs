//! All that is in a volume after a power cut, as far as a user sees it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use base::attributes::FileType;
use base::{InodeNumber, Result};
use ext4::Volume;

use crate::common;
use crate::namespace::{Tree, read_tree};

/// What a volume holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    pub tree: Tree,
    /// The extended attributes of inodes that have any.
    pub xattrs: BTreeMap<u64, BTreeMap<Vec<u8>, Vec<u8>>>,
    /// The contents of regular files.
    pub contents: BTreeMap<u64, Vec<u8>>,
}

impl Snapshot {
    /// Reads everything. The volume was found to be sound.
    pub fn read(volume: &Arc<Volume>) -> Result<Self> {
        let tree = read_tree(volume);
        let (mut xattrs, mut contents) = (BTreeMap::new(), BTreeMap::new());
        for entry in tree.values() {
            if xattrs.contains_key(&entry.inode) || contents.contains_key(&entry.inode) {
                continue;
            }
            let inode = volume.inode(InodeNumber(entry.inode))?;
            if entry.kind == FileType::Regular {
                contents.insert(entry.inode, common::contents(volume, &inode));
            }
            let names = inode.list_xattrs()?;
            if !names.is_empty() {
                let values =
                    names.into_iter().map(|name| Ok((name.clone(), inode.get_xattr(&name)?)));
                xattrs.insert(entry.inode, values.collect::<Result<_>>()?);
            }
        }
        Ok(Self { tree, xattrs, contents })
    }
}

/// What is wrong with the volume, by our own check.
pub fn findings(volume: &Arc<Volume>) -> Result<(), String> {
    let mut wrong = Vec::new();
    volume.check(&mut |error| {
        wrong.push(error.to_string());
        ControlFlow::Continue(())
    });
    if wrong.is_empty() { Ok(()) } else { Err(format!("the check finds {wrong:?}")) }
}
