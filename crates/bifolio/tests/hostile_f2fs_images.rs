//! Damaged f2fs images: a walk over all files ends soon, and only with typed errors, and so do
//! changes. `BIFOLIO_SOAK_FACTOR` multiplies the number of damaged images, and adds kinds that only
//! an emulated machine can fill.
#![allow(clippy::print_stdout, reason = "the counts of a run")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use device::MemoryDevice;
use iomap::CacheOptions;
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::Kind;
use testkit::f2fs::hostile::{STRUCTURES, Structure, damage, has, small_images};
use testkit::walk::{Walked, walk};
use testkit::{Changer, Random, guest, must, soak_factor};
use vfs::{Volume, VolumeOptions};

/// The number of damaged copies of each image, for each structure. Failure messages have the seed.
const SEEDS: u64 = 15;
/// The kinds of images.
const KINDS: [&str; 3] = ["plain", "attributes", "no_inline"];
/// Kinds that an emulated machine fills.
const SLOW_KINDS: [&str; 3] = ["lz4", "zstd", "everything"];
/// Time limit, much longer than any walk takes on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);
/// The unit of copies, in bytes.
const BLOCK: usize = 4096;
/// The maximum number of runs of bytes that are overwritten in one image.
const RUNS_MAX: u64 = 8;

static IMAGES: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();

fn images() -> &'static [(&'static str, Vec<u8>)] {
    IMAGES.get_or_init(|| {
        let folder = must(TempDir::new(), "a folder");
        let slow: &[&str] = if soak_factor() > 1 { &SLOW_KINDS } else { &[] };
        let names: Vec<&str> = KINDS.iter().chain(slow).copied().collect();
        let kinds: Vec<_> = names.iter().map(|name| Kind::named(name)).collect();
        names.into_iter().zip(small_images(folder.path(), &kinds)).collect()
    })
}

/// Opens and walks a volume. Returns `None` if the volume is refused.
fn open_and_walk(image: Arc<Vec<u8>>, no_recovery: bool) -> Option<Walked> {
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let options = VolumeOptions { cache, no_recovery, ..VolumeOptions::default() };
    let volume = Volume::open_device(Arc::new(MemoryDevice::shared(image)), &options).ok()?;
    Some(walk(&volume))
}

/// Makes `image` equal to `valid` again.
fn restore(image: &mut [u8], valid: &[u8]) {
    let pairs = image.chunks_mut(BLOCK).zip(valid.chunks(BLOCK));
    for (block, valid) in pairs.filter(|(block, valid)| block != valid) {
        block.copy_from_slice(valid);
    }
}

/// Walks copies of all images, each changed by `change`, which gets a seed. Requires that at least
/// `opened_min` percent of them are opened, and that the walk finds corruption in at least
/// `corrupt_min` percent.
fn check(name: &str, opened_min: u64, corrupt_min: u64, change: impl Fn(&mut [u8], u64) -> String) {
    let (mut opened, mut corrupt, mut total) = (0, 0, 0);
    for (kind, valid) in images() {
        let mut image = Arc::new(valid.clone());
        for seed in 0..SEEDS * soak_factor() {
            let bytes = Arc::get_mut(&mut image).expect("no volume is open");
            let change = format!("{kind}, seed {seed}: {}", change(bytes, seed));
            let started = Instant::now();
            let copy = Arc::clone(&image);
            let result = std::panic::catch_unwind(|| open_and_walk(copy, seed % 2 == 0));
            let walked = result.unwrap_or_else(|_| panic!("{change}: panicked"));
            assert!(started.elapsed() < TIME_MAX, "{change}: took too long");
            total += 1;
            opened += u64::from(walked.is_some());
            corrupt += u64::from(walked.is_some_and(|walked| walked.corrupt > 0));
            restore(Arc::get_mut(&mut image).expect("the volume is closed"), valid);
        }
    }
    println!("{name}: {total} images, {opened} opened, {corrupt} with corruption");
    // Damage that has no effect would not test anything.
    assert!(opened * 100 >= total * opened_min, "{opened} of {total} opened");
    assert!(corrupt * 100 >= total * corrupt_min, "{corrupt} of {total} found corrupt");
}

/// The number of damaged copies of each image, for each structure, that are changed.
const CHANGED_SEEDS: u64 = 1;

/// The number of panics in all threads.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Changes damaged copies of all images at random.
fn change_damaged() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(panic);
    }));
    let (mut opened, mut total) = (0, 0);
    for (kind, valid) in images() {
        let made = Changer::open(Arc::new(MemoryDevice::new(valid.clone())), Random(1))
            .expect("the valid image opens")
            .run();
        assert!(made > 200, "{kind}: {made} changes of the valid image");
        let structures = (0..).zip(STRUCTURES).filter(|(_, structure)| has(valid, **structure));
        for (number, structure) in structures {
            for seed in 0..CHANGED_SEEDS * soak_factor() {
                let mut image = valid.clone();
                let damage = damage(&mut image, *structure, seed << 8 | number).description;
                let change = format!("{kind}, {structure:?}, seed {seed}: {damage}");
                let started = Instant::now();
                let changed = std::panic::catch_unwind(|| {
                    Changer::open(Arc::new(MemoryDevice::new(image)), Random(seed))
                        .map(Changer::run)
                });
                let panics = PANICS.load(Ordering::Relaxed);
                assert!(changed.is_ok() && panics == 0, "{change}: panicked");
                assert!(started.elapsed() < TIME_MAX, "{change}: took too long");
                total += 1;
                opened += u64::from(changed.is_ok_and(|changed| changed.is_some()));
            }
        }
    }
    println!("changes: {total} images, {opened} opened");
    assert!(opened * 2 > total, "{opened} of {total} opened");
}

/// Overwrites runs of bytes in blocks that are in use with random bytes. Checksums are not
/// corrected.
fn overwrite(image: &mut [u8], seed: u64) -> String {
    let mut random = Random(seed);
    let is_used = |block: &[u8]| block.iter().any(|byte| *byte != 0);
    let used: Vec<usize> =
        (2..image.len() / BLOCK).filter(|at| is_used(&image[at * BLOCK..][..BLOCK])).collect();
    let runs = (0..=random.below(RUNS_MAX)).map(|_| {
        let at = random.pick(&used).expect("a block") * BLOCK + random.below(4000) as usize;
        let length = 1 << random.below(6);
        image[at..at + length].fill_with(|| random.draw() as u8);
        format!("{length} bytes at {at:#x}")
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Returns the least percentages of images that are opened, and in which corruption is found.
fn expected(structure: Structure) -> (u64, u64) {
    match structure {
        Structure::Superblock => (20, 0),
        Structure::Checkpoint => (50, 0),
        Structure::NodeTable => (50, 5),
        Structure::Inode | Structure::Node | Structure::Footer => (80, 15),
        Structure::Addresses | Structure::DirectoryEntry => (80, 10),
        // The tables of segments, the summaries and the quota files are not read.
        Structure::CheckpointBlocks
        | Structure::SegmentTable
        | Structure::Summary
        | Structure::QuotaFile => (50, 0),
    }
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let fields = STRUCTURES.iter().map(|structure| {
        let name = format!("damage_to_{structure:?}_gives_typed_errors_only");
        Trial::test(name, move || {
            let (opened, corrupt) = expected(*structure);
            check(&format!("{structure:?}"), opened, corrupt, |image, seed| {
                if !has(image, *structure) {
                    return "nothing".to_owned();
                }
                damage(image, *structure, seed).description
            });
            Ok(())
        })
    });
    let bytes = Trial::test("random_bytes_in_any_structure_give_typed_errors_only", || {
        check("bytes", 50, 10, overwrite);
        Ok(())
    });
    let valid = Trial::test("valid_images_have_no_corruption", || {
        for (kind, image) in images() {
            let walked = open_and_walk(Arc::new(image.clone()), false).expect("it opens");
            assert!(walked.nodes > 200 && walked.corrupt == 0, "{kind}: {walked:?}");
        }
        Ok(())
    });
    let changes = Trial::test("damaged_images_are_changed_or_refused", || {
        change_damaged();
        Ok(())
    });
    libtest_mimic::run(&arguments, fields.chain([bytes, valid, changes]).collect()).exit();
}
