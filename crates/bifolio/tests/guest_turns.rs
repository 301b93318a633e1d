//! Volumes that this library and a Linux 7.2 guest write by turns, with blocks larger than a page,
//! which the running kernel may not be able to mount. After each turn e2fsck finds nothing, the other
//! side reads all that there is as the writer does, and that is what the running kernel makes of the
//! same steps on a volume of its own. Some turns are broken off: then the other side recovers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::guest::{self, Job};
use testkit::tree::TreeOptions;
use testkit::turns::{OnHost, OnVolume, Plan, Turn, UNSYNCED};
use testkit::{Kind, LoopMount, Manifest, Mke2fs, check_by_e2fsck, command, must};

/// Guests that run at the same time, each with every so-manieth volume.
const GUESTS: usize = 2;

/// A turn that does not come to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BrokenOff {
    None,
    /// Our first one.
    Ours,
    /// The guest's first one.
    TheGuests,
}

/// A volume, and what is done to it.
struct Subject {
    kind: &'static str,
    block_size: u32,
    broken_off: BrokenOff,
}

impl Subject {
    fn name(&self) -> String {
        let end = match self.broken_off {
            BrokenOff::None => "",
            BrokenOff::Ours => "_broken_off_by_us",
            BrokenOff::TheGuests => "_broken_off_by_the_guest",
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
    let broken_off = [
        ("newest_default", 65_536, BrokenOff::Ours),
        ("newest_default", 65_536, BrokenOff::TheGuests),
        ("ext3", 8192, BrokenOff::Ours),
        ("ext3", 8192, BrokenOff::TheGuests),
        ("fast_commit", 16_384, BrokenOff::TheGuests),
    ];
    let whole = whole.map(|(kind, block_size)| (kind, block_size, BrokenOff::None));
    let all = whole.into_iter().chain(broken_off);
    all.map(|(kind, block_size, broken_off)| Subject { kind, block_size, broken_off }).collect()
}

/// A subject on its way through its turns.
struct Play {
    subject: Subject,
    plan: Plan,
    turn: Turn,
    image: PathBuf,
    /// Where the running kernel does the same steps.
    reference: PathBuf,
    /// What we have read last.
    ours: Manifest,
    /// The image as the guest has left it in the middle of its turn, and what we make of it.
    left: Option<(PathBuf, Manifest)>,
    /// Why it was given up.
    failure: Option<String>,
}

impl Play {
    fn new(subject: Subject, seed: u64, folder: &Path, reference: &Path) -> Self {
        let image = folder.join(subject.name());
        let reference = reference.join(subject.name());
        must(std::fs::create_dir(&reference), reference.display());
        let mut plan = Plan::new(subject.options(), seed);
        let turn = plan.turn(false);
        let ours = Manifest::default();
        Self { subject, plan, turn, image, reference, ours, left: None, failure: None }
    }

    /// Does a part of it, unless it was given up.
    fn part<R>(&mut self, part: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if self.failure.is_some() {
            return None;
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| part(self)));
        if let Err(panic) = &done {
            let text = panic.downcast_ref::<String>().cloned();
            self.failure = Some(text.unwrap_or_else(|| "a panic, told above".into()));
        }
        done.ok()
    }

    fn is_broken_off_by_us(&self) -> bool {
        self.subject.broken_off == BrokenOff::Ours
    }

    fn is_broken_off_by_guest(&self) -> bool {
        self.subject.broken_off == BrokenOff::TheGuests
    }

    fn first_turn(&mut self) {
        Kind::named(self.subject.kind).make(self.subject.block_size, &self.image);
        let mut ours = OnVolume::open(&self.image);
        if self.is_broken_off_by_us() {
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
        let job = match self.is_broken_off_by_guest() {
            true => Job::BreakOff(self.turn.clone()),
            false => Job::Change(self.turn.whole()),
        };
        vec![(self.image.clone(), job)]
    }

    fn after_first_guest(&mut self, listed: &[Manifest]) {
        if self.is_broken_off_by_guest() {
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

    /// What the guest has read is what we had read, and so with what it has made of it.
    fn after_guest(&mut self, listed: &[Manifest]) {
        let before = self.ours.clone();
        before.assert_equal("bifolio", &listed[0], "Linux 7.2");
        check_by_e2fsck(&self.image);
        self.ours = Manifest::of_image(&self.image);
        self.ours.assert_equal("bifolio", &listed[1], "Linux 7.2, which wrote");
        self.compare_with_reference("bifolio after Linux 7.2");
    }

    /// Has the running kernel do the turn, and compares what does not depend on the volume.
    fn compare_with_reference(&self, who: &str) {
        OnHost::new(&self.reference).run(&self.turn.whole());
        let expected = self.known(Manifest::of_host(&self.reference));
        assert!(expected.len() > 700, "only {} names", expected.len());
        let found = self.known(self.ours.clone());
        let other = found.names_that_differ(&expected, "contents");
        let other: Vec<_> = other.iter().map(|name| self.where_data_differs(name)).collect();
        assert!(other.is_empty(), "data by {who}: {}", other.join("\n"));
        found.assert_equal(who, &expected, "the running kernel");
    }

    /// Where what we read of a file differs from what the running kernel has in it.
    fn where_data_differs(&self, name: &str) -> String {
        let place = format!("{}:/{name}", self.image.display());
        let bifolio = env!("CARGO_BIN_EXE_bifolio");
        let found = command::run(Command::new(bifolio).arg("cat").arg(place));
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
        // Of this, recovery decides how much there is.
        let manifest = match self.subject.broken_off {
            BrokenOff::None => manifest,
            _ => manifest.without_tree(UNSYNCED),
        };
        manifest.map(|name, mode, fact, value| {
            let is_known = match fact {
                "size" => !mode.starts_with("04"),
                "mode" | "links" | "owner" | "device" | "target" | "contents" => true,
                fact => fact.starts_with("xattr "),
            };
            // The top and the volume differ.
            (is_known && name != "." && !mode.is_empty()).then(|| value.to_owned())
        })
    }
}

/// A copy of `image` as it lies.
fn copy_of(image: &Path) -> PathBuf {
    let copy = image.with_extension("copy");
    command::run(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy));
    copy
}

/// There is something in the journal to be replayed.
fn assert_log_is_dirty(image: &Path) {
    let said = command::run(Command::new("dumpe2fs").arg("-h").arg(image));
    let said = String::from_utf8_lossy(&said);
    let start = said.lines().find_map(|line| line.strip_prefix("Journal start:"));
    assert!(said.contains("needs_recovery"), "{said}");
    assert!(start.is_some_and(|start| start.trim() != "0"), "{said}");
}

/// What came of a subject, by its place among the subjects.
type Outcomes = Vec<Result<(), String>>;

/// What each guest's subjects came to; `None` if the guest failed.
static OUTCOMES: [OnceLock<Option<Outcomes>>; GUESTS] = [const { OnceLock::new() }; GUESTS];

/// Plays all subjects of one guest at once: booting takes as long as several turns.
fn play(guest: usize) -> Outcomes {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let reference = folder.path().join("reference");
    Mke2fs::new("ext4", 4096).with("-O ea_inode").make(&reference, None);
    let reference = LoopMount::new(&reference, "ext4", "rw");
    let subjects = (1..).zip(subjects()).skip(guest).step_by(GUESTS);
    let mut plays: Vec<Play> = subjects
        .map(|(seed, subject)| Play::new(subject, seed, folder.path(), reference.path()))
        .collect();
    for play in &mut plays {
        play.part(Play::first_turn);
    }
    visit_guest(&mut plays, Play::jobs_of_first_guest, Play::after_first_guest);
    for play in &mut plays {
        play.part(Play::second_turn);
    }
    visit_guest(&mut plays, Play::jobs_of_second_guest, Play::after_second_guest);
    plays.into_iter().map(|play| play.failure.map_or(Ok(()), Err)).collect()
}

/// Boots a guest that does its part in all that were not given up.
fn visit_guest(
    plays: &mut [Play],
    jobs: fn(&mut Play) -> Vec<(PathBuf, Job)>,
    after: fn(&mut Play, &[Manifest]),
) {
    let jobs: Vec<Vec<(PathBuf, Job)>> =
        plays.iter_mut().map(|play| play.part(jobs).unwrap_or_default()).collect();
    if jobs.concat().is_empty() {
        return;
    }
    let mut listed = guest::run(&jobs.concat()).into_iter();
    for (play, jobs) in plays.iter_mut().zip(&jobs) {
        let listed = listed.by_ref().take(jobs.len()).flatten().collect::<Vec<_>>();
        play.part(|play| after(play, &listed));
    }
}

fn check(number: usize) -> Result<(), String> {
    let guest = number % GUESTS;
    // A guest that failed once is not booted again for each of its subjects.
    let outcomes = OUTCOMES[guest].get_or_init(|| std::panic::catch_unwind(|| play(guest)).ok());
    let outcomes = outcomes.as_ref().ok_or("the guest failed; why is said above")?;
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
