//! Inodes that hold values: which are referred to more often, or less, when attributes change.

use base::InodeNumber;

use super::body::{Attribute, Stored};
use super::set::Attributes;

/// Whether inodes that hold values are to be made, or are referred to by more or fewer attributes.
/// A block that others use goes on referring to its values.
pub(super) fn changes(before: &Attributes, after: &Attributes, is_shared: bool) -> bool {
    let all = |attributes: &[Attribute]| {
        attributes.iter().any(|it| matches!(it.value, Stored::ToInode(_)))
    };
    let mut old: Vec<InodeNumber> = holders(&before.area).collect();
    let mut new: Vec<InodeNumber> = holders(&after.area).collect();
    if before.block != after.block {
        if !is_shared {
            old.extend(holders(&before.block));
        }
        new.extend(holders(&after.block));
    }
    old.sort_unstable();
    new.sort_unstable();
    all(&after.area) || all(&after.block) || old != new
}

fn holders(attributes: &[Attribute]) -> impl Iterator<Item = InodeNumber> {
    attributes.iter().filter_map(|attribute| match attribute.value {
        Stored::InInode { inode, .. } => Some(inode),
        _ => None,
    })
}
