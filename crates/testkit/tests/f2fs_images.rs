//! Images of f2fs of each kind: a guest fills them, fsck.f2fs finds no errors, and the library
//! reads what a later mount of the guest finds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Filler, KINDS, Kind};
use testkit::guest::Machine;
use testkit::{Manifest, encryption, guest, must, verity};
use vfs::{Follow, VolumeOptions};

/// The offset of the superblock in an image.
const SUPERBLOCK: u64 = 1024;
/// The offset of the number of additional blocks of a checkpoint in the superblock.
const PAYLOAD: u64 = 1664;

/// Images of at most this size, in bytes, are also compared by their contents before and after
/// reading.
const HASHED_BYTES_MAX: u64 = 1 << 30;

/// The filled images of one machine, and their contents as the guest's kernel reads them.
struct Filled {
    folder: TempDir,
    images: Vec<(&'static Kind, PathBuf)>,
    /// Without keys and, for images with encrypted files, with them.
    of_guest: Vec<(Manifest, Option<Manifest>)>,
}

impl Filled {
    fn new(machine: Machine) -> Self {
        let folder = must(TempDir::new(), "a folder");
        let kinds = KINDS.iter().filter(|kind| kind.machine == machine);
        let images: Vec<_> = kinds.map(|kind| (kind, folder.path().join(kind.name))).collect();
        for (kind, image) in &images {
            kind.make(image, kind.megabytes);
        }
        let of_guest = f2fs::fill_and_decrypt_all(&images);
        Self { folder, images, of_guest }
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
    let (of_guest, decrypted) = &filled.of_guest[number];
    f2fs::check_by_both(&filled.images[number].1);
    let image = &filled.images[number].1;
    assert!(of_guest.len() > 1000, "only {} names", of_guest.len());
    check_features(kind, decrypted.as_ref().unwrap_or(of_guest), image);
    check_reading(image, &VolumeOptions::default(), of_guest);
    let keys = Arc::new(encryption::master_keys());
    let with_keys = VolumeOptions { keys, ..VolumeOptions::default() };
    assert_eq!(decrypted.is_some(), kind.has_encryption());
    if let Some(decrypted) = decrypted {
        check_reading(image, &with_keys, decrypted);
    }
    if kind.arguments.contains("verity") {
        check_verity(kind, image, &with_keys);
    }
}

/// Checks files with fs-verity, which are encrypted and compressed if the image has such files.
fn check_verity(kind: &Kind, image: &Path, options: &VolumeOptions) {
    let large = "verified/00819277";
    verity::check_damage(image, options, "verified/00000001");
    verity::check_damage(image, options, large);
    if kind.has_encryption() {
        verity::check_damage(image, options, &format!("encrypted/v2/{large}"));
        verity::check_damage(image, options, "compressed/verified");
        verity::check_damage(image, options, "encrypted/v2/compressed/verified");
    }
}

/// Checks that the library reads the same tree as the guest's Linux, and does not change the image.
fn check_reading(image: &Path, options: &VolumeOptions, of_guest: &Manifest) {
    let state = || {
        let metadata = must(image.metadata(), image.display());
        let contents = (metadata.len() <= HASHED_BYTES_MAX).then(|| {
            let file = must(File::open(image), image.display());
            let whole = 0..metadata.len();
            testkit::digest(metadata.len(), std::slice::from_ref(&whole), |at, bytes| {
                must(file.read_exact_at(bytes, at), image.display());
            })
        });
        (must(metadata.modified(), "a time"), contents)
    };
    let before = state();
    let ours = Manifest::of_image_with(image, options);
    // Linux reports preallocated blocks behind data as data, and merges compressed extents with
    // others.
    let comparable = |manifest: Manifest| {
        manifest.map(|name, _, fact, value| {
            let is_left_out = fact == "data" && name.starts_with("preallocated/")
                || fact == "extents" && name.ends_with("compressed/mixed");
            (!is_left_out).then(|| value.to_owned())
        })
    };
    let [ours, of_guest] = [ours, of_guest.clone()].map(comparable);
    ours.assert_equal("ours", &of_guest, "the guest");
    assert_eq!(state(), before, "the image was changed");
}

/// Checks that files of an image use the features of its kind.
fn check_features(kind: &Kind, manifest: &Manifest, image: &Path) {
    let has = |feature: &str| kind.arguments.contains(feature);
    let flags = |name: &str| {
        let text = manifest.fact(name, "flags").unwrap_or_else(|| panic!("no flags of {name}"));
        must(u32::from_str_radix(text.trim_start_matches("0x"), 16), text)
    };
    let is_loaded = kind.filler == Filler::Sload;
    assert_eq!(manifest.fact("sizes/00004096", "created").is_some(), has("inode_crtime"));
    assert_eq!(manifest.fact("lost+found", "mode").is_some(), has("lost_found"));
    if has("verity") {
        assert_ne!(flags("verified/00004096") & 0x10_0000, 0, "FS_VERITY_FL");
    }
    if has("casefold") {
        assert_ne!(flags("casefolded/Large") & 0x4000_0000, 0, "FS_CASEFOLD_FL");
    }
    if has("encrypt") {
        assert_ne!(flags("encrypted/v2/sparse") & 0x800, 0, "FS_ENCRYPT_FL");
    }
    if has("compression") {
        let number = |fact| manifest.fact("compressed/released", fact).map(str::parse::<u64>);
        let [blocks, size] = ["blocks", "size"].map(|fact| must(number(fact).expect(fact), fact));
        assert!(blocks * 512 < size, "compression saves no space: {blocks} blocks, {size} bytes");
        check_compression(kind, image);
    }
    if has("project") {
        assert_eq!(manifest.fact("projects/file of 65536", "project"), Some("65536"));
    }
    if !is_loaded && kind.options.is_empty() {
        assert!(manifest.count("extents", |extents| extents == "inline") > 10, "inline data");
    }
    let mut payload = [0; 4];
    let file = must(File::open(image), image.display());
    must(file.read_exact_at(&mut payload, SUPERBLOCK + PAYLOAD), "the superblock");
    assert_eq!(u32::from_le_bytes(payload) > 0, kind.name == "checkpoint_payload");
}

/// Checks that the compression of a file is as the kind's mount options chose it.
fn check_compression(kind: &Kind, image: &Path) {
    let volume = must(VolumeOptions::new().open(image), image.display());
    let node = must(volume.resolve(b"/compressed/mixed", Follow::No), "a compressed file");
    let compression = must(node.compression(), "its compression").expect("it is compressed");
    let option = |name: &str| kind.options.split(',').find_map(|one| one.strip_prefix(name));
    let algorithm = option("compress_algorithm=").expect("an algorithm");
    let number = match algorithm.split(':').next() {
        Some("lzo") => 0,
        Some("lz4") => 1,
        Some("zstd") => 2,
        _ => 3,
    };
    assert_eq!(compression.algorithm, number, "{algorithm}");
    let log = option("compress_log_size=").map_or(2, |log| must(log.parse(), log));
    assert_eq!(compression.log_cluster_blocks, log);
    assert!(compression.saved_blocks > 0, "{compression:?}");
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = KINDS.iter().map(|kind| {
        Trial::test(format!("{}_is_filled_and_read", kind.name), || {
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
