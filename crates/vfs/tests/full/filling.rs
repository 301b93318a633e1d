//! Files with block maps that grow until the volume is full. What a write has accepted is never
//! lost for lack of space, and the volume becomes full.

use std::path::Path;
use std::thread;

use base::Error;
use testkit::{Mke2fs, check_by_e2fsck};
use vfs::{Credentials, Volume, VolumeOptions};

use crate::operations::WRITE;

/// The most blocks that may be left: of a write that needs blocks of pointers.
const LEFT_MAX: u64 = 6;

/// The order of the writes to a file.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// One after the other, of parts of blocks.
    Sequential,
    /// A block each, with a block of pointers of its own.
    Sparse,
}

/// Returns the bytes from `at` on in a file.
fn pattern(name: u64, at: u64, length: usize) -> Vec<u8> {
    (at..at + length as u64).map(|at| (at * 7 + (at >> 10) + name) as u8 | 1).collect()
}

fn open(image: &Path, cache_bytes: u64) -> Volume {
    let options = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
    let device = device::open(image, options).unwrap();
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = cache_bytes;
    Volume::open_device(device, &options).unwrap()
}

fn path(name: u64) -> String {
    format!("/{name}")
}

/// Writes to a file until there is no space. Returns the offset and the length of what was
/// accepted.
fn fill(volume: &Volume, name: u64, order: Order, block: u64) -> Vec<(u64, usize)> {
    let node = volume.create_file(path(name).as_bytes(), 0o644, &Credentials::ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let mut accepted = Vec::new();
    let mut at = 0;
    loop {
        let (length, next) = match order {
            Order::Sequential => (2500, 2500),
            Order::Sparse => (block as usize, (block / 4 + 1) * block),
        };
        match file.write_at(&pattern(name, at, length), at) {
            Ok(length) => accepted.push((at, length)),
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                break;
            }
        }
        at += next;
    }
    file.sync_all().unwrap_or_else(|error| panic!("{order:?}, {name}: {error}"));
    accepted
}

fn check(format: &'static str, block_size: u32, options: &str, order: Order) {
    // With the larger cache, nothing is written back before the volume is full. With the smaller
    // one, two files compete for the space.
    for (cache_bytes, files) in [(128 << 20, 1), (8 << 20, 3)] {
        let place = format!("{format}, {block_size}, {order:?}, {cache_bytes}");
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let size = u64::from(block_size) * 6000;
        Mke2fs { size, ..Mke2fs::new(format, block_size) }.with(options).make(&image, None);
        let volume = open(&image, cache_bytes);
        let accepted: Vec<_> = thread::scope(|scope| {
            let fill = |name| fill(&volume, name, order, block_size.into());
            let threads: Vec<_> = (0..files).map(|name| scope.spawn(move || fill(name))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let left = volume.statfs().blocks_free;
        assert!(left <= LEFT_MAX, "{place}: {left} blocks are left");
        volume.close().unwrap();
        drop(volume);
        check_by_e2fsck(&image);
        let volume = open(&image, cache_bytes);
        for (name, accepted) in (0..).zip(accepted) {
            let file = volume.open(path(name)).unwrap();
            for (at, length) in accepted {
                let mut bytes = vec![0; length];
                assert_eq!(file.read_at(&mut bytes, at), Ok(length), "{place}");
                assert!(bytes == pattern(name, at, length), "{place}: file {name} at {at}");
            }
        }
    }
}

#[test]
fn accepted_data_in_block_maps_has_room_for_its_blocks_of_pointers() {
    for order in [Order::Sequential, Order::Sparse] {
        for block_size in [1024, 4096] {
            check("ext2", block_size, "-m 0", order);
            let journal = format!("-m 0 -J size={}", block_size / 1024);
            check("ext3", block_size, &journal, order);
        }
        check("ext4", 1024, "-m 0 -O ^extent,^64bit -J size=1", order);
    }
}
