//! What is known of each inode, in six bytes, in the groups where any is in use.

use std::collections::HashMap;

use base::attributes::FileType;
use base::{GroupNumber, InodeNumber};

use crate::geometry::Geometry;

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Role {
    /// Not in use.
    #[default]
    Free,
    /// In use, but nothing more can be told.
    Unreadable,
    /// It should have names.
    Named(FileType),
    /// Its names are gone, and it goes too when the volume is next mounted for writing.
    Orphan(FileType),
    /// The format's own, without names.
    Special,
    /// Holds the value of an extended attribute; without names.
    Value,
}

impl Role {
    /// The type, where names lead to it.
    pub(crate) fn named(self) -> Option<FileType> {
        match self {
            Self::Named(kind) => Some(kind),
            _ => None,
        }
    }
}

/// What is known of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InodeState {
    pub role: Role,
    /// The link count that it says it has.
    pub links: u16,
    /// Names found, up to the greatest that fits.
    pub names: u16,
}

pub(crate) struct InodeStates {
    per_group: u64,
    groups: HashMap<GroupNumber, Box<[InodeState]>>,
    used: u64,
}

impl InodeStates {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self { per_group: geometry.inodes_per_group.into(), groups: HashMap::new(), used: 0 }
    }

    /// Inodes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Records an inode in use.
    pub(crate) fn set(&mut self, inode: InodeNumber, role: Role, links: u16) {
        let (group, index) = self.position(inode);
        let size = self.per_group as usize;
        let group =
            self.groups.entry(group).or_insert_with(|| vec![InodeState::default(); size].into());
        if let Some(state) = group.get_mut(index) {
            self.used += u64::from(state.role == Role::Free);
            (state.role, state.links) = (role, links);
        }
    }

    pub(crate) fn get(&self, inode: InodeNumber) -> InodeState {
        let (group, index) = self.position(inode);
        let state = self.groups.get(&group).and_then(|group| group.get(index));
        state.copied().unwrap_or_default()
    }

    /// Counts a name of an inode in use.
    pub(crate) fn add_name(&mut self, inode: InodeNumber) {
        let (group, index) = self.position(inode);
        if let Some(state) = self.groups.get_mut(&group).and_then(|group| group.get_mut(index)) {
            state.names = state.names.saturating_add(1);
        }
    }

    /// The inodes of a group, in order, unless none was in use.
    pub(crate) fn group(&self, group: GroupNumber) -> Option<&[InodeState]> {
        self.groups.get(&group).map(|states| &**states)
    }

    /// Group and index; inode numbers count from 1.
    fn position(&self, inode: InodeNumber) -> (GroupNumber, usize) {
        let index = inode.0.saturating_sub(1);
        (GroupNumber((index / self.per_group) as u32), (index % self.per_group) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::tests::plain;

    #[test]
    fn a_state_is_small_and_kept_for_its_inode_alone() {
        assert_eq!(size_of::<InodeState>(), 6);
        let mut states = InodeStates::new(&plain());
        let role = Role::Named(FileType::Regular);
        states.set(InodeNumber(8193), role, 3);
        states.set(InodeNumber(8193), role, 2);
        states.add_name(InodeNumber(8193));
        states.add_name(InodeNumber(5));
        assert_eq!(states.get(InodeNumber(8193)), InodeState { role, links: 2, names: 1 });
        assert_eq!(states.get(InodeNumber(8192)), InodeState::default());
        assert_eq!(states.used(), 1);
        assert!(states.group(GroupNumber(0)).is_none());
        assert_eq!(states.group(GroupNumber(1)).unwrap()[0].names, 1);
    }
}
