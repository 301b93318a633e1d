//! Images of f2fs that a kernel changed at random, or nearly filled: fsck.f2fs finds no errors, and
//! a later mount finds the same.

use std::path::PathBuf;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::turns::{Plan, Step};
use testkit::{Manifest, guest, must};

/// An empty image of a kind in a folder.
type Image = (&'static Kind, PathBuf);

fn make(folder: &TempDir, name: &str, megabytes: u64) -> Image {
    let kind = Kind::named(name);
    let image = folder.path().join(name);
    kind.make(&image, megabytes);
    (kind, image)
}

/// Changes the images, and checks them.
fn change(images: &[Image], steps: &[Step]) -> Vec<Manifest> {
    let changed = f2fs::change_all(images, steps);
    let again = f2fs::list_all(images);
    for (number, (_, image)) in images.iter().enumerate() {
        f2fs::check_by_both(image);
        changed[number].assert_equal("the first mount", &again[number], "the second mount");
    }
    changed
}

fn random_changes(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let images = ["plain", "attributes", "large_sections"]
        .map(|name| make(&folder, name, Kind::named(name).megabytes));
    let mut plan = Plan::new(images[0].0.tree(), seed);
    for _ in 0..2 {
        let changed = change(&images, &plan.turn(true).whole());
        assert!(changed.iter().all(|manifest| manifest.len() > 700), "seed {seed}: few names");
    }
}

fn wear(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    // On small volumes, the kernel overwrites blocks in place, unless that mode is off.
    let images = ["plain", "written_in_order"].map(|name| make(&folder, name, 64));
    let changed = change(&images, &f2fs::wearing_steps(seed, 14));
    for manifest in &changed {
        assert!(manifest.len() > 30, "seed {seed}: only {} names", manifest.len());
    }
    let scattered = changed[1].count("extents", |extents| extents.matches(',').count() > 8);
    assert!(scattered > 10, "seed {seed}: only {scattered} files have many extents");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for seed in [1, 2] {
        trials.push(Trial::test(
            format!("random_changes_{seed}_leave_a_clean_volume"),
            move || {
                random_changes(seed);
                Ok(())
            },
        ));
        trials.push(Trial::test(format!("wear_{seed}_leaves_a_clean_volume"), move || {
            wear(seed);
            Ok(())
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
