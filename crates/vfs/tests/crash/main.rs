//! Power cuts below open files. Threads write cached, directly and through mappings, punch,
//! collapse and insert ranges, exchange blocks, and rename, all concurrently with background
//! writeback and commits. The device's writes are recorded. The images that a power cut could leave
//! are rebuilt, recovered and compared with the promises, as in the suite of `ext4`.
//! `testkit::crash` describes the environment variables.

#[path = "../common/mod.rs"]
mod common;

mod actor;
mod atomic;
mod cleaned;
mod files;
mod nearly_full;
mod planted;
mod planted_f2fs;
mod raced;
mod refused;
mod removed;
mod reopened;
mod reuse;
mod stage;
mod subject;
mod synced;
mod threads;

use testkit::crash::{
    DEFAULT, F2FS, F2FS_16K, F2FS_COMPRESSED, F2FS_ENCRYPTED, F2FS_OTHER_POLICIES, F2FS_TORN,
    FAST_COMMITS, JOURNAL_DEVICE, JournalBug, Kind, LARGE, Rounds, SMALL, SMALL_BLOCKS, Suite,
    WITHOUT_CHECKSUMS, WITHOUT_JOURNAL, Written, judge, judge_without_journal,
};

use crate::atomic::Atomic;
use crate::cleaned::Cleaned;
use crate::files::Files;
use crate::planted::Bug;
use crate::removed::Removed;
use crate::reopened::Reopened;
use crate::reuse::Reuse;
use crate::synced::Synced;
use crate::threads::Threads;

/// The minimum number of states that a run of all tests must judge.
const STATES_MIN: usize = 24_000;
/// Each trial of f2fs. All of them together judge 20,000 states at least.
const OF_F2FS: Rounds = Rounds { recordings: 8, states: 230 };

fn rounds(recordings: u64, states: usize) -> Rounds {
    Rounds { recordings, states }
}

fn main() {
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    for (kinds, rounds) in [
        (SMALL, rounds(1, 230)),
        (FAST_COMMITS, rounds(1, 120)),
        (JOURNAL_DEVICE, rounds(1, 150)),
        (LARGE, rounds(1, 30)),
        (F2FS, OF_F2FS),
        (&[F2FS_TORN], rounds(2, 330)),
        (&[F2FS_16K], rounds(2, 200)),
        (&[F2FS_ENCRYPTED], rounds(1, 330)),
    ] {
        for kind in kinds {
            suite.add(kind, "files_survive_power_cuts", rounds, judge, |kind, seed| {
                Files::record(kind, Bug::None, seed, 150)
            });
            suite.add(kind, "one_thread_survives_power_cuts", rounds, judge, |kind, seed| {
                Threads::record(kind, Bug::None, seed, 1, 150)
            });
            suite.add(kind, "threads_survive_power_cuts", rounds, judge, |kind, seed| {
                Threads::record(kind, Bug::None, seed, 2 + seed as usize % 2, 100)
            });
        }
    }
    for kind in F2FS_OTHER_POLICIES {
        suite.add(kind, "files_survive_power_cuts", rounds(1, 120), judge, |kind, seed| {
            Files::record(kind, Bug::None, seed, 150)
        });
    }
    suite.add(&F2FS_COMPRESSED, "files_survive_power_cuts", OF_F2FS, judge, |kind, seed| {
        Files::record(kind, Bug::None, seed, 150)
    });
    let synced = [
        (&F2FS[0], OF_F2FS),
        (&F2FS_TORN, rounds(4, 330)),
        (&F2FS_ENCRYPTED, rounds(1, 330)),
        (&F2FS_16K, rounds(2, 200)),
        (&SMALL_BLOCKS, rounds(1, 60)),
    ];
    for (kind, rounds) in synced {
        let name = "files_that_are_synced_at_once_survive_power_cuts";
        suite
            .add(kind, name, rounds, judge, |kind, seed| Synced::record(kind, Bug::None, seed, 25));
    }
    let removed = [
        (&F2FS[0], rounds(3, 230)),
        (&F2FS[1], rounds(3, 230)),
        (&F2FS_TORN, rounds(1, 230)),
        (&F2FS_ENCRYPTED, rounds(1, 120)),
    ];
    for (kind, rounds) in removed {
        let name = "names_removed_before_a_sync_survive_no_power_cut";
        suite.add(kind, name, rounds, judge, |kind, seed| {
            Removed::record(kind, Bug::None, seed, 25)
        });
    }
    for kind in WITHOUT_JOURNAL {
        let name = "synced_files_survive_power_cuts";
        suite.add(kind, name, rounds(1, 80), judge_without_journal, |kind, seed| {
            Files::record(kind, Bug::None, seed, 150)
        });
    }
    for kind in [&SMALL_BLOCKS, &WITHOUT_CHECKSUMS] {
        suite.add(kind, "reused_space_survives_power_cuts", rounds(1, 100), judge, |kind, seed| {
            Reuse::record(kind, Bug::None, seed, 15)
        });
    }
    for kind in F2FS {
        let name = "atomic_writes_survive_power_cuts";
        suite.add(kind, name, OF_F2FS, judge, |kind, seed| {
            Atomic::record(kind, Bug::None, seed, 40)
        });
    }
    let cold = rounds(3, 330);
    suite.add(&F2FS[0], "cold_files_survive_power_cuts", cold, judge, |kind, seed| {
        Files::record_cold(kind, Bug::None, seed, 150)
    });
    let name = "cold_files_survive_power_cuts_during_cleaning";
    suite.add(&F2FS[1], name, cold, judge, |kind, seed| {
        Cleaned::record_cold(kind, Bug::None, seed, 6)
    });
    let cleaned = [
        (&F2FS[0], rounds(6, 330)),
        (&F2FS[1], rounds(6, 330)),
        (&F2FS_ENCRYPTED, rounds(1, 330)),
        (&F2FS_OTHER_POLICIES[1], rounds(1, 200)),
        (&F2FS_16K, rounds(1, 60)),
    ];
    for (kind, rounds) in cleaned {
        let name = "cleaned_files_survive_power_cuts";
        suite
            .add(kind, name, rounds, judge, |kind, seed| Cleaned::record(kind, Bug::None, seed, 6));
    }
    for kind in F2FS {
        let name = "pinned_files_survive_power_cuts_during_cleaning";
        let rounds = rounds(4, 330);
        suite.add(kind, name, rounds, judge, |kind, seed| {
            Cleaned::record_pinned(kind, Bug::None, seed, 6)
        });
    }
    for kind in F2FS {
        let name = "a_nearly_full_volume_survives_power_cuts_of_several_writers";
        suite.add(kind, name, rounds(8, 80), judge, |kind, seed| {
            Reopened::record(kind, Bug::None, seed, 1 + seed % 3, 150)
        });
    }
    plant_bugs(&mut suite);
    suite.run(STATES_MIN);
}

fn plant_bugs(suite: &mut Suite) {
    let files: fn(&Kind, Bug, u64) -> Files = |kind, bug, seed| Files::record(kind, bug, seed, 150);
    let threads: fn(&Kind, Bug, u64) -> Threads =
        |kind, bug, seed| Threads::record(kind, bug, seed, 2, 100);
    let reuse: fn(&Kind, Bug, u64) -> Reuse = |kind, bug, seed| Reuse::record(kind, bug, seed, 15);
    let journal = |bug| (Bug::Journal(bug), Bug::None);
    let no_flush_after = |written| journal(JournalBug::NoFlushAfter(written));
    suite.plant(&WITHOUT_CHECKSUMS, no_flush_after(Written::Body), 300, threads);
    suite.plant(&SMALL_BLOCKS, no_flush_after(Written::Commit), 300, threads);
    suite.plant(&DEFAULT, journal(JournalBug::NoFlushOfData), 300, files);
    suite.plant(&SMALL_BLOCKS, journal(JournalBug::EarlyEnd), 300, files);
    suite.plant(&DEFAULT, journal(JournalBug::EarlyEnd), 300, threads);
    suite.plant(&SMALL_BLOCKS, journal(JournalBug::EarlyReuse), 300, reuse);
    suite.plant(&WITHOUT_CHECKSUMS, journal(JournalBug::EarlyReuse), 300, reuse);
    suite.plant(&DEFAULT, (Bug::CleanBeforeProtect, Bug::None), 300, files);
    suite.plant(&DEFAULT, (Bug::LateReplacement, Bug::None), 300, files);
    suite.plant(&SMALL_BLOCKS, (Bug::LateReplacement, Bug::None), 300, threads);
    let f2fs = &F2FS[0];
    suite.plant(f2fs, (Bug::NoFlushOfPack, Bug::None), 100, threads);
    suite.plant(f2fs, (Bug::LostOrphans, Bug::None), 100, threads);
    suite.plant(f2fs, (Bug::NoFlushOfPackEnd, Bug::None), 100, files);
    suite.plant(f2fs, (Bug::EarlyReuse, Bug::None), 100, files);
    suite.plant(&F2FS_COMPRESSED, (Bug::EarlyReuse, Bug::None), 100, files);
    suite.plant(&F2FS[1], (Bug::OldQuota, Bug::None), 100, files);
    suite.plant(f2fs, journal(JournalBug::NoFlushOfData), 100, files);
    suite.plant(f2fs, journal(JournalBug::EarlyEnd), 100, files);
    suite.plant(&F2FS_16K, journal(JournalBug::NoFlushOfData), 100, files);
    suite.plant(&F2FS_16K, journal(JournalBug::EarlyEnd), 100, files);
    let atomic: fn(&Kind, Bug, u64) -> Atomic =
        |kind, bug, seed| Atomic::record(kind, bug, seed, 30);
    let cleaned: fn(&Kind, Bug, u64) -> Cleaned =
        |kind, bug, seed| Cleaned::record(kind, bug, seed, 4);
    let encrypted = &F2FS_ENCRYPTED;
    suite.plant(encrypted, (Bug::OtherBlocksIv, Bug::None), 100, files);
    suite.plant(encrypted, (Bug::NoFlushOfPackEnd, Bug::None), 100, files);
    suite.plant(&F2FS_OTHER_POLICIES[1], (Bug::OtherBlocksIv, Bug::None), 100, files);
    suite.plant(&F2FS_OTHER_POLICIES[1], (Bug::NoFlushOfPackEnd, Bug::None), 100, cleaned);
    suite.plant(f2fs, (Bug::NoFlushOfPack, Bug::None), 100, cleaned);
    suite.plant(f2fs, (Bug::NoFlushOfPackEnd, Bug::None), 100, cleaned);
    let pinned: fn(&Kind, Bug, u64) -> Cleaned =
        |kind, bug, seed| Cleaned::record_pinned(kind, bug, seed, 4);
    suite.plant(f2fs, journal(JournalBug::NoFlushOfData), 100, pinned);
    suite.plant(f2fs, journal(JournalBug::EarlyEnd), 100, pinned);
    suite.plant(&F2FS[1], (Bug::NotAtomic, Bug::None), 100, atomic);
    suite.plant(&F2FS[1], (Bug::TwoCommits, Bug::None), 100, atomic);
    suite.plant(&F2FS[1], journal(JournalBug::NoFlushOfData), 100, atomic);
    let reopened: fn(&Kind, Bug, u64) -> Reopened =
        |kind, bug, seed| Reopened::record(kind, bug, seed, 1 + seed % 2, 150);
    suite.plant(f2fs, (Bug::ReuseOfChain, Bug::None), 100, reopened);
    suite.plant(f2fs, (Bug::StaleNodes, Bug::None), 100, reopened);
    suite.plant(&F2FS[1], (Bug::EarlyDiscards, Bug::None), 100, cleaned);
    let synced: fn(&Kind, Bug, u64) -> Synced =
        |kind, bug, seed| Synced::record(kind, bug, seed, 25);
    suite.plant(f2fs, journal(JournalBug::NoFlushOfData), 100, synced);
    let removed: fn(&Kind, Bug, u64) -> Removed =
        |kind, bug, seed| Removed::record(kind, bug, seed, 15);
    suite.plant(f2fs, (Bug::LateRemoval, Bug::None), 100, removed);
}
