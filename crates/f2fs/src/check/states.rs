//! The states of inodes, in pages that contain an inode in use.

use std::collections::BTreeMap;

use base::InodeNumber;
use base::attributes::FileType;

/// The state of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct InodeState {
    /// The type, if the inode was read.
    pub(super) kind: Option<FileType>,
    /// The type in the first directory entry with the inode.
    pub(super) named_kind: Option<FileType>,
    /// The link count in the inode.
    pub(super) links: u32,
    /// The number of names found.
    pub(super) names: u32,
}

/// The number of states in a page: about as many as a block of the node address table of 4 KiB has
/// entries.
const PAGE: u64 = 512;

#[derive(Default)]
pub(super) struct InodeStates {
    pages: BTreeMap<u64, Box<[InodeState]>>,
}

impl InodeStates {
    pub(super) fn get(&self, inode: InodeNumber) -> InodeState {
        let page = self.pages.get(&(inode.0 / PAGE));
        page.and_then(|page| page.get((inode.0 % PAGE) as usize)).copied().unwrap_or_default()
    }

    /// Changes the state of an inode that has an entry in the node address table, which bounds the
    /// number of pages.
    pub(super) fn change<R>(
        &mut self,
        inode: InodeNumber,
        change: impl FnOnce(&mut InodeState) -> R,
    ) -> R {
        let new = || vec![InodeState::default(); PAGE as usize].into();
        let page = self.pages.entry(inode.0 / PAGE).or_insert_with(new);
        change(&mut page[(inode.0 % PAGE) as usize])
    }
}
