//! Support for all fuzz targets: small valid images, which are created once, and volumes opened
//! from changed copies.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use base::{DeviceOffset, FileBlock, InodeNumber, Location, Result};
use device::{MemoryDevice, SharedDevice};
use iomap::{CacheOptions, PageCache};
use testkit::hostile::{Damageable, KINDS, Subject, small_image, written};
use testkit::{Choose, InputBytes};
use vfs::{Follow, Volume, VolumeOptions};

/// The kind of an ext2 volume, which has block maps.
pub const EXT2: usize = 0;
/// The kind of an ext4 volume with inline data and a journal, without metadata checksums, with 1
/// KiB blocks.
pub const INLINE: usize = 2;
/// The kind of an ext4 volume whose journal has an area for fast commits, without metadata
/// checksums, with 1 KiB blocks.
pub const FAST_COMMIT: usize = 8;
/// The kind of an ext4 volume with multiple-mount protection, without metadata checksums, with 1
/// KiB blocks.
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

/// Returns the image of a kind, overwritten with `bytes` from `offset` on. Ignores bytes past the
/// end of the image.
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

/// Reads the file at `path` in all ways: its attributes, extended attributes and contents. Ignores
/// errors.
pub fn read_all_of(image: Vec<u8>, path: &str) {
    let Ok(volume) = open(image) else { return };
    if let Ok(node) = volume.resolve(path.as_bytes(), Follow::No) {
        testkit::walk::read_node(&volume, &node);
    }
}

/// The size of the f2fs image, the smallest that mkfs.f2fs makes.
const F2FS_BYTES: u64 = 64 << 20;

/// The valid f2fs image, and the copy of it that is not in use.
static F2FS: OnceLock<(Vec<u8>, Mutex<Option<Arc<Vec<u8>>>>)> = OnceLock::new();

fn f2fs() -> &'static (Vec<u8>, Mutex<Option<Arc<Vec<u8>>>>) {
    F2FS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (image, source) = (folder.path().join("image"), folder.path().join("source"));
        std::fs::create_dir_all(source.join("directory")).expect("a folder");
        std::fs::write(source.join("inline"), b"inline").expect("a file");
        std::fs::write(source.join("data"), vec![7; 300_000]).expect("a file");
        std::os::unix::fs::symlink("data", source.join("link")).expect("a link");
        for number in 0..300 {
            std::fs::write(source.join(format!("directory/{number:0>60}")), b"").expect("a file");
        }
        File::create(&image).and_then(|file| file.set_len(F2FS_BYTES)).expect("a file");
        run(Command::new("mkfs.f2fs").args(["-q", "-O", "extra_attr,compression"]).arg(&image));
        run(Command::new("sload.f2fs").arg("-f").arg(&source).arg(&image));
        let bytes = std::fs::read(&image).expect("the image");
        (bytes.clone(), Mutex::new(Some(Arc::new(bytes))))
    })
}

fn run(command: &mut Command) {
    let output = command.output().expect("f2fs-tools are installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Returns the blocks of the valid f2fs image that are not zeroes.
pub fn f2fs_blocks() -> &'static [usize] {
    static BLOCKS: OnceLock<Vec<usize>> = OnceLock::new();
    BLOCKS.get_or_init(|| {
        let blocks = f2fs().0.chunks(4096).enumerate();
        let used = blocks.filter(|(_, block)| block.iter().any(|byte| *byte != 0));
        used.map(|(number, _)| number).collect()
    })
}

/// Returns a copy of the valid f2fs image.
pub fn f2fs_image() -> Arc<Vec<u8>> {
    let (valid, spare) = f2fs();
    let spare = spare.lock().expect("no panic").take();
    spare.unwrap_or_else(|| Arc::new(valid.clone()))
}

/// Sets the CRCs of the heads of both checkpoint packs, and copies each head to the pack's end.
/// Returns the changed ranges.
pub fn mend_f2fs_checkpoints(bytes: &mut [u8]) -> Vec<Range<usize>> {
    /// The fields of a pack's head: the number of its blocks, and the place of the CRC.
    const PACK_BLOCKS: usize = 136;
    const CRC_AT: usize = 164;
    /// The first block of the packs of a volume that mkfs.f2fs has made, and the number of blocks
    /// of a segment.
    const FIRST: usize = 512;
    const SEGMENT: usize = 512;
    const BLOCK: usize = 4096;
    const MAGIC: u32 = 0xF2F5_2010;
    let mut changed = Vec::new();
    for start in [FIRST * BLOCK, (FIRST + SEGMENT) * BLOCK] {
        let word = |bytes: &[u8], at: usize| {
            let word = bytes[start + at..start + at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(word) as usize
        };
        let (count, at) = (word(bytes, PACK_BLOCKS), word(bytes, CRC_AT));
        if !(2..=SEGMENT).contains(&count) || !(192..=BLOCK - 4).contains(&at) {
            continue;
        }
        let head = &mut bytes[start..start + BLOCK];
        let sum =
            base::checksum::crc32_le(base::checksum::crc32_le(MAGIC, &head[..at]), &head[at + 4..]);
        head[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        let end = start + (count - 1) * BLOCK;
        bytes.copy_within(start..start + BLOCK, end);
        changed.extend([start..start + BLOCK, end..end + BLOCK]);
    }
    changed
}

/// Takes a copy of the valid f2fs image back, which differs from it in `changed` only.
pub fn give_back(mut image: Arc<Vec<u8>>, changed: Vec<Range<usize>>) {
    let (valid, spare) = f2fs();
    let Some(bytes) = Arc::get_mut(&mut image) else { return };
    for range in changed {
        bytes[range.clone()].copy_from_slice(&valid[range]);
    }
    *spare.lock().expect("no panic") = Some(image);
}

/// Opens the f2fs volume in `image`.
pub fn open_f2fs(image: Arc<Vec<u8>>, no_recovery: bool) -> Result<Volume> {
    let options = VolumeOptions { no_recovery, ..options() };
    Volume::open_device(Arc::new(MemoryDevice::shared(image)), &options)
}

/// The maximum number of changes of an image.
const CHANGES_MAX: usize = 40;

/// Damages and writes an image that `make` makes of one of `kinds` kinds, as `data` chooses. Panics
/// if the check finds nothing before, and something after.
pub fn write_damaged<S: Damageable + Send>(
    subjects: &Mutex<BTreeMap<usize, Subject<S>>>,
    make: fn(usize) -> S,
    kinds: usize,
    data: &[u8],
) {
    let mut input = InputBytes(data);
    let kind = input.below(kinds as u64) as usize;
    let mut subjects = subjects.lock().expect("no panic");
    let subject = subjects.entry(kind).or_insert_with(|| Subject::new(make(kind)));
    subject.run(input, |image, damage, input| {
        let outcome = written::write(&written::over(image), input, CHANGES_MAX);
        let new = outcome.new_findings();
        assert!(new.is_empty(), "{damage}: {new:#?}");
    });
}
