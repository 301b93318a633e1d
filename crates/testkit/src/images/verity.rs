//! Damage of files with fs-verity: single bits of the data, of each level of the Merkle tree, and
//! of the descriptor change on the device, and only the blocks below them become unreadable, in
//! each way to read them.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use base::{BlockSize, DeviceOffset, Error, FileOffset};
use device::{OpenDevice, OverlayDevice, SharedDevice};
use iomap::FiemapExtent;
use vfs::{File, MapAccess, OpenOptions, Volume, VolumeOptions};

use crate::must;

/// The size of the blocks of the tree and of the volume.
const BLOCK: usize = 4096;
/// log2 of the number of SHA-256 hashes in a block.
const HASHES_SHIFT: u32 = 7;
/// The maximum number of bytes that change.
const CHANGED_BYTES_MAX: u64 = 1 << 20;

/// The ways to read a block of a file.
type Read = fn(&File, u64, &mut [u8]) -> Result<(), Error>;
const WAYS: [(&str, Read); 5] = [
    ("cached", |file, at, block| file.read_at(block, at).map(|_| ())),
    ("direct", |file, at, block| {
        let mut whole = vec![0; BLOCK];
        let length = file.read_direct(FileOffset(at), &mut whole)?;
        assert_eq!(length, block.len(), "a direct read at {at}");
        block.copy_from_slice(&whole[..length]);
        Ok(())
    }),
    ("lent", |file, at, block| {
        let slice = file.lend(FileOffset(at), block.len())?;
        block.copy_from_slice(&slice);
        Ok(())
    }),
    ("mapped", |file, at, block| {
        let map = file.map(FileOffset(at)..FileOffset(at + BLOCK as u64), MapAccess::Read)?;
        map.prepare(0..BLOCK, MapAccess::Read)?;
        map.read(0, block)
    }),
    ("uncached", |file, at, block| file.read_at(block, at).map(|_| ())),
];

/// A file with a tree of SHA-256, on a device whose changes are kept in memory.
struct Verified<'a> {
    device: SharedDevice,
    options: &'a VolumeOptions,
    name: &'a str,
    size: u64,
    extents: Vec<FiemapExtent>,
    /// The contents, without damage.
    contents: Vec<u8>,
}

/// Checks a file `name` of a volume in `image`, whose tree has SHA-256 and blocks of 4096 bytes, as
/// those of the volume. The image does not change.
pub fn check_damage(image: &Path, options: &VolumeOptions, name: &str) {
    let base = must(device::open(image, OpenDevice::default()), image.display());
    let block_size = must(BlockSize::from_bytes(BLOCK as u64).ok_or("a block size"), name);
    let device: SharedDevice = Arc::new(OverlayDevice::new(base, block_size, CHANGED_BYTES_MAX));
    let mut verified =
        Verified { device, options, name, size: 0, extents: Vec::new(), contents: Vec::new() };
    let file = verified.open();
    verified.size = file.node().attributes().size;
    let mut emit = |extent| {
        verified.extents.push(extent);
        ControlFlow::Continue(())
    };
    must(file.node().extents(FileOffset(0)..FileOffset(u64::MAX), &mut emit), name);
    verified.contents = vec![0; verified.size as usize];
    must(file.read_at(&mut verified.contents, 0), name);
    verified.check_end(&file);
    drop(file);
    verified.check_all();
}

impl Verified<'_> {
    /// Opens the file through a new cache.
    fn open(&self) -> File {
        let volume = must(Volume::open_device(Arc::clone(&self.device), self.options), self.name);
        must(OpenOptions::new().read(true).open(&volume, self.name), self.name)
    }

    /// Checks that nothing is read past the end of the file, where the tree is.
    fn check_end(&self, file: &File) {
        let mut block = [0; BLOCK];
        let aligned = self.size.next_multiple_of(BLOCK as u64);
        for at in [self.size, aligned, self.size.next_multiple_of(65536)] {
            assert_eq!(file.read_at(&mut block, at), Ok(0), "{}: at {at}", self.name);
            let lent = file.lend(FileOffset(at), BLOCK).map(|slice| slice.len());
            assert!(matches!(lent, Ok(0) | Err(Error::NoSuchOffset)), "{}: {lent:?}", self.name);
        }
        assert_eq!(file.read_direct(FileOffset(aligned), &mut block), Ok(0), "{}", self.name);
        let tree = self.size.next_multiple_of(65536);
        let map = file.map(FileOffset(tree)..FileOffset(tree + BLOCK as u64), MapAccess::Read);
        let read = must(map, self.name).prepare(0..BLOCK, MapAccess::Read);
        assert!(read.is_err(), "{}: the tree is mapped", self.name);
    }

    fn check_all(&self) {
        let blocks = self.size.div_ceil(BLOCK as u64);
        self.check(None, 0..0, "no damage");
        let damaged = blocks / 2;
        // Bytes past the end of the file are not verified, since nobody can read them.
        let at = (damaged * BLOCK as u64 + 100).min(self.size - 1);
        self.check(Some(at), damaged..damaged + 1, "data");
        // The levels from the data's up.
        let mut counts = Vec::new();
        while counts.last().copied().unwrap_or(blocks) > 1 {
            counts.push(counts.last().copied().unwrap_or(blocks).div_ceil(1 << HASHES_SHIFT));
        }
        let tree = self.size.next_multiple_of(65536);
        let mut start = tree;
        for (level, count) in counts.iter().enumerate().rev() {
            for index in 0..*count {
                let shift = HASHES_SHIFT * (level as u32 + 1);
                let below = index << shift..((index + 1) << shift).min(blocks);
                // All bytes of a block of the tree are hashed.
                let at = start + index * BLOCK as u64 + 64 * index + 9;
                self.check(Some(at), below, &format!("block {index} of level {level}"));
            }
            start += count * BLOCK as u64;
        }
        // The root hash.
        self.check(Some(start + 16), 0..blocks, "descriptor");
    }

    /// Checks that with one bit changed in byte `at` of the file, the blocks in `bad` cannot be
    /// read. If the file's data is in clusters, all blocks of a cluster share the fate of its data.
    fn check(&self, at: Option<u64>, bad: Range<u64>, what: &str) {
        let mut bad = bad;
        let changed = at.map(|at| {
            let (address, cluster) = self.locate(at);
            if let Some(cluster) = cluster {
                bad =
                    cluster.start / BLOCK as u64..cluster.end.min(self.size).div_ceil(BLOCK as u64);
            }
            address
        });
        self.flip(changed);
        for (way, read) in WAYS {
            let file = self.open();
            let file = if way == "uncached" { file.uncached() } else { file };
            for (number, expected) in (0..).zip(self.contents.chunks(BLOCK)) {
                let mut block = vec![0; expected.len()];
                let result = read(&file, number * BLOCK as u64, &mut block);
                let context = || format!("{}: {what}: block {number}, {way}", self.name);
                match result {
                    Ok(()) => {
                        assert!(block == expected, "{}", context());
                        assert!(!bad.contains(&number), "{} can be read", context());
                    }
                    Err(Error::Corrupt(error)) => {
                        assert!(bad.contains(&number), "{}: {error}", context());
                    }
                    Err(error) => panic!("{}: {error}", context()),
                }
            }
        }
        self.flip(changed);
    }

    fn flip(&self, address: Option<DeviceOffset>) {
        let Some(address) = address else { return };
        let start = DeviceOffset(address.0 / BLOCK as u64 * BLOCK as u64);
        let mut block = [0; BLOCK];
        must(self.device.read_at(start, &mut block), self.name);
        block[(address.0 - start.0) as usize] ^= 1;
        must(self.device.write_at(start, &block), self.name);
    }

    /// Returns the byte of the device with byte `at` of the file. For a compressed cluster, returns
    /// a byte of its data, and the bytes of the file.
    fn locate(&self, at: u64) -> (DeviceOffset, Option<Range<u64>>) {
        let extent = self
            .extents
            .iter()
            .find(|extent| (extent.logical.0..extent.logical.0 + extent.length).contains(&at));
        let extent = must(extent.ok_or(at), format_args!("{}: no block", self.name));
        let range = extent.logical.0..extent.logical.0 + extent.length;
        // Encrypted data is encoded, too, but not in clusters.
        if extent.flags.encoded && at < self.size && self.name.contains("compressed") {
            return (DeviceOffset(extent.physical.0 + 100), Some(range));
        }
        (DeviceOffset(extent.physical.0 + (at - range.start)), None)
    }
}
