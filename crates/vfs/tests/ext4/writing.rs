//! Writes to ext4 volumes through the vfs, judged by e2fsck and the kernel.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use base::attributes::FileType;
use base::{Error, FileOffset};
use device::{Bio, MemoryDevice, SharedDevice};
use testkit::command::run;
use testkit::{
    DeviceHooks, HookedDevice, LoopMount, Mke2fs, check_by_e2fsck, private_mounts, wait_until,
};
use vfs::{
    Creation, Credentials, DirectIo, Fallocate, File, Follow, Node, OpenMode, Privileges,
    RenameFlags, RwFlags, Volume, VolumeOptions, WriteAt,
};

const WRITE: OpenMode = OpenMode { write: true, append: false };

fn open(image: &Path) -> Volume {
    let options = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
    let device = device::open(image, options).unwrap();
    let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    Volume::open_device(device, &options).unwrap()
}

fn make(volume: &Volume, parent: &Arc<Node>, name: &str, kind: FileType) -> Arc<Node> {
    let creation = Creation::of(kind, 0o644);
    volume.create_in(parent, name.as_bytes(), &creation, &Credentials::ROOT).unwrap()
}

fn mkdir(volume: &Volume, path: &str) -> Arc<Node> {
    let creation = Creation::of(FileType::Directory, 0o755);
    volume.create_at(path.as_bytes(), &creation, &Credentials::ROOT).unwrap()
}

/// Makes a file of `size` bytes with `grow`, and returns whether the volume has the feature of
/// large files then.
fn grow_on_a_small_volume(grow: impl FnOnce(&Arc<Node>)) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    // The inode for resizing is large, too.
    let mke2fs = Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) };
    mke2fs.with("-O ^large_file,^resize_inode").make(&image, None);
    let volume = open(&image);
    let node = make(&volume, &volume.root().unwrap(), "file", FileType::Regular);
    grow(&node);
    drop(node);
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
    let header = run(Command::new("dumpe2fs").arg("-h").arg(&image));
    String::from_utf8_lossy(&header).contains("large_file")
}

#[test]
fn the_first_file_of_2_gib_adds_the_feature_of_large_files() {
    const MAX: u64 = (2 << 30) - 1;
    let set_size =
        |size: u64| grow_on_a_small_volume(|node| node.set_size(size, Privileges::Keep).unwrap());
    assert_eq!([MAX, MAX + 1].map(set_size), [false, true]);
    let write = |at: u64| {
        grow_on_a_small_volume(|node| {
            let file = node.open_for(WRITE).unwrap();
            assert_eq!(file.write_at(&[1], at), Ok(1));
        })
    };
    assert_eq!([MAX - 1, MAX].map(write), [false, true]);
    let insert = |length: u64| {
        grow_on_a_small_volume(|node| {
            let file = node.open_for(WRITE).unwrap();
            assert_eq!(file.write_at(&[1; 8192], 0), Ok(8192));
            let range = FileOffset(4096)..FileOffset(4096 + length);
            file.fallocate(Fallocate::InsertRange, range, Privileges::Keep).unwrap();
        })
    };
    assert_eq!([1 << 20, 2 << 30].map(insert), [false, true]);
}

#[test]
fn a_range_of_a_file_whose_size_is_too_large_can_be_collapsed() {
    const SIZE: u64 = (1 << 44) + 8192;
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let volume = open(&image);
    let node = make(&volume, &volume.root().unwrap(), "file", FileType::Regular);
    assert_eq!(node.open_for(WRITE).unwrap().write_at(&[1; 8192], 0), Ok(8192));
    drop(node);
    volume.close().unwrap();
    drop(volume);
    let damage = format!("set_inode_field /file size {SIZE}");
    run(Command::new("debugfs").args(["-w", "-R", &damage]).arg(&image));
    let volume = open(&image);
    let node = volume.open("/file").unwrap().node().clone();
    let file = node.open_for(WRITE).unwrap();
    let range = FileOffset(0)..FileOffset(4096);
    file.fallocate(Fallocate::CollapseRange, range, Privileges::Keep).unwrap();
    assert_eq!(node.attributes().size, SIZE - 4096);
    drop((file, node));
    volume.close().unwrap();
}

#[test]
fn the_kernel_reads_the_files_that_several_threads_wrote() {
    private_mounts();
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let volume = Arc::new(open(&image));
    let root = volume.root().unwrap();
    let contents = |name: usize| -> Vec<u8> {
        (0..200_000 + name * 1000).map(|at| (at * 7 + name) as u8).collect()
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (volume, root) = (&volume, &root);
            scope.spawn(move || {
                let directory =
                    make(volume, root, &format!("directory {thread}"), FileType::Directory);
                for name in 0..20 {
                    let node = make(volume, &directory, &format!("{name}"), FileType::Regular);
                    let file = node.open_for(WRITE).unwrap();
                    for (index, part) in contents(name).chunks(30_000).enumerate() {
                        let at = FileOffset(index as u64 * 30_000);
                        file.write_at(part, at.0).unwrap();
                    }
                    match name % 4 {
                        0 => file.sync_all().unwrap(),
                        1 => node.set_size(100_000, Privileges::Keep).unwrap(),
                        _ => {}
                    }
                    drop(file);
                    if name % 5 == 4 {
                        let name = format!("{name}");
                        volume.unlink(&directory, name.as_bytes(), &Credentials::ROOT).unwrap();
                    }
                }
            });
        }
    });
    drop(root);
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
    let mount = LoopMount::new(&image, "ext4", "ro");
    for thread in 0..3 {
        let directory = mount.path().join(format!("directory {thread}"));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 16);
        for name in (0..20).filter(|name| name % 5 != 4) {
            let mut expected = contents(name);
            if name % 4 == 1 {
                expected.truncate(100_000);
            }
            assert!(
                std::fs::read(directory.join(format!("{name}"))).unwrap() == expected,
                "{name}"
            );
        }
    }
}

#[test]
fn blocks_of_files_have_the_order_in_which_the_files_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let volume = open(&image);
    let root = volume.root().unwrap();
    let nodes: Vec<_> =
        (0..200).map(|name| make(&volume, &root, &format!("{name}"), FileType::Regular)).collect();
    // An order that is not that of the inode numbers.
    let order: Vec<_> = (0..200).map(|step| &nodes[step * 77 % 200]).collect();
    for node in &order {
        let file = node.open_for(WRITE).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
    }
    volume.sync().unwrap();
    let first_block = |node: &Arc<Node>| {
        let mut block = None;
        let emit = &mut |extent: iomap::FiemapExtent| {
            block = Some(extent.physical.0);
            ControlFlow::Continue(())
        };
        node.extents(FileOffset(0)..FileOffset(4096), emit).unwrap();
        block.unwrap()
    };
    let blocks: Vec<_> = order.iter().map(|node| first_block(node)).collect();
    assert!(blocks.is_sorted(), "{blocks:?}");
    volume.close().unwrap();
}

#[test]
fn the_last_user_of_a_file_without_a_name_frees_its_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 1024) }.make(&image, None);
    let volume = open(&image);
    let free = volume.statfs().blocks_free;
    let root = volume.root().unwrap();
    let node = make(&volume, &root, "gone", FileType::Regular);
    let file = node.open_for(WRITE).unwrap();
    file.write_at(&[7; 1 << 20], 0).unwrap();
    volume.unlink(&root, b"gone", &Credentials::ROOT).unwrap();
    assert!(volume.resolve(b"/gone", Follow::Yes).is_err());
    file.write_at(&[8; 1 << 20], 1 << 20).unwrap();
    let mut buffer = [0; 2];
    file.read_at(&mut buffer, (1 << 20) - 1).unwrap();
    assert_eq!(buffer, [7, 8]);
    drop((file, node));
    volume.sync().unwrap();
    assert_eq!(volume.statfs().blocks_free, free);
    drop(root);
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
}

/// The volume is marked as clean, and e2fsck and the kernel complete the orphans of clean volumes,
/// too.
#[test]
fn a_file_without_a_name_that_is_open_at_the_end_is_freed_by_e2fsck_and_the_kernel() {
    private_mounts();
    for features in ["-O ^orphan_file", "-O orphan_file", "-O ^has_journal,^orphan_file"] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        let mke2fs = Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 1024) };
        mke2fs.with(features).make(&image, None);
        let volume = open(&image);
        let root = volume.root().unwrap();
        let node = make(&volume, &root, "gone", FileType::Regular);
        node.open_for(WRITE).unwrap().write_at(&[7; 1 << 20], 0).unwrap();
        volume.unlink(&root, b"gone", &Credentials::ROOT).unwrap();
        volume.close().unwrap();
        drop((node, root, volume));
        let mounted = folder.path().join("mounted");
        std::fs::copy(&image, &mounted).unwrap();
        LoopMount::new(&mounted, "ext4", "rw").unmount();
        check_by_e2fsck(&mounted);
        // Without -f: the volume is clean.
        let status = Command::new("e2fsck").arg("-p").arg(&image).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 1)), "{features}: {status}");
        check_by_e2fsck(&image);
    }
}

#[test]
fn copies_of_ranges_stay_sparse_and_replace_earlier_data() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 1024) }.make(&image, None);
    let volume = open(&image);
    let root = volume.root().unwrap();
    let file = |name| make(&volume, &root, name, FileType::Regular).open_for(WRITE).unwrap();
    let write = |file: &vfs::File, at, data: &[u8]| {
        assert_eq!(file.write_at(data, at).unwrap(), data.len());
    };
    let contents = |file: &vfs::File| {
        let mut bytes = vec![0xaa; 3 << 20];
        let length = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(length);
        bytes
    };
    let source = file("source");
    let mut expected = vec![0; 2 << 20];
    for at in [5000, 300_000, 1_900_000] {
        write(&source, at as u64, &[7; 3000]);
        expected[at..at + 3000].fill(7);
    }
    source.node().set_size(2 << 20, Privileges::Keep).unwrap();
    let copy = |from, target: &vfs::File, at, length| {
        source.copy_to(FileOffset(from), target, FileOffset(at), length, Privileges::Keep)
    };

    let sparse = file("sparse");
    assert_eq!(copy(0, &sparse, 0, u64::MAX), Ok(2 << 20));
    assert!(contents(&sparse) == expected);
    let full = file("full");
    write(&full, 0, &[9; 3 << 20]);
    full.sync_all().unwrap();
    assert_eq!(copy(4000, &full, 100, 1 << 20), Ok(1 << 20));
    let mut mixed = vec![9; 3 << 20];
    mixed[100..100 + (1 << 20)].copy_from_slice(&expected[4000..4000 + (1 << 20)]);
    assert!(contents(&full) == mixed);
    assert_eq!(copy(3 << 20, &full, 0, 10), Ok(0));
    assert!(copy(0, &source, 4000, 5000).is_err(), "onto itself");
    let reading = volume.resolve(b"/sparse", Follow::No).unwrap().open().unwrap();
    assert!(copy(0, &reading, 0, 10).is_err(), "to a file opened for reading");
    volume.sync().unwrap();
    let blocks = |file: &vfs::File| file.node().attributes().blocks;
    assert_eq!(blocks(&sparse), blocks(&source));
    drop((source, sparse, full, reading));
    volume.close().unwrap();
    check_by_e2fsck(&image);
}

#[test]
fn a_file_with_inline_data_can_be_extended_several_times() {
    private_mounts();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("empty"), b"").unwrap();
    std::fs::write(source.join("small"), b"inline").unwrap();
    std::fs::write(source.join("cut"), [b'x'; 120]).unwrap();
    std::fs::write(source.join("shorter"), [b'y'; 120]).unwrap();
    let image = folder.path().join("image");
    let kind = Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 1024) }.with("-O inline_data");
    kind.make(&image, Some(&source));
    let volume = open(&image);
    let mut expected = BTreeMap::new();
    for (name, cuts) in [("cut", [70, 100]), ("shorter", [20, 40])] {
        let node = volume.resolve(format!("/{name}").as_bytes(), Follow::No).unwrap();
        for size in cuts {
            node.set_size(size, Privileges::Keep).unwrap();
        }
        let mut found = vec![0xff; 200];
        let length = node.open_for(WRITE).unwrap().read_at(&mut found, 0).unwrap();
        let byte = if name == "cut" { b'x' } else { b'y' };
        let mut left = vec![byte; cuts[0] as usize];
        left.resize(cuts[1] as usize, 0);
        assert_eq!(&found[..length], left, "{name}");
        expected.insert(name, left);
    }
    for name in ["/empty", "/small"] {
        let node = volume.resolve(name.as_bytes(), Follow::No).unwrap();
        for size in [3700, 1900, 2500, 5000] {
            node.set_size(size, Privileges::Keep).unwrap();
        }
        let file = node.open_for(WRITE).unwrap();
        file.write_at(b"far", 4000).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
    let mount = LoopMount::new(&image, "ext4", "ro");
    for name in ["empty", "small"] {
        let mut expected = std::fs::read(source.join(name)).unwrap();
        expected.resize(5000, 0);
        expected[4000..4003].copy_from_slice(b"far");
        assert!(std::fs::read(mount.path().join(name)).unwrap() == expected, "{name}");
    }
    for (name, expected) in expected {
        assert_eq!(std::fs::read(mount.path().join(name)).unwrap(), expected, "{name}");
    }
}

#[test]
fn dirty_files_without_a_name_leave_room_for_data_in_a_small_cache() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let options = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
    let device = device::open(&image, options).unwrap();
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = 4 << 20;
    let volume = Volume::open_device(device, &options).unwrap();
    let root = volume.root().unwrap();
    let make = |name: &str| make(&volume, &root, name, FileType::Regular).open_for(WRITE).unwrap();
    const BYTES: usize = 256 << 10;
    let temporary: Vec<File> = (0..24_u8)
        .map(|number| {
            let name = format!("temporary-{number}");
            let file = make(&name);
            volume.remove(name.as_bytes(), &Credentials::ROOT).unwrap();
            assert_eq!(file.write_at(&vec![number; BYTES], 0), Ok(BYTES), "file {number}");
            file
        })
        .collect();
    let file = make("file");
    for at in 0..32 {
        assert_eq!(file.write_at(&vec![1; BYTES], at * BYTES as u64), Ok(BYTES), "part {at}");
    }
    for (number, file) in (0..).zip(&temporary) {
        let mut bytes = vec![0xaa; BYTES];
        assert_eq!(file.read_at(&mut bytes, 0), Ok(BYTES));
        assert!(bytes.iter().all(|&byte| byte == number), "file {number}");
    }
    drop((temporary, file, root));
    volume.close().unwrap();
    drop(volume);
    check_by_e2fsck(&image);
}

#[test]
fn changed_metadata_leaves_room_for_data_in_a_small_cache() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs::new("ext4", 65_536).make(&image, None);
    let options = device::OpenDevice { read_only: false, ..device::OpenDevice::default() };
    let device = device::open(&image, options).unwrap();
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = 16 << 20;
    let volume = Volume::open_device(device, &options).unwrap();
    // Each directory has a block of its own. Together, these are twice the cache.
    for index in 0..128 {
        volume.create_dir(format!("/{index}")).unwrap();
    }
    let file = volume.create_new("/file").unwrap();
    for index in 0..64_u64 {
        file.write_all_at(&[index as u8; 65_536], index << 16).unwrap();
    }
    let mut bytes = vec![0; 65_536];
    for index in 0..64_u64 {
        file.read_exact_at(&mut bytes, index << 16).unwrap();
        assert_eq!(bytes, [index as u8; 65_536], "{index}");
    }
    drop(file);
    volume.close().unwrap();
    check_by_e2fsck(&image);
}

/// The time for which a thread holds a file after it could have been dropped.
const HELD: Duration = Duration::from_millis(50);

/// Holds the threads of background writeback for [`HELD`] after each submit.
#[derive(Default, Debug)]
struct SlowThreads {
    submitted: AtomicBool,
}

impl DeviceHooks for SlowThreads {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        device.submit(batch);
        if matches!(thread::current().name(), Some("bifolio-flush" | "write behind")) {
            self.submitted.store(true, Ordering::SeqCst);
            thread::sleep(HELD);
        }
    }
}

/// Calls `change` with a new file of a volume, closes the volume if `closes`, and drops it. Returns
/// whether the device is not in use then.
fn releases_device(closes: bool, change: impl FnOnce(&Volume, File, &SlowThreads)) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let memory = Arc::new(MemoryDevice::new(std::fs::read(image).unwrap()));
    let device = Arc::new(HookedDevice::new(memory, SlowThreads::default()));
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = 16 << 20;
    let volume = Volume::open_device(Arc::clone(&device) as SharedDevice, &options).unwrap();
    let node = make(&volume, &volume.root().unwrap(), "file", FileType::Regular);
    let file = node.open_for(WRITE).unwrap();
    drop(node);
    change(&volume, file, &device);
    if closes {
        volume.close().unwrap();
    }
    drop(volume);
    Arc::strong_count(&device) == 1
}

#[test]
fn a_dropped_volume_has_released_its_device() {
    let write = |file: File, device: &SlowThreads, flags: RwFlags| {
        // Enough for the thread, and too little for the other one.
        let data = vec![1; if flags.dontcache { 1 << 20 } else { 4 << 20 }];
        let at = WriteAt::Offset(FileOffset(0));
        assert_eq!(file.write_with(at, &data, Privileges::Keep, flags), Ok(data.len()));
        drop(file);
        wait_until("a thread submits", || device.submitted.load(Ordering::SeqCst));
    };
    let cached = RwFlags::default();
    let uncached = RwFlags { dontcache: true, ..cached };
    for (closes, flags) in [true, false].into_iter().flat_map(|it| [(it, cached), (it, uncached)]) {
        let is_released = releases_device(closes, |_, file, device| write(file, device, flags));
        assert!(is_released, "{flags:?}, closed: {closes}");
    }
    let is_released = releases_device(true, |_, file, _| {
        let (sender, receiver) = mpsc::channel();
        let done = move |_, result| {
            sender.send(result).unwrap();
            thread::sleep(HELD);
        };
        let mode = Fallocate::Allocate { keep_size: false };
        file.fallocate(mode, FileOffset(0)..FileOffset(4096), Privileges::Keep).unwrap();
        let write = DirectIo::write(FileOffset(0), vec![1; 4096], done);
        file.submit_direct(vec![write], Privileges::Keep, false);
        assert_eq!(receiver.recv().unwrap(), Ok(4096));
    });
    assert!(is_released, "a direct write");
}

/// Names behind the size cannot be seen, and would be lost with the directory.
#[test]
fn a_directory_that_is_larger_than_its_size_is_not_removed() {
    for options in ["-O ^metadata_csum", "-O ^dir_index", "-O ^extent,^64bit"] {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.with(options).make(&image, None);
        let volume = open(&image);
        let root = Credentials::ROOT;
        volume.mkdir(b"/d", 0o755, &root).unwrap();
        let names: Vec<String> = (0..60).map(|number| format!("/d/{number}-{:060}", 0)).collect();
        for name in &names {
            volume.create_file(name.as_bytes(), 0o644, &root).unwrap();
        }
        volume.close().unwrap();
        drop(volume);
        let damage = "set_inode_field /d size 1024";
        run(Command::new("debugfs").args(["-w", "-R", damage]).arg(&image));
        let volume = open(&image);
        let seen =
            names.iter().filter(|name| volume.remove(name.as_bytes(), &root).is_ok()).count();
        assert!(seen < names.len(), "{options}: {seen} names are seen");
        let removed = volume.remove(b"/d", &root);
        assert!(matches!(removed, Err(Error::Corrupt(_))), "{options}: {removed:?}");
        volume.close().unwrap();
        drop(volume);
        let output = Command::new("e2fsck").arg("-fy").arg(&image).output().unwrap();
        assert!(output.status.code() <= Some(1), "{options}: {output:?}");
        let volume = open(&image);
        let left = names.iter().filter(|name| volume.resolve(name.as_bytes(), Follow::No).is_ok());
        assert_eq!(left.count(), names.len() - seen, "{options}");
        volume.close().unwrap();
        drop(volume);
        check_by_e2fsck(&image);
    }
}

#[test]
fn an_exchange_respects_the_limit_of_links_of_both_directories() {
    for (format, options) in [("ext3", ""), ("ext4", "-O ^dir_nlink"), ("ext4", "")] {
        let is_limited = (format, options) != ("ext4", "");
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        Mke2fs { size: 16 << 20, ..Mke2fs::new(format, 1024) }.with(options).make(&image, None);
        let volume = open(&image);
        for directory in ["/full", "/other", "/other/directory", "/full/own"] {
            mkdir(&volume, directory);
        }
        volume.create_file(b"/full/file", 0o644, &Credentials::ROOT).unwrap();
        volume.close().unwrap();
        drop(volume);
        let links = "set_inode_field /full links_count 65000";
        run(Command::new("debugfs").args(["-w", "-R", links]).arg(&image));
        let volume = open(&image);
        let exchange = |from: &str, to: &str| {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            volume.rename_at(from.as_bytes(), to.as_bytes(), flags, &Credentials::ROOT)
        };
        let links =
            |path: &str| volume.resolve(path.as_bytes(), Follow::No).unwrap().attributes().links;
        // Two directories change places, so that no count changes.
        let own = ["/full/own", "/other/directory"];
        for [from, to] in [own, [own[1], own[0]]] {
            assert_eq!(exchange(from, to), Ok(()));
            assert_eq!([links("/full"), links("/other")], [65000, 3], "{format} {options}");
        }
        let expected = if is_limited { Err(Error::TooManyLinks) } else { Ok(()) };
        assert_eq!(exchange("/full/file", "/other/directory"), expected, "{format} {options}");
        let counts = if is_limited { [65000, 3] } else { [1, 2] };
        assert_eq!([links("/full"), links("/other")], counts, "{format} {options}");
        if is_limited {
            assert_eq!(exchange("/other/directory", "/full/file"), expected);
            // A directory leaves, and makes room for another one.
            assert_eq!(exchange("/full/own", "/full/file"), Ok(()));
            volume.remove(b"/full/file", &Credentials::ROOT).unwrap();
            volume.create_file(b"/full/new", 0o644, &Credentials::ROOT).unwrap();
            assert_eq!(exchange("/full/new", "/other/directory"), Ok(()));
            assert_eq!([links("/full"), links("/other")], [65000, 2]);
        }
        volume.close().unwrap();
    }
}

/// Tests files and directories with block maps whose inodes are in groups that pointers cannot
/// refer to.
#[test]
fn block_maps_of_inodes_at_the_end_of_a_huge_volume_use_blocks_within_32_bits() {
    const BLOCK: u64 = 64 << 10;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = folder.path().join("image");
    let mke2fs = Mke2fs { size: 512 << 40, ..Mke2fs::new("ext4", BLOCK as u32) };
    let features = "-O ^has_journal,^resize_inode,sparse_super2,^flex_bg";
    mke2fs.with(features).with("-E lazy_itable_init=1,nodiscard").make(&image, None);
    let debugfs =
        |request| drop(run(Command::new("debugfs").args(["-w", "-R", request]).arg(&image)));
    // mke2fs makes no volume of more than 2^32 blocks without the feature.
    debugfs("feature -extents");
    let volume = open(&image);
    // The block of the inode's group, in about the middle of the volume.
    let inodes = volume.statfs().inodes;
    let mut number = 0;
    let directory = loop {
        number += 1;
        let path = format!("/{number}");
        if mkdir(&volume, &path).number().0 > inodes / 3 * 2 {
            break path;
        }
    };
    // More than one block of names, so that the directory has an index.
    let names = |number: u64| format!("{directory}/{number:x>250}");
    for number in 0..600 {
        volume.create_file(names(number).as_bytes(), 0o644, &Credentials::ROOT).unwrap();
    }
    let data: Vec<u8> = (0..40 * BLOCK).map(|at| (at / 3) as u8).collect();
    let far = BLOCK * 60;
    let file = volume.resolve(names(5).as_bytes(), Follow::No).unwrap().open_for(WRITE).unwrap();
    for at in [0, far] {
        assert_eq!(file.write_at(&data, at), Ok(data.len()));
    }
    file.sync_all().unwrap();
    drop(file);
    volume.close().unwrap();
    drop(volume);
    let volume = open(&image);
    let file = volume.open(names(5)).unwrap();
    for at in [0, far] {
        let mut found = vec![0; data.len()];
        assert_eq!(file.read_at(&mut found, at), Ok(found.len()));
        assert!(found == data);
    }
    for number in 0..600 {
        volume.resolve(names(number).as_bytes(), Follow::No).unwrap();
    }
    drop(file);
    volume.close().unwrap();
    drop(volume);
    // e2fsck takes minutes for so many groups.
    debugfs("feature extents");
    let file = format!("cat {}", names(5));
    let found = run(Command::new("debugfs").args(["-R", &file]).arg(&image));
    assert!(found.starts_with(&data) && found.ends_with(&data));
}
