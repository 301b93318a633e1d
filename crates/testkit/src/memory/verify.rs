//! The check of the tree. Not here: its changes.

use std::collections::BTreeMap;

use base::attributes::FileType;

use super::{ROOT, Record};

/// Checks the parent of each directory and the link count of each inode. Returns the number
/// of inodes without a name.
pub fn verify(inodes: &BTreeMap<u64, Record>) -> usize {
    let mut names: BTreeMap<u64, u32> = BTreeMap::from([(ROOT, 1)]);
    let mut ahead = vec![ROOT];
    let mut seen = 0;
    while let Some(number) = ahead.pop() {
        seen += 1;
        assert!(seen <= inodes.len(), "directories contain each other");
        let record = &inodes[&number];
        let mut subdirectories = 0;
        for (name, child) in &record.entries {
            let entry = inodes.get(child).unwrap_or_else(|| panic!("{name:?} has no inode"));
            *names.entry(*child).or_default() += 1;
            if entry.attributes.kind == FileType::Directory {
                assert_eq!(entry.parent, number, "the parent of {child}");
                subdirectories += 1;
                ahead.push(*child);
            }
        }
        assert_eq!(record.attributes.links, 2 + subdirectories, "links of directory {number}");
    }
    for (number, record) in inodes {
        let found = names.get(number).copied().unwrap_or(0);
        match (record.attributes.kind, record.attributes.links) {
            (FileType::Directory, 0) => assert!(record.entries.is_empty(), "{number}"),
            (FileType::Directory, _) => assert_eq!(found, 1, "names of directory {number}"),
            (_, links) => assert_eq!(found, links, "names of {number}"),
        }
    }
    inodes.values().filter(|record| record.attributes.links == 0).count()
}
