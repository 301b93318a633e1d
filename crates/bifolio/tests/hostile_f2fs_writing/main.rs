//! Changes of damaged f2fs images: every change ends soon, and only with typed errors, no thread
//! panics, and neither the check nor fsck.f2fs finds a kind of error that it did not find before,
//! unless the damage explains it. `BIFOLIO_SOAK_FACTOR` multiplies the number of damaged images,
//! and `BIFOLIO_TEST_SEED` is the first seed. `BIFOLIO_FUZZ_CORPUS` is the folder of the fuzzer's
//! corpora. The inputs of the target `f2fs_writing` are choices, too.

mod faults;
mod fsck;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::SharedDevice;
use testkit::f2fs::damage_synced_node;
use testkit::f2fs::hostile::{
    STRUCTURES, Valid, damage, damage_features, damage_orphans, has, writing_image, writing_images,
};
use testkit::hostile::written::{self, Outcome, new_kinds, over};
use testkit::hostile::{Counts, Damageable, Subject};
use testkit::{Changer, Choose, InputBytes, Random, seeds};

/// Number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 12;
/// The maximum number of changes of an image, and of one that an input of the fuzz target chooses.
const CHANGES_MAX: usize = 150;
const INPUT_CHANGES_MAX: usize = 40;
/// The time limit for an image, much longer than any test takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);
/// The unit of copies, in bytes.
const COPIED: usize = 1 << 16;
/// The block size of the images with nodes that `damage_synced_node` finds.
const SMALL_SHIFT: u32 = 12;

/// The number of panics in all threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Damages one to three fields, chosen by `seed`. Returns a description.
fn damage_fields(image: &mut [u8], has_small_blocks: bool, seed: u64) -> String {
    let mut random = Random(seed);
    let structures = STRUCTURES.len() as u64;
    let mut kinds: Vec<u64> = (0..=random.below(3)).map(|_| random.below(structures + 6)).collect();
    // The superblock and the checkpoint come last, since the others are found through them.
    kinds.sort_unstable_by(|one, other| other.cmp(one));
    let described = kinds.into_iter().map(|kind| {
        let seed = random.draw();
        match STRUCTURES.get(kind as usize) {
            Some(structure) if !has(image, *structure) => String::new(),
            Some(structure) => damage(image, *structure, seed).description,
            None if kind == structures => damage_orphans(image, seed).unwrap_or_default(),
            None if kind == structures + 1 && has_small_blocks => {
                damage_synced_node(image, seed).unwrap_or_default()
            }
            None => damage_features(image, seed),
        }
    });
    described.collect::<Vec<_>>().join("; ")
}

/// Ends the program with `what` unless it is dropped soon.
struct Watchdog(#[expect(dead_code, reason = "its drop is seen")] mpsc::Sender<()>);

impl Watchdog {
    #[allow(clippy::print_stderr, reason = "the test that hangs")]
    fn start(what: String) -> Self {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            if receiver.recv_timeout(TIME_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: takes too long");
                std::process::abort();
            }
        });
        Self(sender)
    }
}

/// Changes the damaged `image`, and asks the check and `judge`, if there is one.
fn check(
    counts: &mut Counts,
    what: &str,
    judge: Option<&mut fsck::Image>,
    image: &Arc<Vec<u8>>,
    write: impl FnOnce(&SharedDevice) -> Outcome,
) {
    let _watchdog = Watchdog::start(what.to_owned());
    let device = over(image);
    let before = judge.and_then(|judge| Some((judge.complaints(&device)?, judge)));
    let outcome = catch_unwind(AssertUnwindSafe(|| write(&device)));
    let panics = PANICS.load(Ordering::Relaxed);
    let (Ok(outcome), 0) = (outcome, panics) else { panic!("{what}: panicked") };
    if !counts.add(what, &outcome) {
        return;
    }
    let Some((before, judge)) = before else { return };
    counts.clean += u64::from(before.is_empty());
    if let Some(after) = judge.complaints(&device) {
        counts.compared += u64::from(!before.is_empty());
        let new = new_kinds(&before, &after, fsck::HIDDEN);
        counts.worse_if_new(&format!("{what}: fsck.f2fs"), &new, &before);
    }
}

/// Changes copies of an image, with damage by seeds and by the `inputs` of the fuzzer, with their
/// names.
fn check_image(valid: Valid, inputs: &[(String, Vec<u8>)], counts: &mut Counts) {
    let (name, bytes) = (valid.name(), valid.bytes());
    let has_small_blocks = bytes[1024 + 16] == SMALL_SHIFT as u8;
    let mut shared = Arc::new(bytes.to_vec());
    let made = Changer::open(over(&shared), Random(1)).expect("the valid image opens").run();
    assert!(made > 200, "{name}: {made} changes of the valid image");
    // fsck.f2fs reads no blocks of another size than that of pages.
    let mut judge = has_small_blocks.then(|| fsck::Image::new(bytes.len()));
    for seed in seeds(SEEDS) {
        let image = Arc::get_mut(&mut shared).expect("no volume is open");
        let damage = damage_fields(image, has_small_blocks, seed);
        let what = format!("{name}, seed {seed}: {damage}");
        check(counts, &what, judge.as_mut(), &shared, |device| {
            written::write(device, Random(seed), CHANGES_MAX)
        });
        let image = Arc::get_mut(&mut shared).expect("the volume is closed");
        for (part, valid) in image.chunks_mut(COPIED).zip(bytes.chunks(COPIED)) {
            if part != valid {
                part.copy_from_slice(valid);
            }
        }
    }
    drop(shared);
    let mut subject = Subject::new(valid);
    for (name, input) in inputs {
        let mut choose = InputBytes(input);
        kind_of(&mut choose);
        subject.run(choose, |image, damage, choose| {
            check(counts, &format!("{name}, {damage}"), judge.as_mut(), image, |device| {
                written::write(device, choose, INPUT_CHANGES_MAX)
            });
        });
    }
}

/// Returns the number of the image that an input chooses first, as the fuzz target does.
fn kind_of(choose: &mut InputBytes<'_>) -> usize {
    choose.below(writing_images() as u64) as usize
}

#[test]
fn damaged_volumes_are_changed_or_refused_and_do_not_become_worse() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(panic);
    }));
    let mut counts = Counts::default();
    let mut inputs = vec![Vec::new(); writing_images()];
    for (name, input) in written::corpus("f2fs_writing") {
        inputs[kind_of(&mut InputBytes(&input))].push((name, input));
    }
    for (number, inputs) in inputs.iter().enumerate() {
        check_image(writing_image(number), inputs, &mut counts);
    }
    counts.report();
    let Counts { sound, clean, compared, .. } = counts;
    assert!(sound > 0 && clean > 0 && compared > 0, "{sound} sound, {clean} clean, {compared}");
}
