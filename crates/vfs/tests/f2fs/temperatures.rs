//! Files of f2fs by their temperature: their data goes to segments of its type. The judge of the
//! types is dump.f2fs.

use std::ops::ControlFlow;
use std::path::Path;

use base::{Error, FileOffset};
use f2fs::{SEGMENT_BLOCKS, Superblock};
use testkit::f2fs::{Kind, check_by_both, segments};
use vfs::{
    Credentials, F2fsMode, Follow, OpenMode, Privileges, RenameFlags, Volume, VolumeOptions,
    XattrMode,
};

const ROOT: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
const BLOCK: u64 = 4096;
/// Names, and the types of the segments for their data: 0 hot, 1 warm, 2 cold.
const FILES: [(&str, u64); 4] =
    [("film.mp4", 2), ("data.db", 0), ("letter.txt", 1), ("photo.JPG", 2)];

fn open(image: &Path) -> Volume {
    VolumeOptions::new().writable(true).cache_bytes_max(8 << 20).open(image).unwrap()
}

/// The types of the segments of a volume.
struct Types {
    /// The first block of the main area.
    main: u64,
    of_segments: Vec<u64>,
}

impl Types {
    fn of(image: &Path) -> Self {
        let device = device::open(image, device::OpenDevice::default()).unwrap();
        let main = Superblock::read(&device).unwrap().geometry.main.start.0;
        let of_segments = segments(image).iter().map(|segment| segment.kind).collect();
        Self { main, of_segments }
    }

    /// Returns the type of the segment of a block.
    fn at(&self, block: u64) -> u64 {
        self.of_segments[((block - self.main) / SEGMENT_BLOCKS) as usize]
    }
}

/// Returns the blocks of a file.
fn blocks(volume: &Volume, name: &str) -> Vec<u64> {
    let node = volume.resolve(format!("/{name}").as_bytes(), Follow::No).unwrap();
    let mut blocks = Vec::new();
    let all = FileOffset(0)..FileOffset(u64::MAX >> 1);
    let emit = &mut |extent: iomap::FiemapExtent| {
        let first = extent.physical.0 / BLOCK;
        blocks.extend(first..first + extent.length / BLOCK);
        ControlFlow::Continue(())
    };
    node.extents(all, emit).unwrap();
    blocks
}

#[test]
fn data_goes_to_segments_of_its_temperature() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Kind::named("plain").make(&image, 64);
    let volume = open(&image);
    for (name, _) in FILES {
        let node = volume.create_file(format!("/{name}").as_bytes(), 0o644, ROOT).unwrap();
        let file = node.open_for(WRITE).unwrap();
        assert_eq!(file.write_at(&vec![1; 40 * BLOCK as usize], 0), Ok(40 * BLOCK as usize));
        file.sync_all().unwrap();
        // The temperature is in the inode, not in the name.
        let renamed = format!("/{name}_");
        let flags = RenameFlags::default();
        volume.rename_at(format!("/{name}").as_bytes(), renamed.as_bytes(), flags, ROOT).unwrap();
        assert_eq!(file.write_at(&vec![2; 20 * BLOCK as usize], 0), Ok(20 * BLOCK as usize));
    }
    volume.close().unwrap();
    drop(volume);
    check_by_both(&image);
    let types = Types::of(&image);
    let volume = VolumeOptions::new().open(&image).unwrap();
    for (name, expected) in FILES {
        let blocks = blocks(&volume, &format!("{name}_"));
        assert_eq!(blocks.len(), 40, "{name}");
        for block in blocks {
            assert_eq!(types.at(block), expected, "{name}: block {block}");
        }
    }
}

#[test]
fn only_cold_files_are_overwritten_in_place() {
    for (mode, is_cold_in_place) in [(F2fsMode::Adaptive, true), (F2fsMode::Lfs, false)] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Kind::named("plain").make(&image, 64);
        let mut options = VolumeOptions::new();
        options.writable(true).f2fs.mode = mode;
        let volume = options.open(&image).unwrap();
        for (name, kind) in FILES {
            let node = volume.create_file(format!("/{name}").as_bytes(), 0o644, ROOT).unwrap();
            let file = node.open_for(WRITE).unwrap();
            let length = 40 * BLOCK as usize;
            assert_eq!(file.write_at(&vec![1; length], 0), Ok(length));
            volume.sync().unwrap();
            let before = blocks(&volume, name);
            assert_eq!(before.len(), 40, "{name}");
            assert_eq!(file.write_at(&vec![2; length], 0), Ok(length));
            volume.sync().unwrap();
            let is_in_place = blocks(&volume, name) == before;
            assert_eq!(is_in_place, kind == 2 && is_cold_in_place, "{name}, {mode:?}");
        }
        volume.close().unwrap();
        drop(volume);
        check_by_both(&image);
    }
}

/// Fills a volume with files of all temperatures, and overwrites them.
#[test]
fn files_of_each_temperature_can_have_the_last_blocks() {
    for last in FILES {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Kind::named("plain").make(&image, 64);
        let volume = open(&image);
        let mut sizes = Vec::new();
        for (name, _) in FILES.iter().filter(|file| **file != last).chain([&last]) {
            let node = volume.create_file(format!("/{name}").as_bytes(), 0o644, ROOT).unwrap();
            let file = node.open_for(WRITE).unwrap();
            let mut size = 0;
            // The last one takes the rest.
            while *name == last.0 || size < 100 * BLOCK {
                match file.write_at(&[3; BLOCK as usize], size) {
                    Ok(written) => size += written as u64,
                    Err(Error::NoSpace | Error::NoInodes) => break,
                    Err(error) => panic!("{name}: {error}"),
                }
            }
            file.sync_all().unwrap();
            sizes.push((name, size));
        }
        let free = volume.statfs().blocks_free;
        assert!(free < 64, "{}: {free} blocks are free", last.0);
        for (name, size) in &sizes {
            let node = volume.resolve(format!("/{name}").as_bytes(), Follow::No).unwrap();
            let file = node.open_for(WRITE).unwrap();
            for at in (0..*size).step_by(BLOCK as usize) {
                assert_eq!(file.write_at(&[4; BLOCK as usize], at), Ok(BLOCK as usize));
            }
            file.sync_all().unwrap();
        }
        volume.close().unwrap();
        drop(volume);
        check_by_both(&image);
        let volume = VolumeOptions::new().open(&image).unwrap();
        for (name, size) in sizes {
            let node = volume.resolve(format!("/{name}").as_bytes(), Follow::No).unwrap();
            let file = node.open().unwrap();
            let mut data = vec![0; size as usize];
            assert_eq!(file.read_at(&mut data, 0), Ok(size as usize), "{name}");
            assert!(data.iter().all(|byte| *byte == 4), "{name}");
        }
    }
}

#[test]
fn owners_choose_the_temperature_by_an_attribute() {
    const ADVISE: &[u8] = b"system.advise";
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Kind::named("plain").make(&image, 64);
    let volume = open(&image);
    let node = volume.create_file(b"/letter.txt", 0o644, ROOT).unwrap();
    let set = |value: &[u8]| node.set_xattr(ADVISE, value, XattrMode::Either, Privileges::Keep);
    assert_eq!(node.get_xattr(ADVISE), Ok(vec![0]));
    for refused in [&[0x40][..], &[2], &[], &[1, 0]] {
        assert!(matches!(set(refused), Err(Error::InvalidArgument(_))), "{refused:?}");
    }
    assert!(matches!(node.remove_xattr(ADVISE), Err(Error::InvalidArgument(_))));
    set(&[1]).unwrap();
    assert_eq!(node.get_xattr(ADVISE), Ok(vec![1]));
    assert!(node.list_xattrs().unwrap().is_empty(), "Linux does not list it");
    let file = node.open_for(WRITE).unwrap();
    assert_eq!(file.write_at(&[1; 4 * BLOCK as usize], 0), Ok(4 * BLOCK as usize));
    drop((file, node));
    volume.close().unwrap();
    drop(volume);
    check_by_both(&image);
    let types = Types::of(&image);
    let volume = VolumeOptions::new().open(&image).unwrap();
    let found = volume.resolve(b"/letter.txt", Follow::No).unwrap();
    assert_eq!(found.get_xattr(ADVISE), Ok(vec![1]));
    for block in blocks(&volume, "letter.txt") {
        assert_eq!(types.at(block), 2, "block {block}");
    }
}
