//! A suite of power cuts as a test program: its trials, their seeds, and the number of judged
//! states.
#![allow(clippy::print_stdout, reason = "a run prints the number of judged states")]

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::Ordering;

use libtest_mimic::{Arguments, Failed, Trial};

use super::history::{History, RecordedRun};
use super::judge::{
    CHECKED, CUT_AGAIN, IN_PLACE, MENDED, STATES, TORN, Violation, judge_in_memory,
};
use super::kinds::Kind;
use crate::host::environment::number;
use crate::images::log_writes;
use crate::must;

/// The number of seeds that are tried, since a bug does not break a promise with every seed.
const SEEDS_OF_A_BUG: u64 = 16;

/// The size of a trial. `BIFOLIO_CRASH_FACTOR` multiplies the recordings.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// The number of recordings.
    pub recordings: u64,
    /// The number of states of each recording, of which `make test` tries half.
    pub states: usize,
}

/// Judges a number of states of a history, chosen by a seed. Returns the first violation.
pub type Judge<H> = fn(&H, u64, usize) -> Option<Violation>;

/// A list of trials.
#[derive(Debug)]
pub struct Suite {
    trials: Vec<Trial>,
    /// The folder for images of states that violate a promise.
    folder: &'static Path,
}

/// Returns the factor by which the recordings are multiplied. `make crash` sets it.
pub fn factor() -> u64 {
    number("BIFOLIO_CRASH_FACTOR").unwrap_or(1)
}

/// Returns how many of `all` cases are tried: half of them, but all if the factor is set, as
/// `make crash` does.
pub fn tried(all: usize) -> usize {
    if number("BIFOLIO_CRASH_FACTOR").is_some() { all } else { all.div_ceil(2) }
}

/// Writes the contents before a recording to `path` with the extension `img`, and its log with the
/// extension `log`.
fn write_log(run: &RecordedRun, path: &Path) {
    let before = run.recording.image(0, |_, _| false);
    must(std::fs::write(path.with_extension("img"), before), path.display());
    let marks = [(run.begun, "begun".to_owned())];
    log_writes::write(&run.recording, &marks, &path.with_extension("log"));
}

impl Suite {
    /// Creates a suite without trials. `folder` is for images of states that violate a promise.
    pub fn new(folder: &'static str) -> Self {
        Self { trials: Vec::new(), folder: Path::new(folder) }
    }

    /// Adds the trial of a workload on a kind of volume. The trial's name is `name` and the kind's
    /// name.
    pub fn add<H: History + 'static>(
        &mut self,
        kind: &'static Kind,
        name: &str,
        rounds: Rounds,
        judge: Judge<H>,
        record: fn(&Kind, u64) -> H,
    ) {
        let (name, folder) = (format!("{name}_on_{}", kind.name), self.folder);
        let trial = name.clone();
        let run = move || {
            let first = number("BIFOLIO_CRASH_SEED").unwrap_or(1);
            for seed in first..first + rounds.recordings * factor() {
                let history = record(kind, seed);
                if let Some(logs) = std::env::var_os("BIFOLIO_CRASH_LOGS") {
                    write_log(history.run(), &Path::new(&logs).join(format!("{trial}-{seed}")));
                }
                if let Some(violation) = judge(&history, seed, tried(rounds.states)) {
                    // Several threads do not do the same again.
                    write_log(history.run(), &folder.join(format!("{trial}-{seed}.log")));
                    let trial = format!("{trial}, seed {seed}");
                    return Err(Failed::from(violation.report(&trial, folder)));
                }
            }
            Ok(())
        };
        self.trials.push(Trial::test(name, run));
    }

    /// Adds the trial of a bug: with the bug, some state violates a promise, and with `none`, no
    /// state does.
    pub fn plant<H: History + 'static, B: Copy + Debug + Send + 'static>(
        &mut self,
        kind: &'static Kind,
        (bug, none): (B, B),
        states: usize,
        record: fn(&Kind, B, u64) -> H,
    ) {
        let words = format!("{bug:?}").replace(|c: char| !c.is_alphanumeric(), "_");
        let name = format!("{}_is_seen_on_{}", words.trim_end_matches('_'), kind.name);
        let folder = self.folder;
        let run = move || {
            for seed in 1..=SEEDS_OF_A_BUG {
                let sound = record(kind, none, seed);
                if let Some(violation) = judge_in_memory(&sound, seed, states) {
                    let trial = format!("without {bug:?} on {}, seed {seed}", kind.name);
                    return Err(Failed::from(violation.report(&trial, folder)));
                }
                if let Some(violation) = judge_in_memory(&record(kind, bug, seed), seed, states) {
                    println!("{bug:?}, seed {seed}: {}", violation.what);
                    return Ok(());
                }
            }
            Err("no seed shows the bug".into())
        };
        self.trials.push(Trial::test(name, run));
    }

    /// Runs the trials that the program's arguments select, and exits. Asserts that a run of all
    /// trials judges at least `states_min` states, or half of them in `make test`.
    pub fn run(self, states_min: usize) -> ! {
        let arguments = Arguments::from_args();
        let is_whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list;
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        let counts = [&STATES, &TORN, &MENDED, &IN_PLACE, &CHECKED, &CUT_AGAIN]
            .map(|it| it.load(Ordering::Relaxed));
        let [states, torn, mended, in_place, checked, cut_again] = counts;
        println!(
            "{states} states were judged, {torn} of them with a torn superblock: all were recovered in memory, \
             {mended} also by e2fsck, and {in_place} also in place, of which e2fsck or fsck.f2fs checked {checked}; \
             {cut_again} more cuts interrupted recoveries in place\n"
        );
        assert!(
            conclusion.has_failed() || !is_whole || states >= tried(states_min),
            "too few states"
        );
        conclusion.exit();
    }
}
