//! Direct and buffered calls of several threads, while another thread frees blocks. No reader may
//! see data that was on the device before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::FileOffset;
use iomap::{DirectOptions, SplitExtents};
use testkit::Random;
use vfs::{Fallocate, Privileges};

use crate::common::{close, device, make, open_on};
use crate::direct::{SIZE_MAX, STALE, allocate, make_stale, write_direct};

/// Returns the data for byte `at`. It differs from the old data of the device, and for each sector.
fn raced(at: u64, round: u64) -> u8 {
    ((at / 512).wrapping_mul(7) as u8 ^ round as u8) % 200 + 1
}

#[test]
fn racing_readers_see_no_old_data_of_the_device() {
    for (block_size, split) in [
        (1024, SplitExtents::AtEnd),
        (4096, SplitExtents::Before),
        (4096, SplitExtents::AtEnd),
        (65_536, SplitExtents::AtEnd),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        make_stale(&image, block_size, "");
        let volume = open_on(device(&image), DirectOptions { split, ..DirectOptions::default() });
        let file = make(&volume, "a");
        allocate(&file, SIZE_MAX);
        let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        // A sector has the data of one write, or zeroes.
        let check = |at: u64, found: &[u8]| {
            for (sector, bytes) in (at / 512..).zip(found.chunks(512)) {
                let is_one = bytes.iter().all(|&byte| byte == bytes[0]);
                let is_zero = bytes.iter().all(|&byte| byte == 0);
                let known = (0..256).any(|round| raced(sector * 512, round) == bytes[0]);
                assert!(!bytes.contains(&STALE), "sector {sector} has old data of the device");
                assert!(is_zero || is_one && known, "sector {sector}: {bytes:?}");
            }
            seen.fetch_add(found.len() as u64, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            let (file, stop, seen, check) = (&file, &stop, &seen, &check);
            let run = |seed: u64, work: &(dyn Fn(&mut Random) + Sync)| {
                let mut random = Random(seed * 0x1234_5678_9ABC_DEF1);
                while !stop.load(Ordering::Relaxed) {
                    work(&mut random);
                }
            };
            let block = u64::from(block_size);
            let place = move |random: &mut Random| {
                let at = random.below(SIZE_MAX / block) * block;
                (at, (1 + random.below(4)) * block)
            };
            let data = |at: u64, length: u64, round: u64| -> Vec<u8> {
                (at..at + length).map(|at| raced(at, round)).collect()
            };
            for seed in [1, 2] {
                scope.spawn(move || {
                    run(seed, &|random| {
                        let (at, length) = place(random);
                        let data = data(at, length, random.below(256));
                        write_direct(file, at, &data).unwrap();
                    });
                });
            }
            scope.spawn(move || {
                run(3, &|random| {
                    let (at, length) = place(random);
                    let data = data(at, length, random.below(256));
                    file.write_at(&data, at).unwrap();
                });
            });
            scope.spawn(move || {
                run(4, &|random| {
                    let (at, length) = place(random);
                    let mut found = vec![0xEE; length as usize];
                    let read = match random.below(2) {
                        0 => file.read_at(&mut found, at).unwrap(),
                        _ => file.read_direct(FileOffset(at), &mut found).unwrap(),
                    };
                    // The file may end within a sector of zeroes.
                    check(at, &found[..read]);
                });
            });
            let mut random = Random(99);
            let mut steps = 0;
            while steps < 150 || seen.load(Ordering::Relaxed) < SIZE_MAX {
                steps += 1;
                let (at, length) = place(&mut random);
                let range = FileOffset(at)..FileOffset(at + length * 8);
                match random.below(4) {
                    0 => file.node().set_size(at, Privileges::Keep).unwrap(),
                    1 => file.fallocate(Fallocate::PunchHole, range, Privileges::Keep).unwrap(),
                    2 => allocate(file, SIZE_MAX),
                    _ => {
                        let mode = Fallocate::ZeroRange { keep_size: false };
                        file.fallocate(mode, range, Privileges::Keep).unwrap();
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        let size = file.node().attributes().size;
        let mut found = vec![0; size as usize];
        file.read_at(&mut found, 0).unwrap();
        check(0, &found);
        drop(file);
        close(volume, &image);
    }
}
