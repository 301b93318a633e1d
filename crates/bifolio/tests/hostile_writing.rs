//! Changes of damaged images: every change ends soon, and only with typed errors, and no background
//! thread panics.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::MemoryDevice;
use testkit::hostile::{KINDS, damage, small_image};
use testkit::{Changer, Random, seeds, soak_factor};

/// Number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 40;
/// Time limit, much longer than any test takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Number of panics in all threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

#[track_caller]
fn check(kind: usize) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(panic);
    }));
    let folder = tempfile::tempdir().unwrap();
    let valid = small_image(Path::new(folder.path()), KINDS[kind]);
    let made = Changer::open(Arc::new(MemoryDevice::new(valid.clone())), Random(1))
        .expect("the valid image opens")
        .run();
    assert!(made > 200, "{made} changes of the valid image");
    let mut opened = 0;
    for seed in seeds(SEEDS) {
        let mut image = valid.clone();
        damage(&mut image, seed << 8 | kind as u64);
        let started = Instant::now();
        let changed = std::panic::catch_unwind(|| {
            Changer::open(Arc::new(MemoryDevice::new(image)), Random(seed)).map(Changer::run)
        });
        let panics = PANICS.load(Ordering::Relaxed);
        assert!(changed.is_ok() && panics == 0, "kind {kind}, seed {seed}: panicked");
        assert!(started.elapsed() < TIME_MAX, "kind {kind}, seed {seed}: took too long");
        opened += u64::from(changed.is_ok_and(|changed| changed.is_some()));
    }
    // Damage that has no effect would not test anything.
    assert!(opened > SEEDS * soak_factor() / 4, "{opened} opened");
}

macro_rules! kinds {
    ($($name:ident $kind:literal)*) => {
        $(#[test]
        fn $name() {
            check($kind);
        })*

        #[test]
        fn all_kinds_of_images_are_tested() {
            assert_eq!([$($kind),*].len(), KINDS.len());
        }
    };
}

kinds! {
    damaged_ext2_is_changed_or_refused 0
    damaged_ext3_is_changed_or_refused 1
    damaged_inline_data_is_changed_or_refused 2
    damaged_checksummed_volumes_are_changed_or_refused 3
    damaged_ea_inode_and_group_checksums_are_changed_or_refused 4
    damaged_bigalloc_is_changed_or_refused 5
    damaged_meta_groups_are_changed_or_refused 6
    damaged_64k_blocks_are_changed_or_refused 7
    damaged_volumes_with_fast_commits_are_changed_or_refused 8
    damaged_volumes_with_multiple_mount_protection_are_changed_or_refused 9
    damaged_volumes_with_an_orphan_file_are_changed_or_refused 10
    damaged_indexes_of_three_levels_are_changed_or_refused 11
}
