//! `File::move_extents`, judged by e2fsck and compared with the kernel's EXT4_IOC_MOVE_EXT.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use crate::common::{bytes, close, file, make, open};
use base::{Error, FileOffset};
use testkit::{LoopMount, Mke2fs, Random, private_mounts};
use vfs::{Creation, Credentials, DirectIo, Fallocate, File, Privileges, Volume};

/// The first byte in the file, the first byte on the device, the length, and whether the extent is
/// written.
type Extent = (u64, u64, u64, bool);

fn extents(file: &File) -> Vec<Extent> {
    let mut extents = Vec::new();
    file.extents(bytes(0..u64::MAX), &mut |extent| {
        let written = !extent.flags.unwritten;
        extents.push((extent.logical.0, extent.physical.0, extent.length, written));
        ControlFlow::Continue(())
    })
    .unwrap();
    extents
}

fn contents(file: &File) -> Vec<u8> {
    let mut found = vec![0xEE; file.node().attributes().size as usize];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), found.len());
    found
}

/// Random bytes for a seed. None is zero.
fn data(seed: u64, length: u64) -> Vec<u8> {
    let mut random = Random(seed + 1);
    (0..length).map(|_| random.below(255) as u8 + 1).collect()
}

fn preallocate(file: &File, range: std::ops::Range<u64>) -> base::Result<()> {
    file.fallocate(Fallocate::Allocate { keep_size: false }, bytes(range), Privileges::Keep)
}

fn punch(file: &File, range: std::ops::Range<u64>) {
    file.fallocate(Fallocate::PunchHole, bytes(range), Privileges::Keep).unwrap();
}

/// Allocates all free space, except less than `unit` bytes.
fn fill(volume: &Volume, name: &str, unit: u64) -> File {
    let (filler, mut end) = (make(volume, name), 0);
    let mut part = 64 << 20;
    while part >= unit {
        match preallocate(&filler, end..end + part) {
            Ok(()) => end += part,
            Err(Error::NoSpace | Error::NoInodes) => part /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    filler
}

/// Creates a file of `size` bytes in which no two blocks are adjacent on the device.
fn scattered(volume: &Volume, name: &str, size: u64) -> File {
    let block = u64::from(volume.statfs().block_size);
    let (file, end) = (make(volume, name), size.next_multiple_of(block));
    preallocate(&file, 0..2 * end + block).unwrap();
    for at in (block..end).step_by(block as usize) {
        let removed = bytes(at..at + block);
        file.fallocate(Fallocate::CollapseRange, removed, Privileges::Keep).unwrap();
    }
    file.node().set_size(size, Privileges::Keep).unwrap();
    file.write_at(&data(7, size), 0).unwrap();
    file.sync_all().unwrap();
    let pieces = extents(&file).len() as u64;
    assert_eq!(pieces, size.div_ceil(block));
    file
}

fn image(folder: &Path, block_size: u32, arguments: &str) -> std::path::PathBuf {
    let image = folder.join("image");
    let kind = Mke2fs { size: 48 << 20, ..Mke2fs::new("ext4", block_size) };
    let size = kind.size.max(u64::from(block_size) * 3072);
    Mke2fs { size, ..kind }.with(arguments).make(&image, None);
    image
}

#[test]
fn a_scattered_file_moves_into_one_piece_and_keeps_its_contents() {
    for (block_size, arguments) in [
        (1024, ""),
        (4096, ""),
        (65_536, ""),
        (4096, "-O ^has_journal"),
        (1024, "-O ^64bit,^metadata_csum"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), block_size, arguments);
        let volume = open(&image);
        let block = u64::from(block_size);
        // The last block is partial.
        let size = 200 * block - 100;
        let subject = scattered(&volume, "file", size);
        let before = extents(&subject);
        let donor = make(&volume, "donor");
        preallocate(&donor, 0..size).unwrap();
        let prepared = extents(&donor);
        assert_eq!(prepared.len(), 1, "{prepared:?}");
        // The exchange drops this data. Its writeback must end before that.
        donor.write_at(&data(8, size), 0).unwrap();
        let moved = subject.move_extents(FileOffset(0), &donor, FileOffset(0), u64::MAX >> 1);
        assert_eq!(moved, Ok(200 * block));
        assert_eq!(extents(&subject), [(prepared[0].0, prepared[0].1, 200 * block, true)]);
        let left: Vec<_> =
            before.iter().map(|&(at, to, length, _)| (at, to, length, false)).collect();
        assert_eq!(extents(&donor), left, "the donor has the old blocks");
        assert!(contents(&subject) == data(7, size), "{block_size} {arguments}");
        assert!(contents(&donor).iter().all(|&byte| byte == 0));
        // Later writes go to the new blocks.
        subject.write_at(b"later", block + 3).unwrap();
        donor.write_at(&data(9, size), 0).unwrap();
        drop((subject, donor));
        close(volume, &image);
        let volume = open(&image);
        let mut expected = data(7, size);
        expected[block as usize + 3..][..5].copy_from_slice(b"later");
        assert!(contents(&file(&volume, "file")) == expected, "{block_size} {arguments}");
        assert!(contents(&file(&volume, "donor")) == data(9, size));
        close(volume, &image);
    }
}

/// A part of a file that only one thread writes to.
struct Part {
    at: u64,
    /// The expected contents.
    model: Vec<u8>,
    /// A direct write in flight.
    pending: Option<Receiver<base::Result<usize>>>,
}

impl Part {
    fn step(&mut self, file: &File, random: &mut Random) {
        if let Some(pending) = self.pending.take() {
            pending.recv().unwrap().unwrap();
        }
        let length = self.model.len() as u64;
        let start = random.below(length);
        let end = (start + 1 + random.below(9000)).min(length);
        let range = start as usize..end as usize;
        let at = self.at + start;
        match random.below(10) {
            // In flight during the next move.
            8..=9 => {
                let start = start / 4096 * 4096;
                let data = data(random.below(1 << 40), 4096);
                self.model[start as usize..][..4096].copy_from_slice(&data);
                let (done, pending) = std::sync::mpsc::channel();
                self.pending = Some(pending);
                let end = move |_, result| done.send(result).unwrap();
                let write = DirectIo::write(FileOffset(self.at + start), data, end);
                file.submit_direct(vec![write], Privileges::Keep, false);
            }
            0..=2 => {
                let data = data(random.below(1 << 40), end - start);
                file.write_at(&data, at).unwrap();
                self.model[range].copy_from_slice(&data);
            }
            3 => {
                punch(file, at..self.at + end);
                self.model[range].fill(0);
            }
            4 => {
                let range = bytes(at..self.at + end);
                let keep = Fallocate::Allocate { keep_size: true };
                file.fallocate(keep, range, Privileges::Keep).unwrap();
            }
            5 => file.sync_data().unwrap(),
            _ => {
                let mut found = vec![0xEE; range.len()];
                assert_eq!(file.read_at(&mut found, at), Ok(found.len()));
                assert!(found == self.model[range], "{at}+{}", found.len());
            }
        }
    }
}

#[test]
fn readers_and_writers_see_no_change_while_blocks_move() {
    const PART: u64 = 1 << 20;
    for (block_size, arguments) in [(1024, ""), (4096, ""), (65_536, "")] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), block_size, arguments);
        let volume = open(&image);
        let subject = make(&volume, "file");
        subject.write_at(&data(1, 3 * PART), 0).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|number| {
                    let subject = &subject;
                    scope.spawn(move || {
                        let model =
                            data(1, 3 * PART)[(number * PART) as usize..][..PART as usize].to_vec();
                        let mut part = Part { at: number * PART, model, pending: None };
                        let mut random = Random(77 + number + u64::from(block_size));
                        (0..600).for_each(|_| part.step(subject, &mut random));
                        part.pending.map(|pending| pending.recv().unwrap().unwrap());
                    })
                })
                .collect();
            scope.spawn(|| {
                let (mut random, block) = (Random(5), u64::from(block_size));
                for round in 0.. {
                    if round > 20 && is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let donor = make(&volume, "donor");
                    preallocate(&donor, 0..3 * PART).unwrap();
                    let [at, donor_at, length] =
                        [0; 3].map(|_| random.below(3 * PART) / block * block);
                    subject
                        .move_extents(FileOffset(at), &donor, FileOffset(donor_at), length + block)
                        .unwrap();
                    // Overwrites the old blocks at once.
                    donor.write_at(&vec![0xDD; 2 << 20], 0).unwrap();
                    donor.sync_data().unwrap();
                    drop(donor);
                    volume.remove(b"/donor", &Credentials::ROOT).unwrap();
                }
            });
            let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        let expected = contents(&subject);
        drop(subject);
        close(volume, &image);
        let volume = open(&image);
        assert!(contents(&file(&volume, "file")) == expected, "{block_size} {arguments}");
        close(volume, &image);
    }
}

#[test]
fn a_move_without_space_for_the_map_loses_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), 1024, "");
    let volume = open(&image);
    let size = 300 << 10;
    let subject = scattered(&volume, "file", size);
    let donor = make(&volume, "donor");
    preallocate(&donor, 0..size).unwrap();
    let before = extents(&subject);
    let filler = fill(&volume, "filler", 1024);
    volume.sync().unwrap();
    assert_eq!(
        subject.move_extents(FileOffset(0), &donor, FileOffset(0), size),
        Err(Error::NoSpace)
    );
    assert_eq!(extents(&subject), before);
    assert!(contents(&subject) == data(7, size));
    // Space for a part of the map.
    punch(&filler, 0..2048);
    volume.sync().unwrap();
    assert_eq!(
        subject.move_extents(FileOffset(0), &donor, FileOffset(0), size),
        Err(Error::NoSpace)
    );
    let some = extents(&subject).len();
    assert!(some < before.len() && some > 1, "{some} extents");
    assert!(contents(&subject) == data(7, size));
    drop((subject, donor, filler));
    close(volume, &image);
    let volume = open(&image);
    assert!(contents(&file(&volume, "file")) == data(7, size));
    volume.remove(b"/filler", &Credentials::ROOT).unwrap();
    volume.sync().unwrap();
    let (subject, donor) = (file(&volume, "file"), file(&volume, "donor"));
    subject.move_extents(FileOffset(0), &donor, FileOffset(0), size).unwrap();
    assert!(contents(&subject) == data(7, size));
    drop((subject, donor));
    close(volume, &image);
}

#[test]
fn files_that_cannot_exchange_blocks_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), 1024, "-O inline_data");
    let volume = open(&image);
    let [subject, donor] = ["file", "donor"].map(|name| {
        let file = make(&volume, name);
        preallocate(&file, 0..10_000).unwrap();
        file
    });
    let to = |file: &File, at, donor: &File, donor_at, length| {
        file.move_extents(FileOffset(at), donor, FileOffset(donor_at), length)
    };
    let is_invalid = |moved| assert!(matches!(moved, Err(Error::InvalidArgument(_))), "{moved:?}");
    is_invalid(to(&subject, 1, &donor, 0, 1024));
    is_invalid(to(&subject, 0, &donor, 512, 1024));
    is_invalid(to(&subject, 10_240, &donor, 0, 1024));
    is_invalid(to(&subject, 0, &donor, 10_240, 1024));
    is_invalid(to(&subject, 0, &subject, 0, 1024));
    let moved = to(&subject.node().open().unwrap(), 0, &donor, 0, 1024);
    assert_eq!(moved, Err(Error::NotOpenFor("writing")));
    let moved = to(&subject, 0, &donor.node().open().unwrap(), 0, 1024);
    assert_eq!(moved, Err(Error::NotOpenFor("writing")));
    // Up to the end of the shorter range, in whole blocks.
    assert_eq!(to(&subject, 9216, &donor, 1024, 1 << 40), Ok(1024));
    assert_eq!(to(&subject, 1024, &donor, 9216, 1), Ok(1024));
    let small = make(&volume, "small");
    small.write_at(b"inline", 0).unwrap();
    let link = Creation::symlink(b"target");
    volume.create_in(&volume.root().unwrap(), b"link", &link, &Credentials::ROOT).unwrap();
    let flags = |file: &File, flags| file.node().set_flags(flags, &Credentials::ROOT).unwrap();
    let extents_flag = 0x8_0000;
    for (flag, file, other) in [(0x10, &subject, &donor), (0x20, &donor, &subject)] {
        flags(file, extents_flag | flag);
        let moved = to(file, 0, other, 0, 1024);
        assert!(matches!(moved, Err(Error::NotPermitted(_))), "{flag:#x}: {moved:?}");
        let moved = to(other, 0, file, 0, 1024);
        assert!(matches!(moved, Err(Error::NotPermitted(_))), "{flag:#x}: {moved:?}");
        flags(file, extents_flag);
    }
    drop((subject, donor, small));
    close(volume, &image);
    for (format, arguments) in [("ext3", ""), ("ext4", "-O bigalloc,^resize_inode -C 16384")] {
        let image = folder.path().join(format);
        Mke2fs { size: 48 << 20, ..Mke2fs::new(format, 4096) }.with(arguments).make(&image, None);
        let volume = open(&image);
        let [subject, donor] = ["file", "donor"].map(|name| {
            let file = make(&volume, name);
            file.write_at(&[1; 20_000], 0).unwrap();
            file
        });
        let moved = to(&subject, 0, &donor, 0, 16_384);
        assert!(matches!(moved, Err(Error::Unsupported(_))), "{format}: {moved:?}");
        assert!(contents(&donor) == [1; 20_000]);
        drop((subject, donor));
        close(volume, &image);
    }
}

#[test]
fn the_kernel_exchanges_the_same_blocks() {
    private_mounts();
    for block_size in [1024, 4096] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), block_size, "");
        let block = u64::from(block_size);
        let mut random = Random(0x5851_F42D_4C95_7F2D);
        let volume = open(&image);
        // Both files have written and unwritten blocks and holes.
        for (name, seed) in [("file", 1), ("donor", 2)] {
            let subject = make(&volume, name);
            subject.write_at(&data(seed, 100 * block - 7), 0).unwrap();
            for _ in 0..12 {
                let at = random.below(100) * block;
                let end = at + (1 + random.below(8)) * block;
                match random.below(3) {
                    // If the donor has a hole in a part of a page, the kernel moves less of the
                    // page than it could.
                    0 if name == "donor" => {
                        punch(&subject, at / 4096 * 4096..end.next_multiple_of(4096));
                    }
                    0 => punch(&subject, at..end),
                    1 => {
                        let zero = Fallocate::ZeroRange { keep_size: true };
                        subject.fallocate(zero, bytes(at..end), Privileges::Keep).unwrap();
                    }
                    _ => subject.write_at(&data(at, block), at).map(drop).unwrap(),
                }
                subject.sync_all().unwrap();
            }
        }
        close(volume, &image);
        let kernels = folder.path().join("kernels");
        fs::copy(&image, &kernels).unwrap();
        // The kernel requires the same offset within a page in both files.
        let ranges = [(0, 0, 30), (40, 52, 20), (72, 72, 40)];
        let mount = LoopMount::new(&kernels, "ext4", "rw");
        let [theirs, donor] = ["file", "donor"].map(|name| {
            fs::File::options().read(true).write(true).open(mount.path().join(name)).unwrap()
        });
        for (at, donor_at, count) in ranges {
            testkit::move_extents(&theirs, at, &donor, donor_at, count).unwrap();
        }
        drop((theirs, donor));
        mount.unmount();
        let volume = open(&image);
        let [ours, donor] = ["file", "donor"].map(|name| file(&volume, name));
        for (at, donor_at, count) in ranges.map(|(a, b, c)| (a * block, b * block, c * block)) {
            ours.move_extents(FileOffset(at), &donor, FileOffset(donor_at), count).unwrap();
        }
        drop((ours, donor));
        close(volume, &image);
        let [ours, theirs] = [&image, &kernels].map(|image| {
            let volume = open(image);
            let found = ["file", "donor"].map(|name| {
                let file = file(&volume, name);
                (extents(&file), contents(&file))
            });
            close(volume, image);
            found
        });
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours.0, theirs.0, "{block_size}");
            assert!(ours.1 == theirs.1, "{block_size}");
        }
    }
}
