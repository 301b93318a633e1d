//! The trees of damaged images, read by the library and by a Linux guest: what both read without an
//! error is equal. Errors of only one of them are counted. `BIFOLIO_SOAK_FACTOR` multiplies the
//! number of images, and `BIFOLIO_TEST_SEED` is the first seed.
#![allow(clippy::print_stdout, reason = "the counts of a run")]

mod ext4;
mod f2fs;

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::MemoryDevice;
use libtest_mimic::{Arguments, Trial};
use testkit::answers::{Answer, Answers, Compared, Difference, Failure, Refusal, compare_images};
use testkit::guest::reading::{Copy, Outcome, Reading, read_copies};
use testkit::guest::{self, Machine};
use testkit::hostile::{Damageable, Subject};
use testkit::{Random, seeds};
use vfs::{Volume, VolumeOptions};

/// Of so many seeds, one reads its images without replaying their logs.
const NOT_REPLAYED: u64 = 4;
/// The number of nanoseconds in a second.
const NANOSECONDS: u32 = 1_000_000_000;

/// The test of a format.
struct Half {
    /// The name of the format for mount(2).
    format: &'static str,
    /// The mount options with which Linux recovers volumes.
    recovers: &'static str,
    /// Those with which it does not.
    recovers_not: &'static str,
    /// The number of damaged copies of each image. Failure messages have the seed.
    seeds: u64,
    explained: &'static [Explained],
    /// Returns whether Linux alone may answer a question with an error, if that is known: reading
    /// does not need all of its checks. The arguments are the question and the error.
    may_refuse: Option<fn(&str, &str, &Reading) -> bool>,
}

/// A kind of difference that is not a defect of the library.
struct Explained {
    /// Who is right, and why.
    reason: &'static str,
    applies: fn(&Difference, &Seen) -> bool,
}

/// What is known of a damaged image.
struct Seen<'s> {
    case: &'s Case,
    reading: &'s Reading,
    valid: &'s [u8],
    image: Vec<u8>,
    /// The library's answers about another copy, which some explanations need.
    others: OnceCell<Answer<Answers>>,
}

/// Returns whether a difference is one of the counts of free blocks and inodes.
fn is_count(difference: &Difference) -> bool {
    let is_count = matches!(&*difference.fact, "blocks free" | "blocks available" | "inodes free");
    difference.name == "(volume)" && is_count
}

/// Returns the flags in a value, or 0 if it has none.
fn parse_flags(value: &str) -> u32 {
    let digits = value.strip_prefix("0x").unwrap_or_default();
    u32::from_str_radix(digits, 16).unwrap_or_default()
}

/// A damaged image, read by the library.
struct Case {
    what: String,
    no_recovery: bool,
    ours: Answer<Answers>,
    copy: Copy,
}

impl Case {
    fn fact(&self, name: &str, fact: &str) -> Option<&str> {
        self.ours.as_ref().ok()?.fact(name, fact)
    }

    /// Returns the flags of an inode, or 0 if they are not known.
    fn flags(&self, name: &str) -> u32 {
        self.fact(name, "flags").map_or(0, parse_flags)
    }

    fn our_names(&self, directory: &str) -> BTreeSet<&str> {
        self.fact(directory, "names").unwrap_or_default().lines().collect()
    }
}

/// Returns the library's answers.
fn read(image: &Arc<Vec<u8>>, no_recovery: bool) -> Answer<Answers> {
    let mut options = VolumeOptions { no_recovery, ..VolumeOptions::default() };
    options.cache_bytes_max(8 << 20);
    let device = Arc::new(MemoryDevice::shared(Arc::clone(image)));
    let volume = Volume::open_device(device, &options).map_err(Failure::from)?;
    Ok(Answers::of_volume(&volume))
}

#[derive(Default)]
struct Counts {
    images: u64,
    /// Those that both have mounted.
    mounted: u64,
    /// Those that both have read without any error.
    whole: u64,
    equal: usize,
    died: Vec<String>,
    hung: Vec<String>,
    /// The number of images for each kind of error, and one of them.
    refusals: BTreeMap<Refusal, (u64, String)>,
    /// The number of images with each explained kind of difference.
    explained: BTreeMap<&'static str, u64>,
    /// Descriptions of the other differences.
    differences: Vec<String>,
}

impl Counts {
    fn add(&mut self, half: &Half, valid: &[u8], case: &Case, outcome: &Outcome) {
        self.images += 1;
        let reading = match outcome {
            Outcome::Read(reading) => reading,
            Outcome::Died(text) => return self.died.push(format!("{}\n{text}", case.what)),
            Outcome::Hung => return self.hung.push(case.what.clone()),
        };
        if let (Ok(ours), Ok(theirs)) = (&case.ours, &reading.answers) {
            self.mounted += 1;
            self.whole += u64::from(ours.is_whole() && theirs.is_whole());
        }
        let compared = compare_images(&case.ours, &reading.answers);
        let Compared { equal, differences, refusals } = compared;
        self.equal += equal;
        let mut others = Vec::new();
        for refusal in refusals {
            if let ([None, Some(error)], Some(may_refuse)) = (&refusal.errors, half.may_refuse)
                && !may_refuse(&refusal.question, error, reading)
            {
                others.push(format!("  {}: read | {error}", refusal.question));
            }
            let example = || (0, format!("{}{}", case.what, first_error(reading)));
            self.refusals.entry(refusal).or_insert_with(example).0 += 1;
        }
        if differences.is_empty() && others.is_empty() {
            return;
        }
        let mut image = valid.to_vec();
        case.copy.apply(&mut image);
        let seen = Seen { case, reading, valid, image, others: OnceCell::new() };
        let mut explained = BTreeSet::new();
        for difference in differences {
            match half.explained.iter().find(|kind| (kind.applies)(&difference, &seen)) {
                Some(kind) => {
                    explained.insert(kind.reason);
                }
                None => {
                    let Difference { name, fact, values: [ours, theirs] } = difference;
                    others.push(format!("  {name}, {fact}: {ours} | {theirs}"));
                }
            }
        }
        for reason in explained {
            *self.explained.entry(reason).or_default() += 1;
        }
        if !others.is_empty() {
            let said = reading.messages.iter().filter(|line| !line.contains("): recover_"));
            let messages = said.map(String::as_str).collect::<Vec<_>>().join("\n  Linux: ");
            let others = others.join("\n");
            self.differences.push(format!("{}\n{others}\n  Linux: {messages}", case.what));
        }
    }

    fn print(&self) {
        println!(
            "{} images, {} mounted by both, {} read without errors by both, {} equal facts, {} with other facts, {} ended \
             and {} hung the guest",
            self.images,
            self.mounted,
            self.whole,
            self.equal,
            self.differences.len(),
            self.died.len(),
            self.hung.len()
        );
        for (reason, count) in &self.explained {
            println!("{count:6} images differ: {reason}");
        }
        println!("Errors: images, question: the library | Linux (an example)");
        let mut rows: Vec<_> = self.refusals.iter().collect();
        rows.sort_by_key(|(_, (count, _))| Reverse(*count));
        for (Refusal { question, errors }, (count, example)) in rows {
            let [ours, theirs] = errors.each_ref().map(|error| error.as_deref().unwrap_or("read"));
            println!("{count:6}  {question}: {ours} | {theirs}  ({example})");
        }
        for text in self.died.iter().chain(&self.hung) {
            println!("ended or hung the guest: {text}");
        }
    }
}

/// Returns the first error that Linux has reported.
fn first_error(reading: &Reading) -> String {
    let error = reading.messages.iter().find(|line| line.contains("-fs error"));
    error.map_or(String::new(), |line| format!("; {line}"))
}

/// Compares damaged copies of the subjects.
fn check<S: Damageable>(half: &Half, mut subjects: Vec<Subject<S>>) {
    let valid: Vec<Vec<u8>> =
        subjects.iter().map(|subject| subject.valid().bytes().to_vec()).collect();
    let mut cases = Vec::new();
    for seed in seeds(half.seeds) {
        let no_recovery = seed % NOT_REPLAYED == NOT_REPLAYED - 1;
        let options = if no_recovery { half.recovers_not } else { half.recovers };
        for (number, subject) in subjects.iter_mut().enumerate() {
            subject.run(Random(seed), |image, damage, _| {
                let what = format!("seed {seed}, {damage}");
                let ours = read(image, no_recovery);
                let copy = Copy::new(number, &valid[number], image, options);
                cases.push(Case { what, no_recovery, ours, copy });
            });
        }
    }
    let images: Vec<&[u8]> = valid.iter().map(Vec::as_slice).collect();
    let copies: Vec<Copy> = cases.iter().map(|case| case.copy.clone()).collect();
    let outcomes = read_copies(Machine::UserMode, half.format, &images, &copies);
    let mut counts = Counts::default();
    for (case, outcome) in cases.iter().zip(&outcomes) {
        counts.add(half, &valid[case.copy.image()], case, outcome);
    }
    counts.print();
    assert!(counts.differences.is_empty(), "{}", counts.differences.join("\n"));
    // Damage that is always refused, or has no effect, would not test anything.
    let Counts { images, mounted, whole, .. } = counts;
    assert!(mounted * 2 > images && whole * 4 > images && whole < mounted, "{whole} of {images}");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let ext4 = Trial::test("damaged_ext4_trees_are_read_as_by_linux_7_2", || {
        check(&ext4::HALF, ext4::subjects());
        Ok(())
    });
    let f2fs = Trial::test("damaged_f2fs_trees_are_read_as_by_linux_7_2", || {
        check(&f2fs::HALF, f2fs::subjects());
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![ext4, f2fs]).exit();
}
