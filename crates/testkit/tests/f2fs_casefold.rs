//! Directories of f2fs that ignore case, which this library fills and changes by names in another
//! case: fsck.f2fs finds no errors, and Linux, which looks up each name, sees the same tree, also
//! after its recovery.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::turns::{Bytes, OnVolume, Step};
use testkit::{Manifest, guest, must};
use vfs::{Credentials, Follow, Volume, VolumeOptions};

const BY: &Credentials = &Credentials::ROOT;
/// The flag of directories that ignore case.
const CASEFOLD: u32 = 0x4000_0000;

fn write(path: &str) -> Step {
    Step::Write(path.to_owned(), 0, Bytes { seed: path.len() as u64, length: 5000 })
}

fn rename(from: &str, to: &str) -> Step {
    Step::Rename(from.to_owned(), to.to_owned())
}

/// Returns steps that need several levels of a directory, and find names in another case.
fn steps() -> Vec<Step> {
    let names = ["README", "straße", "Ünïcödé", "ﬁle", "İstanbul", "Ωμέγα"];
    let mut steps: Vec<Step> = names.iter().map(|name| write(&format!("folded/{name}"))).collect();
    steps.extend(["plain", "folded/Large", "folded/Empty"].map(|path| Step::Mkdir(path.into())));
    steps.extend((0..700).map(|n| Step::Fifo(format!("folded/large/Name-Number-{n:04X}"))));
    steps.extend((0..100).map(|n| Step::Remove(format!("folded/LARGE/name-number-{:04x}", 7 * n))));
    steps.extend([
        rename("folded/readme", "FOLDED elsewhere"),
        rename("folded/STRASSE", "folded/Large/Straße"),
        rename("folded/large", "folded/Larger"),
        Step::Remove("folded/ÜNÏCÖDÉ".to_owned()),
        Step::Remove("folded/empty".to_owned()),
        Step::Link("folded/FILE".to_owned(), "folded/LARGER/Linked".to_owned()),
        // Both exist.
        write("folded/larger/strasse"),
        Step::Exchange("folded/ΩΜΈΓΑ".to_owned(), "folded/larger/LINKED".to_owned()),
    ]);
    steps
}

/// Returns steps of which Linux recovers the names.
fn late_steps() -> Vec<Step> {
    let path = "folded/Late file";
    vec![write(path), Step::Sync("folded/LATE FILE".to_owned())]
}

fn open(image: &Path) -> Volume {
    let options = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
    let device = must(device::open(image, options), image.display());
    let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    must(Volume::open_device(device, &options), image.display())
}

/// Changes whether a directory ignores case.
fn set_ignores_case(volume: &Volume, path: &str, ignores_case: bool) -> Result<()> {
    let node = volume.resolve(path.as_bytes(), Follow::No)?;
    let flags = node.attributes().flags & !CASEFOLD;
    node.set_flags(if ignores_case { flags | CASEFOLD } else { flags }, BY)
}

/// Makes a directory that ignores case, and checks which names and directories are refused.
fn prepare(image: &Path, is_strict: bool) {
    let volume = open(image);
    must(volume.mkdir(b"folded", 0o755, BY), "a directory");
    must(set_ignores_case(&volume, "folded", true), "a directory that ignores case");
    let not_unicode = volume.create_file(b"folded/\xFF", 0o644, BY);
    if is_strict {
        assert!(matches!(not_unicode, Err(Error::InvalidArgument(_))), "{not_unicode:?}");
    } else {
        must(not_unicode, "a name that is not Unicode");
        must(volume.remove(b"folded/\xFF", BY), "a name that is not Unicode");
    }
    must(volume.create_file(b"folded/Name", 0o644, BY), "a file");
    let again = volume.create_file(b"folded/NAME", 0o644, BY);
    assert!(matches!(again, Err(Error::Exists)), "{again:?}");
    let nonempty = set_ignores_case(&volume, "folded", false);
    assert!(matches!(nonempty, Err(Error::NotEmpty)), "{nonempty:?}");
    must(volume.remove(b"folded/name", BY), "a file by another case");
    must(set_ignores_case(&volume, "folded", false), "an empty directory");
    must(set_ignores_case(&volume, "folded", true), "an empty directory");
    must(volume.close(), "close");
}

fn check() {
    let folder = must(TempDir::new(), "a folder");
    let mut images: Vec<(&'static Kind, PathBuf)> = Vec::new();
    for name in ["casefold", "casefold_strict"] {
        let kind = Kind::named(name);
        let image = folder.path().join(name);
        kind.make(&image, kind.megabytes);
        prepare(&image, name == "casefold_strict");
        let mut ours = OnVolume::open(&image);
        ours.run(&steps());
        ours.sync();
        ours.run(&late_steps());
        let broken_off = image.with_extension("broken_off");
        must(std::fs::copy(&image, &broken_off), broken_off.display());
        ours.close();
        f2fs::check_by_both(&image);
        images.extend([(kind, image), (kind, broken_off)]);
    }
    let read = |recovers: bool, image: &Path| {
        let volume = VolumeOptions::new().no_recovery(!recovers).open(image);
        Manifest::of_volume(&must(volume, image.display()))
    };
    let ours: Vec<Manifest> = images.iter().map(|(_, image)| read(true, image)).collect();
    let checkpoints: Vec<Manifest> = images.iter().map(|(_, image)| read(false, image)).collect();
    let of_guest = f2fs::list_all(&images);
    for (number, (_, image)) in images.iter().enumerate() {
        let names = of_guest[number].len();
        assert!(names > 600, "{}: only {names} names", image.display());
        assert!(of_guest[number].fact("folded/Late file", "size").is_some(), "{}", image.display());
        f2fs::check_recovered(&ours[number], &checkpoints[number], &of_guest[number]);
        f2fs::check_by_both(image);
    }
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trial = Trial::test("directories_that_ignore_case_are_changed_and_recovered", || {
        check();
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![trial]).exit();
}
