//! Images of f2fs that a kernel left without unmounting them, or that were copied in the middle of
//! its work: a later mount rolls them forward, and the library recovers the same in memory. Without
//! recovery, it reads the last checkpoint.
//!
//! `BIFOLIO_CRASH_FACTOR` multiplies the number of recordings with states in the middle, and that
//! of damaged images.

#![allow(clippy::print_stdout, reason = "a run prints the number of judged states")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{DeviceOffset, Error};
use device::{MemoryDevice, RecordDevice, Replay, SharedDevice};
use iomap::{CacheOptions, PageCache};
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::crash::tried;
use testkit::f2fs::{self, Kind, Steps, Torn};
use testkit::{Manifest, Random, guest, must};
use vfs::{AtomicWrite, Credentials, OpenMode, Volume, VolumeOptions};

/// Kinds whose nodes differ.
const KINDS: [&str; 3] = ["plain", "attributes", "large_nat_bitmap"];

fn rolls_forward(seed: u64, kinds: Steps) {
    let folder = must(TempDir::new(), "a folder");
    let image = |(number, name): (usize, &&str)| {
        let kind = Kind::named(name);
        let image = folder.path().join(number.to_string());
        kind.make(&image, kind.megabytes);
        (kind, image)
    };
    let images: Vec<(&Kind, PathBuf)> = KINDS.iter().enumerate().map(image).collect();
    f2fs::break_off(&images, &f2fs::interrupted_turn(seed, kinds));
    let before = f2fs::list_last_checkpoints(&images);
    for (number, (_, image)) in images.iter().enumerate() {
        let volume = VolumeOptions::new().no_recovery(true).open(image);
        let ours = Manifest::of_volume(&must(volume, image.display()));
        // Linux reports preallocated blocks behind data as data.
        let comparable = |manifest: Manifest| {
            manifest.map(|_, _, fact, value| (fact != "data").then(|| value.to_owned()))
        };
        let [ours, of_guest] = [ours, before[number].clone()].map(comparable);
        ours.assert_equal("our reading of the checkpoint", &of_guest, "the kernel's");
    }
    let recovered: Vec<Manifest> = images.iter().map(|(_, image)| recover(image)).collect();
    let mut random = Random(seed);
    let in_place = images
        .iter()
        .zip(&recovered)
        .map(|((kind, image), recovered)| (*kind, recover_in_place(image, recovered, &mut random)));
    let in_place: Vec<(&Kind, PathBuf)> = in_place.collect();
    let after = f2fs::list_all(&images);
    let again = f2fs::list_all(&[images.clone(), in_place].concat());
    for (number, (kind, image)) in images.iter().enumerate() {
        let changes = before[number].differences("the checkpoint", &after[number], "the kernel");
        // At least the last file.
        assert!(!changes.is_empty(), "{}: seed {seed} needs no roll-forward", kind.name);
        f2fs::check_recovered(&recovered[number], &before[number], &after[number]);
        let in_place = &again[images.len() + number];
        f2fs::check_recovered(&recovered[number], &before[number], in_place);
        after[number].assert_equal(
            "the mount that rolled forward",
            &again[number],
            "the next mount",
        );
        f2fs::check_by_both(image);
    }
}

/// Reads a volume after its recovery in memory. Checks that the image does not change.
fn recover(image: &Path) -> Manifest {
    let before = must(std::fs::read(image), image.display());
    let manifest = Manifest::of_image(image);
    assert!(must(std::fs::read(image), image.display()) == before, "the image was changed");
    manifest
}

/// A text that is printed if the thread panics while this exists.
struct OnPanic(String);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0);
        }
    }
}

/// The kinds of images that are cut off. The number of a recording chooses three of them.
const CUT_KINDS: [&str; 6] = [
    "plain",
    "attributes",
    "large_inline_xattrs",
    "no_inline",
    "large_nat_bitmap",
    "written_in_order",
];
/// The size of an image that is cut off, in MiB.
const SMALL_MEGABYTES: u64 = 64;
/// The number of states of each recording, of which `make test` tries half.
const STATES: usize = 30;

/// The number of judged states, and of those with something to recover.
static JUDGED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// Checks that states in the middle of writing and syncing are recovered as Linux does it.
fn recovers_cut_states(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let kinds = [Steps::Data, Steps::Moves, Steps::Orphans, Steps::Names][seed as usize % 4];
    // The last one does not move blocks.
    let names = if kinds == Steps::Moves { &CUT_KINDS[..5] } else { &CUT_KINDS };
    let image = |number: usize| {
        let kind = Kind::named(names[(seed as usize + 2 * number) % names.len()]);
        let image = folder.path().join(number.to_string());
        kind.make(&image, SMALL_MEGABYTES);
        (kind, image)
    };
    let images: Vec<(&Kind, PathBuf)> = (0..3).map(image).collect();
    let turn = f2fs::interrupted_turn(seed, kinds);
    let states = f2fs::cut_states(&images, &turn, seed, tried(STATES), folder.path());
    judge(&states, seed);
}

/// Checks that power cuts while a guest writes and syncs are recovered as Linux does it.
fn recovers_recorded_states(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let kinds = [Steps::Data, Steps::Moves, Steps::Orphans, Steps::Names][seed as usize % 4];
    let kind = Kind::named(CUT_KINDS[seed as usize % 5]);
    let image = folder.path().join("image");
    kind.make(&image, SMALL_MEGABYTES);
    let turn = f2fs::interrupted_turn(seed, kinds);
    let states = f2fs::recorded_states(kind, &image, &turn, seed, tried(STATES), folder.path());
    judge(&states, seed);
}

/// The number of atomic writes that are cut off.
const ATOMIC_WRITES: u64 = 20;
/// The number of states of each of their recordings.
const ATOMIC_STATES: usize = 12;

/// Checks that Linux recovers what our atomic writes leave after power cuts.
fn recovers_atomic_writes(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let kind = Kind::named(CUT_KINDS[seed as usize % 2]);
    let image = folder.path().join("image");
    kind.make(&image, SMALL_MEGABYTES);
    let base = MemoryDevice::new(must(std::fs::read(&image), image.display()));
    let device = Arc::new(must(RecordDevice::new(Arc::new(base)), "a recorder"));
    let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    let volume = must(Volume::open_device(shared, &options), "the volume");
    let mut random = Random(seed);
    let files = ["/one", "/other"].map(|path| {
        let node = must(volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT), path);
        let file = must(node.open_for(OpenMode { write: true, append: false }), path);
        must(file.write_all_at(&testkit::tree::contents(seed, 600_000), 0), path);
        file
    });
    must(volume.sync(), "a sync");
    let begun = device.point();
    for number in 0..ATOMIC_WRITES {
        let file = &files[random.below(2) as usize];
        let kind = if random.below(3) == 0 { AtomicWrite::Replace } else { AtomicWrite::Update };
        must(file.atomic_start(kind), "an atomic write");
        for _ in 0..=random.below(4) {
            let length = 1 + random.below(200_000) as usize;
            let data = testkit::tree::contents(seed << 32 | number, length);
            must(file.write_all_at(&data, random.below(5_000_000)), "a write");
            if random.below(4) == 0 {
                must(volume.sync(), "a sync");
            }
        }
        let end = if random.below(4) == 0 { file.atomic_abort() } else { file.atomic_commit() };
        must(end, "the end of an atomic write");
    }
    let recording = device.recording();
    let points = begun..recording.crash_points().end;
    let states = f2fs::states_after_cuts(
        kind,
        &recording,
        points,
        seed,
        tried(ATOMIC_STATES),
        folder.path(),
    );
    judge(&states, seed);
}

fn judge(states: &[(&'static Kind, PathBuf)], seed: u64) {
    assert!(!states.is_empty(), "seed {seed}: no states");
    let ours: Vec<_> = states.iter().map(|(_, image)| recover_or_refuse(image)).collect();
    let mut random = Random(seed);
    for ((_, image), (_, recovered)) in states.iter().zip(&ours) {
        if let Ok(recovered) = recovered {
            let copy = recover_in_place(image, recovered, &mut random);
            must(std::fs::remove_file(&copy), copy.display());
        }
    }
    let after = f2fs::list_all(states);
    for (number, ((kind, _), (checkpoint, recovered))) in states.iter().zip(&ours).enumerate() {
        let of_guest = &after[number];
        let _shown = OnPanic(format!("seed {seed}, state {number}, {}", kind.name));
        JUDGED[0].fetch_add(1, Ordering::Relaxed);
        match recovered {
            Ok(recovered) => {
                let keeps_xattrs = keeps_xattrs(&states[number].1);
                // Of a list without its end, Linux shows the part that the inode has, or none, or
                // refuses to read it.
                let comparable = |manifest: &Manifest| {
                    manifest.clone().map(|name, _, fact, value| {
                        let is_xattr = fact.starts_with("xattr ");
                        let is_damaged = of_guest.fact(name, "xattr list") == Some("damaged");
                        (!is_xattr || !keeps_xattrs && !is_damaged).then(|| value.to_owned())
                    })
                };
                let [ours, of_guest] = [recovered, of_guest].map(comparable);
                f2fs::check_recovered(&ours, checkpoint, &of_guest);
                let changes = checkpoint.differences("the checkpoint", recovered, "recovered");
                JUDGED[1].fetch_add(usize::from(!changes.is_empty()), Ordering::Relaxed);
            }
            // Linux ignores all synced nodes then.
            Err(error) => {
                println!("seed {seed}, state {number}, {}: {error}", kind.name);
                JUDGED[2].fetch_add(1, Ordering::Relaxed);
                f2fs::check_recovered(checkpoint, checkpoint, of_guest);
            }
        }
    }
}

/// The number of power cuts in the middle of each recovery in place.
const CUTS: u64 = 3;

/// Recovers a copy of an image in place. Checks that fsck.f2fs and the library's check find no
/// errors, that nothing is left to recover, and that the copy has what the recovery in memory has
/// found, also after a power cut. Returns the copy.
fn recover_in_place(image: &Path, recovered: &Manifest, random: &mut Random) -> PathBuf {
    let intact = Arc::new(must(std::fs::read(image), image.display()));
    let base: SharedDevice = Arc::new(MemoryDevice::shared(Arc::clone(&intact)));
    let device = Arc::new(must(RecordDevice::new(Arc::clone(&base)), "a recorder"));
    let recorder: SharedDevice = Arc::clone(&device) as SharedDevice;
    let cache = must(PageCache::new(CacheOptions::default()), "a cache");
    let options = fs::FormatOptions::default();
    let volume =
        ::f2fs::Volume::open_for_writing(recorder, &cache, &options, &::f2fs::Format::default());
    let report = must(volume, image.display()).recovery().cloned();
    // Linux deletes orphans in other blocks. New blocks of directories have no address in memory.
    let comparable = |manifest: &Manifest| {
        manifest.clone().map(|_, mode, fact, value| {
            let is_own = fact == "extents" && mode.starts_with("04");
            (!is_own).then(|| value.to_owned())
        })
    };
    let check = |device: SharedDevice, options: &VolumeOptions, what: &str| {
        let volume = must(Volume::open_device(device, options), what);
        let found = comparable(&Manifest::of_volume(&volume));
        found.assert_equal(what, &comparable(recovered), "in memory");
    };
    let as_it_is = VolumeOptions { no_recovery: true, ..VolumeOptions::default() };
    check(Arc::clone(&base), &as_it_is, "recovered in place");
    let recording = device.recording();
    let points = recording.crash_points();
    for number in 0..if report.is_some() { CUTS } else { 0 } {
        // Every other cut is around the write of the last block, which makes the new checkpoint
        // valid.
        let span = if number % 2 == 0 { points.len() as u64 } else { 3 };
        let point = points.end - 1 - random.below(span) as usize;
        let kept = random.below(9);
        let cut = Replay::new(&recording).image(point, |_, _| random.below(8) < kept);
        let device = Arc::new(MemoryDevice::new(cut));
        check(device, &VolumeOptions::default(), &format!("a recovery cut at {point}"));
    }
    let mut bytes = vec![0; intact.len()];
    must(base.read_at(DeviceOffset(0), &mut bytes), "the device");
    let copy = image.with_extension("in_place");
    must(std::fs::write(&copy, bytes), copy.display());
    let again = VolumeOptions::new().open(&copy);
    let details = must(again, copy.display()).info().details;
    assert!(details.iter().all(|(name, _)| *name != "recovery"), "a second recovery");
    f2fs::check_by_both(&copy);
    copy
}

/// Reads a volume as the checkpoint has it, and after its recovery. Checks that the image does not
/// change.
fn recover_or_refuse(image: &Path) -> (Manifest, Result<Manifest, Error>) {
    let before = must(std::fs::read(image), image.display());
    let checkpoint = VolumeOptions::new().no_recovery(true).open(image);
    let checkpoint = Manifest::of_volume(&must(checkpoint, image.display()));
    let recovered = VolumeOptions::new().open(image).map(|volume| Manifest::of_volume(&volume));
    assert!(must(std::fs::read(image), image.display()) == before, "the image was changed");
    (checkpoint, recovered)
}

/// Returns whether inodes keep extended attributes, since new ones were not synced completely.
fn keeps_xattrs(image: &Path) -> bool {
    let volume = must(VolumeOptions::new().open(image), image.display());
    volume.info().details.iter().any(|(name, _)| *name == "xattrs_kept")
}

/// The number of damaged images of each kind.
const DAMAGES: u64 = 150;

/// Checks that damage to synced nodes gives errors, and never a panic or endless work.
fn damage_is_found() {
    let folder = must(TempDir::new(), "a folder");
    let image = |name: &'static str| {
        let kind = Kind::named(name);
        let image = folder.path().join(name);
        kind.make(&image, SMALL_MEGABYTES);
        (kind, image)
    };
    let images: Vec<(&Kind, PathBuf)> = ["plain", "attributes"].map(image).into();
    f2fs::break_off(&images, &f2fs::interrupted_turn(5, Steps::Orphans));
    let (mut refused, mut opened) = (0, 0);
    for (kind, image) in &images {
        let intact = must(std::fs::read(image), image.display());
        for seed in 0..DAMAGES * testkit::crash::factor() {
            let mut damaged = intact.clone();
            let description = f2fs::damage_synced_node(&mut damaged, seed).expect("a node");
            let _shown = OnPanic(format!("{}, seed {seed}: {description}", kind.name));
            let device = Arc::new(MemoryDevice::new(damaged));
            match Volume::open_device(device, &VolumeOptions::default()) {
                Ok(volume) => {
                    opened += 1;
                    testkit::walk::walk(&volume);
                }
                Err(Error::Corrupt(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(refused > 20 && opened > 20, "{refused} are refused, {opened} are opened");
}

/// The flag of a checkpoint that fsck.f2fs has written: the upper half of versions in nodes does
/// not count.
const NO_CRC_RECOVERY: u32 = 0x200;
/// The flag of a checkpoint whose successors were disabled.
const DISABLED: u32 = 0x1000;

/// Checks which flags of the checkpoint end the chain of synced nodes.
fn flags_of_checkpoints() {
    let folder = must(TempDir::new(), "a folder");
    let kind = Kind::named("attributes");
    let images: Vec<_> = ["intact", "other_checksum", "no_crc", "disabled"]
        .map(|name| (kind, folder.path().join(name)))
        .into();
    let path = |number: usize| images[number].1.as_path();
    kind.make(path(0), SMALL_MEGABYTES);
    f2fs::break_off(&images[..1], &f2fs::interrupted_turn(7, Steps::Data));
    for number in 1..images.len() {
        must(std::fs::copy(path(0), path(number)), "a copy");
    }
    f2fs::set_checkpoint_flags(path(1), 0);
    f2fs::set_checkpoint_flags(path(2), NO_CRC_RECOVERY);
    f2fs::set_checkpoint_flags(path(3), DISABLED);
    let ours: Vec<_> = images.iter().map(|(_, image)| recover_or_refuse(image)).collect();
    // Linux does not mount the last one only to read: it would enable checkpoints.
    let after = f2fs::list_all(&images[..3]);
    for (number, (checkpoint, recovered)) in ours.iter().enumerate() {
        let name = path(number).display();
        let recovered = must(recovered.clone(), &name);
        let is_recovered = !checkpoint.differences("", &recovered, "").is_empty();
        assert_eq!(is_recovered, [true, false, true, false][number], "{name}");
        if let Some(of_guest) = after.get(number) {
            f2fs::check_recovered(&recovered, checkpoint, of_guest);
        }
    }
}

/// The number of synced inodes that are torn.
const TORN: u64 = 20;

/// Checks that the chain of synced nodes ends at a torn inode: what is recovered is the same as if
/// it was not written at all. Linux verifies no checksum there, and recovers the old contents as if
/// they were synced.
fn torn_inodes_end_the_chain() {
    let folder = must(TempDir::new(), "a folder");
    let kind = Kind::named("attributes");
    let images = vec![(kind, folder.path().join("image"))];
    kind.make(&images[0].1, SMALL_MEGABYTES);
    f2fs::break_off(&images, &f2fs::interrupted_turn(8, Steps::Data));
    let intact = must(std::fs::read(&images[0].1), "the image");
    let recovered = |seed, torn| {
        let mut image = intact.clone();
        assert!(f2fs::tear_synced_inode(&mut image, seed, torn), "no synced inode");
        let device = Arc::new(MemoryDevice::new(image));
        let volume = Volume::open_device(device, &VolumeOptions::default());
        Manifest::of_volume(&must(volume, format_args!("{torn:?}, seed {seed}")))
    };
    let all: Vec<Manifest> = (0..TORN).map(|seed| recovered(seed, Torn::Last)).collect();
    for (seed, torn) in (0..).zip(&all) {
        torn.assert_equal("a torn inode", &recovered(seed, Torn::Nothing), "none");
    }
    let differ = all.iter().filter(|manifest| !manifest.differences("", &all[0], "").is_empty());
    assert!(differ.count() > 3, "all chains end at the same node");
}

/// Checks what `bifolio info` shows of a recovery.
fn info_of_recovery() {
    let folder = must(TempDir::new(), "a folder");
    let kind = Kind::named("plain");
    let images = vec![(kind, folder.path().join("image"))];
    kind.make(&images[0].1, SMALL_MEGABYTES);
    let detail = |no_recovery, name: &str| {
        let volume = VolumeOptions::new().no_recovery(no_recovery).open(&images[0].1);
        let details = must(volume, "the image").info().details;
        let found = details.into_iter().find(|(detail, _)| *detail == name);
        found.map(|(_, value)| format!("{value:?}"))
    };
    assert_eq!(detail(false, "recovery"), None, "a new volume needs no recovery");
    f2fs::break_off(&images, &f2fs::interrupted_turn(6, Steps::Orphans));
    assert_eq!(detail(true, "recovery"), None);
    let replayed = detail(false, "recovery").expect("a recovery");
    assert!(replayed.contains("inodes replayed in memory"), "{replayed}");
    for name in ["inodes_created", "names_added", "orphans_deleted"] {
        assert!(detail(false, name).is_some(), "no {name}");
    }
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let changes = [(1, Steps::Data), (2, Steps::Data), (3, Steps::Names), (4, Steps::Names)].map(
        |(seed, kinds)| {
            let steps = if kinds == Steps::Data { "data" } else { "names_and_data" };
            Trial::test(format!("changes_{seed}_of_{steps}_are_rolled_forward"), move || {
                rolls_forward(seed, kinds);
                Ok(())
            })
        },
    );
    let mut trials = Vec::from(changes);
    for seed in 1..=testkit::crash::factor() {
        trials.push(Trial::test(format!("cut_states_{seed}_are_recovered"), move || {
            recovers_cut_states(seed);
            Ok(())
        }));
    }
    for seed in 1..=testkit::crash::factor() {
        trials.push(Trial::test(format!("power_cuts_{seed}_are_recovered"), move || {
            recovers_recorded_states(seed);
            Ok(())
        }));
    }
    for seed in 1..=testkit::crash::factor() {
        trials.push(Trial::test(format!("atomic_writes_{seed}_are_recovered"), move || {
            recovers_atomic_writes(seed);
            Ok(())
        }));
    }
    trials.push(Trial::test("damage_to_synced_nodes_is_an_error", || {
        damage_is_found();
        Ok(())
    }));
    trials.push(Trial::test("flags_of_a_checkpoint_end_the_chain", || {
        flags_of_checkpoints();
        Ok(())
    }));
    trials.push(Trial::test("torn_inodes_end_the_chain_of_synced_nodes", || {
        torn_inodes_end_the_chain();
        Ok(())
    }));
    trials.push(Trial::test("info_shows_a_recovery", || {
        info_of_recovery();
        Ok(())
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    let [judged, recovered, refused] = JUDGED.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!(
        "{judged} states were judged; {recovered} had something to recover; {refused} were refused"
    );
    conclusion.exit();
}
