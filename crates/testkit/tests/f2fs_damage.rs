//! Damage to single fields of f2fs images: fsck.f2fs finds much of it in each structure.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::hostile::{self, STRUCTURES, Structure};
use testkit::f2fs::{self, Kind};
use testkit::{command, guest, must};

/// The number of damaged images of each kind and structure.
const SEEDS: u64 = 12;

/// Two small images: without checksums of nodes, and with them.
static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

fn images() -> &'static [Vec<u8>] {
    IMAGES.get_or_init(|| {
        let folder = must(TempDir::new(), "a folder");
        let kinds = ["plain", "attributes"].map(Kind::named);
        hostile::small_images(folder.path(), &kinds)
    })
}

/// Returns whether fsck.f2fs finds no error.
fn is_clean(path: &Path) -> bool {
    // Some damage makes it hang, or end by a signal.
    let mut fsck = Command::new("timeout");
    let output = command::output(fsck.args(["10", "fsck.f2fs", "--dry-run"]).arg(path));
    output.status.success()
        && !output.text().contains("[Fail]")
        && !output.text().contains("[ASSERT]")
}

fn finds(structure: Structure) {
    let folder = must(TempDir::new(), "a folder");
    let path = folder.path().join("image");
    let (mut found, mut total) = (0, 0);
    for image in images() {
        for seed in 0..SEEDS {
            let mut damaged = image.clone();
            let description = hostile::damage(&mut damaged, structure, seed);
            assert_ne!(damaged, *image, "seed {seed}: {description}");
            must(std::fs::write(&path, &damaged), path.display());
            total += 1;
            found += u64::from(!is_clean(&path));
        }
    }
    assert!(found * 4 >= total, "fsck.f2fs finds only {found} of {total}");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = STRUCTURES.iter().map(|structure| {
        Trial::test(format!("damage_to_{structure:?}_is_found"), || {
            finds(*structure);
            Ok(())
        })
    });
    let trials = trials.chain([Trial::test("undamaged_images_are_clean", || {
        let folder = must(TempDir::new(), "a folder");
        for image in images() {
            let path = folder.path().join("image");
            must(std::fs::write(&path, image), path.display());
            f2fs::check_by_fsck(&path);
        }
        Ok(())
    })]);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
