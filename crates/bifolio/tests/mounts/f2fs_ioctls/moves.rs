//! Requests that move blocks: defragmentation of a range of a file, and cleaning of a range of the
//! volume. Not here: cleaning of any section (`main.rs`).

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base::FileOffset;
use device::MemoryDevice;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tempfile::TempDir;
use testkit::command::run;
use testkit::private_mounts;
use testkit::tree::contents;
use vfs::{Follow, Volume, VolumeOptions};

use crate::f2fs_ioctls::{
    ABORT, BLOCK, SET_PIN_FILE, START, WRITE_CHECKPOINT, f2fs, ioctl, ioctl_with, open, with_mount,
};
use crate::mounting::{Fixture, NOBODY, run_as};

const DEFRAGMENT: libc::c_ulong = 0xc010_f508;
const CLEAN_RANGE: libc::c_ulong = 0x4018_f50b;
/// The number of blocks in a section of the test's volumes.
const SECTION: u64 = 512;

/// `struct f2fs_defragment`.
#[repr(C)]
struct Defragment {
    start: u64,
    length: u64,
}

/// `struct f2fs_gc_range`.
#[repr(C)]
struct CleanRange {
    sync: u32,
    start: u64,
    length: u64,
}

/// Defragments a range. Returns the length that was moved.
fn defragment(file: &File, start: u64, length: u64) -> Result<u64, Errno> {
    let mut range = Defragment { start, length };
    ioctl_with(file, DEFRAGMENT, &mut range)?;
    assert_eq!(range.start, start);
    Ok(range.length)
}

fn clean(root: &File, sync: bool, start: u64, length: u64) -> Result<(), Errno> {
    ioctl_with(root, CLEAN_RANGE, &mut CleanRange { sync: sync.into(), start, length })
}

/// A copy of the image of a mounted volume, with all that a sync has made durable.
struct Copy {
    _folder: TempDir,
    image: PathBuf,
}

impl Copy {
    fn of(fixture: &Fixture) -> Self {
        let folder = TempDir::new().unwrap();
        let image = folder.path().join("copy.img");
        fs::copy(&fixture.image, &image).unwrap();
        Self { _folder: folder, image }
    }

    /// Returns the addresses of the blocks of a file. Holes are zero.
    fn addresses(&self, path: &str) -> Vec<u64> {
        let device = Arc::new(MemoryDevice::new(fs::read(&self.image).unwrap()));
        let volume = Volume::open_device(device, &VolumeOptions::default()).unwrap();
        let node = volume.resolve(path.as_bytes(), Follow::No).unwrap();
        let mut addresses = Vec::new();
        node.extents(FileOffset(0)..FileOffset(u64::MAX), &mut |extent| {
            addresses.resize((extent.logical.0 / BLOCK as u64) as usize, 0);
            let first = extent.physical.0 / BLOCK as u64;
            addresses.extend(first..first + extent.length / BLOCK as u64);
            ControlFlow::Continue(())
        })
        .unwrap();
        addresses
    }

    /// Returns the number of blocks in use of a segment, as dump.f2fs shows it.
    fn used(&self, segment: u64) -> u64 {
        let folder = TempDir::new().unwrap();
        run(Command::new("dump.f2fs")
            .args(["-s", "0~-1"])
            .arg(&self.image)
            .current_dir(folder.path()));
        let text = fs::read_to_string(folder.path().join("dump_sit")).unwrap();
        let mut used = text.lines().filter_map(|line| {
            let (number, rest) = line.strip_prefix("segno:")?.split_once("vblocks:")?;
            let is_wanted = number.trim().parse::<u64>().unwrap() == segment;
            is_wanted.then(|| rest.split_whitespace().next().unwrap().parse().unwrap())
        });
        used.next().unwrap_or(0)
    }
}

/// Returns the first block of the main area.
fn main_start(fixture: &Fixture) -> u64 {
    let mut field = [0; 4];
    File::open(&fixture.image).unwrap().read_exact_at(&mut field, 1024 + 92).unwrap();
    u32::from_le_bytes(field).into()
}

/// Returns the number of pieces in which blocks lie on the device.
fn pieces(addresses: &[u64]) -> usize {
    1 + addresses.windows(2).filter(|pair| pair[1] != pair[0] + 1).count()
}

/// Writes two files in turns, so that each is in as many pieces as it has blocks.
fn scatter(mount: &Path, blocks: usize) -> [Vec<u8>; 2] {
    let data = [contents(1, blocks * BLOCK), contents(2, blocks * BLOCK)];
    let files = ["a", "b"].map(|name| File::create_new(mount.join(name)).unwrap());
    for at in (0..blocks * BLOCK).step_by(BLOCK) {
        for (file, data) in files.iter().zip(&data) {
            file.write_all_at(&data[at..at + BLOCK], at as u64).unwrap();
            file.sync_data().unwrap();
        }
    }
    data
}

#[test]
fn a_range_in_several_pieces_is_written_again() {
    private_mounts();
    for options in ["rw", "rw,writeback"] {
        let fixture = f2fs();
        with_mount(&fixture, options, |mount| {
            let [data, other] = scatter(mount, 100);
            let path = mount.join("a");
            // A hole is no piece.
            let file = File::open(&path).unwrap();
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(open(&path), hole, 30 * BLOCK as u64, 2 * BLOCK as u64).unwrap();
            file.sync_all().unwrap();
            let before = Copy::of(&fixture).addresses("/a");
            assert!(pieces(&before) > 80, "{options}: {before:?}");
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            let moved = defragment(&file, 20 * BLOCK as u64, 40 * BLOCK as u64);
            assert_eq!(moved, Ok(38 * BLOCK as u64), "{options}");
            // Durable: nothing was synced since.
            let after = Copy::of(&fixture).addresses("/a");
            assert_eq!((&after[..20], &after[60..]), (&before[..20], &before[60..]), "{options}");
            assert_eq!(after[30..32], [0, 0], "{options}");
            let in_range = [&after[20..30], &after[32..60]].concat();
            assert_eq!(pieces(&in_range), 1, "{options}: {in_range:?}");
            // Nothing is left to do there, nor past the end of the file.
            for (start, length) in [(20, 40), (25, 10), (50, 0), (100, 50)] {
                let moved = defragment(&file, start * BLOCK as u64, length * BLOCK as u64);
                assert_eq!(moved, Ok(0), "{options}: {length} blocks at {start}");
            }
            assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time, "{options}");
            // All of the other file, and more than that.
            run(Command::new("f2fs_io").args(["defrag_file", "0", "1048576"]).arg(mount.join("b")));
            let after = Copy::of(&fixture).addresses("/b");
            assert_eq!((after.len(), pieces(&after)), (100, 1), "{options}: {after:?}");
            let mut now = data;
            now[30 * BLOCK..32 * BLOCK].fill(0);
            assert!(fs::read(&path).unwrap() == now, "{options}");
            assert!(fs::read(mount.join("b")).unwrap() == other, "{options}");
        });
    }
}

#[test]
fn data_that_the_kernel_holds_is_defragmented_too() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw,writeback", |mount| {
        let [mut data, _] = scatter(mount, 40);
        let file = open(&mount.join("a"));
        let new = contents(3, 5 * BLOCK);
        file.write_all_at(&new, 10_000).unwrap();
        data[10_000..10_000 + new.len()].copy_from_slice(&new);
        assert_eq!(defragment(&file, 0, 40 * BLOCK as u64), Ok(40 * BLOCK as u64));
        assert!(fs::read(mount.join("a")).unwrap() == data);
        let copy = Copy::of(&fixture);
        assert_eq!(pieces(&copy.addresses("/a")), 1);
        let device = Arc::new(MemoryDevice::new(fs::read(&copy.image).unwrap()));
        let volume = Volume::open_device(device, &VolumeOptions::default()).unwrap();
        assert!(volume.read("/a").unwrap() == data, "on the device");
    });
}

#[test]
fn defragmentation_is_refused_as_by_linux() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw,allow_other", |mount| {
        scatter(mount, 4);
        let path = mount.join("a");
        let file = open(&path);
        let block = BLOCK as u64;
        for (start, length) in
            [(1, block), (0, block + 1), (0, 100), (block, u64::MAX - 4095), (1 << 60, block)]
        {
            let refused = defragment(&file, start, length);
            assert_eq!(refused, Err(Errno::INVAL), "{length} bytes at {start}");
        }
        assert_eq!(defragment(&File::open(mount).unwrap(), 0, block), Err(Errno::INVAL));
        let by_other = run_as(NOBODY, NOBODY, || defragment(&File::open(&path).unwrap(), 0, block));
        assert_eq!(by_other, Err(Errno::PERM));
        ioctl(&file, START).unwrap();
        assert_eq!(defragment(&file, 0, 4 * block), Err(Errno::INVAL), "an atomic write");
        ioctl(&file, ABORT).unwrap();
        let pinned = File::create_new(mount.join("pinned")).unwrap();
        ioctl_with(&pinned, SET_PIN_FILE, &mut 1_u32).unwrap();
        assert_eq!(defragment(&pinned, 0, block), Err(Errno::INVAL), "a pinned file");
        // Data in the inode has no piece.
        let small = File::create_new(mount.join("small")).unwrap();
        small.write_all_at(b"small", 0).unwrap();
        assert_eq!(defragment(&small, 0, block), Ok(0));
        assert_eq!(defragment(&file, 0, 4 * block), Ok(4 * block));
    });
    with_mount(&fixture, "ro", |mount| {
        let file = File::open(mount.join("a")).unwrap();
        assert_eq!(defragment(&file, 0, BLOCK as u64), Err(Errno::ROFS));
        let start = main_start(&fixture);
        assert_eq!(clean(&file, true, start, 0), Err(Errno::ROFS));
        assert_eq!(ioctl(&file, WRITE_CHECKPOINT), Err(Errno::ROFS));
    });
    let ext4 = Fixture::with_tree();
    let mount = ext4.mount(&["-o", "rw"]);
    let file = open(&mount.path().join("big"));
    assert_eq!(defragment(&file, 0, BLOCK as u64), Err(Errno::NOTTY));
    assert_eq!(clean(&file, true, 1 << 20, 0), Err(Errno::NOTTY));
}

#[test]
fn the_sections_of_a_range_are_cleaned() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw", |mount| {
        let root = File::open(mount).unwrap();
        // The last blocks are where the log of data is.
        let data = contents(1, (4 * SECTION as usize + 100) * BLOCK);
        fs::write(mount.join("f"), &data).unwrap();
        ioctl(&root, WRITE_CHECKPOINT).unwrap();
        let start = main_start(&fixture);
        let section_of = |block: u64| (block - start) / SECTION;
        let first_of = |section: u64| start + section * SECTION;
        let before = Copy::of(&fixture);
        let addresses = before.addresses("/f");
        // A section without any hole, and the one after it.
        let section = section_of(addresses[SECTION as usize]);
        assert_eq!([section, section + 1].map(|section| before.used(section)), [SECTION; 2]);
        assert_eq!(clean(&root, true, first_of(section) + 7, SECTION), Ok(()));
        let after = Copy::of(&fixture);
        assert_eq!([section, section + 1].map(|section| after.used(section)), [0; 2]);
        let moved = after.addresses("/f");
        for (at, (old, new)) in addresses.iter().zip(&moved).enumerate() {
            let was_cleaned = (section..=section + 1).contains(&section_of(*old));
            assert_eq!(old != new, was_cleaned, "block {at} was at {old}, and is at {new}");
        }
        assert!(fs::read(mount.join("f")).unwrap() == data);
        for sync in [true, false] {
            let again = clean(&root, sync, first_of(section), 0);
            assert_eq!(again, Err(Errno::NODATA), "sync {sync}: nothing is there any more");
        }
        let current = section_of(*moved.last().unwrap());
        for sync in [true, false] {
            assert_eq!(clean(&root, sync, first_of(current), 1), Err(Errno::AGAIN), "sync {sync}");
        }
        assert_eq!(Copy::of(&fixture).addresses("/f"), moved);
    });
}

#[test]
fn cleaning_of_a_range_leaves_pinned_files_and_is_refused_as_by_linux() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw,allow_other", |mount| {
        let root = File::open(mount).unwrap();
        let start = main_start(&fixture);
        let pinned = File::create_new(mount.join("pinned")).unwrap();
        ioctl_with(&pinned, SET_PIN_FILE, &mut 1_u32).unwrap();
        let length = SECTION * BLOCK as u64;
        fallocate(&pinned, FallocateFlags::empty(), 0, length).unwrap();
        let data = contents(1, length as usize);
        pinned.write_all_at(&data, 0).unwrap();
        fs::write(mount.join("f"), &data).unwrap();
        ioctl(&root, WRITE_CHECKPOINT).unwrap();
        let addresses = Copy::of(&fixture).addresses("/pinned");
        assert_eq!(clean(&root, true, addresses[0], 0), Err(Errno::AGAIN));
        assert_eq!(clean(&root, false, addresses[0], 0), Ok(()));
        assert_eq!(Copy::of(&fixture).addresses("/pinned"), addresses);
        let end = fs::metadata(&fixture.image).unwrap().size() / BLOCK as u64;
        for (from, length) in
            [(0, 0), (start - 1, 1), (end, 0), (start, end), (start, u64::MAX), (u64::MAX, 0)]
        {
            let refused = clean(&root, true, from, length);
            assert_eq!(refused, Err(Errno::INVAL), "{length} blocks from {from} on");
        }
        let by_other =
            run_as(NOBODY, NOBODY, || clean(&File::open(mount).unwrap(), true, addresses[0], 0));
        assert_eq!(by_other, Err(Errno::PERM));
        assert!(fs::read(mount.join("pinned")).unwrap() == data);
        assert!(fs::read(mount.join("f")).unwrap() == data);
    });
}
