//! Damage to single fields of f2fs images: the library's check finds something if fsck.f2fs does,
//! and the other way round, but for a list of differences.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use device::OpenDevice;
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::hostile::{self, Damage, STRUCTURES, Structure};
use testkit::f2fs::{self, Kind};
use testkit::{guest, must, soak_factor};

/// The number of damaged images of each kind and structure.
const SEEDS: u64 = 16;

/// Damage that only the library's check finds, by structure and field, and the reason why it is
/// right. There is none that only fsck.f2fs finds. fsck.f2fs is that of f2fs-tools 1.15.
const ONLY_OURS: &[(Structure, RangeInclusive<usize>, &str)] = &[
    (
        Structure::Superblock,
        36..=36,
        "more blocks than addresses of 32 bits can have: fsck.f2fs compares the number with those of segments only",
    ),
    (
        Structure::Superblock,
        1664..=1664,
        "the checkpoint payload: fsck.f2fs takes that of the pack instead, where it differs, but the kernel does not mount",
    ),
    (
        Structure::Checkpoint,
        28..=28,
        "more overprovision segments than the volume has: fsck.f2fs only looks for 0",
    ),
    (
        Structure::Checkpoint,
        132..=132,
        "flags by which the pack has other summaries than its size says: fsck.f2fs reads others, which exist by chance",
    ),
    (
        Structure::Inode,
        3..=3,
        "inline flags of another type of file: fsck.f2fs takes one of them, and the kernel refuses the inode",
    ),
    (
        Structure::Inode,
        72..=72,
        "more levels of a directory than the format has: fsck.f2fs does not look, and the kernel corrects it",
    ),
    (
        Structure::Inode,
        360..=360,
        "a size of extra attributes that is no multiple of 4 or more than exist: fsck.f2fs allows the whole inode",
    ),
    (
        Structure::Inode,
        384..=384,
        "compressed blocks: fsck.f2fs corrects them, but counts no error",
    ),
    (
        Structure::Addresses,
        360 + 4..=4071,
        "the list of extended attributes in an inode: only fsck.f2fs 1.16 looks at it",
    ),
    (
        Structure::Node,
        0..=4071,
        "the list of extended attributes in a node: only fsck.f2fs 1.16 looks at it",
    ),
    (
        Structure::Footer,
        8..=8,
        "the position of a node in its file: fsck.f2fs looks at that of nodes with extended attributes only",
    ),
];

/// The unit of copies, in bytes.
const BLOCK: usize = 4096;

/// Two small images: without checksums of nodes and quota files, and with them.
static IMAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

fn images() -> &'static [Vec<u8>] {
    IMAGES.get_or_init(|| {
        let folder = must(TempDir::new(), "a folder");
        let kinds = ["plain", "attributes"].map(Kind::named);
        hostile::small_images(folder.path(), &kinds)
    })
}

/// An image in a file and in memory, which is damaged and mended again.
struct Specimen {
    image: &'static [u8],
    damaged: Vec<u8>,
    file: File,
}

impl Specimen {
    fn new(image: &'static [u8], path: &Path) -> Self {
        must(std::fs::write(path, image), path.display());
        let file = must(File::options().write(true).open(path), path.display());
        Self { image, damaged: image.to_vec(), file }
    }

    /// Calls `judge` while the file is damaged.
    fn with_damage<R>(
        &mut self,
        structure: Structure,
        seed: u64,
        judge: impl FnOnce(&Damage) -> R,
    ) -> R {
        let damage = hostile::damage(&mut self.damaged, structure, seed);
        let blocks = self.image.chunks(BLOCK).zip(self.damaged.chunks(BLOCK));
        let changed = blocks.enumerate().filter(|(_, (old, new))| old != new);
        let changed: Vec<usize> = changed.map(|(number, _)| number * BLOCK).collect();
        assert!(!changed.is_empty(), "seed {seed}: {}", damage.description);
        for &at in &changed {
            must(self.file.write_all_at(&self.damaged[at..at + BLOCK], at as u64), "the image");
        }
        let result = judge(&damage);
        for &at in &changed {
            self.damaged[at..at + BLOCK].copy_from_slice(&self.image[at..at + BLOCK]);
            must(self.file.write_all_at(&self.image[at..at + BLOCK], at as u64), "the image");
        }
        result
    }
}

fn agrees(structure: Structure) {
    let folder = must(TempDir::new(), "a folder");
    let path = folder.path().join("image");
    let (mut found, mut total) = (0, 0);
    let mut differences = Vec::new();
    for image in images().iter().filter(|image| hostile::has(image, structure)) {
        let mut specimen = Specimen::new(image, &path);
        for seed in 0..SEEDS * soak_factor() {
            specimen.with_damage(structure, seed, |damage| {
                let fsck = f2fs::complaint_of_fsck(&path);
                let ours = f2fs::findings(must(device::open(&path, OpenDevice::default()), "it"));
                total += 1;
                found += u64::from(fsck.is_some());
                let is_known = fsck.is_none() && is_only_ours(structure, damage, &ours);
                if fsck.is_some() == ours.is_empty() && !is_known {
                    differences.push(format!(
                        "seed {seed}: {}\n  ours: {ours:?}\n  fsck.f2fs: {}",
                        damage.description,
                        fsck.unwrap_or_default()
                    ));
                }
            });
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
    assert!(found * 4 >= total, "fsck.f2fs finds only {found} of {total}");
}

/// Returns whether a difference is listed. Those in words of nodes must be those of extended
/// attributes.
fn is_only_ours(structure: Structure, damage: &Damage, ours: &[String]) -> bool {
    let is_words = matches!(structure, Structure::Addresses | Structure::Node);
    let fits = !is_words || ours.iter().all(|finding| finding.contains("extended attribute"));
    let is_listed = |(other, fields, _): &(Structure, RangeInclusive<usize>, &str)| {
        *other == structure && fields.contains(&damage.field)
    };
    fits && ONLY_OURS.iter().any(is_listed)
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials = STRUCTURES.iter().map(|structure| {
        Trial::test(format!("damage_to_{structure:?}_is_found"), || {
            agrees(*structure);
            Ok(())
        })
    });
    let trials = trials.chain([Trial::test("undamaged_images_are_clean", || {
        let folder = must(TempDir::new(), "a folder");
        for image in images() {
            let path = folder.path().join("image");
            must(std::fs::write(&path, image), path.display());
            f2fs::check_by_both(&path);
        }
        Ok(())
    })]);
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
