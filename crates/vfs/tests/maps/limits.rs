//! Maps larger than the cache, more folios than the host has mappings for, full volumes, failing
//! devices, buffers that are mapped themselves, and users without privileges.

use std::io::Read;
use std::sync::Arc;
use std::thread;

use base::Error;
use device::{FaultDevice, FaultPlan, MemoryDevice, SharedDevice};
use iomap::CacheOptions;
use testkit::Mke2fs;
use vfs::{Follow, MapAccess, MapAdvice, MapSync, Privileges, Volume, VolumeOptions};

use crate::{PAGE, Stage, bytes, load, map, read, store, write};

#[test]
fn a_file_larger_than_the_cache_can_be_stored_to_and_loaded() {
    let size = 24 << 20;
    let mut stage = Stage::new(4096, 4 << 20);
    let file = stage.make("file");
    file.node().set_size(size as u64, Privileges::Keep).unwrap();
    let memory = map(&file, 0..size as u64);
    let value = |page: usize| (page % 251) as u8 + 1;
    for page in 0..size / PAGE {
        store(&memory, page * PAGE + page % PAGE, &[value(page)]);
    }
    // In the reverse order.
    for page in (0..size / PAGE).rev() {
        assert_eq!(
            load(&memory, page * PAGE + page % PAGE..page * PAGE + page % PAGE + 1)[0],
            value(page)
        );
    }
    drop((memory, file));
    stage.close();
    stage.open();
    let file = stage.file("file");
    for page in 0..size / PAGE {
        let at = page * PAGE + page % PAGE;
        assert_eq!(read(&file, at as u64, 1)[0], value(page), "page {page}");
    }
    drop(file);
    stage.close();
}

#[test]
fn there_may_be_more_folios_than_the_host_has_mappings_for() {
    let pages = 40_000;
    let cache = CacheOptions { bytes_max: 200 << 20, folio_order_max: 0 };
    let mut stage = Stage::with(&Mke2fs::new("ext4", 4096), cache);
    let file = stage.make("file");
    file.node().set_size((pages * PAGE) as u64, Privileges::Keep).unwrap();
    let memory = map(&file, 0..(pages * PAGE) as u64);
    // One folio for each page.
    memory.advise(0..memory.len(), MapAdvice::Random).unwrap();
    let mut found = 0;
    for round in 1..=2 {
        // Every second page first, so that few pages are adjacent.
        for page in (0..pages).step_by(2).chain((1..pages).step_by(2)) {
            found += usize::from(load(&memory, page * PAGE..page * PAGE + 1)[0]);
            store(&memory, page * PAGE, &[round]);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        assert!(maps < 30_000, "{maps} mappings");
    }
    assert_eq!(found, pages);
    drop((memory, file));
    stage.close();
}

#[test]
fn a_full_volume_refuses_stores_and_loses_nothing() {
    let mke2fs = Mke2fs { size: 8 << 20, ..Mke2fs::new("ext4", 1024) };
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let mut stage = Stage::with(&mke2fs.with("-m 0"), cache);
    let (file, filler) = (stage.make("file"), stage.make("filler"));
    file.node().set_size(1 << 20, Privileges::Keep).unwrap();
    let memory = map(&file, 0..1 << 20);
    store(&memory, 0, b"first");
    let mut filled = 0;
    while let Ok(written) = filler.write_at(&[7; 1024], filled) {
        filled += written as u64;
    }
    let refused = memory.prepare(8192..8193, MapAccess::ReadWrite);
    assert_eq!(refused, Err(Error::NoSpace));
    assert_eq!(memory.write(8192, b"never"), Err(Error::NoSpace));
    // A store by the kernel fails, too.
    let mut source = std::fs::File::open("/dev/zero").unwrap();
    // SAFETY: the bytes are in the map, and no other thread uses them.
    let into = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().add(8192).as_ptr(), 16) };
    assert!(source.read(into).is_err());
    // A store to an allocated block succeeds.
    store(&memory, 2, b"R");
    assert_eq!(read(&file, 0, 6), b"fiRst\0");
    filler.node().set_size(0, Privileges::Keep).unwrap();
    stage.volume().sync().unwrap();
    memory.prepare(8192..8193, MapAccess::ReadWrite).unwrap();
    store(&memory, 8192, b"later");
    memory.sync(0..memory.len(), MapSync::Sync).unwrap();
    drop((memory, file, filler));
    stage.close();
    stage.open();
    let file = stage.file("file");
    assert_eq!((read(&file, 0, 6), read(&file, 8192, 6)), (b"fiRst\0".into(), b"later\0".into()));
    drop(file);
    stage.close();
}

#[test]
fn an_error_of_the_device_is_returned_and_a_later_access_succeeds() {
    let mut stage = Stage::new(4096, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[5; 3 * PAGE]);
    drop(file);
    stage.close();
    let image = Arc::new(MemoryDevice::new(std::fs::read(stage.image()).unwrap()));
    let device = Arc::new(FaultDevice::new(image, FaultPlan::default()));
    let volume =
        Volume::open_device(Arc::clone(&device) as SharedDevice, &VolumeOptions::default());
    let volume = volume.unwrap();
    let file = volume.resolve(b"/file", Follow::No).unwrap().open().unwrap();
    let memory = file.map(bytes(0..3 * PAGE as u64), MapAccess::Read).unwrap();
    device.fail_reads_in(0..u64::MAX);
    let refused = memory.prepare(0..PAGE, MapAccess::Read);
    assert!(matches!(refused, Err(Error::Io(_))), "{refused:?}");
    assert!(matches!(memory.read(0, &mut [0]), Err(Error::Io(_))));
    device.heal();
    assert_eq!(load(&memory, 0..3 * PAGE), [5; 3 * PAGE]);
}

#[test]
fn buffers_that_are_mapped_themselves_are_read_to_and_written_from() {
    let mut stage = Stage::new(4096, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[1; 100_000]);
    write(&file, 100_000, &[2; 100_000]);
    file.sync_all().unwrap();
    let memory = map(&file, 0..1 << 20);
    let part = |at: usize, length: usize| {
        // SAFETY: the bytes are in the map and in the file. While the slice exists, only the call
        // that gets it stores to them.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().add(at).as_ptr(), length) }
    };
    // From pages that are not shown yet, to the mapped file itself, which the write locks.
    write(&file, 0, part(150_000, 10));
    assert_eq!(read(&file, 0, 11), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert_eq!(file.read_at(part(180_000, 20), 99_990).unwrap(), 20);
    assert_eq!(load(&memory, 179_999..180_012), [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    memory.write(50_000, part(190_000, 8)).unwrap();
    memory.read(0, part(60_000, 4)).unwrap();
    assert_eq!(
        (read(&file, 50_000, 9), read(&file, 60_000, 5)),
        (vec![2, 2, 2, 2, 2, 2, 2, 2, 1], vec![2, 2, 2, 2, 1],)
    );
    drop((memory, file));
    stage.close();
}

#[test]
fn invalid_maps_and_accesses_are_refused() {
    let mut stage = Stage::new(4096, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[1; 10_000]);
    let invalid = |result: Result<_, Error>| matches!(result, Err(Error::InvalidArgument(_)));
    for range in [0..0, 4096..4096, 1..4096] {
        assert!(invalid(file.map(bytes(range.clone()), MapAccess::Read).map(drop)), "{range:?}");
    }
    let reader = file.node().open().unwrap();
    let refused = reader.map(bytes(0..1), MapAccess::ReadWrite).map(drop);
    assert_eq!(refused, Err(Error::NotOpenFor("writing")));
    let memory = reader.map(bytes(4096..20_000), MapAccess::Read).unwrap();
    assert_eq!((memory.len(), load(&memory, 0..1)), (16_384, vec![1]));
    assert!(invalid(memory.write(0, &[1])));
    assert!(invalid(memory.prepare(0..1, MapAccess::ReadWrite)));
    assert!(invalid(memory.read(16_380, &mut [0; 5])));
    assert_eq!(memory.read(5904, &mut [0]), Err(Error::NoSuchOffset));
    assert_eq!(memory.prepare(0..16_384, MapAccess::Read), Err(Error::NoSuchOffset));
    let written = map(&file, 0..10_000);
    assert_eq!(written.write(9_999, &[1, 2]), Err(Error::NoSuchOffset));
    stage.volume().close().unwrap();
    assert_eq!(written.prepare(0..1, MapAccess::ReadWrite), Err(Error::ReadOnly));
    assert_eq!(load(&written, 0..1), [1]);
    drop((memory, written, reader, file));
    stage.volume = None;
}

#[test]
fn a_store_changes_the_times() {
    let mut stage = Stage::new(4096, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[1; 10_000]);
    let memory = map(&file, 0..10_000);
    memory.sync(0..10_000, MapSync::Sync).unwrap();
    let times = || (file.node().attributes().modified, file.node().attributes().changed);
    let before = times();
    assert_eq!(load(&memory, 0..1), [1]);
    assert_eq!(times(), before);
    // The clock may be coarse: repeats the store until the time differs.
    while times() == before {
        memory.sync(0..10_000, MapSync::Sync).unwrap();
        store(&memory, 0, &[2]);
    }
    let after = times();
    assert!(after.0 > before.0 && after.1 > before.1);
    drop((memory, file));
    stage.close();
}

#[test]
fn no_privileges_are_needed() {
    let stage = Stage::new(4096, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[1; 10_000]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65_534);
            // Only for this thread.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let memory = map(&file, 0..10_000);
            assert_eq!(load(&memory, 0..1), [1]);
            store(&memory, 5000, &[2]);
            memory.sync(0..10_000, MapSync::Sync).unwrap();
            store(&memory, 5001, &[3]);
        });
    });
    assert_eq!(read(&file, 4999, 4), [1, 2, 3, 1]);
}
