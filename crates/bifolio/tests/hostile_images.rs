//! Damaged images: a walk over all files ends soon, and only with typed errors.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::MemoryDevice;
use iomap::CacheOptions;
use testkit::hostile::{KINDS, damage, small_image};
use testkit::walk::{Walked, walk};
use vfs::{Volume, VolumeOptions};

/// Number of damaged copies of each image. Failure messages have the seed.
const SEEDS: u64 = 400;
/// Time limit, much longer than any walk takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Opens and walks a volume. Returns `None` if the volume is refused.
fn open_and_walk(image: Vec<u8>) -> Option<Walked> {
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let options = VolumeOptions { cache, ..VolumeOptions::default() };
    let volume = Volume::open_device(Arc::new(MemoryDevice::new(image)), &options).ok()?;
    Some(walk(&volume))
}

#[track_caller]
fn check(kind: usize) {
    let folder = tempfile::tempdir().unwrap();
    let valid = small_image(Path::new(folder.path()), KINDS[kind]);
    let whole = open_and_walk(valid.clone()).expect("the valid image opens");
    assert!(whole.nodes > 300 && whole.corrupt == 0, "the walk sees the tree: {whole:?}");
    let (mut opened, mut corrupt) = (0, 0);
    for seed in 0..SEEDS {
        let mut image = valid.clone();
        damage(&mut image, seed << 8 | kind as u64);
        let started = Instant::now();
        let result = std::panic::catch_unwind(|| open_and_walk(image));
        let walked = result.unwrap_or_else(|_| panic!("kind {kind}, seed {seed}: panicked"));
        assert!(started.elapsed() < TIME_MAX, "kind {kind}, seed {seed}: took too long");
        opened += u64::from(walked.is_some());
        corrupt += u64::from(walked.is_some_and(|walked| walked.corrupt > 0));
    }
    // Damage that has no effect would not test anything.
    assert!(opened > SEEDS / 2, "{opened} of {SEEDS} opened");
    assert!(corrupt > SEEDS / 4, "{corrupt} of {SEEDS} were found corrupt");
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
    damaged_ext2_gives_typed_errors_only 0
    damaged_ext3_gives_typed_errors_only 1
    damaged_inline_data_gives_typed_errors_only 2
    damaged_checksummed_volumes_give_typed_errors_only 3
    damaged_ea_inode_and_group_checksums_give_typed_errors_only 4
    damaged_bigalloc_gives_typed_errors_only 5
    damaged_meta_groups_give_typed_errors_only 6
    damaged_64k_blocks_give_typed_errors_only 7
    damaged_volumes_with_fast_commits_give_typed_errors_only 8
    damaged_volumes_with_multiple_mount_protection_give_typed_errors_only 9
    damaged_volumes_with_an_orphan_file_give_typed_errors_only 10
    damaged_indexes_of_three_levels_give_typed_errors_only 11
}
