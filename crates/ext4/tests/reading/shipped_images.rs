//! Comparison of the consistency check with e2fsck on the damaged images that e2fsprogs has for its
//! own tests, which `scripts/fetch-e2fsprogs` fetches.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Scratch, findings};

/// The offset of the incompatible features.
const INCOMPATIBLE: usize = 1024 + 0x60;
/// The feature of a journal that has to be replayed.
const NEEDS_RECOVERY: u8 = 4;
/// The least number of images.
const IMAGES_MIN: usize = 180;
/// The number of threads.
const THREADS: usize = 2;

/// The images for which the verdicts differ, whether only the check finds something, and the
/// reason. e2fsck is that of e2fsprogs 1.47.0.
const DIFFERENCES: &[(&str, bool, &str)] = &[
    (
        "f_orphan",
        false,
        "a list of orphans, which a mount deletes: with -n, e2fsck does not, and reports that they have no names",
    ),
    (
        "f_bad_gdt_csum",
        true,
        "e2fsck names the wrong checksum of a descriptor, too, but exits with 0",
    ),
    ("f_readonly_fsck", true, "e2fsck names the wrong count of free blocks, too, but exits with 0"),
    (
        "f_uninit_enable",
        true,
        "e2fsck names the wrong checksum of a descriptor, too, but exits with 0",
    ),
    (
        "f_extra_journal",
        true,
        "e2fsck names the journal without the feature, too, but exits with 0",
    ),
    ("f_first_meta_bg_too_big", true, "e2fsck names the field, too, but exits with 0"),
    ("f_zero_inode_size", true, "e2fsck uses a copy of the damaged superblock, and exits with 0"),
    (
        "f_extent_too_deep",
        true,
        "a tree of 7 levels: e2fsck makes it shallower, but Linux refuses more than 5",
    ),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/e2fsprogs/images")
}

/// Returns the image of a packed file, with its journal replayed.
fn unpack(packed: &Path, image: &Path) -> Vec<u8> {
    let unpacked = Command::new("gzip").arg("-dc").arg(packed).output().unwrap();
    assert!(unpacked.status.success(), "{unpacked:?}");
    std::fs::write(image, &unpacked.stdout).unwrap();
    if unpacked.stdout.get(INCOMPATIBLE).is_some_and(|byte| byte & NEEDS_RECOVERY != 0) {
        // Without a journal to be replayed, it would repair the image.
        let mut command = Command::new("e2fsck");
        let _ = command.args(["-E", "journal_only", "-fy"]).arg(image).output().unwrap();
    }
    std::fs::read(image).unwrap()
}

/// Returns the output of `e2fsck -fn`, and whether it found nothing. Without a limit, the output is
/// endless for some images.
fn e2fsck(image: &Path) -> (String, bool) {
    let path = image.with_extension("text");
    let text = std::fs::File::create(&path).unwrap();
    let mut command = Command::new("prlimit");
    command.args(["--fsize=1048576", "--core=0", "e2fsck", "-fn"]).arg(image);
    let status = command.stdin(Stdio::null()).stdout(text).stderr(Stdio::null()).status().unwrap();
    let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    std::fs::remove_file(path).unwrap();
    (text, status.success())
}

/// Returns a description of each difference that is not in the list, or is in it but does not
/// occur.
fn judge(packed: &Path, scratch: &Scratch) -> Option<String> {
    let name = packed.file_stem().unwrap().to_str().unwrap();
    let image = scratch.path(name);
    let bytes = unpack(packed, &image);
    let (theirs, is_clean) = e2fsck(&image);
    let ours = findings(bytes);
    std::fs::remove_file(&image).unwrap();
    let found = (is_clean != ours.is_empty()).then_some(is_clean);
    let known = DIFFERENCES.iter().find(|known| known.0 == name).map(|known| known.1);
    (found != known).then(|| format!("{name}: only ours {found:?}\n{theirs}{ours:#?}\n"))
}

#[test]
fn the_check_and_e2fsck_agree_on_the_images_of_e2fsprogs() {
    let missing = "scripts/fetch-e2fsprogs fetches the images";
    let packed: Vec<PathBuf> =
        std::fs::read_dir(folder()).expect(missing).map(|entry| entry.unwrap().path()).collect();
    assert!(packed.len() >= IMAGES_MIN, "{} images: {missing}", packed.len());
    let (scratch, packed) = (Scratch::new(), &packed);
    let differences: Vec<String> = std::thread::scope(|scope| {
        let part = |first| {
            let scratch = &scratch;
            let packed = packed.iter().skip(first).step_by(THREADS);
            move || packed.filter_map(|packed| judge(packed, scratch)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(part(first))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
