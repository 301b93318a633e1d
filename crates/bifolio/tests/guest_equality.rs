//! Images that the running kernel may not be able to mount, filled by a Linux 7.2 guest, read the
//! same by us as by it: blocks larger than a page, and features that few kernels are built with.

use std::path::PathBuf;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::guest::{self, Job};
use testkit::{GUEST_KINDS, Kind, Manifest, must};

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

/// What each image is, and its block size.
fn images() -> Vec<(&'static str, u32)> {
    let sizes = [8192, 16_384, 32_768, 65_536].map(|size| ("ext4", size));
    let small = GUEST_KINDS.iter().map(|kind| (kind.name, 4096));
    let large = LARGE.iter().map(|name| (*name, 65_536));
    sizes.into_iter().chain(small).chain(large).collect()
}

/// Guests that run at the same time, each with every so-manieth image.
const GUESTS: usize = 2;

/// Images, and what the guest that filled them read in them; they lie in the folder.
struct Filled {
    folder: TempDir,
    images: Vec<(PathBuf, Manifest)>,
}

/// What each guest did; `None` if it failed.
static FILLED: [OnceLock<Option<Filled>>; GUESTS] = [const { OnceLock::new() }; GUESTS];

/// Fills all images of one guest at once: booting takes as long as filling several.
fn fill(guest: usize) -> Filled {
    let folder = must(TempDir::new(), "a folder");
    let jobs: Vec<(PathBuf, Job)> = images()
        .into_iter()
        .skip(guest)
        .step_by(GUESTS)
        .map(|(name, block_size)| {
            let image = folder.path().join(format!("{name}-{block_size}"));
            Kind::named(name).make(block_size, &image);
            (image, Job::Fill(Kind::named(name).tree(block_size)))
        })
        .collect();
    let listed = guest::run(&jobs);
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
    let trials = images().into_iter().enumerate().map(|(number, (name, block_size))| {
        Trial::test(format!("{name}_{block_size}_reads_as_by_linux_7_2"), move || {
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
