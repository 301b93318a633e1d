//! Images of f2fs that a kernel left without unmounting them: a later mount rolls them forward, and the library reads
//! their last checkpoint.

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::{Manifest, guest, must};
use vfs::VolumeOptions;

/// Kinds whose nodes differ.
const KINDS: [&str; 3] = ["plain", "attributes", "large_nat_bitmap"];

fn rolls_forward(seed: u64, names: bool) {
    let folder = must(TempDir::new(), "a folder");
    let image = |(number, name): (usize, &&str)| {
        let kind = Kind::named(name);
        let image = folder.path().join(number.to_string());
        kind.make(&image, kind.megabytes);
        (kind, image)
    };
    let images: Vec<(&Kind, PathBuf)> = KINDS.iter().enumerate().map(image).collect();
    f2fs::break_off(&images, &f2fs::interrupted_turn(seed, names));
    let before = f2fs::list_last_checkpoints(&images);
    for (number, (kind, image)) in images.iter().enumerate() {
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
        f2fs::check_by_fsck(image);
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
            // Linux changes directories at the time of the recovery, and writes their blocks elsewhere.
            let is_changed = of_guest.fact(name, fact) != before.fact(name, fact);
            let is_own =
                is_directory && is_changed && ["modified", "changed", "extents"].contains(&fact);
            // It reports preallocated blocks behind data as data.
            (!is_own && fact != "data").then(|| value.to_owned())
        })
    };
    comparable(ours).assert_equal("our recovery", &comparable(of_guest), "that of the kernel");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = [(1, false), (2, false), (3, true), (4, true)].map(|(seed, names)| {
        let steps = if names { "names_and_data" } else { "data" };
        Trial::test(format!("changes_{seed}_of_{steps}_are_rolled_forward"), move || {
            rolls_forward(seed, names);
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}
