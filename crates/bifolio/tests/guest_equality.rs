//! Images that the running kernel may not support, read by bifolio and by a Linux 7.2 guest: blocks
//! larger than a page, and features that few kernels have. The guest or `mke2fs -d` fills the
//! images.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::guest::{self, Job};
use testkit::tree::Source;
use testkit::{GUEST_KINDS, Kind, Manifest, Mke2fs, must, verity};
use vfs::VolumeOptions;

/// Kinds that are also tested with blocks of 64 KiB.
const LARGE: &[&str] = &[
    "ext2",
    "ext3",
    "no_64bit",
    "meta_bg",
    "bigalloc",
    "inline_data",
    "uninit_bg",
    "no_checksums",
    "no_dir_index",
    "ea_inode",
    "no_filetype",
    "inodes_of_128_bytes",
    "everything",
];

/// The block size of kinds with features.
const BLOCK_SIZE: u32 = 4096;
/// Block sizes larger than a page.
const SIZES: [u32; 4] = [8192, 16_384, 32_768, 65_536];

/// An image, and the program that fills it.
enum Subject {
    /// The guest fills an image of this kind and block size.
    ByGuest(&'static str, u32),
    /// `mke2fs -d` fills an ext4 image of this block size.
    ByMke2fs(u32),
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Self::ByGuest(kind, block_size) => format!("{kind}_{block_size}"),
            Self::ByMke2fs(block_size) => format!("filled_by_mke2fs_{block_size}"),
        }
    }

    /// Creates the image. mke2fs fills it from `source`. Returns the job of the guest.
    fn make(&self, image: &Path, source: &Path) -> Job {
        match *self {
            Self::ByGuest(kind, block_size) => {
                Kind::named(kind).make(block_size, image);
                Job::Fill(Kind::named(kind).tree(block_size))
            }
            Self::ByMke2fs(block_size) => {
                Mke2fs::new("ext4", block_size).make(image, Some(source));
                Job::List
            }
        }
    }
}

fn subjects() -> Vec<Subject> {
    let sizes = SIZES.iter().map(|size| Subject::ByGuest("ext4", *size));
    let small = GUEST_KINDS.iter().map(|kind| Subject::ByGuest(kind.name, BLOCK_SIZE));
    let large = LARGE.iter().map(|name| Subject::ByGuest(name, 65_536));
    let by_mke2fs = SIZES.iter().map(|size| Subject::ByMke2fs(*size));
    sizes.chain(small).chain(large).chain(by_mke2fs).collect()
}

/// Number of guests that run concurrently. Each has every GUESTS-th image.
const GUESTS: usize = 2;

/// Images in a folder, and their contents as the guest read them.
struct Filled {
    folder: TempDir,
    images: Vec<(PathBuf, Manifest)>,
}

/// Results of the guests. `None` if a guest failed.
static FILLED: [OnceLock<Option<Filled>>; GUESTS] = [const { OnceLock::new() }; GUESTS];

/// Fills and lists all images of one guest in one boot, because booting takes as long as filling
/// several images.
fn fill(guest: usize) -> Filled {
    testkit::private_mounts();
    let folder = must(TempDir::new(), "a folder");
    let source = Source::new(folder.path(), SIZES[0]);
    let jobs: Vec<(PathBuf, Job)> = subjects()
        .into_iter()
        .skip(guest)
        .step_by(GUESTS)
        .map(|subject| {
            let image = folder.path().join(subject.name());
            let job = subject.make(&image, &source.path());
            (image, job)
        })
        .collect();
    drop(source);
    let listed = guest::run(&jobs).into_iter().flatten();
    let images = jobs.into_iter().map(|(image, _)| image);
    Filled { images: images.zip(listed).collect(), folder }
}

fn check(number: usize) {
    let guest = number % GUESTS;
    // A guest that failed is not booted again for its other images.
    let filled = FILLED[guest].get_or_init(|| std::panic::catch_unwind(|| fill(guest)).ok());
    let filled = filled.as_ref().expect("the guest failed; see the panic above");
    let (image, theirs) = &filled.images[number / GUESTS];
    assert!(theirs.len() > 1000, "only {} names", theirs.len());
    Manifest::of_image(image).assert_equal("bifolio", theirs, "Linux 7.2");
    if matches!(subjects()[number], Subject::ByGuest("verity", BLOCK_SIZE)) {
        for file in ["verified/00000001", "verified/00819277"] {
            verity::check_damage(image, &VolumeOptions::default(), file);
        }
    }
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = subjects().into_iter().enumerate().map(|(number, subject)| {
        Trial::test(format!("{}_reads_as_by_linux_7_2", subject.name()), move || {
            check(number);
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Statics are never dropped.
    for filled in FILLED.iter().filter_map(OnceLock::get).flatten() {
        let _ = std::fs::remove_dir_all(filled.folder.path());
    }
    conclusion.exit();
}
