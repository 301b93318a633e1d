//! Atomic writes of files on f2fs volumes: what readers see, what is on the device, refused calls,
//! space, and errors of the device. fsck.f2fs judges the images. Power cuts are in `tests/crash`.

mod errors;
mod space;
mod stage;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use base::{Error, FileOffset, Result};
use vfs::{AtomicWrite, DirectIo, Fallocate, MapAccess, OpenMode, Privileges, WriteAt, WriteSync};

use crate::atomic::stage::{Stage, data};
use crate::common::{WRITE, bytes, file, load, make, store};

/// More than the cache has.
const LARGE: usize = 12 << 20;
const BLOCK: usize = 4096;

#[test]
fn a_commit_gives_the_file_all_of_the_data_and_its_size() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    let mut expected = data(1, LARGE);
    file.write_all_at(&expected, 0).unwrap();
    volume.sync().unwrap();
    file.atomic_start(AtomicWrite::Update).unwrap();
    for (seed, at) in [(2, 0), (3, 4 << 20), (4, LARGE - 100), (5, (4 << 20) + 1000)] {
        let new = data(seed, 3_000_001);
        file.write_all_at(&new, at as u64).unwrap();
        expected.resize(expected.len().max(at + new.len()), 0);
        expected[at..at + new.len()].copy_from_slice(&new);
        // Evicts folios, so that they are read from pending blocks.
        assert!(stage::read(&file) == expected, "after the write at {at}");
        // The file on the device is the old one.
        volume.sync().unwrap();
        assert!(stage.contents_on_device("f") == data(1, LARGE), "before the commit");
    }
    file.atomic_commit().unwrap();
    assert!(stage.contents_on_device("f") == expected, "the commit is durable");
    assert!(stage::read(&file) == expected, "after the commit");
    drop(file);
    stage.close(volume);
    assert!(stage.contents_on_device("f") == expected, "after the volume was closed");
}

#[test]
fn an_abort_leaves_the_old_data_and_its_size() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    let old = data(1, 5_000_000);
    file.write_all_at(&old, 0).unwrap();
    // Not synced: earlier writes are no part of the atomic write.
    let free = {
        volume.sync().unwrap();
        volume.statfs().blocks_free
    };
    file.write_all_at(&data(9, BLOCK), 0).unwrap();
    let old = [&data(9, BLOCK), &old[BLOCK..]].concat();
    for seed in 2..5 {
        file.atomic_start(AtomicWrite::Update).unwrap();
        file.write_all_at(&data(seed, LARGE), 0).unwrap();
        if seed == 3 {
            volume.sync().unwrap();
        }
        file.atomic_abort().unwrap();
        assert!(stage::read(&file) == old, "after the abort");
        assert_eq!(file.node().attributes().size, old.len() as u64);
    }
    volume.sync().unwrap();
    // Nodes for the longer file stay.
    let lost = free - volume.statfs().blocks_free;
    assert!(lost < 10, "{lost} blocks were lost");
    // The next writes are ordinary ones.
    file.write_all_at(&data(7, BLOCK), 0).unwrap();
    file.sync_all().unwrap();
    let new = [&data(7, BLOCK), &old[BLOCK..]].concat();
    assert!(stage.contents_on_device("f") == new, "a write after the abort");
    drop(file);
    stage.close(volume);
}

#[test]
fn a_replacing_write_begins_with_an_empty_file() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    let old = data(1, LARGE);
    file.write_all_at(&old, 0).unwrap();
    volume.sync().unwrap();
    for is_committed in [false, true] {
        file.atomic_start(AtomicWrite::Replace).unwrap();
        assert_eq!(file.node().attributes().size, 0);
        assert!(stage::read(&file).is_empty());
        file.write_all_at(&data(2, 10_000), 100_000).unwrap();
        let new = [vec![0; 100_000], data(2, 10_000)].concat();
        assert!(stage::read(&file) == new, "before the end");
        volume.sync().unwrap();
        assert!(stage.contents_on_device("f") == old, "before the end");
        if is_committed {
            file.atomic_commit().unwrap();
            assert!(stage.contents_on_device("f") == new, "after the commit");
        } else {
            file.atomic_abort().unwrap();
            assert!(stage::read(&file) == old, "after the abort");
        }
    }
    let blocks = file.node().attributes().blocks * 512 / BLOCK as u64;
    assert!(blocks < 10, "the old blocks are free, and {blocks} are in use");
    drop(file);
    stage.close(volume);
}

#[test]
fn a_small_file_in_its_inode_is_replaced_or_kept() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    for (old, new) in [(&[][..], &[1; 100][..]), (&[1; 100], &[2; 5000]), (&[2; 5000], &[])] {
        for kind in [AtomicWrite::Update, AtomicWrite::Replace] {
            file.atomic_start(kind).unwrap();
            file.write_all_at(new, 0).unwrap();
            file.atomic_abort().unwrap();
            assert_eq!(stage::read(&file), old, "{kind:?}");
        }
        file.atomic_start(AtomicWrite::Replace).unwrap();
        file.write_all_at(new, 0).unwrap();
        file.atomic_commit().unwrap();
        assert_eq!(stage.contents_on_device("f"), new);
    }
    drop(file);
    stage.close(volume);
}

#[test]
fn only_the_end_of_the_file_that_has_started_it_ends_an_atomic_write() {
    let stage = Stage::new();
    let volume = stage.open();
    let starter = make(&volume, "f");
    let open = || starter.node().open_for(WRITE).unwrap();
    let (other, old) = (open(), data(1, 20_000));
    other.write_all_at(&old, 0).unwrap();
    starter.atomic_start(AtomicWrite::Update).unwrap();
    other.atomic_start(AtomicWrite::Replace).unwrap();
    assert_eq!(starter.node().attributes().size, 20_000, "the second start does nothing");
    assert!(starter.has_started_atomic_write() && !other.has_started_atomic_write());
    // All writers write to it.
    other.write_all_at(&data(2, 8000), 5000).unwrap();
    drop(other);
    let node = std::sync::Arc::clone(starter.node());
    assert_ne!(stage::read(&starter), old);
    drop(starter);
    let file = node.open_for(WRITE).unwrap();
    assert!(stage::read(&file) == old, "the file was closed without a commit");
    // A file that has committed its write does not end that of another.
    file.atomic_start(AtomicWrite::Update).unwrap();
    file.atomic_commit().unwrap();
    let other = node.open_for(WRITE).unwrap();
    other.atomic_start(AtomicWrite::Update).unwrap();
    other.write_all_at(&data(3, 5000), 0).unwrap();
    drop(file);
    other.atomic_commit().unwrap();
    let new = [data(3, 5000), old[5000..].to_vec()].concat();
    assert!(stage.contents_on_device("f") == new);
    // Without an atomic write, a commit is an fsync.
    other.write_all_at(&[9; 10], 0).unwrap();
    other.atomic_commit().unwrap();
    assert_eq!(stage.contents_on_device("f")[..10], [9; 10]);
    drop((other, node));
    stage.close(volume);
}

#[test]
fn calls_that_change_blocks_are_refused_during_an_atomic_write() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    let old = data(1, 10 * BLOCK);
    file.write_all_at(&old, 0).unwrap();
    file.atomic_start(AtomicWrite::Update).unwrap();
    file.write_all_at(&data(2, BLOCK), 0).unwrap();
    let refused = |result| assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
    refused(file.node().set_size(5, Privileges::Keep));
    for mode in [
        Fallocate::Allocate { keep_size: true },
        Fallocate::PunchHole,
        Fallocate::ZeroRange { keep_size: false },
        Fallocate::CollapseRange,
        Fallocate::InsertRange,
    ] {
        refused(file.fallocate(mode, bytes(0..BLOCK as u64), Privileges::Keep));
    }
    // Only the size of the file on the device has to stay.
    file.node().set_size(10 * BLOCK as u64, Privileges::Keep).unwrap();
    file.node().set_size(11 * BLOCK as u64, Privileges::Keep).unwrap();
    let new = [data(2, BLOCK), old[BLOCK..].to_vec(), vec![0; BLOCK]].concat();
    assert!(stage::read(&file) == new);
    assert_eq!(stage.contents_on_device("f").len() % (10 * BLOCK), 0);
    file.atomic_commit().unwrap();
    assert!(stage.contents_on_device("f") == new, "after the commit");
    file.node().set_size(5, Privileges::Keep).unwrap();
    drop(file);
    stage.close(volume);
}

#[test]
fn stores_are_part_of_an_atomic_write_and_direct_io_is_refused() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    let old = data(1, 40 * BLOCK);
    file.write_all_at(&old, 0).unwrap();
    let map = file.map(bytes(0..old.len() as u64), MapAccess::ReadWrite).unwrap();
    store(&map, 10, &[7; 20]);
    let mut old = old;
    old[10..30].fill(7);
    file.sync_all().unwrap();
    for is_committed in [false, true] {
        file.atomic_start(AtomicWrite::Update).unwrap();
        let mut new = old.clone();
        store(&map, 5000, &[8; 5000]);
        new[5000..10_000].fill(8);
        let refused = |found: Result<usize>| {
            assert!(matches!(found, Err(Error::Unsupported(_))), "{found:?}");
        };
        // Blocks that exist, and the end of the file.
        for at in [20 * BLOCK, old.len()] {
            let (at, direct) = (FileOffset(at as u64), data(3, 4 * BLOCK));
            let keep = Privileges::Keep;
            refused(file.write_direct(WriteAt::Offset(at), &direct, keep, WriteSync::All));
            for is_write in [false, true] {
                let (sender, ended) = mpsc::channel();
                let done = move |_, result| sender.send(result).unwrap();
                let io = match is_write {
                    true => DirectIo::write(at, direct.clone(), done),
                    false => DirectIo::read(at, direct.clone(), done),
                };
                file.submit_direct(vec![io], keep, false);
                refused(ended.recv().unwrap());
            }
        }
        refused(file.read_direct(FileOffset(0), &mut vec![0; new.len()]));
        assert!(load(&map, &(0..new.len() as u64)) == new, "in the map");
        assert!(stage.contents_on_device("f") == old, "before the end");
        if is_committed {
            file.atomic_commit().unwrap();
            assert!(stage.contents_on_device("f") == new, "after the commit");
        } else {
            file.atomic_abort().unwrap();
            assert!(load(&map, &(0..new.len() as u64)) == old, "in the map after the abort");
            assert!(stage::read(&file) == old, "after the abort");
        }
    }
    drop((map, file));
    stage.close(volume);
}

#[test]
fn a_file_without_rights_to_change_it_has_no_atomic_write() {
    const IMMUTABLE: u32 = 0x10;
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    let reader = file.node().open_for(OpenMode::default()).unwrap();
    for result in
        [reader.atomic_start(AtomicWrite::Update), reader.atomic_commit(), reader.atomic_abort()]
    {
        assert!(matches!(result, Err(Error::NotOpenFor(_))), "{result:?}");
    }
    file.node().set_flags(IMMUTABLE, &vfs::Credentials::ROOT).unwrap();
    let started = file.atomic_start(AtomicWrite::Update);
    assert!(matches!(started, Err(Error::NotPermitted(_))), "{started:?}");
    file.node().set_flags(0, &vfs::Credentials::ROOT).unwrap();
    drop((reader, file));
    stage.close(volume);
}

#[test]
fn files_that_lose_their_names_can_be_committed_and_aborted() {
    let stage = Stage::new();
    let volume = stage.open();
    for is_committed in [false, true] {
        let file = make(&volume, "f");
        file.write_all_at(&data(1, LARGE), 0).unwrap();
        file.atomic_start(AtomicWrite::Update).unwrap();
        file.write_all_at(&data(2, LARGE), 0).unwrap();
        volume.remove_file("/f").unwrap();
        if is_committed {
            file.atomic_commit().unwrap();
            assert!(stage::read(&file) == data(2, LARGE));
        }
        drop(file);
    }
    let free = volume.statfs().blocks_free;
    stage.close(volume);
    let volume = stage.open();
    assert_eq!(volume.statfs().blocks_free, free);
    stage.close(volume);
}

#[test]
fn a_volume_that_is_closed_during_an_atomic_write_has_the_old_data() {
    let stage = Stage::new();
    let volume = stage.open();
    let file = make(&volume, "f");
    file.write_all_at(&data(1, 50_000), 0).unwrap();
    file.atomic_start(AtomicWrite::Update).unwrap();
    file.write_all_at(&data(2, LARGE), 0).unwrap();
    volume.close().unwrap();
    assert!(matches!(file.atomic_commit(), Err(Error::ReadOnly)));
    drop(file);
    drop(volume);
    stage.check();
    assert!(stage.contents_on_device("f") == data(1, 50_000));
}

#[test]
fn atomic_writes_end_during_checkpoints() {
    let stage = Stage::new();
    let volume = stage.open();
    let (subject, noise) = (make(&volume, "f"), make(&volume, "noise"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 0;
            while !is_done.load(Ordering::Relaxed) {
                seed += 1;
                noise.write_all_at(&data(seed, 100_000), seed % 7 * 40_000).unwrap();
                volume.sync().unwrap();
            }
        });
        for round in 1..60_u8 {
            subject.atomic_start(AtomicWrite::Update).unwrap();
            for block in 0..64 {
                let at = (block * 37 % 64 * BLOCK) as u64;
                subject.write_all_at(&[round; BLOCK], at).unwrap();
            }
            if round % 3 == 0 { subject.atomic_abort() } else { subject.atomic_commit() }.unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    drop((subject, noise));
    stage.close(volume);
    assert!(stage.contents_on_device("f") == [59; 64 * BLOCK]);
    let volume = stage.open();
    assert_eq!(file(&volume, "f").node().attributes().size, 64 * BLOCK as u64);
    stage.close(volume);
}
