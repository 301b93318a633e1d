//! The volume as a format sees it: cached data by inode number, and the barrier that holds writes back.

use std::thread;

use base::InodeNumber;
use testkit::Waiter;
use testkit::memory::MemoryFileSystem;
use vfs::{File, OpenMode};

use super::{create, open, volume, volume_with};

const WRITE: OpenMode = OpenMode { write: true, append: false };

fn write(file: &File, data: &[u8]) {
    assert_eq!(file.write_at(data, 0), Ok(data.len()));
}

#[test]
fn the_cached_data_of_an_inode_is_found_by_its_number() {
    let (volume, file_system) = volume_with(1);
    let node = create(&volume, "/file");
    let host = file_system.host();
    assert!(host.cached_data(node.number()).is_none(), "it was not open for writing");
    let file = node.open_for(WRITE).unwrap();
    write(&file, &[7; 5000]);
    let data = host.cached_data(node.number()).unwrap();
    assert_eq!((data.size(), data.mapping().bytes_dirty()), (5000, 8192));
    assert!(host.cached_data(InodeNumber(60)).is_none(), "no such inode");
    let number = node.number();
    file.sync_all().unwrap();
    drop((file, node, data, host));
    volume.close().unwrap();
    drop(volume);
    let again = open(&file_system, 1);
    let loads = file_system.loads();
    assert!(file_system.host().cached_data(number).is_none());
    assert_eq!(file_system.loads(), loads, "it is not loaded for that");
    drop(again);
}

#[test]
fn a_volume_whose_writes_are_held_writes_nothing_back() {
    let (volume, file_system) = volume();
    let node = create(&volume, "/file");
    let file = node.open_for(WRITE).unwrap();
    write(&file, &[7; 5000]);
    let held = file_system.host().hold_writes().unwrap();
    let data = file_system.host().cached_data(node.number()).unwrap();
    let waiter = Waiter::default();
    thread::scope(|scope| {
        scope.spawn(|| waiter.run(|| file.sync_all().unwrap()));
        let is_held = waiter.begins_to_wait();
        let bytes_dirty = data.mapping().bytes_dirty();
        let on_disk = file_system.on_disk(node.number());
        drop(held);
        assert!(is_held, "the sync did not wait for the barrier");
        assert_eq!((bytes_dirty, on_disk.len()), (8192, 0));
    });
    assert_eq!(data.mapping().bytes_dirty(), 0);
    assert_eq!(file_system.on_disk(node.number()), [7; 5000]);
    let read_only = MemoryFileSystem::read_only();
    let reader = open(&read_only, 16);
    assert!(read_only.host().hold_writes().is_none());
    drop(reader);
}
