//! Threads that store, read, write and sync concurrently, each with bytes of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use base::FileOffset;
use testkit::Random;
use vfs::{File, FileMap, MapSync, Privileges};

use crate::{Stage, map, read};

const SLOTS: u64 = 128 << 10;
const SLOT_BYTES: u64 = 8;
const WRITERS: u64 = 3;
const STORES: u64 = 20_000;

/// Returns a number in a map that several threads access.
fn slot(map: &FileMap, index: u64) -> &AtomicU64 {
    assert!(index < SLOTS && map.len() as u64 >= SLOTS * SLOT_BYTES);
    // SAFETY: the slot is in the map, is aligned since the map begins at a page, and is accessed by
    // pointers only as an atomic number. Calls that write to the file write whole slots.
    unsafe { map.as_ptr().cast::<AtomicU64>().add(index as usize).as_ref() }
}

/// Stores growing numbers to random slots of one thread. Returns their values at the end.
fn write_slots(writer: u64, file: &File, map: &FileMap) -> Vec<u64> {
    let mut random = Random(0x9E37_79B9 + writer);
    let mut last = vec![0; SLOTS as usize];
    for number in 1..=STORES {
        let index = random.below(SLOTS / WRITERS) * WRITERS + writer;
        let value = number * WRITERS + writer;
        if writer == 0 && number % 8 == 0 {
            let at = FileOffset(index * SLOT_BYTES);
            file.write_at(&value.to_ne_bytes(), at.0).unwrap();
        } else {
            slot(map, index).store(value, Ordering::Relaxed);
        }
        last[index as usize] = value;
        assert_eq!(slot(map, index).load(Ordering::Relaxed), value);
    }
    last
}

/// Checks that the numbers come from their writers and only grow, in the file and in the map.
fn watch_slots(file: &File, map: &FileMap, is_over: &AtomicBool) {
    let mut random = Random(0xDEAD_BEEF);
    while !is_over.load(Ordering::Relaxed) {
        let index = random.below(SLOTS - WRITERS);
        let loaded = slot(map, index).load(Ordering::Relaxed);
        let found = read(file, index * SLOT_BYTES, 8);
        let found = u64::from_ne_bytes(found.try_into().unwrap());
        let again = slot(map, index).load(Ordering::Relaxed);
        assert!(loaded <= found && found <= again, "{index}: {loaded}, {found}, {again}");
        assert!(
            found == 0 || found % WRITERS == index % WRITERS,
            "slot {index} has the number of another thread: {found}"
        );
    }
}

#[test]
fn stores_during_writeback_are_not_lost() {
    for block in [1024, 4096, 65_536] {
        let mut stage = Stage::new(block, 8 << 20);
        let file = stage.make("file");
        file.node().set_size(SLOTS * SLOT_BYTES, Privileges::Keep).unwrap();
        let memory = map(&file, 0..SLOTS * SLOT_BYTES);
        let is_over = AtomicBool::new(false);
        let written = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (file, memory) = (&file, &memory);
                    scope.spawn(move || write_slots(writer, file, memory))
                })
                .collect();
            scope.spawn(|| watch_slots(&file, &memory, &is_over));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    memory.sync(0..memory.len(), MapSync::Sync).unwrap();
                }
            });
            // Each thread has its own slots, and zeroes for the others.
            let mut last = vec![0; SLOTS as usize];
            for writer in writers {
                let theirs = writer.join();
                is_over.fetch_or(theirs.is_err(), Ordering::Relaxed);
                for (slot, value) in last.iter_mut().zip(theirs.unwrap()) {
                    *slot |= value;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            last
        });
        drop((memory, file));
        stage.close();
        stage.open();
        let file = stage.file("file");
        let found = read(&file, 0, (SLOTS * SLOT_BYTES) as usize);
        for (index, (found, wanted)) in found.chunks_exact(8).zip(&written).enumerate() {
            let found = u64::from_ne_bytes(found.try_into().unwrap());
            assert_eq!(found, *wanted, "slot {index}, blocks of {block} bytes");
        }
        drop(file);
        stage.close();
    }
}
