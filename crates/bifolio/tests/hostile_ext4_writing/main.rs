//! Changes of ext4 images with damaged fields and correct checksums: neither the check nor e2fsck finds anything in a volume
//! in which it found nothing before, nor a kind of error that a damaged volume did not have before, unless the damage explains
//! it. `BIFOLIO_SOAK_FACTOR` multiplies the number of damaged images, and `BIFOLIO_TEST_SEED` is the first seed.
//! `BIFOLIO_FUZZ_CORPUS` is the folder of the fuzzer's corpora. The inputs of the target `ext4_writing` are choices, too.
#![allow(clippy::print_stdout, reason = "the counts of a run")]

mod e2fsck;
mod faults;

use std::fmt::Debug;

use device::SharedDevice;
use testkit::hostile::{Specimen, Subject, tiny, tiny_kinds, written};
use testkit::{Changer, Choose, InputBytes, Random, seeds};

use self::e2fsck::{Verdict, has_log};

/// The number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 4;
/// The maximum number of changes of an image, as in the fuzz target.
const CHANGES_MAX: usize = 40;

#[derive(Debug, Default)]
struct Counts {
    images: u64,
    opened: u64,
    /// Those in which the check found nothing.
    sound: u64,
    /// Those in which e2fsck found nothing.
    clean: u64,
    /// Those in which e2fsck found errors, and whose errors before and after were compared.
    compared: u64,
    /// Descriptions of those that are worse than before.
    worse: Vec<String>,
}

impl Counts {
    fn check(&mut self, what: &str, subject: &mut Subject<Specimen>, choose: impl Choose) {
        subject.run(choose, |image, damage, choose| {
            self.images += 1;
            let what = format!("{what}, {damage}");
            let before = self.recover(&what, &written::over(image));
            let device = written::over(image);
            let outcome = written::write(&device, choose, CHANGES_MAX);
            self.sound += u64::from(outcome.is_sound());
            self.worse_if_new(
                &format!("{what}: the check"),
                outcome.new_findings(),
                &outcome.before,
            );
            if outcome.made.is_some() {
                self.opened += 1;
                self.compare(&format!("{what}: e2fsck"), &before, &device);
            }
        });
    }

    /// Recovers the volume if its log has changes, and compares it with what the replay of e2fsck makes of it. Returns the
    /// verdict.
    fn recover(&mut self, what: &str, device: &SharedDevice) -> Verdict {
        let replayed = Verdict::of(device);
        if !has_log(device) {
            return replayed;
        }
        let Some(changer) = Changer::open(device.clone(), Random(0)) else { return replayed };
        let _ = changer.close();
        let recovered = Verdict::of(device);
        let new = replayed.new_kinds(&recovered);
        self.worse_if_new(&format!("{what}: e2fsck, after recovery"), new, &replayed.kinds);
        recovered
    }

    fn compare(&mut self, what: &str, before: &Verdict, device: &SharedDevice) {
        self.clean += u64::from(before.is_clean());
        self.compared += u64::from(before.kinds.is_some() && !before.is_clean());
        let after = Verdict::of(device);
        self.worse_if_new(what, before.new_kinds(&after), &before.kinds);
    }

    fn worse_if_new(&mut self, what: &str, new: Vec<String>, before: &impl Debug) {
        if !new.is_empty() {
            self.worse.push(format!("{what}: {new:#?}, before: {before:?}"));
        }
    }
}

#[test]
fn damaged_volumes_do_not_become_worse() {
    let mut counts = Counts::default();
    let mut subjects: Vec<_> = (0..tiny_kinds()).map(|kind| Subject::new(tiny(kind))).collect();
    for seed in seeds(SEEDS) {
        for subject in &mut subjects {
            counts.check(&format!("seed {seed}"), subject, Random(seed));
        }
    }
    for (name, input) in written::corpus("ext4_writing") {
        let mut choose = InputBytes(&input);
        let kind = choose.below(tiny_kinds() as u64) as usize;
        counts.check(&name, &mut subjects[kind], choose);
    }
    let Counts { images, opened, sound, clean, compared, worse } = counts;
    println!(
        "{images} images, {opened} opened, {sound} sound, {clean} clean, {compared} with errors compared"
    );
    assert!(worse.is_empty(), "{} are worse:\n{}", worse.len(), worse.join("\n"));
    // Damage that has no effect, or is always refused, would not test anything.
    assert!(opened * 2 > images && opened < images, "{opened} of {images} opened");
    assert!(sound * 8 > images && clean * 8 > images, "{sound} sound, {clean} clean");
    assert!(compared * 8 > images, "{compared} compared");
}
