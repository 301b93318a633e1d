//! Tests of power cuts. All writes and flushes of a workload are recorded, and the images that a
//! power cut could leave are rebuilt: any writes that no flush had made durable, or sectors of
//! them, are missing. Each image must recover to a consistent volume with all promised changes: by
//! this library in memory, and then half of them by e2fsck, half by this library in place
//! (`judge.rs`). The run prints the number of images. With planted bugs, the same judge must find
//! errors (`planted.rs`).
//!
//! `testkit::crash` describes the environment variables.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/namespace.rs"]
mod namespace;

mod actor;
mod bulk;
mod churn;
mod data;
mod direct;
mod names;
mod no_log;
mod planted;
mod reuse;
mod space;
mod unlogged;

use testkit::crash::{
    DEFAULT, EXT3, FAST_COMMITS, JOURNAL_DEVICE, JournalBug, Kind, LARGE, Rounds, SMALL,
    SMALL_BLOCKS, Suite, WITHOUT_CHECKSUMS, WITHOUT_JOURNAL, Written, judge, judge_without_journal,
};

use crate::bulk::Bulk;
use crate::churn::Churn;
use crate::data::Data;
use crate::names::Names;
use crate::no_log::judge_whole_commits;
use crate::planted::Bug;
use crate::reuse::Reuse;
use crate::space::Space;
use crate::unlogged::Unlogged;

/// Minimum number of states that a full run judges.
const STATES_MIN: usize = 10_000;

fn rounds(recordings: u64, states: usize) -> Rounds {
    Rounds { recordings, states }
}

fn main() {
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    add_names_and_data(&mut suite);
    add_threads_and_space(&mut suite);
    add_without_journal(&mut suite);
    plant_bugs(&mut suite);
    suite.run(STATES_MIN);
}

fn add_names_and_data(suite: &mut Suite) {
    for (kinds, recordings, states) in
        [(SMALL, 2, 270), (FAST_COMMITS, 1, 200), (JOURNAL_DEVICE, 1, 250), (LARGE, 1, 60)]
    {
        let rounds = rounds(recordings, states);
        for kind in kinds {
            suite.add(kind, "names_survive_power_cuts", rounds, judge, |kind, seed| {
                Names::record(kind, Bug::None, seed, 150)
            });
            suite.add(kind, "data_survives_power_cuts", rounds, judge, |kind, seed| {
                Data::record(kind, Bug::None, seed, 200)
            });
        }
    }
}

fn add_threads_and_space(suite: &mut Suite) {
    for (kinds, recordings, states) in [(SMALL, 3, 320), (LARGE, 1, 60)] {
        let rounds = rounds(recordings, states);
        for kind in kinds {
            suite.add(kind, "churn_survives_power_cuts", rounds, judge, |kind, seed| {
                Churn::record(kind, Bug::None, seed, 3, 150)
            });
        }
    }
    for kind in [&SMALL_BLOCKS, &DEFAULT, &WITHOUT_CHECKSUMS, &EXT3] {
        let name = "reused_space_survives_power_cuts";
        suite.add(kind, name, rounds(1, 200), judge, |kind, seed| {
            Space::record(kind, Bug::None, seed, 30)
        });
    }
    for kind in [&SMALL_BLOCKS, &EXT3] {
        let name = "rounds_of_the_log_survive_power_cuts";
        suite.add(kind, name, rounds(1, 100), judge, |kind, seed| {
            Bulk::record(kind, Bug::None, seed, 40)
        });
    }
}

fn add_without_journal(suite: &mut Suite) {
    let record: fn(&Kind, u64) -> Data = |kind, seed| Data::record(kind, Bug::None, seed, 200);
    for kind in WITHOUT_JOURNAL {
        let name = "synced_data_survives_power_cuts";
        suite.add(kind, name, rounds(1, 150), judge_without_journal, record);
        let name = "synced_files_survive_power_cuts_and_e2fsck";
        suite.add(kind, name, rounds(2, 150), judge_without_journal, |kind, seed| {
            Unlogged::record(kind, seed, 250)
        });
        let name = "whole_commits_are_consistent_and_expose_no_stale_data";
        suite.add(kind, name, rounds(1, 0), |history, _, _| judge_whole_commits(history), record);
    }
}

fn plant_bugs(suite: &mut Suite) {
    let names: fn(&Kind, Bug, u64) -> Names = |kind, bug, seed| Names::record(kind, bug, seed, 400);
    let bulk: fn(&Kind, Bug, u64) -> Bulk = |kind, bug, seed| Bulk::record(kind, bug, seed, 40);
    let data: fn(&Kind, Bug, u64) -> Data = |kind, bug, seed| Data::record(kind, bug, seed, 200);
    let churn: fn(&Kind, Bug, u64) -> Churn =
        |kind, bug, seed| Churn::record(kind, bug, seed, 2, 80);
    let space: fn(&Kind, Bug, u64) -> Space = |kind, bug, seed| Space::record(kind, bug, seed, 30);
    let reuse: fn(&Kind, Bug, u64) -> Reuse =
        |kind, bug, seed| Reuse::record(kind, bug, seed, 15, false);
    let reuse_direct: fn(&Kind, Bug, u64) -> Reuse =
        |kind, bug, seed| Reuse::record(kind, bug, seed, 15, true);
    let journal = |bug| (Bug::Journal(bug), Bug::None);
    let no_flush_after = |written| journal(JournalBug::NoFlushAfter(written));
    let early_reuse = journal(JournalBug::EarlyReuse);
    suite.plant(&WITHOUT_CHECKSUMS, no_flush_after(Written::Body), 400, names);
    suite.plant(&SMALL_BLOCKS, no_flush_after(Written::Commit), 400, names);
    suite.plant(&DEFAULT, no_flush_after(Written::Other), 400, data);
    // With an external journal, the device that is never flushed is the volume's.
    suite.plant(&JOURNAL_DEVICE[0], no_flush_after(Written::Other), 400, data);
    suite.plant(&WITHOUT_CHECKSUMS, no_flush_after(Written::LogState), 800, bulk);
    suite.plant(&WITHOUT_CHECKSUMS, journal(JournalBug::CommitFirst), 400, names);
    suite.plant(&WITHOUT_CHECKSUMS, journal(JournalBug::NoRevokes), 400, space);
    suite.plant(&SMALL_BLOCKS, early_reuse, 400, reuse);
    suite.plant(&SMALL_BLOCKS, journal(JournalBug::EarlyEnd), 400, data);
    suite.plant(&SMALL_BLOCKS, (Bug::EarlyConversion, Bug::None), 400, data);
    suite.plant(&DEFAULT, (Bug::EarlySize, Bug::None), 400, churn);
    suite.plant(&SMALL_BLOCKS, (Bug::EarlyDirectConversion, Bug::None), 400, data);
    suite.plant(&DEFAULT, (Bug::EarlyDirectConversion, Bug::None), 400, data);
    suite.plant(&SMALL_BLOCKS, (Bug::EarlyDirectSize, Bug::None), 400, data);
    suite.plant(&WITHOUT_CHECKSUMS, early_reuse, 400, reuse_direct);
}
