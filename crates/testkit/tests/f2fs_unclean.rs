//! Images of f2fs that a kernel left without unmounting them: a later mount rolls them forward, and the library reads
//! their last checkpoint.

use std::path::PathBuf;

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
        let error = VolumeOptions::new().open(image).expect_err("files were synced");
        assert!(error.to_string().contains("--no-recovery"), "{}: {error}", kind.name);
        let volume = VolumeOptions::new().no_recovery(true).open(image);
        let ours = Manifest::of_volume(&must(volume, image.display()));
        // Linux reports preallocated blocks behind data as data.
        let comparable = |manifest: Manifest| {
            manifest.map(|_, _, fact, value| (fact != "data").then(|| value.to_owned()))
        };
        let [ours, of_guest] = [ours, before[number].clone()].map(comparable);
        ours.assert_equal("our reading of the checkpoint", &of_guest, "the kernel's");
    }
    let after = f2fs::list_all(&images);
    let again = f2fs::list_all(&images);
    for (number, (kind, image)) in images.iter().enumerate() {
        let changes = before[number].differences("the checkpoint", &after[number], "the kernel");
        // At least the last file.
        assert!(!changes.is_empty(), "{}: seed {seed} needs no roll-forward", kind.name);
        after[number].assert_equal(
            "the mount that rolled forward",
            &again[number],
            "the next mount",
        );
        f2fs::check_by_fsck(image);
    }
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
