//! The orphan list in memory, in which the neighbours of an inode are found without a walk. Not
//! here: the list on disk (`orphans/write.rs`).

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
    value: T,
    before: Option<InodeNumber>,
    after: Option<InodeNumber>,
}

impl<T> Default for OrphanList<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), first: None, last: None }
    }
}

impl<T> OrphanList<T> {
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
        self.entries.get(&number).map(|entry| &entry.value)
    }

    /// Returns the value of `number`, if it is in the list, to change it.
    pub(crate) fn get_mut(&mut self, number: InodeNumber) -> Option<&mut T> {
        self.entries.get_mut(&number).map(|entry| &mut entry.value)
    }

    /// Returns the orphan before `number`, which is in the list.
    pub(crate) fn before(&self, number: InodeNumber) -> Option<InodeNumber> {
        self.entries[&number].before
    }

    /// Returns the orphan after `number`, which is in the list.
    pub(crate) fn after(&self, number: InodeNumber) -> Option<InodeNumber> {
        self.entries[&number].after
    }

    /// Adds an orphan that is not in the list at the front.
    pub(crate) fn push_front(&mut self, number: InodeNumber, value: T) {
        let entry = Entry { value, before: None, after: self.first };
        let replaced = self.entries.insert(number, entry);
        assert!(replaced.is_none(), "an orphan is in the list twice");
        match self.first.replace(number) {
            Some(after) => self.entry(after).before = Some(number),
            None => self.last = Some(number),
        }
    }

    /// Adds an orphan that is not in the list at the back.
    pub(crate) fn push_back(&mut self, number: InodeNumber, value: T) {
        let entry = Entry { value, before: self.last, after: None };
        let replaced = self.entries.insert(number, entry);
        assert!(replaced.is_none(), "an orphan is in the list twice");
        match self.last.replace(number) {
            Some(before) => self.entry(before).after = Some(number),
            None => self.first = Some(number),
        }
    }

    /// Removes an orphan that is in the list.
    pub(crate) fn remove(&mut self, number: InodeNumber) {
        let Entry { before, after, .. } =
            self.entries.remove(&number).expect("the orphan is in the list");
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
            assert_eq!(list.before(number), numbers.last().copied().map(InodeNumber));
            numbers.push(number.0);
            next = list.after(number);
        }
        assert_eq!(list.is_empty(), numbers.is_empty());
        numbers
    }

    #[test]
    fn removing_any_orphan_keeps_the_order_of_the_list() {
        let mut list = OrphanList::default();
        for number in [3, 2, 1] {
            list.push_front(InodeNumber(number), number);
        }
        for number in [4, 5] {
            list.push_back(InodeNumber(number), number);
        }
        assert_eq!(numbers(&list), [1, 2, 3, 4, 5]);
        for (removed, left) in
            [(3, &[1, 2, 4, 5][..]), (1, &[2, 4, 5]), (5, &[2, 4]), (2, &[4]), (4, &[])]
        {
            list.remove(InodeNumber(removed));
            assert_eq!(numbers(&list), left);
        }
        list.push_back(InodeNumber(7), 7);
        list.push_front(InodeNumber(6), 6);
        assert_eq!(numbers(&list), [6, 7]);
    }
}
