//! What is known of each inode, in six bytes, where any of the inodes around it is in use.

use std::collections::BTreeMap;

use base::InodeNumber;
use base::attributes::FileType;

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

/// States that are kept together.
const PAGE: u64 = 1024;
/// Pages, at most: 768 MiB, or 134 million inodes where they lie together. Tables can be holes in
/// the image's file, or shared, so that the volume's size is no bound.
const PAGES_MAX: usize = 1 << 17;

#[derive(Default)]
pub(crate) struct InodeStates {
    /// Of each page in which an inode is in use, by its number.
    pages: BTreeMap<u64, Box<[InodeState]>>,
    used: u64,
}

impl InodeStates {
    /// Inodes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Records an inode in use. False when there is no room for it.
    #[must_use]
    pub(crate) fn set(&mut self, inode: InodeNumber, role: Role, links: u16) -> bool {
        let (page, index) = position(inode);
        if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&page) {
            return false;
        }
        let new = || vec![InodeState::default(); PAGE as usize].into();
        if let Some(state) = self.pages.entry(page).or_insert_with(new).get_mut(index) {
            self.used += u64::from(state.role == Role::Free);
            (state.role, state.links) = (role, links);
        }
        true
    }

    pub(crate) fn get(&self, inode: InodeNumber) -> InodeState {
        let (page, index) = position(inode);
        let state = self.pages.get(&page).and_then(|page| page.get(index));
        state.copied().unwrap_or_default()
    }

    /// Counts a name of an inode in use.
    pub(crate) fn add_name(&mut self, inode: InodeNumber) {
        let (page, index) = position(inode);
        if let Some(state) = self.pages.get_mut(&page).and_then(|page| page.get_mut(index)) {
            state.names = state.names.saturating_add(1);
        }
    }

    /// The inodes in use among `count` from `first` on, in order.
    pub(crate) fn in_use(
        &self,
        first: InodeNumber,
        count: u64,
    ) -> impl Iterator<Item = (InodeNumber, InodeState)> {
        let start = first.0.saturating_sub(1);
        let end = start.saturating_add(count);
        let pages = self.pages.range(start / PAGE..end.div_ceil(PAGE));
        let states = pages.flat_map(move |(&page, states)| {
            let page_start = page * PAGE;
            let skipped = start.saturating_sub(page_start);
            let taken = end.saturating_sub(page_start.max(start));
            let states = states.iter().zip(page_start + 1..);
            states.skip(skipped as usize).take(taken.min(PAGE) as usize)
        });
        let used = states.filter(|(state, _)| state.role != Role::Free);
        used.map(|(state, number)| (InodeNumber(number), *state))
    }
}

/// Page and index; inode numbers count from 1.
fn position(inode: InodeNumber) -> (u64, usize) {
    let index = inode.0.saturating_sub(1);
    (index / PAGE, (index % PAGE) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_small_and_kept_for_its_inode_alone() {
        assert_eq!(size_of::<InodeState>(), 6);
        let mut states = InodeStates::default();
        let role = Role::Named(FileType::Regular);
        assert!(states.set(InodeNumber(8193), role, 3));
        assert!(states.set(InodeNumber(8193), role, 2));
        states.add_name(InodeNumber(8193));
        states.add_name(InodeNumber(5));
        let state = InodeState { role, links: 2, names: 1 };
        assert_eq!(states.get(InodeNumber(8193)), state);
        assert_eq!(states.get(InodeNumber(8192)), InodeState::default());
        assert_eq!(states.used(), 1);
    }

    #[test]
    fn the_inodes_of_a_range_are_those_in_use_within_it() {
        let mut states = InodeStates::default();
        for number in [1, 1024, 1025, 1026, 4000] {
            assert!(states.set(InodeNumber(number), Role::Special, 1));
        }
        let found = |first, count| -> Vec<u64> {
            states.in_use(InodeNumber(first), count).map(|(number, _)| number.0).collect()
        };
        assert_eq!(found(1, 1024), [1, 1024]);
        assert_eq!(found(1024, 2), [1024, 1025]);
        assert_eq!(found(1026, 2974), [1026]);
        assert_eq!(found(1026, 2975), [1026, 4000]);
        assert!(found(2, 0).is_empty());
        assert_eq!(found(1, u64::MAX).len(), 5);
    }

    #[test]
    fn there_is_room_for_so_many_pages_only() {
        let mut states = InodeStates::default();
        let pages = (0..PAGES_MAX as u64).map(|page| (page, Box::default()));
        states.pages = pages.collect();
        assert!(!states.set(InodeNumber(PAGES_MAX as u64 * PAGE + 1), Role::Special, 1));
        assert!(states.set(InodeNumber(1), Role::Special, 1));
    }
}
