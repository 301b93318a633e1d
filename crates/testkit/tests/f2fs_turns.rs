//! Images of f2fs that this library and Linux change by turns: after each turn, fsck.f2fs and the library's check find no
//! errors, and both sides see the same tree. Some turns are interrupted, and the other side recovers.

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::turns::{OnVolume, Plan, Turn};
use testkit::{Manifest, guest, must};

/// Kinds whose nodes, directories or areas differ.
const KINDS: [&str; 6] = [
    "plain",
    "attributes",
    "large_inline_xattrs",
    "no_inline",
    "large_nat_bitmap",
    "written_in_order",
];
const TURNS: u64 = 4;

/// An empty image of a kind.
type Image = (&'static Kind, PathBuf);

/// Changes an image by a turn of this library.
fn change(image: &Path, turn: &Turn) {
    let mut ours = OnVolume::open(image);
    ours.run(&turn.whole());
    ours.close();
}

/// Checks that fsck.f2fs finds no errors in the images, and that Linux sees what the library sees.
fn judge(images: &[Image], what: &str) {
    let ours: Vec<Manifest> = images.iter().map(|(_, image)| Manifest::of_image(image)).collect();
    let of_guest = f2fs::list_all(images);
    for (number, (kind, image)) in images.iter().enumerate() {
        f2fs::check_by_both(image);
        // Linux reports preallocated blocks behind data as data.
        let comparable = |manifest: &Manifest| {
            manifest.clone().map(|_, _, fact, value| (fact != "data").then(|| value.to_owned()))
        };
        let what = format!("{}, {what}: our reading", kind.name);
        let [ours, of_guest] = [&ours[number], &of_guest[number]].map(comparable);
        ours.assert_equal(&what, &of_guest, "that of Linux");
    }
}

fn turns(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let image = |name: &&str| {
        let kind = Kind::named(name);
        let image = folder.path().join(name);
        kind.make(&image, kind.megabytes);
        (kind, image)
    };
    let images: Vec<Image> = KINDS.iter().map(image).collect();
    let mut plan = Plan::new(images[0].0.tree(), seed);
    for number in 0..TURNS {
        let by_guest = (seed + number) % 2 == 0;
        let turn = plan.turn(by_guest);
        if by_guest {
            f2fs::change_all(&images, &turn.whole());
        } else {
            images.iter().for_each(|(_, image)| change(image, &turn));
        }
        judge(&images, &format!("seed {seed}, turn {number}"));
    }
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for seed in 1..=2 {
        trials.push(Trial::test(format!("turns_{seed}_leave_clean_volumes"), move || {
            turns(seed);
            Ok(())
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
