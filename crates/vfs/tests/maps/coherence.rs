//! Coherence: a map and its file have the same bytes.

use std::ops::ControlFlow;
use std::time::Duration;

use iomap::FiemapExtent;
use vfs::{Fallocate, MapSync, Privileges};

use crate::{PAGE, Stage, bytes, load, map, read, store, write};

#[test]
fn loads_see_writes_and_reads_see_stores() {
    for block in [1024, 4096, 16_384, 65_536] {
        let mut stage = Stage::new(block, 8 << 20);
        let file = stage.make("file");
        write(&file, 0, &[1; 300_000]);
        let memory = map(&file, 0..1 << 20);
        assert_eq!(load(&memory, 0..300_000), [1; 300_000]);
        write(&file, 5000, &[2; 10]);
        assert_eq!(load(&memory, 4999..5011), [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);
        store(&memory, 100_000, &[3; 5]);
        assert_eq!(read(&file, 99_999, 7), [1, 3, 3, 3, 3, 3, 1]);
        memory.sync(0..memory.len(), MapSync::Sync).unwrap();
        store(&memory, 100_001, &[4]);
        store(&memory, 299_999, &[5, 6]);
        assert_eq!(read(&file, 299_998, 10), [1, 5]);
        // The file grows over bytes that were stored past its end.
        file.node().set_size(400_000, Privileges::Keep).unwrap();
        assert_eq!(read(&file, 299_998, 4), [1, 5, 0, 0]);
        assert_eq!(load(&memory, 299_998..300_002), [1, 5, 0, 0]);
        store(&memory, 399_990, &[7]);
        drop((memory, file));
        stage.close();
        stage.open();
        let file = stage.file("file");
        assert_eq!(file.node().attributes().size, 400_000);
        let memory = map(&file, 8192..400_000);
        for at in [99_999, 299_998, 399_989] {
            assert_eq!(load(&memory, at - 8192..at - 8192 + 5), read(&file, at as u64, 5));
        }
        assert_eq!(read(&file, 99_999, 5), [1, 3, 4, 3, 3]);
        assert_eq!(read(&file, 399_989, 3), [0, 7, 0]);
        drop((memory, file));
        stage.close();
    }
}

#[test]
fn reclaimed_folios_are_not_shown_any_more() {
    let mut stage = Stage::new(4096, 4 << 20);
    let (file, other) = (stage.make("file"), stage.make("other"));
    write(&file, 0, &[1; 1 << 20]);
    write(&other, 0, &[2; 8 << 20]);
    let memory = map(&file, 0..1 << 20);
    for mode in [Fallocate::PunchHole, Fallocate::CollapseRange] {
        memory.sync(0..memory.len(), MapSync::Sync).unwrap();
        assert_eq!(load(&memory, 256 << 10..257 << 10), [1; 1 << 10]);
        // More data than the cache holds.
        read(&other, 0, 8 << 20);
        file.fallocate(mode, bytes(256 << 10..512 << 10), Privileges::Keep).unwrap();
        let wanted = if mode == Fallocate::PunchHole { 0 } else { 1 };
        assert_eq!(load(&memory, 256 << 10..512 << 10), vec![wanted; 256 << 10], "{mode:?}");
        write(&file, 256 << 10, &[1; 256 << 10]);
    }
    drop((memory, file, other));
    stage.close();
}

#[test]
fn a_file_that_becomes_shorter_and_longer_shows_zeroes() {
    let mut stage = Stage::new(4096, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[1; 100 * PAGE]);
    let memory = map(&file, 0..(100 * PAGE) as u64);
    store(&memory, 0, &[2; 100 * PAGE]);
    file.node().set_size(5000, Privileges::Keep).unwrap();
    assert_eq!(load(&memory, 4999..5002), [2, 0, 0]);
    file.node().set_size((100 * PAGE) as u64, Privileges::Keep).unwrap();
    assert_eq!(load(&memory, 5000..100 * PAGE), vec![0; 100 * PAGE - 5000]);
    store(&memory, 50 * PAGE, &[3]);
    assert_eq!(file.read_at(&mut [0], (50 * PAGE) as u64).unwrap(), 1);
    drop((memory, file));
    stage.close();
}

#[test]
fn no_store_comes_after_the_map() {
    let stage = Stage::new(4096, 8 << 20);
    for round in 0..300 {
        let file = stage.make(&format!("file {round}"));
        write(&file, 0, &[1; 10_000]);
        for is_dropped in [true, false] {
            let map = map(&file, 0..10_000);
            store(&map, 0, &[2; 8192]);
            let map = Some(map).filter(|_| !is_dropped);
            file.fallocate(Fallocate::PunchHole, bytes(4096..8192), Privileges::Keep).unwrap();
            stage.volume().sync().unwrap();
            // A late fault would allocate the block again.
            std::thread::sleep(Duration::from_micros(200));
            let mut extents = Vec::new();
            let add = &mut |extent: FiemapExtent| {
                extents.push((extent.logical.0, extent.length));
                ControlFlow::Continue(())
            };
            file.extents(bytes(0..u64::MAX), add).unwrap();
            assert_eq!(extents, [(0, 4096), (8192, 4096)], "round {round}");
            drop(map);
        }
    }
}
