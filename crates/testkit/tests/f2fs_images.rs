//! Images of f2fs of each kind: a guest fills them, fsck.f2fs finds no errors, and a later mount finds the same.

use std::path::PathBuf;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, KINDS, Kind};
use testkit::guest::Machine;
use testkit::{Manifest, guest, must};

/// The filled images of one machine, and their contents as two guests read them.
struct Filled {
    folder: TempDir,
    images: Vec<(&'static Kind, PathBuf)>,
    first: Vec<Manifest>,
    second: Vec<Manifest>,
}

impl Filled {
    fn new(machine: Machine) -> Self {
        let folder = must(TempDir::new(), "a folder");
        let kinds = KINDS.iter().filter(|kind| kind.machine == machine);
        let images: Vec<_> = kinds.map(|kind| (kind, folder.path().join(kind.name))).collect();
        for (kind, image) in &images {
            kind.make(image, kind.megabytes);
        }
        let first = f2fs::fill_all(&images);
        let second = f2fs::list_all(&images);
        Self { folder, images, first, second }
    }
}

/// The machines, and their images once a test needs them. `None` if a guest failed.
static FILLED: [(Machine, OnceLock<Option<Filled>>); 2] =
    [(Machine::UserMode, OnceLock::new()), (Machine::EmulatedF2fs, OnceLock::new())];

fn check(kind: &Kind) {
    let of_machine = FILLED.iter().find(|(machine, _)| *machine == kind.machine);
    let (machine, filled) = of_machine.expect("a machine");
    // A guest that failed is not booted again for its other images.
    let filled = filled.get_or_init(|| std::panic::catch_unwind(|| Filled::new(*machine)).ok());
    let filled = filled.as_ref().expect("the guest failed; see the panic above");
    let number = filled.images.iter().position(|(other, _)| other.name == kind.name);
    let number = number.expect("an image");
    let [first, second] = [&filled.first[number], &filled.second[number]];
    f2fs::check_by_fsck(&filled.images[number].1);
    assert!(first.len() > 1000, "only {} names", first.len());
    first.assert_equal("the first mount", second, "the second mount");
    let ours = Manifest::of_image(&filled.images[number].1);
    ours.assert_equal("ours", second, "the second mount");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = KINDS.iter().map(|kind| {
        Trial::test(format!("{}_is_filled_and_read_again", kind.name), || {
            check(kind);
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Statics are never dropped.
    for filled in FILLED.iter().filter_map(|(_, filled)| filled.get()).flatten() {
        let _ = std::fs::remove_dir_all(filled.folder.path());
    }
    conclusion.exit();
}
