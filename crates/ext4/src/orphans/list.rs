//! The orphan list that begins in the superblock, in memory: finds the neighbours of an inode without walking
//! the list. Not here: the list on disk (`orphans/write.rs`).

use std::collections::HashMap;

use base::InodeNumber;

/// An orphan list. `T` is the value stored with each orphan.
#[derive(Debug)]
pub(crate) struct OrphanList<T> {
    entries: HashMap<InodeNumber, Entry<T>>,
    first: Option<InodeNumber>,
    last: Option<InodeNumber>,
}

#[derive(Debug)]
struct Entry<T> {
    kept: T,
    before: Option<InodeNumber>,
    after: Option<InodeNumber>,
}

impl<T> OrphanList<T> {
    /// Returns an empty list.
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), first: None, last: None }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first orphan, which the superblock names.
    pub(crate) fn first(&self) -> Option<InodeNumber> {
        self.first
    }

    /// Returns the value of `number`, if it is in the list.
    pub(crate) fn get(&self, number: InodeNumber) -> Option<&T> {
        self.entries.get(&number).map(|entry| &entry.kept)
    }

    /// Returns the value of the orphan before `number`, which is in the list.
    pub(crate) fn before(&self, number: InodeNumber) -> Option<&T> {
        self.get(self.entries[&number].before?)
    }

    /// Returns the orphan after `number`, which is in the list.
    pub(crate) fn after(&self, number: InodeNumber) -> Option<InodeNumber> {
        self.entries[&number].after
    }

    /// Adds an orphan that is not in the list at the front.
    pub(crate) fn push_front(&mut self, number: InodeNumber, kept: T) {
        let entry = Entry { kept, before: None, after: self.first };
        let replaced = self.entries.insert(number, entry);
        assert!(replaced.is_none(), "an orphan twice in the list");
        match self.first.replace(number) {
            Some(after) => self.entry(after).before = Some(number),
            None => self.last = Some(number),
        }
    }

    /// Adds an orphan that is not in the list at the back.
    pub(crate) fn push_back(&mut self, number: InodeNumber, kept: T) {
        let entry = Entry { kept, before: self.last, after: None };
        let replaced = self.entries.insert(number, entry);
        assert!(replaced.is_none(), "an orphan twice in the list");
        match self.last.replace(number) {
            Some(before) => self.entry(before).after = Some(number),
            None => self.first = Some(number),
        }
    }

    /// Removes an orphan that is in the list.
    pub(crate) fn remove(&mut self, number: InodeNumber) {
        let Entry { before, after, .. } = self.entries.remove(&number).expect("an orphan");
        match before {
            Some(before) => self.entry(before).after = after,
            None => self.first = after,
        }
        match after {
            Some(after) => self.entry(after).before = before,
            None => self.last = before,
        }
    }

    fn entry(&mut self, number: InodeNumber) -> &mut Entry<T> {
        self.entries.get_mut(&number).expect("a neighbour is in the list")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers from first to last, and checks each link from both sides.
    fn numbers(list: &OrphanList<u64>) -> Vec<u64> {
        let (mut numbers, mut next) = (Vec::new(), list.first());
        while let Some(number) = next {
            assert_eq!(list.get(number), Some(&number.0));
            assert_eq!(list.before(number), numbers.last());
            numbers.push(number.0);
            next = list.after(number);
        }
        assert_eq!(list.is_empty(), numbers.is_empty());
        numbers
    }

    #[test]
    fn orphans_leave_the_list_from_anywhere_and_keep_its_order() {
        let mut list = OrphanList::new();
        for number in [3, 2, 1] {
            list.push_front(InodeNumber(number), number);
        }
        for number in [4, 5] {
            list.push_back(InodeNumber(number), number);
        }
        assert_eq!(numbers(&list), [1, 2, 3, 4, 5]);
        for (gone, left) in
            [(3, &[1, 2, 4, 5][..]), (1, &[2, 4, 5]), (5, &[2, 4]), (2, &[4]), (4, &[])]
        {
            list.remove(InodeNumber(gone));
            assert_eq!(numbers(&list), left);
        }
        list.push_back(InodeNumber(7), 7);
        list.push_front(InodeNumber(6), 6);
        assert_eq!(numbers(&list), [6, 7]);
    }
}
