//! Changes of f2fs images with single faults: they harm nothing but what is damaged, end, and leave
//! a volume that can be changed again.

mod clusters;
mod flags;
mod packs;
mod synced;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use base::attributes::{DirCursor, FileType, XattrMode};
use base::checksum::crc32_le;
use base::{BlockSize, Error, FileOffset, FsBlock, InodeNumber, Result};
use device::{Bio, BioOperation, DeviceHooks, HookedDevice, MemoryDevice, SharedDevice};
use testkit::f2fs::make::{Contents, MakeOptions, make};
use vfs::{
    Creation, Credentials, ErrorPolicy, Fallocate, File, Node, OpenMode, Privileges, Volume,
    VolumeOptions, WriteAt, WriteSync,
};

const BY: &Credentials = &Credentials::ROOT;
const WRITE: OpenMode = OpenMode { write: true, append: false };
const KEEP: Privileges = Privileges::Keep;
const BLOCK: usize = 4096;
/// Extra attributes, without checksums of inodes.
const FEATURES: u32 = 0x8;
/// The first address in an inode with all extra attributes.
const FIRST_ADDRESS: usize = 360 + 36;
/// The magic number of the extended attributes in an inode with the default room for them.
const INLINE_XATTRS: usize = BLOCK - 24 - 5 * 4 - 50 * 4;
/// The offset of the superblock, and that of its copy.
const SUPERBLOCKS: [usize; 2] = [1024, BLOCK + 1024];
/// The bytes of an entry of the node address table.
const NODE_ENTRY: usize = 9;
/// The magic number, with which checksums begin.
const MAGIC: u32 = 0xF2F5_2010;

fn open(device: &Arc<MemoryDevice>) -> Result<Volume> {
    let mut options = VolumeOptions::new();
    options.writable(true).cache_bytes_max(8 << 20);
    Volume::open_device(device.clone(), &options)
}

fn create(volume: &Volume, name: &str) -> File {
    let creation = Creation::of(FileType::Regular, 0o644);
    let root = volume.root().unwrap();
    volume.create_in(&root, name.as_bytes(), &creation, BY).unwrap().open_for(WRITE).unwrap()
}

fn find(volume: &Volume, name: &str) -> Arc<Node> {
    volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap()
}

fn unlink(volume: &Volume, name: &str) {
    volume.unlink(&volume.root().unwrap(), name.as_bytes(), BY).unwrap();
}

#[track_caller]
fn check_contents(volume: &Volume, name: &str, at: u64, value: u8) {
    let mut data = [0; BLOCK];
    find(volume, name).open().unwrap().read_exact_at(&mut data, at).unwrap();
    assert!(data == [value; BLOCK], "{name}");
}

/// Returns the device with an image that has the files `data`, of three blocks, and `empty`.
fn device() -> Arc<MemoryDevice> {
    device_with(FEATURES)
}

/// Returns such a device with these features.
fn device_with(features: u32) -> Arc<MemoryDevice> {
    let options =
        MakeOptions { features, ..MakeOptions::new(BlockSize::from_shift(12).unwrap(), 64 << 20) };
    let mut image = vec![0; 64 << 20];
    for write in make(&options).unwrap() {
        if let Contents::Bytes(bytes) = write.contents {
            image[write.at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
    change(&Arc::new(MemoryDevice::new(image)), |volume| {
        create(volume, "data").write_all_at(&[b'd'; 3 * BLOCK], 0).unwrap();
        create(volume, "empty");
    })
}

/// Changes the volume, and closes it. Returns a device with the image.
fn change(device: &Arc<MemoryDevice>, work: impl FnOnce(&Volume)) -> Arc<MemoryDevice> {
    let volume = open(device).unwrap();
    work(&volume);
    volume.close().unwrap();
    drop(volume);
    copy_of(device)
}

fn copy_of(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(device.snapshot()))
}

/// Returns a device with the image that `work` damages.
fn damaged(device: &MemoryDevice, work: impl FnOnce(&mut [u8])) -> Arc<MemoryDevice> {
    let mut image = device.snapshot();
    work(&mut image);
    Arc::new(MemoryDevice::new(image))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

fn set_word(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Returns the blocks that are, or were, those of the node `nid` of `inode`.
fn blocks_of(image: &[u8], nid: u32, inode: u32) -> Vec<usize> {
    let footer = [nid.to_le_bytes(), inode.to_le_bytes()].concat();
    let blocks = (0..).zip(image.chunks(BLOCK));
    blocks.filter(|(_, block)| block[BLOCK - 24..][..8] == footer).map(|(at, _)| at).collect()
}

/// Returns the number of a file's inode.
fn number(device: &MemoryDevice, name: &str) -> u32 {
    find(&open(&copy_of(device)).unwrap(), name).number().0 as u32
}

/// Changes the inode of a file, in all blocks that have had it.
fn damage_inode(device: &MemoryDevice, name: &str, work: impl Fn(&mut [u8])) -> Arc<MemoryDevice> {
    let number = number(device, name);
    damaged(device, |image| {
        for at in blocks_of(image, number, number) {
            work(&mut image[at * BLOCK..][..BLOCK]);
        }
    })
}

/// Lets a file of one block have the block `address`.
fn give_block(device: &MemoryDevice, name: &str, address: u32) -> Arc<MemoryDevice> {
    damage_inode(device, name, |inode| {
        inode[16..24].copy_from_slice(&(BLOCK as u64).to_le_bytes());
        inode[24..32].copy_from_slice(&2_u64.to_le_bytes());
        set_word(inode, FIRST_ADDRESS, address);
    })
}

/// Returns the first address in the inode of a file.
fn first_address(device: &MemoryDevice, name: &str) -> u32 {
    let number = number(device, name);
    let image = device.snapshot();
    let last = *blocks_of(&image, number, number).last().unwrap();
    word(&image[last * BLOCK..], FIRST_ADDRESS)
}

/// Returns the block of the inode of a file.
fn inode_block(device: &MemoryDevice, name: &str) -> u32 {
    let number = number(device, name);
    let blocks = blocks_of(&device.snapshot(), number, number);
    let [block] = blocks[..] else { panic!("{blocks:?}") };
    block as u32
}

/// Returns what the check finds.
fn findings(device: &Arc<MemoryDevice>) -> Vec<String> {
    let volume = Volume::open_device(device.clone(), &VolumeOptions::new()).unwrap();
    let mut found = Vec::new();
    volume.check(&mut |error| {
        found.push(error.to_string());
        ControlFlow::Continue(())
    });
    found
}

/// Checks that the volume can be changed, and `data` has its contents.
#[track_caller]
fn check_usable(device: &Arc<MemoryDevice>) {
    let volume = open(device).unwrap();
    create(&volume, "usable").write_all_at(&[b'u'; 2 * BLOCK], 0).unwrap();
    volume.sync().unwrap();
    check_contents(&volume, "data", 0, b'd');
    volume.close().unwrap();
}

#[test]
fn a_free_block_of_a_removed_file_can_be_that_of_another_one() {
    let device = device();
    // The block that the first data gets.
    let other = change(&copy_of(&device), |volume| {
        create(volume, "new").write_all_at(&[b'n'; BLOCK], 0).unwrap();
    });
    let address = first_address(&other, "new");
    let device = give_block(&device, "empty", address);
    let device = change(&device, |volume| {
        unlink(volume, "empty");
        create(volume, "new").write_all_at(&[b'n'; BLOCK], 0).unwrap();
    });
    assert_eq!(first_address(&device, "new"), address);
    let found = findings(&device);
    assert!(found.is_empty(), "{found:?}");
    check_usable(&device);
}

#[test]
fn a_node_does_not_become_free_as_data_of_a_file() {
    let device = device();
    let device = give_block(&device, "empty", inode_block(&device, "data"));
    let device = change(&device, |volume| unlink(volume, "empty"));
    let found = findings(&device);
    assert!(found.is_empty(), "{found:?}");
    check_usable(&device);
}

#[test]
fn blocks_of_others_are_not_overwritten_as_data_of_a_pinned_file() {
    let device = change(&device(), |volume| {
        let file = create(volume, "pinned");
        find(volume, "pinned").set_pinned(true).unwrap();
        let range = FileOffset(0)..FileOffset(3 * BLOCK as u64);
        file.fallocate(Fallocate::Allocate { keep_size: false }, range, KEEP).unwrap();
    });
    let (device, directory) = with_directory(&device);
    for block in [inode_block(&device, "data"), first_address(&device, "data"), directory] {
        let damaged =
            damage_inode(&device, "pinned", |inode| set_word(inode, FIRST_ADDRESS, block));
        let changed = change(&damaged, |volume| {
            let file = find(volume, "pinned").open_for(WRITE).unwrap();
            let written = file.write_all_at(&[b'p'; BLOCK], 0).and_then(|()| file.sync_all());
            assert!(matches!(written, Err(Error::Corrupt(_))), "{written:?}");
            let at = WriteAt::Offset(FileOffset(0));
            let written = file.write_direct(at, &[b'p'; BLOCK], KEEP, WriteSync::None);
            assert!(matches!(written, Err(Error::Corrupt(_))), "{written:?}");
            file.write_all_at(&[b'p'; BLOCK], BLOCK as u64).unwrap();
        });
        assert!(needs_fsck(&changed));
        check_usable(&changed);
    }
}

/// Creates a directory with more files than its inode has room for. Returns the device, and the
/// directory's first block.
fn with_directory(device: &Arc<MemoryDevice>) -> (Arc<MemoryDevice>, u32) {
    let device = change(device, |volume| {
        let creation = Creation::of(FileType::Directory, 0o755);
        let directory = volume.create_in(&volume.root().unwrap(), b"dir", &creation, BY).unwrap();
        let creation = Creation::of(FileType::Regular, 0o644);
        for number in 0..250 {
            let name = format!("inside{number}");
            volume.create_in(&directory, name.as_bytes(), &creation, BY).unwrap();
        }
    });
    let address = first_address(&device, "dir");
    let image = device.snapshot();
    let block = &image[address as usize * BLOCK..][..BLOCK];
    assert!(block.windows(6).any(|name| name == b"inside"), "no block of the directory");
    (device, address)
}

/// Lets the data of `empty` be written in place, because the file is cold.
fn make_cold(device: &MemoryDevice) -> Arc<MemoryDevice> {
    const COLD: u8 = 1;
    damage_inode(device, "empty", |inode| inode[2] |= COLD)
}

/// Overwrites `empty`, which has been given the block `address`, and checks that `value` is there
/// as before.
fn overwrite_given(device: &Arc<MemoryDevice>, address: u32, work: impl Fn(&Volume)) {
    for is_cold in [false, true] {
        let given = give_block(device, "empty", address);
        let given = if is_cold { make_cold(&given) } else { given };
        let volume = open(&given).unwrap();
        work(&volume);
        let block = |device: &MemoryDevice| {
            let image = device.snapshot();
            image[address as usize * BLOCK..][..BLOCK].to_vec()
        };
        let before = block(&given);
        assert!(before.iter().any(|byte| *byte != 0), "no block of another file");
        let file = find(&volume, "empty").open_for(WRITE).unwrap();
        file.write_all_at(&[b'e'; BLOCK], 0).unwrap();
        file.sync_all().unwrap();
        check_contents(&volume, "empty", 0, b'e');
        drop(file);
        volume.close().unwrap();
        drop(volume);
        assert!(block(&given) == before, "cold: {is_cold}");
        assert!(needs_fsck(&given), "cold: {is_cold}");
    }
}

#[test]
fn data_of_another_file_is_not_overwritten() {
    let device = device();
    overwrite_given(&device, first_address(&device, "data"), |_| ());
}

#[test]
fn a_directory_is_not_overwritten_as_data_of_a_file() {
    let (device, block) = with_directory(&device());
    overwrite_given(&device, block, |_| ());
}

#[test]
fn new_data_of_another_file_is_not_overwritten() {
    let device = device();
    let write = |volume: &Volume| {
        create(volume, "new").write_all_at(&[b'n'; BLOCK], 0).unwrap();
    };
    let address = first_address(&change(&copy_of(&device), write), "new");
    overwrite_given(&device, address, |volume| {
        write(volume);
        find(volume, "new").open_for(WRITE).unwrap().sync_all().unwrap();
    });
    overwrite_given(&device, address, |volume| {
        // The block is allocated after the last checkpoint.
        create(volume, "checkpoint");
        volume.sync().unwrap();
        write(volume);
        find(volume, "new").open_for(WRITE).unwrap().sync_data().unwrap();
    });
}

#[test]
fn own_blocks_are_overwritten_in_place() {
    /// As many blocks as several nodes and segments have.
    const COUNT: usize = 2500;
    let device = make_cold(&change(&device(), |volume| {
        find(volume, "empty")
            .open_for(WRITE)
            .unwrap()
            .write_all_at(&vec![1; COUNT * BLOCK], 0)
            .unwrap();
    }));
    let first = first_address(&device, "empty");
    let device = change(&device, |volume| {
        let file = find(volume, "empty").open_for(WRITE).unwrap();
        // In a node that is as in the checkpoint, in one that has changed, and after a checkpoint.
        for value in 2..5 {
            file.write_all_at(&vec![value; COUNT * BLOCK], 0).unwrap();
            file.sync_data().unwrap();
            file.write_all_at(&[value; BLOCK], ((COUNT + value as usize) * BLOCK) as u64).unwrap();
            file.write_all_at(&[value; 20 * BLOCK], 5 * BLOCK as u64).unwrap();
            file.sync_all().unwrap();
            if value == 3 {
                volume.sync().unwrap();
            }
        }
    });
    assert_eq!(first_address(&device, "empty"), first);
    assert!(!needs_fsck(&device));
    let found = findings(&device);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_directory_of_any_size_is_listed_and_removed() {
    let device = change(&device(), |volume| {
        let creation = Creation::of(FileType::Directory, 0o755);
        volume.create_in(&volume.root().unwrap(), b"large", &creation, BY).unwrap();
    });
    let device = damage_inode(&device, "large", |inode| {
        // Without entries in the inode.
        inode[3] &= !4;
        inode[FIRST_ADDRESS..BLOCK - 24].fill(0);
        inode[16..24].copy_from_slice(&(i64::MAX as u64).to_le_bytes());
    });
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let volume = open(&device).unwrap();
        let listed =
            find(&volume, "large").read_dir(DirCursor(0), &mut |_| ControlFlow::Continue(()));
        let removed = volume.rmdir(&volume.root().unwrap(), b"large", BY);
        volume.close().unwrap();
        sender.send((listed, removed)).unwrap();
    });
    let ended = receiver.recv_timeout(Duration::from_secs(30)).expect("the listing ends");
    assert_eq!(ended, (Ok(()), Ok(())));
}

#[test]
fn a_file_of_any_size_is_searched_for_data() {
    let device = damage_inode(&device(), "empty", |inode| {
        inode[16..24].copy_from_slice(&(i64::MAX as u64).to_le_bytes());
    });
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let volume = open(&device).unwrap();
        let file = find(&volume, "empty").open().unwrap();
        let found = [0, 1 << 62].map(|at| file.seek_data(FileOffset(at)));
        sender.send((found, file.seek_hole(FileOffset(1 << 62)))).unwrap();
    });
    let ended = receiver.recv_timeout(Duration::from_secs(30)).expect("the search ends");
    let none = Err(Error::NoSuchOffset);
    assert_eq!(ended, ([none.clone(), none], Ok(FileOffset(1 << 62))));
}

#[test]
fn a_volume_can_be_changed_after_a_file_with_wrong_addresses_was_removed() {
    const RESERVED: u32 = u32::MAX;
    let device = device();
    let address = first_address(&device, "data");
    for address in [RESERVED, address] {
        let device = damage_inode(&device, "empty", |inode| {
            inode[24..32].copy_from_slice(&101_u64.to_le_bytes());
            (0..100).for_each(|index| set_word(inode, FIRST_ADDRESS + 4 * index, address));
        });
        let device = change(&device, |volume| unlink(volume, "empty"));
        let volume = open(&device).unwrap();
        create(&volume, "usable").write_all_at(&[b'u'; 2 * BLOCK], 0).unwrap();
        volume.close().unwrap();
    }
}

#[test]
fn a_wrong_inode_in_the_node_address_table_does_not_shut_the_volume_down() {
    const AT: u64 = 1000 * BLOCK as u64;
    let device = change(&device(), |volume| {
        create(volume, "far").write_all_at(&[b'f'; BLOCK], AT).unwrap();
    });
    let inode = number(&device, "far");
    let device = damaged(&device, |image| {
        let node = (4..100)
            .flat_map(|nid| blocks_of(image, nid, inode).into_iter().map(move |at| (nid, at)));
        let (nid, _) = { node }.find(|(nid, _)| *nid != inode).unwrap();
        let table = word(&image[1024..], 84) as usize * BLOCK;
        // Both copies of the table's first block.
        for copy in [table, table + 512 * BLOCK] {
            set_word(image, copy + nid as usize * NODE_ENTRY + 1, inode + 1);
        }
    });
    let device = change(&device, |volume| {
        let file = find(volume, "far").open_for(WRITE).unwrap();
        file.write_all_at(&[b'g'; BLOCK], AT + BLOCK as u64).unwrap();
        file.sync_all().unwrap();
    });
    let volume = open(&device).unwrap();
    check_contents(&volume, "far", AT, b'f');
    check_contents(&volume, "far", AT + BLOCK as u64, b'g');
    check_usable(&copy_of(&device));
}

/// Changes the current checkpoint pack's first and last block.
fn damage_checkpoint(device: &MemoryDevice, work: impl Fn(&mut [u8])) -> Arc<MemoryDevice> {
    damaged(device, |image| {
        let first = word(&image[1024..], 76) as usize * BLOCK;
        let version = |at: usize| u64::from_le_bytes(*image[at..].first_chunk().unwrap());
        let start = [first, first + 512 * BLOCK].into_iter().max_by_key(|at| version(*at)).unwrap();
        let last = start + (word(image, start + 136) as usize - 1) * BLOCK;
        for at in [start, last] {
            let block = &mut image[at..][..BLOCK];
            work(block);
            let checksum_at = word(block, 164) as usize;
            let sum = crc32_le(crc32_le(MAGIC, &block[..checksum_at]), &block[checksum_at + 4..]);
            set_word(block, checksum_at, sum);
        }
    })
}

#[track_caller]
fn check_refused(device: &Arc<MemoryDevice>, expected: &str) {
    let error = open(device).map(drop).unwrap_err();
    assert!(error.to_string().contains(expected), "{error}");
    let volume = Volume::open_device(device.clone(), &VolumeOptions::new()).unwrap();
    check_contents(&volume, "data", 0, b'd');
}

#[test]
fn a_log_of_nodes_in_a_segment_with_data_is_refused() {
    let device = damage_checkpoint(&device(), |block| {
        // Those of warm nodes and of warm data.
        let (nodes, data) = (36 + 4, 84 + 4);
        let [of_nodes, of_data] = [nodes, data].map(|at| word(block, at));
        set_word(block, nodes, of_data);
        set_word(block, data, of_nodes);
    });
    check_refused(&device, "segment type");
}

#[test]
fn a_checksum_among_the_version_bits_is_refused() {
    let device = damage_checkpoint(&device(), |block| set_word(block, 164, 192 + 8));
    check_refused(&device, "checksum offset");
}

#[test]
fn no_new_file_gets_the_number_of_a_quota_file() {
    let device = device();
    let other = change(&copy_of(&device), |volume| drop(create(volume, "new")));
    let number = number(&other, "new");
    let device = damaged(&device, |image| {
        for at in SUPERBLOCKS {
            let features = word(&image[at..], 2180);
            set_word(&mut image[at..], 2180, features | 0x80);
            set_word(&mut image[at..], 2745, number);
        }
    });
    let device = change(&device, |volume| drop(create(volume, "new")));
    let volume = open(&device).unwrap();
    assert_ne!(find(&volume, "new").number().0, u64::from(number));
}

/// Returns whether the last checkpoint asks for fsck.f2fs.
fn needs_fsck(device: &MemoryDevice) -> bool {
    const NEEDS_FSCK: u32 = 0x10;
    let flags = Mutex::new(0);
    // Only to find the pack.
    damage_checkpoint(device, |block| *flags.lock().unwrap() = word(block, 132));
    flags.into_inner().unwrap() & NEEDS_FSCK != 0
}

#[test]
fn corruption_that_reads_find_is_recorded() {
    let device = change(&device(), |volume| {
        let file = create(volume, "far");
        file.write_all_at(&[b'f'; BLOCK], 0).unwrap();
        find(volume, "far").set_xattr(b"user.name", b"value", XattrMode::Either, KEEP).unwrap();
    });
    assert!(!needs_fsck(&device));
    type Read = fn(&Volume) -> Result<()>;
    let reads: [(&str, usize, u32, Read); 3] = [
        ("mode", 0, 0xF96, |volume| volume.lookup(&volume.root().unwrap(), b"far").map(drop)),
        ("address", FIRST_ADDRESS, 7, |volume| {
            find(volume, "far").open()?.read_exact_at(&mut [0; BLOCK], 0)
        }),
        ("magic number of attributes", INLINE_XATTRS, 7, |volume| {
            find(volume, "far").list_xattrs().map(drop)
        }),
    ];
    for (field, at, value, read) in reads {
        let damaged = damage_inode(&device, "far", |inode| set_word(inode, at, value));
        let closed = change(&damaged, |volume| {
            let result = read(volume);
            assert!(matches!(result, Err(Error::Corrupt(_))), "{field}: {result:?}");
            create(volume, "new");
        });
        assert!(needs_fsck(&closed), "{field}");
        let mut options = VolumeOptions::new();
        options.writable(true).errors(ErrorPolicy::ReadOnly);
        let volume = Volume::open_device(copy_of(&damaged), &options).unwrap();
        assert!(matches!(read(&volume), Err(Error::Corrupt(_))), "{field}");
        let creation = Creation::of(FileType::Regular, 0o644);
        let created = volume.create_in(&volume.root().unwrap(), b"new", &creation, BY);
        assert!(matches!(created, Err(Error::ShutDown(_))), "{field}");
        check_contents(&volume, "data", 0, b'd');
    }
    // The caller of a lookup by number may pass any number.
    let closed = change(&device, |volume| assert!(volume.kept_node(InodeNumber(9999)).is_err()));
    assert!(!needs_fsck(&closed));
}

#[test]
fn a_directory_that_is_larger_than_its_size_keeps_its_names() {
    let (device, hidden) = (device(), 300);
    let device = change(&device, |volume| {
        let creation = Creation::of(FileType::Directory, 0o755);
        let directory = volume.create_in(&volume.root().unwrap(), b"large", &creation, BY).unwrap();
        for number in 0..hidden {
            let creation = Creation::of(FileType::Regular, 0o644);
            volume.create_in(&directory, format!("{number}").as_bytes(), &creation, BY).unwrap();
        }
    });
    let damaged = damage_inode(&device, "large", |inode| inode[16..24].fill(0));
    assert!(!findings(&damaged).is_empty());
    let closed = change(&damaged, |volume| {
        let removed = volume.rmdir(&volume.root().unwrap(), b"large", BY);
        assert!(matches!(removed, Err(Error::Corrupt(_))), "{removed:?}");
        let creation = Creation::of(FileType::Regular, 0o644);
        let created = volume.create_in(&find(volume, "large"), b"new", &creation, BY);
        assert!(matches!(created, Err(Error::Corrupt(_))), "{created:?}");
    });
    let size = 8 * BLOCK as u64;
    let mended = damage_inode(&closed, "large", |inode| {
        inode[16..24].copy_from_slice(&size.to_le_bytes());
    });
    let volume = open(&mended).unwrap();
    for number in 0..hidden {
        volume.lookup(&find(&volume, "large"), format!("{number}").as_bytes()).unwrap();
    }
}

/// Fails the second read of each block in a range.
#[derive(Debug, Default)]
struct SecondReads {
    blocks: Mutex<Range<u64>>,
    read: Mutex<BTreeSet<u64>>,
}

impl DeviceHooks for SecondReads {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let first = bio.offset().0 / BLOCK as u64;
            let mut blocks = first..first + bio.length().div_ceil(BLOCK as u64);
            let is_read = bio.operation() == BioOperation::Read;
            let range = self.blocks.lock().unwrap();
            let mut read = self.read.lock().unwrap();
            if is_read && blocks.any(|block| range.contains(&block) && !read.insert(block)) {
                bio.end(Err(5));
            } else {
                drop((range, read));
                device.submit(vec![bio]);
            }
        }
    }
}

#[test]
fn a_checkpoint_keeps_a_node_whose_inode_was_removed() {
    let whole = change(&device(), |volume| {
        create(volume, "far").write_all_at(&[b'f'; BLOCK], 1000 * BLOCK as u64).unwrap();
        for name in 0..1200 {
            create(volume, &format!("other{name}"));
        }
    });
    let inode = number(&whole, "far");
    let nodes = |image: &[u8]| -> Vec<(u32, usize)> {
        let of = |nid| blocks_of(image, nid, inode).into_iter().map(move |at| (nid, at));
        (4..3000).filter(|nid| *nid != inode).flat_map(of).collect()
    };
    let [(_, node)] = nodes(&whole.snapshot())[..] else { panic!("one node") };
    // The inode does not refer to the node.
    let whole = damage_inode(&whole, "far", |inode| set_word(inode, BLOCK - 24 - 20, 0));
    let hooked = Arc::new(HookedDevice::new(whole.clone(), SecondReads::default()));
    let mut options = VolumeOptions::new();
    // Less than the nodes of the segment.
    options.writable(true).cache_bytes_max(1 << 20);
    let volume = Volume::open_device(hooked.clone(), &options).unwrap();
    let main = u64::from(word(&whole.snapshot()[1024..], 92));
    let segment_end = node as u64 - (node as u64 - main) % 512 + 512;
    *hooked.blocks.lock().unwrap() = node as u64 + 1..segment_end;
    let block = FsBlock(node as u64);
    let cleaned = volume.clean_range(block..=block, false);
    assert!(matches!(cleaned, Err(Error::Io(_))), "{cleaned:?}");
    *hooked.blocks.lock().unwrap() = 0..0;
    unlink(&volume, "far");
    volume.sync().unwrap();
    drop(volume);
    check_usable(&whole);
}
