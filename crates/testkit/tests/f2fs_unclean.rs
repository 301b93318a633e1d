//! Images of f2fs that a kernel left without unmounting them, or that were copied in the middle of its work: a later mount
//! rolls them forward, and the library recovers the same in memory. Without recovery, it reads the last checkpoint.
//!
//! `BIFOLIO_CRASH_FACTOR` multiplies the number of recordings with states in the middle, and that of damaged images.

#![allow(clippy::print_stdout, reason = "a run prints the number of judged states")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Error;
use device::MemoryDevice;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind, Steps};
use testkit::{Manifest, guest, must};
use vfs::{Volume, VolumeOptions};

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
    let after = f2fs::list_all(&images);
    let again = f2fs::list_all(&images);
    for (number, (kind, image)) in images.iter().enumerate() {
        let changes = before[number].differences("the checkpoint", &after[number], "the kernel");
        // At least the last file.
        assert!(!changes.is_empty(), "{}: seed {seed} needs no roll-forward", kind.name);
        check_recovered(&recovered[number], &before[number], &after[number]);
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

/// Checks that our recovery finds what Linux has after its own. `before` is the checkpoint.
#[track_caller]
fn check_recovered(ours: &Manifest, before: &Manifest, of_guest: &Manifest) {
    let comparable = |manifest: &Manifest| {
        manifest.clone().map(|name, mode, fact, value| {
            let is_directory = mode.starts_with("04");
            // Linux changes directories, and inodes that lose a name, at the time of the recovery. It writes the blocks of
            // directories elsewhere.
            let is_changed = |fact| of_guest.fact(name, fact) != before.fact(name, fact);
            let is_own = is_changed(fact)
                && match fact {
                    "modified" | "extents" => is_directory,
                    "changed" => is_directory || is_changed("links"),
                    _ => false,
                };
            // It reports preallocated blocks behind data as data.
            (!is_own && fact != "data").then(|| value.to_owned())
        })
    };
    comparable(ours).assert_equal("our recovery", &comparable(of_guest), "that of the kernel");
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
/// The number of states of each recording.
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
    let states = f2fs::cut_states(&images, &turn, seed, STATES, folder.path());
    assert!(!states.is_empty(), "seed {seed}: no states");
    let ours: Vec<_> = states.iter().map(|(_, image)| recover_or_refuse(image)).collect();
    let after = f2fs::list_all(&states);
    for (number, ((kind, _), (checkpoint, recovered))) in states.iter().zip(&ours).enumerate() {
        let of_guest = &after[number];
        let _shown = OnPanic(format!("seed {seed}, state {number}, {}", kind.name));
        JUDGED[0].fetch_add(1, Ordering::Relaxed);
        match recovered {
            Ok(recovered) => {
                check_recovered(recovered, checkpoint, of_guest);
                let changes = checkpoint.differences("the checkpoint", recovered, "recovered");
                JUDGED[1].fetch_add(usize::from(!changes.is_empty()), Ordering::Relaxed);
            }
            // Linux ignores all synced nodes then.
            Err(error) => {
                println!("seed {seed}, state {number}, {}: {error}", kind.name);
                JUDGED[2].fetch_add(1, Ordering::Relaxed);
                check_recovered(checkpoint, checkpoint, of_guest);
            }
        }
    }
}

/// Reads a volume as the checkpoint has it, and after its recovery. Checks that the image does not change.
fn recover_or_refuse(image: &Path) -> (Manifest, Result<Manifest, Error>) {
    let before = must(std::fs::read(image), image.display());
    let checkpoint = VolumeOptions::new().no_recovery(true).open(image);
    let checkpoint = Manifest::of_volume(&must(checkpoint, image.display()));
    let recovered = VolumeOptions::new().open(image).map(|volume| Manifest::of_volume(&volume));
    assert!(must(std::fs::read(image), image.display()) == before, "the image was changed");
    (checkpoint, recovered)
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

/// The flag of a checkpoint that fsck.f2fs has written: the upper half of versions in nodes does not count.
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
            check_recovered(&recovered, checkpoint, of_guest);
        }
    }
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
    trials.push(Trial::test("damage_to_synced_nodes_is_an_error", || {
        damage_is_found();
        Ok(())
    }));
    trials.push(Trial::test("flags_of_a_checkpoint_end_the_chain", || {
        flags_of_checkpoints();
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
