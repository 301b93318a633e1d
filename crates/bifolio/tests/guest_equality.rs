//! Images that the running kernel may not be able to mount, filled by a Linux 7.2 guest or by
//! `mke2fs -d`, read the same by us as by that guest: blocks larger than a page, and features that
//! few kernels are built with.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::guest::{self, Job};
use testkit::tree::Source;
use testkit::{GUEST_KINDS, Kind, Manifest, Mke2fs, must};

/// Kinds that are filled with blocks of 64 KiB too.
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

/// Sizes of blocks that are larger than a page.
const SIZES: [u32; 4] = [8192, 16_384, 32_768, 65_536];

/// An image, by who fills it.
enum Subject {
    /// The guest fills one of this kind and block size.
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

    /// Makes it at `image`, from `source` if it is not for the guest to fill, and says what is left
    /// for the guest to do.
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
    let small = GUEST_KINDS.iter().map(|kind| Subject::ByGuest(kind.name, 4096));
    let large = LARGE.iter().map(|name| Subject::ByGuest(name, 65_536));
    let by_mke2fs = SIZES.iter().map(|size| Subject::ByMke2fs(*size));
    sizes.chain(small).chain(large).chain(by_mke2fs).collect()
}

/// Guests that run at the same time, each with every so-manieth image.
const GUESTS: usize = 2;

/// Images, and what the guest read in them; they lie in the folder.
struct Filled {
    folder: TempDir,
    images: Vec<(PathBuf, Manifest)>,
}

/// What each guest did; `None` if it failed.
static FILLED: [OnceLock<Option<Filled>>; GUESTS] = [const { OnceLock::new() }; GUESTS];

/// Has all images of one guest filled and listed at once: booting takes as long as filling several.
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
    // A guest that failed once is not booted again for each of its images.
    let filled = FILLED[guest].get_or_init(|| std::panic::catch_unwind(|| fill(guest)).ok());
    let filled = filled.as_ref().expect("the guest failed; why is said above");
    let (image, theirs) = &filled.images[number / GUESTS];
    assert!(theirs.len() > 1000, "only {} names", theirs.len());
    Manifest::of_image(image).assert_equal("bifolio", theirs, "Linux 7.2");
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
