//! The states of inodes, six bytes each, in pages that contain an inode in use.

use std::collections::BTreeMap;

use base::InodeNumber;
use base::attributes::FileType;

/// The role of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Role {
    /// Not in use.
    #[default]
    Free,
    /// In use, with a record that cannot be parsed.
    Unreadable,
    /// In use, with names.
    Named(FileType),
    /// Without names, and deleted when the volume is next mounted for writing.
    Orphan(FileType),
    /// Used by the format itself, without names.
    Special,
    /// Contains the value of an extended attribute, without names.
    Value,
}

impl Role {
    /// Returns the type of an inode with names.
    pub(crate) fn named(self) -> Option<FileType> {
        match self {
            Self::Named(kind) => Some(kind),
            _ => None,
        }
    }
}

/// The state of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InodeState {
    pub role: Role,
    /// The link count in the record.
    pub links: u16,
    /// The number of names found, up to the maximum of the type.
    pub names: u16,
}

/// The number of states in a page.
const PAGE: u64 = 1024;
/// The maximum number of pages: 768 MiB, or 134 million adjacent inodes. The size of the image's
/// file is no bound, since inode tables may be holes in it, or shared.
const PAGES_MAX: usize = 1 << 17;

#[derive(Default)]
pub(crate) struct InodeStates {
    /// The pages with an inode in use, by their numbers.
    pages: BTreeMap<u64, Box<[InodeState]>>,
    used: u64,
}

impl InodeStates {
    /// Returns the number of inodes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Records an inode in use. Returns false if the maximum number of pages is reached.
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

    /// Returns the inodes in use among `count` inodes from `first` on, in order.
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

/// Returns the page of an inode, and the index in it. Inode numbers begin at 1.
fn position(inode: InodeNumber) -> (u64, usize) {
    let index = inode.0.saturating_sub(1);
    (index / PAGE, (index % PAGE) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_small_and_does_not_affect_other_inodes() {
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
    fn in_use_returns_the_used_inodes_of_a_range() {
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
    fn a_state_that_needs_a_page_above_the_maximum_is_refused() {
        let mut states = InodeStates::default();
        let pages = (0..PAGES_MAX as u64).map(|page| (page, Box::default()));
        states.pages = pages.collect();
        assert!(!states.set(InodeNumber(PAGES_MAX as u64 * PAGE + 1), Role::Special, 1));
        assert!(states.set(InodeNumber(1), Role::Special, 1));
    }
}
