//! Damage to single fields of f2fs images: fsck.f2fs finds much of it in each structure.

use std::fs::File;
use std::os::unix::fs::FileExt;
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

/// The unit of copies, in bytes.
const BLOCK: usize = 4096;

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

/// Writes the blocks of `new` that differ from those of `old`, which the file has.
fn copy_changes(old: &[u8], new: &[u8], path: &Path) {
    let file = must(File::options().write(true).open(path), path.display());
    let pairs = old.chunks(BLOCK).zip(new.chunks(BLOCK));
    for (number, (_, new)) in pairs.enumerate().filter(|(_, (old, new))| old != new) {
        must(file.write_all_at(new, (number * BLOCK) as u64), path.display());
    }
}

fn finds(structure: Structure) {
    let folder = must(TempDir::new(), "a folder");
    let path = folder.path().join("image");
    let (mut found, mut total) = (0, 0);
    for image in images() {
        must(std::fs::write(&path, image), path.display());
        for seed in 0..SEEDS {
            let mut damaged = image.clone();
            let description = hostile::damage(&mut damaged, structure, seed);
            assert_ne!(damaged, *image, "seed {seed}: {description}");
            copy_changes(image, &damaged, &path);
            total += 1;
            found += u64::from(!is_clean(&path));
            copy_changes(&damaged, image, &path);
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
