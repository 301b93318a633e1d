//! Changes of ext4 images with damaged fields and correct checksums: neither the check nor e2fsck
//! finds anything in a volume in which it found nothing before, nor a kind of error that a damaged
//! volume did not have before, unless the damage explains it. `BIFOLIO_SOAK_FACTOR` multiplies the
//! number of damaged images, and `BIFOLIO_TEST_SEED` is the first seed. `BIFOLIO_FUZZ_CORPUS` is
//! the folder of the fuzzer's corpora. The inputs of the target `ext4_writing` are choices, too.

mod e2fsck;
mod faults;

use device::SharedDevice;
use testkit::hostile::{Counts, Specimen, Subject, tiny, tiny_kinds, written};
use testkit::{Changer, Choose, InputBytes, Random, seeds};

use self::e2fsck::{Verdict, has_log};

/// The number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 4;
/// The maximum number of changes of an image, as in the fuzz target.
const CHANGES_MAX: usize = 40;

/// Changes damaged copies of an image, and asks the check and e2fsck.
fn check(counts: &mut Counts, what: &str, subject: &mut Subject<Specimen>, choose: impl Choose) {
    subject.run(choose, |image, damage, choose| {
        let what = format!("{what}, {damage}");
        let before = recover(counts, &what, &written::over(image));
        let device = written::over(image);
        let outcome = written::write(&device, choose, CHANGES_MAX);
        if counts.add(&what, &outcome) {
            compare(counts, &format!("{what}: e2fsck"), &before, &device);
        }
    });
}

/// Recovers the volume if its log has changes, and compares it with what the replay of e2fsck makes
/// of it. Returns the verdict.
fn recover(counts: &mut Counts, what: &str, device: &SharedDevice) -> Verdict {
    let replayed = Verdict::of(device);
    if !has_log(device) {
        return replayed;
    }
    let Some(changer) = Changer::open(device.clone(), Random(0)) else { return replayed };
    let _ = changer.close();
    let recovered = Verdict::of(device);
    let new = replayed.new_kinds(&recovered);
    counts.worse_if_new(&format!("{what}: e2fsck, after recovery"), &new, &replayed.kinds);
    recovered
}

fn compare(counts: &mut Counts, what: &str, before: &Verdict, device: &SharedDevice) {
    counts.clean += u64::from(before.is_clean());
    counts.compared += u64::from(before.kinds.is_some() && !before.is_clean());
    let after = Verdict::of(device);
    counts.worse_if_new(what, &before.new_kinds(&after), &before.kinds);
}

#[test]
fn damaged_volumes_do_not_become_worse() {
    let mut counts = Counts::default();
    let mut subjects: Vec<_> = (0..tiny_kinds()).map(|kind| Subject::new(tiny(kind))).collect();
    for seed in seeds(SEEDS) {
        for subject in &mut subjects {
            check(&mut counts, &format!("seed {seed}"), subject, Random(seed));
        }
    }
    for (name, input) in written::corpus("ext4_writing") {
        let mut choose = InputBytes(&input);
        let kind = choose.below(tiny_kinds() as u64) as usize;
        check(&mut counts, &name, &mut subjects[kind], choose);
    }
    counts.report();
    let Counts { images, sound, clean, compared, .. } = counts;
    assert!(sound * 8 > images && clean * 8 > images, "{sound} sound, {clean} clean");
    assert!(compared * 8 > images, "{compared} compared");
}
