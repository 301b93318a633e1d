//! fallocate(2) and writes of all kinds on mounts, compared with the kernel's ext4: bytes, sizes,
//! errors and holes are the same, and afterwards the states of all blocks.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use crate::mounting::Fixture;
use crate::mounting::direct_and_mapped::{
    ALIGNMENT, open_direct, read_direct, write_direct, write_mapped,
};
use crate::mounting::side_by_side::{Notes, side_by_side};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, Random, check_by_e2fsck, private_mounts};

const KEEP_SIZE: FallocateFlags = FallocateFlags::KEEP_SIZE;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE;
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;
/// Files that are changed at random, and their maximum sizes.
const NAMES: [(&str, u64); 2] = [("first", 2 << 20), ("second", 60_000)];

/// Returns a checksum.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
}

fn change_at_random(path: &Path, size_max: u64, random: &mut Random, notes: &mut Notes) {
    let file = &File::options().read(true).write(true).open(path).unwrap();
    let direct = open_direct(path);
    for step in 0..160 {
        let at = random.below(size_max);
        let length_max = [size_max / 4, 20_000, 3000][random.below(3) as usize];
        let length = 1 + random.below(length_max.min(size_max - at));
        let fallocate = |flags| rustix::fs::fallocate(file, flags, at, length);
        let what = random.below(14);
        let data = |length: u64| -> Vec<u8> {
            (0..length).map(|index| (index + step) as u8 | 1).collect()
        };
        let aligned = at / ALIGNMENT as u64 * ALIGNMENT as u64;
        let done = match what {
            9..=10 => {
                let data = data(length.next_multiple_of(ALIGNMENT as u64));
                write_direct(&direct, aligned, &data).map(|written| assert_eq!(written, data.len()))
            }
            11 => {
                let found = read_direct(&direct, aligned, 8 * ALIGNMENT);
                notes.note("direct", found.map(|bytes| (bytes.len(), sum(&bytes))));
                Ok(())
            }
            12..=13 => {
                let end = (at + length).min(file.metadata().unwrap().len());
                if at < end {
                    write_mapped(file, at as usize, &data(end - at));
                }
                Ok(())
            }
            0..=2 => {
                file.write_all_at(&data(length), at).unwrap();
                Ok(())
            }
            3 => rustix::fs::ftruncate(file, random.below(size_max)),
            4 => fallocate(FallocateFlags::empty()),
            5 => fallocate(KEEP_SIZE),
            6 => fallocate(PUNCH | KEEP_SIZE),
            7 => fallocate(ZERO),
            _ => fallocate(ZERO | KEEP_SIZE),
        };
        notes.note(format_args!("{step}: {what} {at}+{length}"), done);
        if random.below(4) == 0 {
            file.sync_all().unwrap();
        }
        let size = file.metadata().unwrap().len();
        notes.note("size", Ok(size));
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        notes.note("bytes", Ok(sum(&bytes)));
    }
}

/// Returns the allocated ranges of a file as the kernel reports them, and whether they are written.
fn blocks(path: &Path) -> Vec<(u64, u64, bool)> {
    let text = String::from_utf8(run(Command::new("filefrag").arg("-v").arg(path))).unwrap();
    let mut runs: Vec<(u64, u64, bool)> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let [number, logical, _physical, _length, rest @ ..] = &fields[..] else { continue };
        if number.parse::<u32>().is_err() {
            continue;
        }
        let (start, end) = logical.split_once("..").unwrap();
        let (start, end) = (start.trim().parse().unwrap(), end.trim().parse::<u64>().unwrap() + 1);
        let written = !rest.join(" ").contains("unwritten");
        match runs.last_mut() {
            Some(last) if last.1 == start && last.2 == written => last.1 = end,
            _ => runs.push((start, end, written)),
        }
    }
    runs
}

#[test]
fn random_operations_have_the_same_effect_as_in_the_kernel() {
    private_mounts();
    for (format, block_size, arguments) in [
        ("ext4", 4096, ""),
        ("ext4", 1024, ""),
        ("ext4", 2048, "-O inline_data"),
        ("ext4", 4096, "-O bigalloc,^resize_inode -C 16384"),
        ("ext3", 1024, ""),
    ] {
        let fixture = Fixture::new();
        let kernels_image = fixture.folder.path().join("kernels.img");
        for image in [&fixture.image, &kernels_image] {
            let kind = Mke2fs { size: 64 << 20, ..Mke2fs::new(format, block_size) };
            kind.with(arguments).make(image, None);
        }
        let change = |mount: &Path, notes: &mut Notes| {
            let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ u64::from(block_size));
            for (name, size_max) in NAMES {
                drop(File::create_new(mount.join(name)).unwrap());
                change_at_random(&mount.join(name), size_max, &mut random, notes);
            }
            // Some of these files are inline.
            for number in 0..40 {
                let path = mount.join(format!("small {number}"));
                fs::write(&path, vec![number as u8 + 1; 150]).unwrap();
                let file = File::options().read(true).write(true).open(&path).unwrap();
                let (at, length) = (random.below(120), 1 + random.below(200));
                let flags = [PUNCH | KEEP_SIZE, ZERO, ZERO | KEEP_SIZE][number % 3];
                let done = rustix::fs::fallocate(&file, flags, at, length);
                notes.note(format_args!("{flags:?} {at}+{length}"), done);
                notes.note("bytes", Ok(fs::read(&path).unwrap()));
            }
        };
        let kernels = LoopMount::new(&kernels_image, format, "rw");
        let mut expected = Notes::default();
        change(kernels.path(), &mut expected);
        kernels.unmount();
        let mount = fixture.mount(&["-o", "rw"]);
        let mut ours = Notes::default();
        change(mount.path(), &mut ours);
        fixture.umount();
        mount.assert_gone();
        let kind = format!("{format} {block_size} {arguments}");
        let difference = ours.0.iter().zip(&expected.0).position(|(ours, theirs)| ours != theirs);
        if let Some(at) = difference {
            let notes = &ours.0[at.saturating_sub(8)..=at];
            panic!("{kind}: ours {notes:#?}, the kernel's {}", expected.0[at]);
        }
        check_by_e2fsck(&fixture.image);
        let [ours, theirs] = [&fixture.image, &kernels_image].map(|image| {
            let mount = LoopMount::new(image, format, "ro");
            NAMES.map(|(name, _)| blocks(&mount.path().join(name)))
        });
        assert_eq!(ours, theirs, "{kind}");
    }
}

#[test]
fn invalid_calls_fail_as_in_the_kernel() {
    side_by_side(|root, notes| {
        let path = root.join("file");
        fs::write(&path, vec![7; 10_000]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut note = |what: &str, file: &File, flags, at, length| {
            let done = rustix::fs::fallocate(file, flags, at, length);
            notes.note(what, done);
            let metadata = file.metadata().unwrap();
            notes.note("size, blocks", Ok((metadata.len(), metadata.blocks())));
        };
        file.sync_all().unwrap();
        note("nothing", &file, FallocateFlags::empty(), 0, 0);
        note("punched without keeping the size", &file, PUNCH, 0, 4096);
        note("both", &file, PUNCH | ZERO | KEEP_SIZE, 0, 4096);
        note("too far", &file, FallocateFlags::empty(), 1 << 62, 1 << 62);
        note("past the largest size", &file, FallocateFlags::empty(), 1 << 44, 4096);
        note("past the end", &file, KEEP_SIZE, 20_000, 4096);
        note("a hole past the end", &file, PUNCH | KEEP_SIZE, 200_000, 4096);
        note("a hole over the end", &file, PUNCH | KEEP_SIZE, 9000, 4096);
        note("zeroes past the end", &file, ZERO | KEEP_SIZE, 200_000, 4096);
        // After ENOSPC, the kernel keeps blocks that it allocated; bifolio does not. The blocks are
        // not compared.
        let done = rustix::fs::fallocate(&file, KEEP_SIZE, 0, 1 << 30);
        notes.note("more than the free space", done);
        notes.note("truncated", rustix::fs::ftruncate(&file, 10_000));
        let reading = File::open(&path).unwrap();
        let done = rustix::fs::fallocate(&reading, FallocateFlags::empty(), 0, 4096);
        notes.note("reading", done);
        let directory = File::open(root).unwrap();
        let done = rustix::fs::fallocate(&directory, FallocateFlags::empty(), 0, 4096);
        notes.note("a directory", done);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let done: Result<(), Errno> = rustix::fs::fallocate(reader, KEEP_SIZE, 0, 4096);
        notes.note("a pipe", done);
    });
}
