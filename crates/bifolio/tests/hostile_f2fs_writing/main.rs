//! Changes of damaged f2fs images: every change ends soon, and only with typed errors, no thread panics, and a volume in
//! which the check finds nothing stays so. fsck.f2fs has no kinds of complaints that it did not have before.
//! `BIFOLIO_SOAK_FACTOR` multiplies the number of damaged images, and `BIFOLIO_TEST_SEED` is the first seed.

mod faults;
mod fsck;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use testkit::f2fs::damage_synced_node;
use testkit::f2fs::hostile::{STRUCTURES, damage, damage_features, damage_orphans, has, images};
use testkit::hostile::written::{findings, new_kinds, over};
use testkit::{Changer, Random, seeds};

/// Number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 12;
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

#[derive(Debug, Default)]
struct Counts {
    images: u64,
    opened: u64,
    /// Those in which the check found nothing.
    sound: u64,
    /// Those in which fsck.f2fs found nothing.
    clean: u64,
}

/// Changes copies of an image, with different damage.
fn check_image(name: &str, valid: &[u8], counts: &mut Counts) {
    let has_small_blocks = valid[1024 + 16] == SMALL_SHIFT as u8;
    let mut shared = Arc::new(valid.to_vec());
    let made = Changer::open(over(&shared), Random(1)).expect("the valid image opens").run();
    assert!(made > 200, "{name}: {made} changes of the valid image");
    // fsck.f2fs reads no blocks of another size than that of pages.
    let mut fsck_image = has_small_blocks.then(|| fsck::Image::new(valid.len()));
    for seed in seeds(SEEDS) {
        let image = Arc::get_mut(&mut shared).expect("no volume is open");
        let damage = damage_fields(image, has_small_blocks, seed);
        let what = format!("{name}, seed {seed}: {damage}");
        let watchdog = Watchdog::start(what.clone());
        let device = over(&shared);
        let before = findings(&device);
        let complaints = fsck_image.as_mut().and_then(|judge| judge.complaints(&device));
        let changed = catch_unwind(AssertUnwindSafe(|| {
            Changer::open(Arc::clone(&device), Random(seed)).map(Changer::run)
        }));
        let panics = PANICS.load(Ordering::Relaxed);
        assert!(changed.is_ok() && panics == 0, "{what}: panicked");
        counts.images += 1;
        counts.opened += u64::from(changed.is_ok_and(|changed| changed.is_some()));
        if before.is_some_and(|before| before.is_empty()) {
            counts.sound += 1;
            assert_eq!(findings(&device), Some(Vec::new()), "{what}");
        }
        if let (Some(judge), Some(before)) = (&mut fsck_image, complaints) {
            counts.clean += u64::from(before.is_empty());
            if let Some(after) = judge.complaints(&device) {
                let new = new_kinds(&before, &after, fsck::HIDDEN);
                assert!(new.is_empty(), "{what}: {new:#?}, before: {before:#?}");
            }
        }
        drop((device, watchdog));
        let image = Arc::get_mut(&mut shared).expect("the volume is closed");
        for (part, valid) in image.chunks_mut(COPIED).zip(valid.chunks(COPIED)) {
            if part != valid {
                part.copy_from_slice(valid);
            }
        }
    }
}

#[test]
fn damaged_volumes_are_changed_or_refused_and_sound_ones_stay_sound() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(panic);
    }));
    let mut counts = Counts::default();
    for (name, valid) in images() {
        check_image(name, &valid, &mut counts);
    }
    let Counts { images, opened, sound, clean } = counts;
    // Damage that has no effect, or is always refused, would not test anything.
    assert!(opened * 2 > images && opened < images && sound > 0 && clean > 0, "{counts:?}");
}
