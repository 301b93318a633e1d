//! The trees of damaged images, read by the library and by a Linux guest: what both read without an error is equal. Errors of
//! only one of them are counted. `BIFOLIO_SOAK_FACTOR` multiplies the number of images, and `BIFOLIO_TEST_SEED` is the
//! first seed.
#![allow(clippy::print_stdout, reason = "the counts of a run")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::MemoryDevice;
use libtest_mimic::{Arguments, Trial};
use testkit::answers::{Answer, Answers, Compared, Difference, Failure, Refusal, compare_images};
use testkit::guest::reading::{Copy, Outcome, Reading, read_copies};
use testkit::guest::{self, Machine};
use testkit::hostile::{Damageable, Subject, tiny, tiny_kinds};
use testkit::{Random, seeds};
use vfs::{Volume, VolumeOptions};

/// The number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 8;
/// Of so many seeds, one reads its images without replaying their logs.
const NOT_REPLAYED: u64 = 4;
/// The flag of indexed directories.
const INDEXED: u32 = 0x1000;

/// A kind of difference that is not a defect of the library.
struct Explained {
    /// Who is right, and why.
    reason: &'static str,
    applies: fn(&Difference, &Case, &Reading) -> bool,
}

/// The kinds of differences that are not defects of the library.
const EXPLAINED: &[Explained] = &[
    Explained {
        reason: "the library is right: where the journal's map has a hole, Linux reads another block, and does not replay \
                 the rest of the log; the library and e2fsck use the superblock's copy of the map",
        applies: |_, _, reading| reading.has_message("journal bmap failed"),
    },
    Explained {
        reason: "the library shows more: Linux lists an indexed directory by its index, without names whose hashes are \
                 not those of their block, and names of a block twice if the index has it twice",
        applies: |difference, case, _| {
            let [_, theirs] = difference.values.each_ref().map(|names| dotless(names));
            let all = case.our_names(&difference.name);
            difference.fact == "names"
                && case.is_indexed(&difference.name)
                && theirs.iter().all(|name| all.contains(name))
        },
    },
    Explained {
        reason: "the library shows more: Linux lists a directory up to its size, which is not a multiple of the block size",
        applies: |difference, case, _| {
            let size =
                case.fact(&difference.name, "size").and_then(|size| size.parse::<u64>().ok());
            difference.fact == "names"
                && difference.values[1].is_empty()
                && size.is_some_and(|size| size % 1024 != 0)
        },
    },
    Explained {
        reason: "the library is right: the free blocks and inodes of a group are at most as many as it has",
        applies: |difference, _, _| {
            is_count(difference)
                && matches!(difference.numbers(), Some([ours, theirs]) if ours < theirs)
        },
    },
    Explained {
        reason: "the library is right: orphans are deleted, which Linux misses if the size of the orphan file, or the number \
                 of the first inode, is damaged",
        applies: |difference, case, _| {
            let damaged = ["Inode orphan file", "first inode", "word 84:"];
            is_count(difference) && damaged.iter().any(|part| case.what.contains(part))
        },
    },
    Explained {
        reason: "neither is right: the size of the journal's inode, by which its blocks are subtracted from the volume's, \
                 is damaged",
        applies: |difference, case, _| {
            let is_blocks = difference.name == "(volume)" && difference.fact == "blocks";
            is_blocks && case.what.contains("Inode journal") && difference.values[0] == "0"
        },
    },
    Explained {
        reason: "both are right: Linux sets the times of an orphan with a name, which it truncates to its size",
        applies: |difference, _, reading| {
            matches!(&*difference.fact, "changed" | "modified")
                && reading.has_message("truncate cleaned up")
        },
    },
    Explained {
        reason: "the library is right: an inode whose extra size is zero has no nanoseconds; Linux takes them from the \
                 unused space",
        applies: |difference, case, _| {
            matches!(&*difference.fact, "accessed" | "changed" | "modified")
                && difference.values[0].ends_with(" + 0 ns")
                && case.what.contains("word 128")
        },
    },
    Explained {
        reason: "the library is right: an attribute that begins with the name of an access control list is none; Linux \
                 lists it, and cannot read it",
        applies: |difference, _, _| {
            let [ours, theirs] = difference.values.each_ref().map(|names| dotless(names));
            let is_list = |name: &&str| name.starts_with("system.posix_acl_");
            let others: Vec<&str> = theirs.into_iter().filter(|name| !is_list(name)).collect();
            difference.fact == "attributes" && others == ours
        },
    },
];

/// Returns whether a difference is one of the counts of free blocks and inodes.
fn is_count(difference: &Difference) -> bool {
    let is_count = matches!(&*difference.fact, "blocks free" | "blocks available" | "inodes free");
    difference.name == "(volume)" && is_count
}

/// Returns the entries of a list, without "." and "..": where they have no inode, Linux lists those of an indexed directory.
fn dotless(names: &str) -> Vec<&str> {
    let is_name =
        |entry: &&str| !entry.is_empty() && !entry.starts_with(". ") && !entry.starts_with(".. ");
    names.split(", ").filter(is_name).collect()
}

/// A damaged image, read by the library.
struct Case {
    what: String,
    ours: Answer<Answers>,
    copy: Copy,
}

impl Case {
    fn fact(&self, name: &str, fact: &str) -> Option<&str> {
        self.ours.as_ref().ok()?.fact(name, fact)
    }

    fn is_indexed(&self, name: &str) -> bool {
        let flags = self.fact(name, "flags").and_then(|flags| flags.strip_prefix("0x"));
        flags
            .and_then(|flags| u32::from_str_radix(flags, 16).ok())
            .is_some_and(|flags| flags & INDEXED != 0)
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
    fn add(&mut self, case: &Case, outcome: &Outcome) {
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
        for refusal in refusals {
            let example = || (0, format!("{}{}", case.what, first_error(reading)));
            self.refusals.entry(refusal).or_insert_with(example).0 += 1;
        }
        let mut explained = BTreeSet::new();
        let mut others = Vec::new();
        for difference in differences {
            match EXPLAINED.iter().find(|kind| (kind.applies)(&difference, case, reading)) {
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
            let messages = reading.messages.join("\n  Linux: ");
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
    let error = reading.messages.iter().find(|line| line.starts_with("EXT4-fs error"));
    error.map_or(String::new(), |line| format!("; {line}"))
}

fn check() {
    let mut subjects: Vec<_> = (0..tiny_kinds()).map(|kind| Subject::new(tiny(kind))).collect();
    let valid: Vec<Vec<u8>> =
        subjects.iter().map(|subject| subject.valid().bytes().to_vec()).collect();
    let mut cases = Vec::new();
    for seed in seeds(SEEDS) {
        let no_recovery = seed % NOT_REPLAYED == NOT_REPLAYED - 1;
        // Otherwise an image can make the guest panic at its first error.
        let options = if no_recovery { "errors=continue,noload" } else { "errors=continue" };
        for (number, subject) in subjects.iter_mut().enumerate() {
            subject.run(Random(seed), |image, damage, _| {
                let what = format!("seed {seed}, {damage}");
                let ours = read(image, no_recovery);
                let copy = Copy::new(number, &valid[number], image, options);
                cases.push(Case { what, ours, copy });
            });
        }
    }
    let images: Vec<&[u8]> = valid.iter().map(Vec::as_slice).collect();
    let copies: Vec<Copy> = cases.iter().map(|case| case.copy.clone()).collect();
    let outcomes = read_copies(Machine::UserMode, "ext4", &images, &copies);
    let mut counts = Counts::default();
    for (case, outcome) in cases.iter().zip(&outcomes) {
        counts.add(case, outcome);
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
    let trial = Trial::test("damaged_ext4_trees_are_read_as_by_linux_7_2", || {
        check();
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![trial]).exit();
}
