//! Tests of a volume's error policy, and of the errors that e2fsprogs find in the superblock
//! afterwards.

use std::process::Command;
use std::sync::Arc;

use base::attributes::FileType;
use base::{Error, FileOffset, IoOperation, Result};
use device::{CountedFault, FaultDevice, FaultPlan, Lasting, MemoryDevice};
use ext4::{Inode, OpenOptions, ROOT_INODE, Volume};
use iomap::{CacheOptions, EndIo, PageCache, wait_for_writeback, write, write_back};

use crate::common::cached_file::writable_file;
use crate::common::{Image, new_inode, number_after, open_device, open_device_for_writing};
use crate::{EIO, STATE_ERRORS, e2fsck};

fn create(directory: &Inode, name: &str) -> Result<Arc<Inode>> {
    directory.create(name.as_bytes(), &new_inode(FileType::Regular))
}

/// Returns an image with a directory `/d` whose block has a wrong checksum, and that block.
fn corrupt_image(policy: &str) -> (Vec<u8>, u64) {
    let options = format!("-t ext4 -b 1024 -J size=1 -e {policy}");
    let image = Image::filled(6, &options, |folder| {
        std::fs::create_dir(folder.join("d")).unwrap();
        std::fs::write(folder.join("d/name"), "").unwrap();
    });
    let block: u64 = image.debugfs("blocks /d").trim().parse().unwrap();
    let mut bytes = image.bytes();
    bytes[block as usize * 1024 + 30] ^= 0x55;
    (bytes, block)
}

/// Returns the output of `dumpe2fs -h` for an image.
fn dumpe2fs(image: &[u8]) -> String {
    let scratch = crate::common::Scratch::new();
    let path = scratch.write("image", image);
    crate::common::run(Command::new("dumpe2fs").arg("-h").arg(path))
}

fn line<'t>(text: &'t str, label: &str) -> &'t str {
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap_or_else(|| panic!("{label}: {text}")).trim()
}

fn check_recorded(image: &[u8], block: u64, inode: u64) {
    let text = dumpe2fs(image);
    assert_eq!(line(&text, "FS Error count:"), "1");
    for which in ["First", "Last"] {
        let label = |what: &str| format!("{which} error {what}:");
        assert_eq!(line(&text, &label("function")), "directory block tail");
        assert_eq!(line(&text, &label("err")), "EFSBADCRC");
        assert_eq!(line(&text, &label("inode #")), inode.to_string());
        assert_eq!(line(&text, &label("block #")), block.to_string());
        let year: u32 = line(&text, &label("time")).rsplit(' ').next().unwrap().parse().unwrap();
        assert!(year >= 2024, "{text}");
    }
    // Without -f: the superblock must request the check.
    let repaired = e2fsck(image, "-y", 1, "a corrupt directory");
    let text = dumpe2fs(&repaired);
    assert_eq!(line(&text, "Filesystem state:"), "clean");
    assert!(!text.contains("FS Error count:"), "{text}");
}

#[test]
fn a_volume_with_policy_continue_records_the_error_and_stays_writable() {
    let (image, block) = corrupt_image("continue");
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_device_for_writing(device.clone()).unwrap();
    let root = volume.inode(ROOT_INODE).unwrap();
    let number = root.lookup(b"d").unwrap();
    let directory = volume.inode(number).unwrap();
    let error = create(&directory, "x").unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    create(&root, "y").unwrap().sync(false).unwrap();
    volume.sync().unwrap();
    // The state after a power cut at this point.
    let cut = open_device(Arc::new(MemoryDevice::new(device.snapshot()))).unwrap();
    assert_eq!(cut.errors(), volume.errors());
    assert_eq!(cut.errors().count, 1);
    volume.close().unwrap();
    assert_eq!(line(&dumpe2fs(&device.snapshot()), "Filesystem state:"), "clean with errors");
    check_recorded(&device.snapshot(), block, number.0);
}

#[test]
fn a_volume_with_policy_read_only_changes_nothing_after_an_error() {
    for policy in ["remount-ro", "panic"] {
        let (image, block) = corrupt_image(policy);
        let device = Arc::new(MemoryDevice::new(image));
        let volume = open_device_for_writing(device.clone()).unwrap();
        let root = volume.inode(ROOT_INODE).unwrap();
        let number = root.lookup(b"d").unwrap();
        let directory = volume.inode(number).unwrap();
        // The log gets a superblock without errors.
        let durable = create(&root, "durable").unwrap();
        volume.sync().unwrap();
        let lost = create(&root, "lost").unwrap();
        assert!(matches!(create(&directory, "x"), Err(Error::Corrupt(_))));
        for _ in 0..2 {
            assert!(matches!(create(&root, "y"), Err(Error::ShutDown(_))));
            assert!(matches!(lost.sync(false), Err(Error::Lost(_))));
            assert!(matches!(durable.sync(false), Err(Error::ShutDown(_))));
            assert!(matches!(volume.sync(), Err(Error::Lost(_))));
        }
        assert!(volume.close().is_err());
        let left = device.snapshot();
        let text = dumpe2fs(&left);
        assert_eq!(line(&text, "Journal errno:"), "-117", "{text}");
        check_recorded(&left, block, number.0);

        // The error is seen by a read-only opening, and then recorded permanently.
        let seen = open_device(Arc::new(MemoryDevice::new(left.clone()))).unwrap();
        assert_eq!(seen.errors(), volume.errors());
        assert!(seen.info().details.iter().any(|(name, _)| *name == "journal_error"));
        let device = Arc::new(MemoryDevice::new(left));
        let volume = open_device_for_writing(device.clone()).unwrap();
        let root = volume.inode(ROOT_INODE).unwrap();
        root.lookup(b"durable").unwrap();
        assert!(root.lookup(b"lost").is_err());
        assert_eq!(volume.errors(), seen.errors());
        create(&root, "z").unwrap();
        volume.close().unwrap();
        assert!(!dumpe2fs(&device.snapshot()).contains("Journal errno:"));
        check_recorded(&device.snapshot(), block, number.0);
    }
}

#[test]
fn a_volume_with_an_aborted_journal_is_marked_with_errors() {
    let image =
        Image::make(6, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum"]);
    let text = image.debugfs("stat <8>");
    let journal = number_after(&text, "(0):").or_else(|| number_after(&text, "(0-")).unwrap();
    let text = image.debugfs("bmap <8> 0");
    let first: usize = text.trim().parse().unwrap_or(journal as usize);
    let mut bytes = image.bytes();
    // `s_errno`, as a kernel leaves it.
    bytes[first * 1024 + 0x20..][..4].copy_from_slice(&(-5i32).to_be_bytes());
    assert_eq!(line(&dumpe2fs(&bytes), "Journal errno:"), "-5");
    let device = Arc::new(MemoryDevice::new(bytes));
    drop(open_device_for_writing(device.clone()).unwrap());
    let text = dumpe2fs(&device.snapshot());
    assert!(!text.contains("Journal errno:"), "{text}");
    let volume = open_device(device).unwrap();
    assert_ne!(volume.superblock().raw().state.get() & STATE_ERRORS, 0);
}

#[test]
fn lost_data_is_reported_once_to_each_open_file_and_does_not_stop_the_volume() {
    let image = Image::make(6, &["-t", "ext4", "-b", "1024", "-J", "size=1"]).bytes();
    let options = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    // The first write after the file's creation. Its number is learned from a run without a fault.
    let mut number = u64::MAX;
    for round in 0..2 {
        let (operation, lasting) = (IoOperation::Write, Lasting::Once);
        let fault = CountedFault { operation, number, lasting, errno: EIO };
        let plan = FaultPlan { counted: Some(fault), ..FaultPlan::default() };
        let memory = Arc::new(MemoryDevice::new(image.clone()));
        let device = Arc::new(FaultDevice::new(memory.clone(), plan));
        let cache = PageCache::new(options).unwrap();
        let volume =
            Volume::open_for_writing(device.clone(), &cache, &OpenOptions::default()).unwrap();
        let root = volume.inode(ROOT_INODE).unwrap();
        let inode = create(&root, "file").unwrap();
        volume.sync().unwrap();
        let end_io = EndIo::start().unwrap();
        let file = writable_file(&inode, Arc::clone(&inode), &cache, &end_io);
        let users = [file.errors().cursor(), file.errors().cursor()];
        number = device.requests(IoOperation::Write);
        write(&file, FileOffset(0), &[7; 5000]).unwrap();
        let write_back = || {
            write_back(&file, 0..u64::MAX);
            wait_for_writeback(&file, 0..u64::MAX);
        };
        write_back();
        inode.sync(false).unwrap();
        let reported = users.each_ref().map(|user| file.errors().check(user).is_err());
        assert_eq!(reported, [round == 1; 2]);
        let reported = users.each_ref().map(|user| file.errors().check(user).is_err());
        assert_eq!(reported, [false; 2]);
        assert_eq!((volume.check_writable(), volume.errors().count), (Ok(()), 0));
        // Data that is written again is stored.
        write(&file, FileOffset(0), &[8; 5000]).unwrap();
        write_back();
        inode.sync(false).unwrap();
        assert_eq!(file.errors().check(&users[0]), Ok(()));
        volume.close().unwrap();
        let volume = open_device(memory).unwrap();
        let inode = volume.inode(inode.number()).unwrap();
        assert_eq!(crate::common::contents(&volume, &inode), [8; 5000]);
    }
}
