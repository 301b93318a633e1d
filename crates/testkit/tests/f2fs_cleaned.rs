//! Cleaning of f2fs volumes with compressed, encrypted and fs-verity files that Linux has written:
//! blocks move as they lie on the device, files read the same, and fsck.f2fs finds no errors.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::attributes::{DirCursor, FileType};
use base::{FileOffset, InodeNumber};
use device::{OpenDevice, SharedDevice};
use fs::{Format as _, FormatOptions};
use iomap::{CacheOptions, IomapKind, PageCache};
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::turns::{OnVolume, Step};
use testkit::{Manifest, encryption, guest, must};
use vfs::{Credentials, OpenMode, Volume, VolumeOptions};

/// The stored form of a file: the addresses of its runs on the device, and their bytes.
#[derive(PartialEq, Eq, Debug)]
struct Stored {
    addresses: Vec<u64>,
    bytes: Vec<u8>,
}

fn with_keys() -> VolumeOptions {
    VolumeOptions { keys: Arc::new(encryption::master_keys()), ..VolumeOptions::default() }
}

/// Returns the stored form of files, with what lies behind their end.
fn stored(image: &Path, files: &BTreeMap<String, InodeNumber>) -> BTreeMap<String, Stored> {
    let device: SharedDevice = must(device::open(image, OpenDevice::default()), image.display());
    let cache = must(PageCache::new(CacheOptions::default()), "a cache");
    let options = FormatOptions { keys: with_keys().keys, ..FormatOptions::default() };
    let format = ::f2fs::Format::default();
    let volume = must(format.open(&device, &cache, &options), image.display());
    let of_file = |(name, number): (&String, &InodeNumber)| {
        let inode = must(volume.load_inode(*number), name);
        let mapper = must(inode.data(), name).mapper;
        let (mut runs, mut at) = (Vec::new(), 0);
        loop {
            let map = must(mapper.map_read(FileOffset(at), 1 << 40), name);
            match map.kind {
                IomapKind::Mapped => {
                    let address = map.address.expect("an address").0 + (at - map.offset.0);
                    runs.push((address, map.end() - at));
                }
                IomapKind::Encoded => {
                    let cluster = must(mapper.cluster(map.offset), name);
                    runs.extend(cluster.stored.iter().map(|run| (run.address.0, run.length)));
                }
                _ => {}
            }
            if map.flags.last {
                break;
            }
            at = map.end();
        }
        let mut form = Stored { addresses: Vec::new(), bytes: Vec::new() };
        for (address, length) in runs {
            let mut bytes = vec![0; length as usize];
            must(device.read_at(base::DeviceOffset(address), &mut bytes), name);
            // Runs may be joined or cut by the move.
            form.addresses.extend((0..length).step_by(4096).map(|at| address + at));
            form.bytes.extend(bytes);
        }
        (name.clone(), form)
    };
    files.iter().map(of_file).collect()
}

/// Returns the regular files below a directory that have one of `flags`, and the others.
fn files(volume: &Volume, flags: u32) -> (BTreeMap<String, InodeNumber>, Vec<String>) {
    let (mut special, mut others) = (BTreeMap::new(), Vec::new());
    let mut ahead = vec![(String::new(), must(volume.root(), "the root"))];
    while let Some((path, directory)) = ahead.pop() {
        let mut names = Vec::new();
        let listed = directory.read_dir(DirCursor::default(), &mut |entry| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        });
        must(listed, &path);
        for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
            let node = must(volume.lookup(&directory, &name), &path);
            // Names that are not text stay out.
            let Ok(name) = String::from_utf8(name) else { continue };
            let path = format!("{path}/{name}");
            match node.kind() {
                FileType::Directory => ahead.push((path, node)),
                FileType::Regular if node.attributes().flags & flags != 0 => {
                    special.insert(path, node.number());
                }
                // Some of them cannot be removed.
                FileType::Regular if path.starts_with("/flags/") => {}
                FileType::Regular => others.push(path),
                _ => {}
            }
        }
    }
    (special, others)
}

/// Writes files, of which every second one stays: so there is something to gain by cleaning.
fn write_files(volume: &Volume, numbers: Range<usize>) {
    for number in numbers.clone() {
        let path = format!("/flags/file {number}");
        let node = must(volume.create_file(path.as_bytes(), 0o644, &Credentials::ROOT), &path);
        let file = must(node.open_for(OpenMode { write: true, append: false }), &path);
        must(file.write_at(&[1; 64 * 4096], 0), &path);
        must(file.sync_all(), &path);
    }
    remove(volume, numbers.step_by(2));
}

fn remove(volume: &Volume, numbers: impl Iterator<Item = usize>) {
    for path in numbers.map(|number| format!("/flags/file {number}")) {
        must(volume.remove(path.as_bytes(), &Credentials::ROOT), &path);
    }
}

/// One of so many files stays. Few blocks are left in their segments then, which are cleaned before
/// others.
const KEPT: usize = 6;

/// Flags of compressed, encrypted and fs-verity files.
const COMPRESSED: u32 = 0x4;
const ENCRYPTED: u32 = 0x800;
const VERITY: u32 = 0x10_0000;

/// Removes files so that the segments of files with `flags` have free blocks, and cleans the
/// volume. Checks that blocks of such files were moved unchanged.
fn clean(kind: &Kind, image: &Path, flags: u32) {
    let ours = OnVolume::open_with(image, with_keys());
    let (special, others) = files(ours.volume(), flags);
    let removed = special.keys().enumerate().filter(|(index, _)| index % KEPT > 0);
    for path in removed.map(|(_, path)| path).chain(&others) {
        must(ours.volume().remove(path.as_bytes(), &Credentials::ROOT), path);
    }
    ours.close();
    let kept: BTreeMap<_, _> = special.into_iter().step_by(KEPT).collect();
    let (before, listed) = (stored(image, &kept), Manifest::of_image_with(image, &with_keys()));
    let ours = OnVolume::open_with(image, with_keys());
    // Segments of logs are cleaned once the logs have gone on.
    for round in 0..3 {
        write_files(ours.volume(), round * 64..(round + 1) * 64);
        let cleaned = must(ours.volume().clean(), kind.name);
        assert!(cleaned.sections > 0, "{}: {cleaned:?}", kind.name);
    }
    remove(ours.volume(), (1..3 * 64).step_by(2));
    ours.close();
    let after = stored(image, &kept);
    let mut moved = 0;
    for (name, before) in &before {
        let after = &after[name];
        assert!(after.bytes == before.bytes, "{}: {name} has other blocks", kind.name);
        moved += usize::from(after.addresses != before.addresses);
    }
    assert!(moved > 0, "{}: none of {} files was moved", kind.name, before.len());
    let contents = |manifest: &Manifest| {
        // The places of blocks have changed, and a directory.
        let is_same =
            |name: &str, fact: &str| name != "flags" && fact != "extents" && fact != "data";
        manifest.clone().map(|name, _, fact, value| is_same(name, fact).then(|| value.to_owned()))
    };
    let now = Manifest::of_image_with(image, &with_keys());
    contents(&now).assert_equal(kind.name, &contents(&listed), "before cleaning");
    f2fs::check_by_both(image);
}

fn moved_files() {
    let folder = must(TempDir::new(), "a folder");
    let kinds = [("lz4", COMPRESSED), ("verity", VERITY), ("encrypt", ENCRYPTED)];
    let images: Vec<(&'static Kind, PathBuf)> = kinds
        .map(|(name, _)| {
            let (kind, image) = (Kind::named(name), folder.path().join(name));
            kind.make(&image, kind.megabytes);
            (kind, image)
        })
        .into();
    f2fs::fill_all(&images);
    for ((kind, image), (_, flags)) in images.iter().zip(kinds) {
        clean(kind, image, flags);
    }
}

/// Fills a volume with files of a segment each, and removes three of four, several times: sections
/// have a full segment, and three empty ones. Then creates inodes, which need segments for nodes.
fn fill_with_data_and_nodes(volume: &Volume) {
    const SEGMENT: usize = 512;
    let by = &Credentials::ROOT;
    for round in 0..4 {
        let files = volume.statfs().blocks_free / (SEGMENT as u64 + 2);
        let path = |number| format!("/{round}-{number}");
        for number in 0..files {
            let path = path(number);
            let node = must(volume.create_file(path.as_bytes(), 0o644, by), &path);
            let file = must(node.open_for(OpenMode { write: true, append: false }), &path);
            must(file.write_at(&vec![number as u8; SEGMENT * 4096], 0), &path);
            // In one piece.
            must(volume.sync(), &path);
        }
        for path in (0..files).filter(|number| number % 4 > 0).map(path) {
            must(volume.remove(path.as_bytes(), by), &path);
        }
        must(volume.sync(), "a sync");
    }
    for number in 0..volume.statfs().blocks_free * 9 / 10 {
        let path = format!("/empty{number}");
        must(volume.create_file(path.as_bytes(), 0o644, by), &path);
    }
    // There is something to clean in sections of nodes, too.
    for number in (0..2000).filter(|number| number % 3 > 0) {
        let path = format!("/empty{number}");
        must(volume.remove(path.as_bytes(), by), &path);
    }
}

/// Has Linux clean a volume whose sections have several segments, and which this library has
/// filled.
fn filled_sections() {
    let folder = must(TempDir::new(), "a folder");
    let (kind, image) = (Kind::named("large_sections"), folder.path().join("image"));
    kind.make(&image, 256);
    let ours = OnVolume::open(&image);
    fill_with_data_and_nodes(ours.volume());
    ours.close();
    f2fs::check_by_both(&image);
    f2fs::check_kinds_of_sections(&image, 4);
    let before = Manifest::of_image(&image);
    let images = [(kind, image)];
    let after = f2fs::change_all(&images, &[Step::Clean(String::new())]);
    let contents = |manifest: &Manifest| {
        let is_same = |fact: &str| fact != "extents" && fact != "data";
        manifest.clone().map(|_, _, fact, value| is_same(fact).then(|| value.to_owned()))
    };
    contents(&after[0]).assert_equal("Linux", &contents(&before), "before it has cleaned");
    f2fs::check_by_both(&images[0].1);
}

fn main() {
    guest::run_if_guest();
    let arguments = Arguments::from_args();
    let trials: [(&str, fn()); 2] = [
        ("cleaning_moves_blocks_of_special_files_as_they_lie", moved_files),
        ("linux_cleans_sections_that_this_library_has_filled", filled_sections),
    ];
    let trials = trials.map(|(name, run)| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit();
}
