//! Power cuts: every write and flush of a workload is recorded, and the images that a power cut
//! could have left are rebuilt, with any of the writes, or sectors of them, missing that no flush
//! had made durable. Each must recover to a sound volume that holds what was promised: all by this
//! library in memory, and then half of them by e2fsck, half by this library in place (`judge.rs`).
//! The run ends with how many states that were. With bugs planted, the same judge must find fault
//! (`planted.rs`).
//!
//! `BIFOLIO_CRASH_FACTOR` makes it so many times as many states, each time by other seeds, and
//! `BIFOLIO_CRASH_SEED` says which seed is the first one. A failure tells its seed; with it the
//! operations of every thread are the same again, and the whole history if there is one thread.
#![allow(clippy::print_stdout, reason = "a run says how much it has judged")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/namespace.rs"]
mod namespace;

mod actor;
mod bulk;
mod churn;
mod cut;
mod data;
mod direct;
mod disks;
mod e2fsck;
mod fast;
mod judge;
mod kinds;
mod names;
mod no_log;
mod planted;
mod promises;
mod reuse;
mod snapshot;
mod space;
mod unlogged;

use std::sync::atomic::Ordering;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::bulk::Bulk;
use crate::churn::Churn;
use crate::data::Data;
use crate::judge::{
    CUT_AGAIN, History, IN_PLACE, MENDED, STATES, Violation, judge, judge_in_memory,
    judge_without_journal,
};
use crate::kinds::{
    DEFAULT, EXT3, FAST_COMMITS, JOURNAL_DEVICE, Kind, LARGE, SMALL, SMALL_BLOCKS,
    WITHOUT_CHECKSUMS, WITHOUT_JOURNAL,
};
use crate::names::Names;
use crate::no_log::judge_whole_commits;
use crate::planted::Bug;
use crate::reuse::Reuse;
use crate::space::Space;
use crate::unlogged::Unlogged;

/// A run of everything judges as many.
const STATES_MIN: usize = 10_000;

/// How many times as many states as in the everyday run: set by `make crash`.
fn factor() -> u64 {
    number("BIFOLIO_CRASH_FACTOR").unwrap_or(1)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

/// A trial of a workload: `rounds` recordings, `states` cuts of each.
fn trial<H: History + 'static>(
    kind: &'static Kind,
    workload: &'static str,
    rounds: u64,
    states: usize,
    record: fn(&Kind, u64) -> H,
) -> Trial {
    Trial::test(format!("{workload}_survives_power_cuts_on_{}", kind.name), move || {
        run(
            kind,
            workload,
            rounds,
            states,
            |history, seed, states| judge(history, seed, states),
            record,
        )
    })
}

fn run<H: History>(
    kind: &Kind,
    workload: &str,
    rounds: u64,
    states: usize,
    judge: fn(&H, u64, usize) -> Option<Violation>,
    record: fn(&Kind, u64) -> H,
) -> Result<(), Failed> {
    let first = number("BIFOLIO_CRASH_SEED").unwrap_or(1);
    for seed in first..first + rounds * factor() {
        if let Some(violation) = judge(&record(kind, seed), seed, states) {
            let place = format!("{workload} on {}, seed {seed}", kind.name);
            return Err(Failed::from(violation.report(&place)));
        }
    }
    Ok(())
}

/// A trial of a bug: with it there is a state that is judged to be wrong, and without it none.
fn planted<H: History + 'static>(
    kind: &'static Kind,
    bug: Bug,
    states: usize,
    record: fn(&Kind, Bug, u64) -> H,
) -> Trial {
    let name = format!("{bug:?}_is_seen_on_{}", kind.name).replace(['(', ')'], "_");
    Trial::test(name, move || {
        for seed in 1..=SEEDS_OF_A_BUG {
            if let Some(violation) = judge_in_memory(&record(kind, Bug::None, seed), seed, states) {
                return Err(Failed::from(
                    violation.report(&format!("without {bug:?}, seed {seed}")),
                ));
            }
            if let Some(violation) = judge_in_memory(&record(kind, bug, seed), seed, states) {
                println!("{bug:?}, seed {seed}: {}", violation.what);
                return Ok(());
            }
        }
        Err("nobody saw it".into())
    })
}

/// Not every seed has a bug do harm.
const SEEDS_OF_A_BUG: u64 = 16;

fn planted_bugs() -> Vec<Trial> {
    use planted::Written;
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
    vec![
        planted(&WITHOUT_CHECKSUMS, Bug::NoFlushAfter(Written::Body), 400, names),
        planted(&SMALL_BLOCKS, Bug::NoFlushAfter(Written::Commit), 400, names),
        planted(&DEFAULT, Bug::NoFlushAfter(Written::Other), 400, data),
        // There it is the volume's device that is never flushed.
        planted(&JOURNAL_DEVICE[0], Bug::NoFlushAfter(Written::Other), 400, data),
        planted(&WITHOUT_CHECKSUMS, Bug::NoFlushAfter(Written::LogState), 800, bulk),
        planted(&WITHOUT_CHECKSUMS, Bug::CommitFirst, 400, names),
        planted(&WITHOUT_CHECKSUMS, Bug::NoRevokes, 400, space),
        planted(&SMALL_BLOCKS, Bug::EarlyReuse, 400, reuse),
        planted(&SMALL_BLOCKS, Bug::EarlyConversion, 400, data),
        planted(&DEFAULT, Bug::EarlySize, 400, churn),
        planted(&SMALL_BLOCKS, Bug::EarlyDirectConversion, 400, data),
        planted(&DEFAULT, Bug::EarlyDirectConversion, 400, data),
        planted(&SMALL_BLOCKS, Bug::EarlyDirectSize, 400, data),
        planted(&WITHOUT_CHECKSUMS, Bug::EarlyReuse, 400, reuse_direct),
    ]
}

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (kinds, rounds, states) in
        [(SMALL, 2, 270), (FAST_COMMITS, 1, 200), (JOURNAL_DEVICE, 1, 250), (LARGE, 1, 60)]
    {
        for kind in kinds {
            trials.push(trial(kind, "names", rounds, states, |kind, seed| {
                Names::record(kind, Bug::None, seed, 150)
            }));
            trials.push(trial(kind, "data", rounds, states, |kind, seed| {
                Data::record(kind, Bug::None, seed, 200)
            }));
        }
    }
    for (kinds, rounds, states) in [(SMALL, 3, 320), (LARGE, 1, 60)] {
        for kind in kinds {
            let record: fn(&Kind, u64) -> Churn =
                |kind, seed| Churn::record(kind, Bug::None, seed, 3, 150);
            trials.push(trial(kind, "churn", rounds, states, record));
        }
    }
    for kind in [&SMALL_BLOCKS, &DEFAULT, &WITHOUT_CHECKSUMS, &EXT3] {
        trials.push(trial(kind, "reused_space", 1, 200, |kind, seed| {
            Space::record(kind, Bug::None, seed, 30)
        }));
    }
    for kind in [&SMALL_BLOCKS, &EXT3] {
        trials.push(trial(kind, "rounds_of_the_log", 1, 100, |kind, seed| {
            Bulk::record(kind, Bug::None, seed, 40)
        }));
    }
    for kind in WITHOUT_JOURNAL {
        let record: fn(&Kind, u64) -> Data = |kind, seed| Data::record(kind, Bug::None, seed, 200);
        let name = format!("synced_data_survives_power_cuts_on_{}", kind.name);
        trials.push(Trial::test(name, move || {
            run(
                kind,
                "data",
                1,
                150,
                |history, seed, states| judge_without_journal(history, seed, states),
                record,
            )
        }));
        let name = format!("synced_files_are_mended_as_they_were_on_{}", kind.name);
        trials.push(Trial::test(name, move || {
            run(
                kind,
                "unlogged",
                2,
                150,
                |history, seed, states| judge_without_journal(history, seed, states),
                |kind, seed| Unlogged::record(kind, seed, 250),
            )
        }));
        let name = format!("whole_commits_are_sound_and_show_nothing_stale_on_{}", kind.name);
        trials.push(Trial::test(name, move || {
            run(kind, "data", 1, 0, |history, _, _| judge_whole_commits(history), record)
        }));
    }
    trials.extend(planted_bugs());
    let is_whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let counts =
        [&STATES, &MENDED, &IN_PLACE, &CUT_AGAIN].map(|count| count.load(Ordering::Relaxed));
    let [states, mended, in_place, cut_again] = counts;
    println!(
        "{states} states were judged: all recovered in memory, {mended} also by e2fsck, and {in_place} \
         in place and then seen by e2fsck; {cut_again} more cut off those recoveries\n"
    );
    assert!(conclusion.has_failed() || !is_whole || states >= STATES_MIN, "too few states");
    conclusion.exit();
}
