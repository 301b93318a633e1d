//! Encrypted trees on f2fs that this library and Linux change by turns: fsck.f2fs finds no errors,
//! and both read the same, with the keys and without them.

use std::path::Path;
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{Error, FileOffset, Result, Unsupported};
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Filler, Kind, Tools};
use testkit::guest::Machine;
use testkit::tree::Feature;
use testkit::turns::{OnVolume, Plan, Step};
use testkit::{Manifest, encryption, guest, must};
use vfs::{
    Creation, Credentials, Fallocate, Follow, OpenMode, Privileges, RenameFlags, Volume,
    VolumeOptions,
};

const BY: &Credentials = &Credentials::ROOT;

/// The longest target of an encrypted symbolic link in a step.
const TARGET_BYTES_MAX: usize = 4000;

fn with_keys() -> VolumeOptions {
    VolumeOptions { keys: Arc::new(encryption::master_keys()), ..VolumeOptions::default() }
}

/// Returns the folders of all policies.
fn folders() -> Vec<&'static str> {
    let policies = encryption::policies().into_iter().chain(encryption::rare_policies());
    policies.map(|(name, _)| name).collect()
}

/// As the kind `encrypt`, with compression.
static KIND: Kind = Kind {
    name: "encrypt and compress",
    arguments: "-O extra_attr,compression,encrypt",
    tools: Tools::Installed,
    options: "",
    machine: Machine::EmulatedF2fs,
    filler: Filler::Guest,
    megabytes: 256,
    adjust: |options| options.features.push(Feature::Encryption),
};

/// FS_COMPR_FL.
const COMPRESSED: u32 = 4;

/// The folder that gets most steps.
const MOST: &str = "v2";

/// The plan of the folder that gets most steps, and the number of the turn.
struct Turns {
    plan: Plan,
    number: u64,
}

impl Turns {
    fn new(kind: &Kind, seed: u64) -> Self {
        let mut options = kind.tree();
        // Linux cannot move data within encrypted files.
        options.preallocate = false;
        Self { plan: Plan::new(options, seed), number: 0 }
    }

    /// Returns the steps of the next turn.
    fn next(&mut self, by_guest: bool) -> Vec<Step> {
        let turn = self.plan.turn(by_guest).whole();
        let mut steps: Vec<Step> =
            turn.into_iter().map(|step| shortened(step).below(MOST)).collect();
        for folder in folders() {
            steps.extend(few_steps(self.number).into_iter().map(|step| step.below(folder)));
        }
        self.number += 1;
        steps
    }
}

fn shortened(step: Step) -> Step {
    match step {
        Step::Symlink(path, length) => Step::Symlink(path, length.min(TARGET_BYTES_MAX)),
        step => step,
    }
}

/// Returns some steps that each policy's folder gets in turn `number`, on files of the turn before
/// and new ones.
fn few_steps(number: u64) -> Vec<Step> {
    let bytes = |seed: u64, length| testkit::turns::Bytes { seed, length };
    let mut steps = Vec::new();
    if number > 0 {
        let before = |name: &str| format!("few {}/{name}", number - 1);
        steps.extend([
            Step::Write(before("partial"), 5000, bytes(1, 100)),
            Step::Append(before("partial"), bytes(2, 9000)),
            Step::SetSize(before("cut"), 4097),
            Step::SetSize(before("cut"), 30_000),
            Step::Punch(before("punched"), 5000, 20_000),
            Step::Allocate(before("punched"), 6000, 50_000),
            Step::Write(before("punched"), 8000, bytes(3, 10)),
            Step::Rename(before("partial"), before(&"r".repeat(255))),
            Step::Remove(before("link 4000")),
        ]);
    }
    let new = |name: &str| format!("few {number}/{name}");
    steps.push(Step::Mkdir(format!("few {number}")));
    for name in ["partial", "cut", "punched"] {
        steps.push(Step::Write(new(name), 0, bytes(number << 8, 70_000)));
    }
    for length in [1, 14, 100, 3400, TARGET_BYTES_MAX] {
        steps.push(Step::Symlink(new(&format!("link {length}")), length));
    }
    for length in [1, 16, 17, 143, 150, 255] {
        steps.push(Step::Write(new(&"n".repeat(length)), 0, bytes(9, length)));
    }
    steps.push(Step::Fifo(new("fifo")));
    steps.push(Step::SetXattr(new("cut"), "user.large".into(), bytes(5, 3500)));
    steps.push(Step::Sync(new("cut")));
    steps
}

/// Leaves out what Linux reports otherwise: preallocated blocks behind data are data to it.
fn comparable(manifest: &Manifest) -> Manifest {
    manifest.clone().map(|_, _, fact, value| (fact != "data").then(|| value.to_owned()))
}

fn assert_equal(ours: &Manifest, of_guest: &Manifest, what: &str) {
    comparable(ours).assert_equal(what, &comparable(of_guest), "that of Linux");
}

fn turns(seed: u64) {
    let folder = must(TempDir::new(), "a folder");
    let kind = &KIND;
    let image = folder.path().join("image");
    kind.make(&image, kind.megabytes);
    let synced = folder.path().join("synced");
    let mut turns = Turns::new(kind, seed);

    let images = [(kind, image.clone())];
    let [_, by_guest, without_keys] =
        f2fs::change_all_encrypted(&images, &turns.next(true)).remove(0);
    assert!(by_guest.len() > 800, "only {} names", by_guest.len());
    assert_equal(&Manifest::of_image_with(&image, &with_keys()), &by_guest, "our reading");
    assert_equal(&Manifest::of_image(&image), &without_keys, "our reading without keys");

    let mut ours = OnVolume::open_with(&image, with_keys());
    ours.run(&turns.next(false));
    write_compressed(ours.volume());
    ours.close();
    f2fs::check_by_both(&image);
    let by_us = Manifest::of_image_with(&image, &with_keys());
    leave_synced(&image, &synced);
    let recovered = Manifest::of_image_with(&synced, &with_keys());
    let has = |name| recovered.fact(name, "size").is_some();
    assert!(has("v2/synced"), "the name was not recovered");
    assert!(!has("v2/not synced"), "fsync has written a checkpoint");

    let images = [(kind, image.clone()), (kind, synced.clone())];
    let mut steps = turns.next(true);
    let bytes = |length| testkit::turns::Bytes { seed: 4, length };
    steps.extend([
        Step::Write("v2/compressed/text".into(), 5000, bytes(100)),
        Step::Write("v2/compressed/of Linux".into(), 0, bytes(70_000)),
    ]);
    let mut listed = f2fs::change_all_encrypted(&images, &steps);
    // This kernel recovers files only if the volume is mounted for writing.
    let [_, of_guest, _] = listed.remove(1);
    for fact in ["size", "contents", "mode"] {
        let found = of_guest.fact("v2/synced", fact);
        assert_eq!(found, recovered.fact("v2/synced", fact), "the recovered {fact}");
    }
    assert!(of_guest.fact("v2/not synced", "size").is_none(), "never durable");
    let [before, after, without_keys] = listed.remove(0);
    assert_equal(&by_us, &before, "our changes");
    assert_equal(&Manifest::of_image_with(&image, &with_keys()), &after, "our reading");
    assert_equal(&Manifest::of_image(&image), &without_keys, "our reading without keys");
    f2fs::check_by_both(&image);
    f2fs::check_by_both(&synced);

    check_policies(&image);
    f2fs::check_by_both(&image);
    check_without_keys(&image);
    f2fs::check_by_both(&image);
}

/// Creates a folder of compressed files in an encrypted one, and a file in it, whose clusters are
/// changed in part.
fn write_compressed(volume: &Volume) {
    must(volume.mkdir(b"v2/compressed", 0o755, BY), "a folder");
    let folder = must(volume.resolve(b"v2/compressed", Follow::No), "a folder");
    must(folder.set_flags(COMPRESSED, BY), "chattr +c");
    let text: Vec<u8> = (0..300_000).map(|at| (at / 100) as u8).collect();
    must(volume.write("v2/compressed/text", &text), "text");
    let node = must(volume.resolve(b"v2/compressed/text", Follow::No), "text");
    let file = must(node.open_for(OpenMode { write: true, append: false }), "text");
    must(file.sync_all(), "fsync");
    must(file.write_at(b"changed", 150_000), "text");
    must(file.sync_all(), "fsync");
    let compression = must(node.compression(), "compression");
    assert!(compression.is_some_and(|found| found.saved_blocks > 50), "{compression:?}");
}

/// Copies the image to `copy` after a file with a new name was synced in an encrypted folder. Only
/// the chain of synced nodes has it.
fn leave_synced(image: &Path, copy: &Path) {
    must(std::fs::copy(image, copy), copy.display());
    let mut ours = OnVolume::open_with(copy, with_keys());
    let bytes = testkit::turns::Bytes { seed: 3, length: 20_000 };
    ours.run(&[
        Step::Write("v2/synced".into(), 0, bytes),
        Step::Sync("v2/synced".into()),
        Step::Write("v2/not synced".into(), 0, bytes),
    ]);
    let broken_off = copy.with_extension("broken_off");
    must(std::fs::copy(copy, &broken_off), broken_off.display());
    ours.close();
    must(std::fs::rename(&broken_off, copy), copy.display());
}

#[track_caller]
fn check_refused<T>(result: Result<T>, expected: impl Fn(&Error) -> bool) {
    match result {
        Ok(_) => panic!("not refused"),
        Err(error) => assert!(expected(&error), "{error:?}"),
    }
}

/// Checks that names cannot leave an encrypted tree for another policy's, and that data cannot move
/// within a file.
fn check_policies(image: &Path) {
    let ours = OnVolume::open_with(image, with_keys());
    let volume = ours.volume();
    let is_other = |error: &Error| *error == Error::OtherPolicy;
    let rename = |from: &[u8], to: &[u8], flags: RenameFlags| volume.rename_at(from, to, flags, BY);
    must(volume.create_file(b"plain", 0o644, BY), "a file");
    let moved = RenameFlags::default();
    let exchanged = RenameFlags { exchange: true, ..moved };
    check_refused(rename(b"v2/few 0/cut", b"lblk64/few 0/other", moved), is_other);
    check_refused(rename(b"plain", b"v2/plain", moved), is_other);
    check_refused(rename(b"v2/few 0/cut", b"plain", exchanged), is_other);
    check_refused(volume.link_at(b"v2/few 0/cut", b"lblk64/few 0/other"), is_other);
    check_refused(volume.link_at(b"plain", b"v2/plain"), is_other);
    must(rename(b"v2/few 0/cut", b"decrypted name", moved), "to a plain directory");
    must(rename(b"decrypted name", b"v2/back", moved), "back");
    must(rename(b"v2/few 0/fifo", b"lblk64/moved fifo", moved), "files without contents move");

    let node = must(volume.resolve(b"v2/back", Follow::No), "a file");
    let file = must(node.open_for(OpenMode { write: true, append: false }), "a file");
    let block = FileOffset(0)..FileOffset(4096);
    let shifted = file.fallocate(Fallocate::CollapseRange, block, Privileges::Keep);
    check_refused(shifted, |error| matches!(error, Error::Unsupported(Unsupported::Operation(_))));
    ours.close();
}

/// Checks that without keys, nothing can be created or written in encrypted folders, and everything
/// can be deleted.
fn check_without_keys(image: &Path) {
    let ours = OnVolume::open_with(image, VolumeOptions::default());
    let volume = ours.volume();
    let is_locked = |error: &Error| matches!(error, Error::Unsupported(Unsupported::Encrypted(_)));
    for folder in folders() {
        let name = |name: &str| format!("{folder}/{name}").into_bytes();
        check_refused(volume.create_file(&name("new"), 0o644, BY), is_locked);
        check_refused(volume.mkdir(&name("new"), 0o755, BY), is_locked);
        check_refused(volume.create_at(&name("new"), &Creation::symlink(b"to"), BY), is_locked);
        let fifo = Creation::of(FileType::Fifo, 0o644);
        check_refused(volume.create_at(&name("new"), &fifo, BY), is_locked);
        remove_all(volume, folder.as_bytes());
    }
    ours.close();
    let manifest = Manifest::of_image(image);
    assert!(folders().iter().all(|folder| manifest.fact(folder, "mode").is_none()));
}

/// Removes a folder with all names in it. Its files cannot be opened or cut.
fn remove_all(volume: &Volume, path: &[u8]) {
    let shown = String::from_utf8_lossy(path);
    let node = must(volume.resolve(path, Follow::No), &shown);
    if node.kind() == FileType::Regular {
        let is_locked =
            |error: &Error| matches!(error, Error::Unsupported(Unsupported::Encrypted(_)));
        let write = OpenMode { write: true, append: false };
        check_refused(node.open_for(write).and_then(|file| file.write_at(b"data", 0)), is_locked);
        check_refused(node.set_size(0, Privileges::Keep), is_locked);
    }
    if node.kind() == FileType::Directory {
        let mut names = Vec::new();
        must(
            node.read_dir(DirCursor::default(), &mut |entry| {
                names.push(entry.name.to_vec());
                std::ops::ControlFlow::Continue(())
            }),
            &shown,
        );
        for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
            remove_all(volume, &[path, name].join(&b"/"[..]));
        }
    }
    drop(node);
    must(volume.remove(path, BY), &shown);
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trial = Trial::test("turns_in_encrypted_folders_leave_clean_volumes", || {
        turns(1);
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![trial]).exit();
}
