//! Power cuts, for suites of workloads: the kinds of recorded volumes, the states that a cut may
//! leave, and the judges of these states. Not here: workloads, and the volumes that they write to.
//!
//! `BIFOLIO_CRASH_FACTOR` multiplies the number of recordings, each with its own seed, and
//! `BIFOLIO_CRASH_SEED` is the first seed. A failure prints its seed. With the same seed, every
//! thread repeats the same operations; with one thread, the whole history is the same.
//! `BIFOLIO_CRASH_LOGS` is a folder for the recordings in the format of dm-log-writes
//! (`images/log_writes.rs`): the contents before (`.img`) and the log, in which the mark `begun` is
//! the first point that is judged.

mod appended;
mod cut;
mod disks;
mod e2fsck;
mod fast;
mod file_history;
mod fsck_f2fs;
mod history;
mod image_file;
mod journal_bugs;
mod judge;
mod kinds;
mod named_files;
mod promises;
mod races;
mod snapshot;
mod stale;
mod suite;
mod thread_names;
mod volume_syncs;

pub use appended::Appended;
pub use cut::{Cut, Rest};
pub use disks::{Disks, VolumeFormat};
pub use e2fsck::{
    complaint as complaint_of_e2fsck, complaint_once_replayed as complaint_of_e2fsck_once_replayed,
};
pub use file_history::FileHistory;
pub use fsck_f2fs::{can_read as can_fsck_f2fs_read, complaint as complaint_of_fsck_f2fs};
pub use history::{History, RecordedRun};
pub use journal_bugs::{JournalBug, Written, is_data};
pub use judge::{
    Violation, cache, count_mended_state, cut_off, judge, judge_in_memory, judge_without_journal,
    mended, read,
};
pub use kinds::{
    DEFAULT, EXT3, F2FS, F2FS_16K, F2FS_COMPRESSED, F2FS_ENCRYPTED, F2FS_OTHER_POLICIES, F2FS_TORN,
    FAST_COMMITS, JOURNAL_DEVICE, Kind, LARGE, Pace, Recorded, SMALL, SMALL_BLOCKS,
    WITHOUT_CHECKSUMS, WITHOUT_JOURNAL,
};
pub use named_files::NamedFiles;
pub use promises::{Node, Promises, Tree, parent_and_name};
pub use races::{Begun, Races};
pub use snapshot::{Entry, Owned, Paths, Snapshot, contents, findings, maps, merge, read_tree};
pub use stale::{DISCARDED, STALE, with_lossy_discards, with_stale_blocks};
pub use suite::{Rounds, Suite, factor, tried};
pub use thread_names::{Rename, ThreadNames};
pub use volume_syncs::VolumeSyncs;
