//! Changes of ext4 images with damaged fields and correct checksums: volumes in which the check, or e2fsck, finds nothing
//! stay so. `BIFOLIO_SOAK_FACTOR` multiplies the number of damaged images, and `BIFOLIO_TEST_SEED` is the first seed.
//! `BIFOLIO_FUZZ_CORPUS` is the folder of the fuzzer's corpora. The inputs of the target `ext4_writing` are choices, too.
#![allow(clippy::print_stdout, reason = "the counts of a run")]

use std::sync::Arc;

use device::SharedDevice;
use testkit::crash::complaint_of_e2fsck;
use testkit::hostile::{Specimen, Subject, tiny, tiny_kinds, written};
use testkit::{Changer, Choose, InputBytes, Random, seeds};

/// The number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 6;
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
    /// Descriptions of those that are worse than before.
    worse: Vec<String>,
}

/// Returns what e2fsck says about the volume, once its log and its orphans are processed.
fn complaint_once_recovered(image: &Arc<Vec<u8>>) -> Option<String> {
    let device: SharedDevice = written::over(image);
    if let Some(changer) = Changer::open(Arc::clone(&device), Random(0)) {
        let _ = changer.close();
    }
    complaint_of_e2fsck(&device)
}

impl Counts {
    fn check(&mut self, what: &str, subject: &mut Subject<Specimen>, choose: impl Choose) {
        subject.run(choose, |image, damage, choose| {
            let complaint = complaint_once_recovered(image);
            let device = written::over(image);
            let outcome = written::write(&device, choose, CHANGES_MAX);
            self.images += 1;
            self.opened += u64::from(outcome.made.is_some());
            self.sound += u64::from(outcome.is_sound());
            let new = outcome.new_findings();
            if !new.is_empty() {
                self.worse.push(format!("{what}, {damage}: {new:#?}"));
            }
            if complaint.is_none() && outcome.made.is_some() {
                self.clean += 1;
                if let Some(text) = complaint_of_e2fsck(&device) {
                    self.worse.push(format!("{what}, {damage}: {text}"));
                }
            }
        });
    }
}

#[test]
fn damaged_volumes_that_are_sound_stay_so() {
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
    let Counts { images, opened, sound, clean, worse } = counts;
    println!("{images} images, {opened} opened, {sound} sound, {clean} clean");
    assert!(worse.is_empty(), "{}", worse.join("\n"));
    // Damage that has no effect, or is always refused, would not test anything.
    assert!(opened * 2 > images && opened < images, "{opened} of {images} opened");
    assert!(sound * 8 > images && clean * 8 > images, "{sound} sound, {clean} clean");
}
