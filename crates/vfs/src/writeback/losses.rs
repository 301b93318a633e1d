//! Files with data that may be lost after an error: what was written to them since the last
//! successful sync. Not here: the errors (`iomap::WritebackErrors`).

use std::collections::BTreeMap;

use base::InodeNumber;
use parking_lot::Mutex;

use super::written_bytes::{WrittenBefore, WrittenBytes};

/// The maximum number of files that are known one by one.
const FILES_MAX: usize = 1024;

/// The written files of a volume.
#[derive(Debug, Default)]
pub(crate) struct Losses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of syncs that have begun.
    syncs: u64,
    /// Files with data that was written back, but may not be committed.
    written: BTreeMap<InodeNumber, Written>,
    /// Bytes of files whose data could not be written back. A sync reports an error only once, and
    /// sync(2) to nobody, so they stay until the files are removed.
    failed: BTreeMap<InodeNumber, u64>,
    /// Whether files were left out, since there are too many.
    has_others: bool,
}

#[derive(Clone, Copy, Debug)]
struct Written {
    bytes: WrittenBytes,
    /// The number of syncs that had begun when the last bytes were added.
    syncs: u64,
}

impl Losses {
    /// Adds data of a file that was written back, or could not be.
    pub(super) fn add(&self, file: InodeNumber, bytes: u64, has_failed: bool) {
        let mut state = self.0.lock();
        let state = &mut *state;
        let is_known = state.written.contains_key(&file) || state.failed.contains_key(&file);
        if !is_known && state.written.len() + state.failed.len() >= FILES_MAX {
            state.has_others = true;
            return;
        }
        if has_failed {
            let earlier = state.written.remove(&file).map_or(0, |written| written.bytes.left());
            let failed = state.failed.entry(file).or_default();
            *failed = failed.saturating_add(bytes).saturating_add(earlier);
        } else {
            let new = || Written { bytes: WrittenBytes::new(), syncs: 0 };
            let written = state.written.entry(file).or_insert_with(new);
            written.bytes.add(bytes);
            written.syncs = state.syncs;
        }
    }

    /// Begins a sync of a file. Returns what [`synced`](Self::synced) removes.
    pub(super) fn begin_file_sync(&self, file: InodeNumber) -> Option<WrittenBefore> {
        self.0.lock().written.get(&file).map(|written| written.bytes.begin_sync())
    }

    /// Notes that a file was synced, with what was added before the sync. What was added since may
    /// not be durable.
    pub(super) fn synced(&self, file: InodeNumber, before: WrittenBefore) {
        let mut state = self.0.lock();
        let Some(written) = state.written.get_mut(&file) else { return };
        written.bytes.synced(before);
        if written.bytes.left() == 0 {
            state.written.remove(&file);
        }
    }

    /// Begins a sync of the volume. Returns its number for [`committed`](Self::committed).
    pub(crate) fn begin_sync(&self) -> u64 {
        let mut state = self.0.lock();
        state.syncs += 1;
        state.syncs
    }

    /// Notes that everything is durable that was added before the sync with this number.
    pub(crate) fn committed(&self, sync: u64) {
        let mut state = self.0.lock();
        state.written.retain(|_, written| written.syncs >= sync);
        state.has_others &= !state.written.is_empty() || !state.failed.is_empty();
    }

    /// Forgets a file that was removed.
    pub(super) fn removed(&self, file: InodeNumber) {
        let mut state = self.0.lock();
        state.written.remove(&file);
        state.failed.remove(&file);
    }

    /// Returns whether data of any file could not be written back.
    pub(crate) fn has_failed(&self) -> bool {
        !self.0.lock().failed.is_empty()
    }

    /// Returns all files, those with data that could not be written back first, and whether there
    /// are others.
    pub(crate) fn all(&self) -> (Vec<(InodeNumber, u64)>, bool) {
        let state = self.0.lock();
        let written_to = |file| state.written.get(file).map_or(0, |written| written.bytes.left());
        let failed = state
            .failed
            .iter()
            .map(|(file, bytes)| (*file, bytes.saturating_add(written_to(file))));
        let written = state.written.iter().filter(|(file, _)| !state.failed.contains_key(file));
        let written = written.map(|(file, written)| (*file, written.bytes.left()));
        (failed.chain(written).collect(), state.has_others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_what_was_added_before_it() {
        let losses = Losses::default();
        let [one, two, three] = [11, 12, 13].map(InodeNumber);
        losses.add(one, 10, false);
        losses.add(two, 20, false);
        let sync = losses.begin_sync();
        losses.add(two, 5, false);
        losses.add(three, 7, true);
        losses.committed(sync);
        assert_eq!(losses.all(), (vec![(three, 7), (two, 25)], false));
        let before = losses.begin_file_sync(two).unwrap();
        losses.synced(two, before);
        losses.add(three, 1, false);
        assert_eq!(losses.all(), (vec![(three, 8)], false));
        losses.committed(losses.begin_sync());
        assert_eq!(losses.all(), (vec![(three, 7)], false));
        losses.removed(three);
        assert_eq!(losses.all(), (vec![], false));
    }

    #[test]
    fn a_sync_of_a_file_covers_what_was_added_before_it() {
        let losses = Losses::default();
        let file = InodeNumber(11);
        assert!(losses.begin_file_sync(file).is_none());
        losses.add(file, 10, false);
        let before = losses.begin_file_sync(file).unwrap();
        losses.add(file, 5, false);
        losses.synced(file, before);
        assert_eq!(losses.all(), (vec![(file, 5)], false));
        // Two syncs overlap, and the one that began last ends first.
        let first = losses.begin_file_sync(file).unwrap();
        losses.add(file, 2, false);
        let second = losses.begin_file_sync(file).unwrap();
        losses.add(file, 1, false);
        losses.synced(file, second);
        losses.synced(file, first);
        assert_eq!(losses.all(), (vec![(file, 1)], false));
        // A sync of the volume ends first, and more is added.
        let before = losses.begin_file_sync(file).unwrap();
        losses.committed(losses.begin_sync());
        losses.add(file, 7, false);
        losses.synced(file, before);
        assert_eq!(losses.all(), (vec![(file, 7)], false));
    }

    #[test]
    fn the_number_of_files_is_limited() {
        let losses = Losses::default();
        (0..2000).for_each(|file| losses.add(InodeNumber(file), 1, false));
        let (files, has_others) = losses.all();
        assert_eq!((files.len(), has_others), (FILES_MAX, true));
    }
}
