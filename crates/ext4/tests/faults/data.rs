//! Write errors of data while blocks are allocated for its file. The data is lost, and nothing else
//! is.

use std::sync::Arc;

use base::attributes::Timestamp;
use base::{Error, InodeNumber, IoOperation};
use device::{BlockDevice, CountedFault, FaultDevice, FaultPlan, Lasting, MemoryDevice};
use ext4::{OpenOptions, ROOT_INODE, Volume};
use iomap::{CacheOptions, PageCache};
use testkit::crash::{STALE, with_stale_blocks};

use crate::EIO;
use crate::common::cached_file::Cache;
use crate::common::{self, Image, contents, new_file, open_device_for_writing};

const LATER: Timestamp = Timestamp { seconds: 2_000_000_000, nanoseconds: 0 };

/// Opens an image on a device on which write `number` fails, and runs `work`. The volume must stay
/// writable and consistent. Returns the result of `work`, a number of writes.
fn with_fault(
    image: &Image,
    number: u64,
    work: impl FnOnce(&Arc<Volume>, &dyn Fn() -> u64) -> u64,
) -> u64 {
    let (operation, lasting) = (IoOperation::Write, Lasting::Once);
    let counted = Some(CountedFault { operation, number, lasting, errno: EIO });
    let memory = Arc::new(MemoryDevice::new(with_stale_blocks(&image.path)));
    let plan = FaultPlan { counted, ..FaultPlan::default() };
    let device = Arc::new(FaultDevice::new(memory.clone(), plan));
    let volume = open_device_for_writing(device.clone()).unwrap();
    let before = work(&volume, &|| device.requests(operation));
    assert_eq!(device.faults().len(), usize::from(number < u64::MAX));
    volume.check_writable().unwrap();
    assert_eq!(volume.errors().count, 0, "lost data must not be recorded as an error");
    volume.close().unwrap();
    std::fs::write(&image.path, memory.snapshot()).unwrap();
    image.check_by_e2fsck();
    before
}

#[test]
fn blocks_of_a_block_map_that_cannot_be_zeroed_are_freed() {
    // With pointers in the inode, and in blocks.
    for at in [0, 40 << 10] {
        let work = |volume: &Arc<Volume>, writes: &dyn Fn() -> u64, fails: bool| {
            let (cache, inode) = (Cache::new(), new_file(volume, "file"));
            let file = cache.file(&inode, Arc::clone(&inode));
            volume.sync().unwrap();
            let free = volume.statfs().blocks_free;
            file.write(at, &[7; 5000]).unwrap();
            let before = writes();
            file.write_back();
            let reported = file.error();
            assert_eq!(matches!(reported, Err(Error::Io(_))), fails, "{reported:?}");
            if fails {
                volume.sync().unwrap();
                assert_eq!(volume.statfs().blocks_free, free, "lost data takes space");
                file.write(at, &[8; 5000]).unwrap();
            }
            file.sync(false);
            let found = contents(volume, &inode);
            assert!(found.ends_with(&[if fails { 8 } else { 7 }; 5000]) && !found.contains(&STALE));
            before
        };
        let image = || Image::make(6, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
        let before = with_fault(&image(), u64::MAX, |volume, writes| work(volume, writes, false));
        with_fault(&image(), before, |volume, writes| work(volume, writes, true));
    }
}

#[test]
fn inline_data_that_cannot_be_converted_stays_inline() {
    const DATA: &[u8] = b"a few bytes";
    for extents in ["", ",^extent,^64bit"] {
        let options = format!("-t ext4 -b 1024 -J size=1 -O inline_data{extents}");
        let image = || {
            Image::filled(6, &options, |source| std::fs::write(source.join("file"), DATA).unwrap())
        };
        let work = |volume: &Arc<Volume>, writes: &dyn Fn() -> u64, fails: bool| {
            let number = volume.inode(ROOT_INODE).unwrap().lookup(b"file").unwrap();
            let inode = Arc::new(volume.inode(number).unwrap());
            let file = Cache::new().file(&inode, Arc::clone(&inode));
            let before = writes();
            if fails {
                inode.note_modified(LATER);
                let reported = file.write(3000, b"more");
                assert!(matches!(reported, Err(Error::Io(_))), "{reported:?}");
                assert_eq!(inode.attributes().modified, LATER);
                assert_eq!(common::contents(volume, &inode), DATA);
            }
            file.write(3000, b"more").unwrap();
            file.sync(false);
            let expected = [DATA, &[0; 3000 - DATA.len()], b"more"].concat();
            assert!(common::contents(volume, &inode) == expected);
            before
        };
        let before = with_fault(&image(), u64::MAX, |volume, writes| work(volume, writes, false));
        with_fault(&image(), before, |volume, writes| work(volume, writes, true));
    }
}

#[test]
fn times_that_cannot_be_written_are_written_later() {
    const INODES: u64 = 40_000;
    let options = ["-t", "ext3", "-b", "1024", "-I", "256", "-N", "40000", "-J", "size=1"];
    let image = Image::make(24, &options);
    let memory = Arc::new(MemoryDevice::new(image.bytes()));
    let volume = open_device_for_writing(memory.clone()).unwrap();
    new_file(&volume, "file");
    volume.close().unwrap();
    drop(volume);

    let device = Arc::new(FaultDevice::new(memory, FaultPlan::default()));
    let options = CacheOptions { bytes_max: 4 << 20, ..CacheOptions::default() };
    let cache = PageCache::new(options).unwrap();
    let volume = Volume::open_for_writing(device.clone(), &cache, &OpenOptions::default()).unwrap();
    let number = volume.inode(ROOT_INODE).unwrap().lookup(b"file").unwrap();
    let inode = Arc::new(volume.inode(number).unwrap());
    inode.note_modified(LATER);
    // Evicts the block with the inode.
    for other in 1000..INODES {
        let _ = volume.inode_record(InodeNumber(other));
    }
    device.fail_reads_in(0..device.size());
    let synced = inode.sync(false);
    assert!(matches!(synced, Err(Error::Io(_))), "{synced:?}");
    device.heal();
    assert_eq!(inode.attributes().modified, LATER);
    inode.sync(false).unwrap();
    assert_eq!(volume.inode_record(number).unwrap().modified, LATER);
    volume.close().unwrap();
}
