//! Support for all fuzz targets: small valid images, which are created once, and volumes opened from changed copies.

use std::sync::{Arc, OnceLock};

use base::{DeviceOffset, FileBlock, InodeNumber, Location, Result};
use device::{MemoryDevice, SharedDevice};
use iomap::{CacheOptions, PageCache};
use testkit::hostile::{KINDS, small_image};
use vfs::{Follow, Volume, VolumeOptions};

/// The kind of an ext2 volume, which has block maps.
pub const EXT2: usize = 0;
/// The kind of an ext4 volume with inline data and a journal, without metadata checksums, with 1 KiB blocks.
pub const INLINE: usize = 2;
/// The kind of an ext4 volume whose journal has an area for fast commits, without metadata checksums, with 1 KiB
/// blocks.
pub const FAST_COMMIT: usize = 8;
/// The kind of an ext4 volume with multiple-mount protection, without metadata checksums, with 1 KiB blocks.
pub const MMP: usize = 9;

static IMAGES: [OnceLock<Vec<u8>>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];

/// Returns the valid image of a kind, an index into [`KINDS`].
pub fn image(kind: usize) -> &'static [u8] {
    IMAGES[kind].get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        small_image(folder.path(), KINDS[kind])
    })
}

fn options() -> VolumeOptions {
    let cache = CacheOptions { bytes_max: 4 << 20, ..CacheOptions::default() };
    VolumeOptions { cache, ..VolumeOptions::default() }
}

/// Opens the volume in `bytes`.
pub fn open(bytes: Vec<u8>) -> Result<Volume> {
    Volume::open_device(Arc::new(MemoryDevice::new(bytes)), &options())
}

/// Opens the valid image of a kind with the ext4 crate, without the vfs.
pub fn ext4_volume(kind: usize) -> Arc<ext4::Volume> {
    let cache = PageCache::new(options().cache).expect("memory");
    let device: SharedDevice = Arc::new(MemoryDevice::new(image(kind).to_vec()));
    ext4::Volume::open(device, &cache, &ext4::OpenOptions::default()).expect("a valid image")
}

/// Returns the number of the inode at `path` in the valid image of a kind.
pub fn inode_at(kind: usize, path: &str) -> InodeNumber {
    let volume = open(image(kind).to_vec()).expect("a valid image");
    volume.resolve(path.as_bytes(), Follow::No).expect("a known path").number()
}

/// Returns the byte offset of an inode in the valid image of a kind.
pub fn inode_offset(kind: usize, number: InodeNumber) -> usize {
    let volume = ext4_volume(kind);
    let geometry = volume.geometry();
    let (group, index) = geometry.inode_position(number).expect("in the volume");
    let table = volume.group(group).expect("a valid group").inode_table;
    let DeviceOffset(start) = geometry.block_size.device_offset(table).expect("in the volume");
    start as usize + (index * geometry.inode_size) as usize
}

/// Returns the byte offset of a journal block in the valid image of a kind, which has 1 KiB blocks.
pub fn journal_offset(kind: usize, block: u64) -> usize {
    let journal = ext4_volume(kind).special_inode(InodeNumber(8)).expect("a journal");
    match journal.piece_at(FileBlock(block), FileBlock(block + 1)).expect("its map") {
        fs::Piece::Run(run) => (run.block.0 + block - run.start.0) as usize * 1024,
        fs::Piece::Hole { .. } => panic!("a journal with holes"),
    }
}

/// Returns the image of a kind, overwritten with `bytes` from `offset` on. Ignores bytes past the end of the image.
pub fn patched(kind: usize, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut image = image(kind).to_vec();
    let end = image.len().min(offset + bytes.len());
    image[offset..end].copy_from_slice(&bytes[..end - offset]);
    image
}

/// Returns a location for errors.
pub fn location() -> Location {
    Location::inode(InodeNumber(12))
}

/// Reads the file at `path` in all ways: its attributes, extended attributes and contents. Ignores errors.
pub fn read_all_of(image: Vec<u8>, path: &str) {
    let Ok(volume) = open(image) else { return };
    if let Ok(node) = volume.resolve(path.as_bytes(), Follow::No) {
        testkit::walk::look_at(&volume, &node);
    }
}
