//! The check of volumes in sparse files: a hole has no cost, and the findings are those of the same
//! bytes without holes.

use std::fs::{self, File};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{DeviceOffset, Result};
use device::{Bio, BioOperation, BlockDevice, FileDevice, SharedDevice};
use rustix::fs::FallocateFlags;
use tempfile::TempDir;
use testkit::command::run;
use testkit::f2fs::Tools;
use testkit::{Mke2fs, Random};
use vfs::{Volume, VolumeOptions};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The unit of holes.
const BLOCK: u64 = 4096;

/// A file as a device that counts what is read, and that knows the holes of the file or does not.
#[derive(Debug)]
struct Counted {
    file: FileDevice,
    knows_holes: bool,
    bytes_read: AtomicU64,
}

impl BlockDevice for Counted {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn submit(&self, batch: Vec<Bio>) {
        for bio in &batch {
            assert_eq!(bio.operation(), BioOperation::Read);
            self.bytes_read.fetch_add(bio.length(), Ordering::Relaxed);
        }
        self.file.submit(batch);
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: DeviceOffset, _: u64) -> Result<()> {
        unreachable!("a check changes nothing");
    }

    fn write_zeroes(&self, _: DeviceOffset, _: u64) -> Result<()> {
        unreachable!("a check changes nothing");
    }

    fn next_data(&self, offset: DeviceOffset) -> Option<Range<DeviceOffset>> {
        let end = DeviceOffset(self.size());
        if self.knows_holes {
            self.file.next_data(offset)
        } else {
            (offset < end).then_some(offset..end)
        }
    }
}

/// Returns the findings and the summary of a check, and the number of bytes that it reads.
fn check(image: &Path, knows_holes: bool) -> (Vec<String>, u64) {
    let file = FileDevice::open(image, true).unwrap();
    let counted = Arc::new(Counted { file, knows_holes, bytes_read: AtomicU64::new(0) });
    let device: SharedDevice = counted.clone();
    let mut found = Vec::new();
    match Volume::open_device(device, &VolumeOptions::new()) {
        Ok(volume) => {
            let summary = volume.check(&mut |error| {
                found.push(error.to_string());
                ControlFlow::Continue(())
            });
            found.push(format!("{summary:?}"));
        }
        Err(error) => found.push(error.to_string()),
    }
    (found, counted.bytes_read.load(Ordering::Relaxed))
}

fn punch(file: &File, at: u64, length: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, at, length).unwrap();
}

/// Returns the numbers of the blocks with data.
fn data_blocks(image: &Path) -> Vec<u64> {
    let device = FileDevice::open(image, true).unwrap();
    let mut blocks = Vec::new();
    let mut at = DeviceOffset(0);
    while let Some(range) = device.next_data(at) {
        blocks.extend(range.start.0 / BLOCK..range.end.0.div_ceil(BLOCK));
        at = range.end;
    }
    blocks
}

/// Makes holes of all blocks of zeroes.
fn dig_holes(image: &Path) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut block = vec![0; BLOCK as usize];
    for number in data_blocks(image) {
        file.read_exact_at(&mut block, number * BLOCK).unwrap();
        if block.iter().all(|byte| *byte == 0) {
            punch(&file, number * BLOCK, BLOCK);
        }
    }
}

/// Creates some files of all kinds in `folder`.
fn populate(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for number in 0..200 {
        let below = folder.join(format!("directory {}", number % 7));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(format!("file {number}")), vec![b'x'; number * 100]).unwrap();
    }
    std::os::unix::fs::symlink("x".repeat(200), folder.join("link")).unwrap();
}

/// Creates an ext4 volume, with files from `tree` if there is one.
fn make_ext4(image: &Path, size: u64, arguments: &str, block_size: u32, tree: Option<&Path>) {
    let recipe = Mke2fs { size, ..Mke2fs::new("ext4", block_size) };
    recipe.with(arguments).make(image, tree);
}

/// Creates an f2fs volume, with files from `tree` if there is one.
fn make_f2fs(image: &Path, size: u64, tree: Option<&Path>) {
    File::create(image).unwrap().set_len(size).unwrap();
    run(Tools::Installed.command("mkfs.f2fs").arg("-q").arg(image));
    if let Some(tree) = tree {
        run(Tools::Installed.command("sload.f2fs").arg("-f").arg(tree).arg(image));
    }
}

/// The volumes without checksums need all inodes to be read. Clusters and groups of other kinds
/// have other structures.
const EXT4_KINDS: [(&str, u32); 6] = [
    ("", 4096),
    ("-O ^metadata_csum,^uninit_bg", 4096),
    ("-O ^metadata_csum,^uninit_bg,^flex_bg,^has_journal -I 128", 4096),
    ("-O ^metadata_csum,^uninit_bg,meta_bg,^resize_inode", 1024),
    ("-O bigalloc -C 65536", 4096),
    ("-O ^sparse_super,^resize_inode,^metadata_csum,uninit_bg", 4096),
];

#[test]
fn a_check_reads_no_more_than_the_file_has() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    let check_reads = |name: &str| {
        dig_holes(&image);
        let allocated = fs::metadata(&image).unwrap().blocks() * 512;
        let (found, bytes_read) = check(&image, true);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(bytes_read < allocated + 16 * MIB, "{name}: {bytes_read} of {allocated}");
    };
    for (arguments, block_size) in EXT4_KINDS {
        let arguments = format!("{arguments} -J size=4");
        let arguments = match arguments.contains("^has_journal") {
            true => arguments.replace("-J size=4", ""),
            false => arguments,
        };
        make_ext4(&image, 8 * GIB, &arguments, block_size, None);
        check_reads(&arguments);
    }
    make_f2fs(&image, 16 * GIB, None);
    check_reads("f2fs");
}

#[test]
fn holes_change_no_finding() {
    let folder = TempDir::new().unwrap();
    let (image, tree) = (folder.path().join("image"), folder.path().join("tree"));
    populate(&tree);
    let mut random = Random(20);
    for (arguments, block_size) in EXT4_KINDS {
        make_ext4(&image, 256 * MIB, arguments, block_size, Some(&tree));
        check_damaged(&image, arguments, &mut random);
    }
    make_f2fs(&image, 256 * MIB, Some(&tree));
    check_damaged(&image, "f2fs", &mut random);
}

/// Replaces some of the volume's blocks by holes, a few times, and compares the findings with those
/// that ignore holes.
fn check_damaged(image: &Path, name: &str, random: &mut Random) {
    dig_holes(image);
    let file = File::options().write(true).open(image).unwrap();
    let blocks = data_blocks(image);
    let mut damaged = 0;
    for turn in 0..25 {
        let mut before = Vec::new();
        for _ in 0..=random.below(3) {
            // Structures are before the data.
            let first = random.below(blocks.len() as u64).min(random.below(blocks.len() as u64));
            let number = blocks[first as usize];
            let mut bytes = vec![0; BLOCK as usize];
            File::open(image).unwrap().read_exact_at(&mut bytes, number * BLOCK).unwrap();
            before.push((number, bytes));
            punch(&file, number * BLOCK, BLOCK);
        }
        let (expected, _) = check(image, false);
        let (found, _) = check(image, true);
        assert_eq!(found, expected, "{name}, turn {turn}");
        damaged += usize::from(found.len() > 1);
        for (number, bytes) in before.into_iter().rev() {
            file.write_all_at(&bytes, number * BLOCK).unwrap();
        }
    }
    assert!(damaged > 0, "{name}: no turn did damage");
}

#[test]
fn the_observer_of_a_check_sees_progress_and_may_end_it() {
    struct Observer {
        parts: Vec<&'static str>,
        calls_max: usize,
        calls: usize,
    }
    impl vfs::CheckObserver for Observer {
        fn found(&mut self, error: base::Error) -> ControlFlow<()> {
            panic!("{error}");
        }

        fn advanced(&mut self, progress: vfs::CheckProgress) -> ControlFlow<()> {
            assert!(progress.done <= progress.total, "{progress:?}");
            self.calls += 1;
            if self.parts.last() != Some(&progress.part) {
                self.parts.push(progress.part);
            }
            match self.calls < self.calls_max {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        }
    }
    let folder = TempDir::new().unwrap();
    let (image, tree) = (folder.path().join("image"), folder.path().join("tree"));
    populate(&tree);
    for is_ext4 in [true, false] {
        match is_ext4 {
            true => make_ext4(&image, 256 * MIB, "", 4096, Some(&tree)),
            false => make_f2fs(&image, 256 * MIB, Some(&tree)),
        }
        let volume = Volume::open_device(
            Arc::new(FileDevice::open(&image, true).unwrap()),
            &VolumeOptions::new(),
        );
        let volume = volume.unwrap();
        let check = |calls_max| {
            let mut observer = Observer { parts: Vec::new(), calls_max, calls: 0 };
            let summary = volume.check_with(&mut observer);
            (summary, observer)
        };
        let (summary, all) = check(usize::MAX);
        assert!(summary.is_complete && all.calls > 100, "{summary:?}, {} calls", all.calls);
        let expected: &[&str] = match is_ext4 {
            true => &["groups", "inodes", "directories", "links", "bitmaps"],
            false => &["node numbers", "inodes", "links", "segments"],
        };
        assert_eq!(all.parts, expected);
        for calls_max in [1, all.calls / 2, all.calls] {
            let (summary, stopped) = check(calls_max);
            assert!(!summary.is_complete, "{calls_max}: {summary:?}");
            assert_eq!(stopped.calls, calls_max);
        }
    }
}
