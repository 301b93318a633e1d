//! Single faults of f2fs images: the error of the change that meets one, and that nothing else is
//! lost.

use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, Result};
use device::MemoryDevice;
use testkit::f2fs::hostile::{Structure, UNCHECKED, damage, empty};
use vfs::{
    Creation, Credentials, Fallocate, File, Node, OpenMode, Privileges, Volume, VolumeOptions,
};

const BY: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
const KEEP: Privileges = Privileges::Keep;
const BLOCK: u64 = 4096;
/// The first address in an inode with all extra attributes.
const FIRST_ADDRESS: usize = 360 + 36;

fn open(image: Vec<u8>) -> Result<Volume> {
    open_device(Arc::new(MemoryDevice::new(image)))
}

fn open_device(device: Arc<MemoryDevice>) -> Result<Volume> {
    let mut options = VolumeOptions::new();
    options.writable(true).cache_bytes_max(8 << 20);
    Volume::open_device(device, &options)
}

fn create(volume: &Volume, name: &str) -> File {
    let root = volume.root().unwrap();
    let creation = Creation::of(FileType::Regular, 0o644);
    let node = volume.create_in(&root, name.as_bytes(), &creation, BY).unwrap();
    node.open_for(WRITE).unwrap()
}

fn find(volume: &Volume, name: &str) -> Arc<Node> {
    volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap()
}

/// Returns an image with the files `data`, of three blocks, and `empty`.
fn image() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(empty(12, UNCHECKED)));
    let mut options = VolumeOptions::new();
    options.writable(true).cache_bytes_max(8 << 20);
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    create(&volume, "data").write_all_at(&[b'd'; 3 * BLOCK as usize], 0).unwrap();
    create(&volume, "empty");
    volume.close().unwrap();
    device.snapshot()
}

/// Changes the inode of a file, in all blocks of the image that have had it.
fn change_inode(image: &mut [u8], name: &str, change: impl Fn(&mut [u8])) {
    let number = find(&open(image.to_vec()).unwrap(), name).number().0 as u32;
    image.chunks_mut(BLOCK as usize).filter(|block| is_inode(block, number)).for_each(change);
}

/// Returns whether a block is one that an inode has, or has had.
fn is_inode(block: &[u8], number: u32) -> bool {
    let footer = [number.to_le_bytes(), number.to_le_bytes()].concat();
    block[BLOCK as usize - 24..][..8] == footer
}

/// Returns the first address in the inode of a file.
fn first_address(image: &[u8], name: &str) -> [u8; 4] {
    let number = find(&open(image.to_vec()).unwrap(), name).number().0 as u32;
    let inode = image.chunks(BLOCK as usize).rfind(|block| is_inode(block, number)).unwrap();
    *inode[FIRST_ADDRESS..].first_chunk().unwrap()
}

/// Checks that the volume can still be changed, and `data` has its contents.
#[track_caller]
fn check_usable(volume: &Volume) {
    check_usable_with(volume, "new");
}

/// Checks the same with the new file `name`.
#[track_caller]
fn check_usable_with(volume: &Volume, name: &str) {
    create(volume, name).write_all_at(&[b'n'; 2 * BLOCK as usize], 0).unwrap();
    volume.sync().unwrap();
    let mut data = vec![0; 3 * BLOCK as usize];
    find(volume, "data").open().unwrap().read_exact_at(&mut data, 0).unwrap();
    assert!(data.iter().all(|byte| *byte == b'd'));
    volume.close().unwrap();
}

#[test]
fn a_wrong_count_of_blocks_fails_changes_of_its_file_only() {
    let mut image = image();
    change_inode(&mut image, "data", |inode| inode[24..32].copy_from_slice(&1_u64.to_le_bytes()));
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_device(device.clone()).unwrap();
    let error = find(&volume, "data").set_size(0, KEEP).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert!(error.to_string().contains("blocks is invalid: 0x1"), "{error}");
    check_recorded(&device, false);
    check_usable(&volume);
    check_recorded(&device, true);
}

/// Returns the flags of the last checkpoint, as fsck.f2fs names them.
fn checkpoint_flags(device: &MemoryDevice) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), device.snapshot()).unwrap();
    let output = std::process::Command::new("dump.f2fs").arg(file.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let state = text.lines().find_map(|line| line.split_once("checkpoint state = "));
    state.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

#[track_caller]
fn check_recorded(device: &MemoryDevice, is_recorded: bool) {
    let flags = checkpoint_flags(device);
    assert_eq!(flags.split_whitespace().any(|flag| flag == "fsck"), is_recorded, "{flags}");
}

#[test]
fn a_block_of_two_files_does_not_shut_the_volume_down() {
    let device = Arc::new(MemoryDevice::new(image()));
    let volume = open_device(device.clone()).unwrap();
    for name in ["one", "two"] {
        create(&volume, name).write_all_at(&[b'o'; 3 * BLOCK as usize], 0).unwrap();
    }
    volume.close().unwrap();
    let mut image = device.snapshot();
    let address = first_address(&image, "one");
    change_inode(&mut image, "two", |inode| {
        inode[FIRST_ADDRESS..][..4].copy_from_slice(&address);
    });
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_device(device.clone()).unwrap();
    find(&volume, "one").set_size(0, KEEP).unwrap();
    volume.sync().unwrap();
    check_recorded(&device, false);
    find(&volume, "two").set_size(0, KEEP).unwrap();
    volume.sync().unwrap();
    check_recorded(&device, true);
    check_usable(&volume);
    // The counts of blocks still allow changes, and the record stays.
    let volume = open_device(device.clone()).unwrap();
    check_usable_with(&volume, "newer");
    check_recorded(&device, true);
}

/// Data of a cold file is overwritten in place.
#[test]
fn a_node_is_not_overwritten_as_data_of_a_file() {
    let device = Arc::new(MemoryDevice::new(image()));
    let volume = open_device(device.clone()).unwrap();
    create(&volume, "film.mp4").write_all_at(&[b'f'; 3 * BLOCK as usize], 0).unwrap();
    let number = find(&volume, "data").number().0 as u32;
    volume.close().unwrap();
    let mut image = device.snapshot();
    let nodes: Vec<u32> = (0..)
        .zip(image.chunks(BLOCK as usize))
        .filter_map(|(address, block)| is_inode(block, number).then_some(address))
        .collect();
    let [node] = nodes[..] else { panic!("{nodes:?}") };
    change_inode(&mut image, "film.mp4", |inode| {
        inode[FIRST_ADDRESS..][..4].copy_from_slice(&node.to_le_bytes());
    });
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_device(device.clone()).unwrap();
    let film = find(&volume, "film.mp4").open_for(WRITE).unwrap();
    film.write_all_at(&[b'o'; 3 * BLOCK as usize], 0).unwrap();
    film.sync_all().unwrap();
    let open_again = open_device(Arc::new(MemoryDevice::new(device.snapshot()))).unwrap();
    check_usable(&open_again);
}

#[test]
fn the_word_before_inline_data_is_no_address() {
    let mut image = image();
    let address = first_address(&image, "data");
    // The empty file gets inline data, of zeroes.
    change_inode(&mut image, "empty", |inode| {
        inode[3] |= 0xA;
        inode[16] = 100;
        inode[FIRST_ADDRESS..][..4].copy_from_slice(&address);
    });
    let volume = open(image).unwrap();
    let file = find(&volume, "empty").open_for(WRITE).unwrap();
    file.write_all_at(&[b'z'; 100], 5 * BLOCK).unwrap();
    let mut first = [1; 100];
    file.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, [0; 100]);
    check_usable(&volume);
}

#[test]
fn files_without_extra_attributes_do_not_become_compressed() {
    let mut image = image();
    change_inode(&mut image, "empty", |inode| {
        inode[3] &= !0x20;
        inode[360..FIRST_ADDRESS].fill(0);
    });
    let volume = open(image).unwrap();
    let node = find(&volume, "empty");
    let result = node.set_flags(node.attributes().flags | 4, BY);
    assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
    check_usable(&volume);
}

#[test]
fn segments_and_checkpoints_whose_counts_are_impossible_are_refused() {
    let valid = image();
    let word = |at: usize| u32::from_le_bytes(*valid[1024 + at..].first_chunk().unwrap()) as usize;
    let (table, half) = (word(80) * BLOCK as usize, word(56) * 256 * BLOCK as usize);
    let mut wrong_map = valid.clone();
    // The first block of the first segment in use.
    let entry = (0..14).map(|segment| 74 * segment).find(|at| {
        [table, table + half].iter().any(|copy| valid[copy + at] | valid[copy + at + 1] & 3 != 0)
    });
    for copy in [table, table + half] {
        wrong_map[copy + entry.unwrap() + 2] ^= 0x80;
    }
    let mut wrong_count = valid.clone();
    let is_large = |seed: &u64| {
        wrong_count.copy_from_slice(&valid);
        let damage = damage(&mut wrong_count, Structure::Checkpoint, *seed);
        damage.field == 16 && damage.values[1] > 1 << 32
    };
    (0..).find(is_large).unwrap();
    for (image, expected) in [(wrong_map, "block count is"), (wrong_count, "blocks in use is")] {
        let error = open(image.clone()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        let device = Arc::new(MemoryDevice::new(image));
        let volume = Volume::open_device(device, &VolumeOptions::new()).unwrap();
        find(&volume, "data").open().unwrap().read_exact_at(&mut [0; 100], 0).unwrap();
    }
}

#[test]
fn sparse_files_of_terabytes_take_no_memory() {
    const FAR: u64 = 3 << 40;
    let volume = open(image()).unwrap();
    let file = create(&volume, "sparse");
    file.write_all_at(&[b's'; BLOCK as usize], FAR).unwrap();
    let bytes = |range: std::ops::Range<u64>| FileOffset(range.start)..FileOffset(range.end);
    file.fallocate(Fallocate::CollapseRange, bytes(0..1 << 30), KEEP).unwrap();
    file.fallocate(Fallocate::InsertRange, bytes(BLOCK..3 * BLOCK), KEEP).unwrap();
    let mut found = [0; BLOCK as usize];
    file.read_exact_at(&mut found, FAR - (1 << 30) + 2 * BLOCK).unwrap();
    assert_eq!(found, [b's'; BLOCK as usize]);
    for mode in [Fallocate::Allocate { keep_size: true }, Fallocate::ZeroRange { keep_size: true }]
    {
        let result = file.fallocate(mode, bytes(0..1 << 40), KEEP);
        assert_eq!(result, Err(Error::NoSpace));
    }
    drop(file);
    check_usable(&volume);
}
