//! Volumes with blocks larger than a page, which the library and a Linux 7.2 guest write in turns.
//!
//! After each turn, e2fsck finds no errors, the other side reads the same contents as the writer,
//! and the running kernel gets the same contents from the same operations on its own volume. Some
//! turns are interrupted; then the other side recovers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::guest::{self, Job};
use testkit::tree::TreeOptions;
use testkit::turns::{OnHost, OnVolume, Plan, Turn, UNSYNCED};
use testkit::{Kind, LoopMount, Manifest, Mke2fs, check_by_e2fsck, command, must};

/// Number of guests that run concurrently. Each has every GUESTS-th volume.
const GUESTS: usize = 2;

/// The turn that is interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interrupted {
    None,
    /// The first turn of the library.
    Ours,
    /// The first turn of the guest.
    TheGuests,
}

/// A volume, and the turn that is interrupted.
struct Subject {
    kind: &'static str,
    block_size: u32,
    interrupted: Interrupted,
}

impl Subject {
    fn name(&self) -> String {
        let end = match self.interrupted {
            Interrupted::None => "",
            Interrupted::Ours => "_interrupted_by_us",
            Interrupted::TheGuests => "_interrupted_by_the_guest",
        };
        format!("{}_{}{end}", self.kind, self.block_size)
    }

    fn options(&self) -> TreeOptions {
        Kind::named(self.kind).tree(self.block_size)
    }
}

fn subjects() -> Vec<Subject> {
    let whole = [
        ("newest_default", 8192),
        ("newest_default", 16_384),
        ("newest_default", 32_768),
        ("newest_default", 65_536),
        ("bigalloc", 8192),
        ("bigalloc", 16_384),
        ("bigalloc", 32_768),
        ("bigalloc", 65_536),
        ("inline_data", 8192),
        ("inline_data", 16_384),
        ("inline_data", 32_768),
        ("inline_data", 65_536),
        ("no_journal", 8192),
        ("no_journal", 16_384),
        ("no_journal", 32_768),
        ("no_journal", 65_536),
        ("ext3", 8192),
        ("ext3", 65_536),
        ("ea_inode", 16_384),
    ];
    let interrupted = [
        ("newest_default", 65_536, Interrupted::Ours),
        ("newest_default", 65_536, Interrupted::TheGuests),
        ("ext3", 8192, Interrupted::Ours),
        ("ext3", 8192, Interrupted::TheGuests),
        ("fast_commit", 16_384, Interrupted::TheGuests),
    ];
    let whole = whole.map(|(kind, block_size)| (kind, block_size, Interrupted::None));
    let all = whole.into_iter().chain(interrupted);
    all.map(|(kind, block_size, interrupted)| Subject { kind, block_size, interrupted }).collect()
}

/// State of a subject between its turns.
struct Progress {
    subject: Subject,
    plan: Plan,
    turn: Turn,
    image: PathBuf,
    /// The directory in which the running kernel performs the same operations.
    reference: PathBuf,
    /// The contents that the library read last.
    ours: Manifest,
    /// A copy of the image after the interrupted turn of the guest, and its contents as the library
    /// recovers them.
    left: Option<(PathBuf, Manifest)>,
    /// The failure that ended the test of this subject.
    failure: Option<String>,
}

impl Progress {
    fn new(subject: Subject, seed: u64, folder: &Path, reference: &Path) -> Self {
        let image = folder.join(subject.name());
        let reference = reference.join(subject.name());
        must(std::fs::create_dir(&reference), reference.display());
        let mut plan = Plan::new(subject.options(), seed);
        let turn = plan.turn(false);
        let ours = Manifest::default();
        Self { subject, plan, turn, image, reference, ours, left: None, failure: None }
    }

    /// Runs one stage, unless an earlier stage failed.
    fn run_stage<R>(&mut self, stage: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.failure.is_some() {
            return None;
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage(self)));
        if let Err(panic) = &done {
            let text = panic.downcast_ref::<String>().cloned();
            self.failure = Some(text.unwrap_or_else(|| "a panic, see above".into()));
        }
        done.ok()
    }

    fn is_interrupted_by_us(&self) -> bool {
        self.subject.interrupted == Interrupted::Ours
    }

    fn is_interrupted_by_guest(&self) -> bool {
        self.subject.interrupted == Interrupted::TheGuests
    }

    fn first_turn(&mut self) {
        Kind::named(self.subject.kind).make(self.subject.block_size, &self.image);
        let mut ours = OnVolume::open(&self.image);
        if self.is_interrupted_by_us() {
            ours.run(&self.turn.synced);
            ours.sync();
            ours.run(&self.turn.after);
            let left = copy_of(&self.image);
            must(std::fs::rename(left, &self.image), self.image.display());
            assert_log_is_dirty(&self.image);
        } else {
            ours.run(&self.turn.whole());
            ours.close();
            check_by_e2fsck(&self.image);
        }
        self.ours = Manifest::of_image(&self.image);
        self.compare_with_reference("bifolio");
    }

    fn jobs_of_first_guest(&mut self) -> Vec<(PathBuf, Job)> {
        self.turn = self.plan.turn(true);
        let job = match self.is_interrupted_by_guest() {
            true => Job::BreakOff(self.turn.clone()),
            false => Job::Change(self.turn.whole()),
        };
        vec![(self.image.clone(), job)]
    }

    fn after_first_guest(&mut self, listed: &[Manifest]) {
        if self.is_interrupted_by_guest() {
            assert_log_is_dirty(&self.image);
            self.ours.assert_equal("bifolio", &listed[0], "Linux 7.2");
            self.ours = Manifest::of_image(&self.image);
            self.left = Some((copy_of(&self.image), self.ours.clone()));
            self.compare_with_reference("bifolio after Linux 7.2");
        } else {
            self.after_guest(listed);
        }
    }

    fn second_turn(&mut self) {
        self.turn = self.plan.turn(false);
        let mut ours = OnVolume::open(&self.image);
        ours.run(&self.turn.whole());
        ours.close();
        check_by_e2fsck(&self.image);
        self.ours = Manifest::of_image(&self.image);
        self.compare_with_reference("bifolio");
    }

    fn jobs_of_second_guest(&mut self) -> Vec<(PathBuf, Job)> {
        self.turn = self.plan.turn(true);
        let mut jobs = vec![(self.image.clone(), Job::Change(self.turn.whole()))];
        jobs.extend(self.left.iter().map(|(left, _)| (left.clone(), Job::List)));
        jobs
    }

    fn after_second_guest(&mut self, listed: &[Manifest]) {
        if let Some((left, recovered)) = &self.left {
            check_by_e2fsck(left);
            recovered.assert_equal("bifolio", &listed[2], "Linux 7.2, both recovering");
        }
        self.after_guest(listed);
    }

    /// Checks that the guest read the same contents as the library, before and after its own turn.
    fn after_guest(&mut self, listed: &[Manifest]) {
        let before = self.ours.clone();
        before.assert_equal("bifolio", &listed[0], "Linux 7.2");
        check_by_e2fsck(&self.image);
        self.ours = Manifest::of_image(&self.image);
        self.ours.assert_equal("bifolio", &listed[1], "Linux 7.2, which wrote");
        self.compare_with_reference("bifolio after Linux 7.2");
    }

    /// Performs the turn with the running kernel, and compares the facts that do not depend on the
    /// volume.
    fn compare_with_reference(&self, reader: &str) {
        OnHost::new(&self.reference).run(&self.turn.whole());
        let expected = self.known(Manifest::of_host(&self.reference));
        assert!(expected.len() > 700, "only {} names", expected.len());
        let found = self.known(self.ours.clone());
        let other = found.names_that_differ(&expected, "contents");
        let other: Vec<_> = other.iter().map(|name| self.describe_difference(name)).collect();
        assert!(other.is_empty(), "data by {reader}: {}", other.join("\n"));
        found.assert_equal(reader, &expected, "the running kernel");
    }

    /// Describes the difference between a file and its reference.
    fn describe_difference(&self, name: &str) -> String {
        let path = format!("{}:/{name}", self.image.display());
        let bifolio = env!("CARGO_BIN_EXE_bifolio");
        let found = command::run(Command::new(bifolio).arg("cat").arg(path));
        let expected = must(std::fs::read(self.reference.join(name)), name);
        let length = found.len().min(expected.len());
        let differs = |at: &usize| found[*at] != expected[*at];
        match ((0..length).find(differs), (0..length).rev().find(differs)) {
            (Some(first), Some(last)) => format!(
                "{name} differs from byte {first} to {last}: has {:?}, expected {:?}",
                &found[first..length.min(first + 16)],
                &expected[first..length.min(first + 16)],
            ),
            _ if found.len() == expected.len() => {
                format!("{name} reads the same now: only the digests differed")
            }
            _ => format!("{name} has {} bytes, expected {}", found.len(), expected.len()),
        }
    }

    fn known(&self, manifest: Manifest) -> Manifest {
        let manifest = manifest.without_tree("lost+found");
        // The number of recovered operations without sync depends on the recovery.
        let manifest = match self.subject.interrupted {
            Interrupted::None => manifest,
            _ => manifest.without_tree(UNSYNCED),
        };
        manifest.map(|name, mode, fact, value| {
            let is_known = match fact {
                "size" => !mode.starts_with("04"),
                "mode" | "links" | "owner" | "device" | "target" | "contents" => true,
                fact => fact.starts_with("xattr "),
            };
            // The root directory and the volume differ.
            (is_known && name != "." && !mode.is_empty()).then(|| value.to_owned())
        })
    }
}

/// Copies `image` without recovery.
fn copy_of(image: &Path) -> PathBuf {
    let copy = image.with_extension("copy");
    command::run(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy));
    copy
}

/// Asserts that the journal must be replayed.
fn assert_log_is_dirty(image: &Path) {
    let said = command::run(Command::new("dumpe2fs").arg("-h").arg(image));
    let said = String::from_utf8_lossy(&said);
    let start = said.lines().find_map(|line| line.strip_prefix("Journal start:"));
    assert!(said.contains("needs_recovery"), "{said}");
    assert!(start.is_some_and(|start| start.trim() != "0"), "{said}");
}

/// Outcomes of the subjects of a guest, in their order.
type Outcomes = Vec<Result<(), String>>;

/// Outcomes of the guests. `None` if a guest failed.
static OUTCOMES: [OnceLock<Option<Outcomes>>; GUESTS] = [const { OnceLock::new() }; GUESTS];

/// Tests all subjects of one guest together, because booting takes as long as several turns.
fn run_subjects(guest: usize) -> Outcomes {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let reference = folder.path().join("reference");
    Mke2fs::new("ext4", 4096).with("-O ea_inode").make(&reference, None);
    let reference = LoopMount::new(&reference, "ext4", "rw");
    let subjects = (1..).zip(subjects()).skip(guest).step_by(GUESTS);
    let mut subjects_in_progress: Vec<Progress> = subjects
        .map(|(seed, subject)| Progress::new(subject, seed, folder.path(), reference.path()))
        .collect();
    for progress in &mut subjects_in_progress {
        progress.run_stage(Progress::first_turn);
    }
    run_guest(
        &mut subjects_in_progress,
        Progress::jobs_of_first_guest,
        Progress::after_first_guest,
    );
    for progress in &mut subjects_in_progress {
        progress.run_stage(Progress::second_turn);
    }
    run_guest(
        &mut subjects_in_progress,
        Progress::jobs_of_second_guest,
        Progress::after_second_guest,
    );
    subjects_in_progress.into_iter().map(|progress| progress.failure.map_or(Ok(()), Err)).collect()
}

/// Boots a guest that runs the jobs of all subjects without a failure.
fn run_guest(
    subjects_in_progress: &mut [Progress],
    jobs: fn(&mut Progress) -> Vec<(PathBuf, Job)>,
    after: fn(&mut Progress, &[Manifest]),
) {
    let jobs: Vec<Vec<(PathBuf, Job)>> = subjects_in_progress
        .iter_mut()
        .map(|progress| progress.run_stage(jobs).unwrap_or_default())
        .collect();
    if jobs.concat().is_empty() {
        return;
    }
    let mut listed = guest::run(&jobs.concat()).into_iter();
    for (progress, jobs) in subjects_in_progress.iter_mut().zip(&jobs) {
        let listed = listed.by_ref().take(jobs.len()).flatten().collect::<Vec<_>>();
        progress.run_stage(|progress| after(progress, &listed));
    }
}

fn check(number: usize) -> Result<(), String> {
    let guest = number % GUESTS;
    // A guest that failed is not booted again for its other subjects.
    let outcomes =
        OUTCOMES[guest].get_or_init(|| std::panic::catch_unwind(|| run_subjects(guest)).ok());
    let outcomes = outcomes.as_ref().ok_or("the guest failed; see the panic above")?;
    outcomes[number / GUESTS].clone()
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = subjects().into_iter().enumerate().map(|(number, subject)| {
        let name = format!("{}_is_written_by_turns_with_linux_7_2", subject.name());
        Trial::test(name, move || Ok(check(number)?))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
