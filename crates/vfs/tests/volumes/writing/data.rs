//! Writes to files, in the cache and on the device.

use base::attributes::AttributeChange;
use base::{Error, FileOffset};
use proptest::prelude::*;
use vfs::{File, OpenMode, Privileges, RwFlags, WriteAt};

use crate::writing::*;

const WRITE: OpenMode = OpenMode { write: true, append: false };
const APPEND: OpenMode = OpenMode { write: true, append: true };

fn write(file: &File, at: u64, data: &[u8]) -> usize {
    file.write_at(data, at).unwrap()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xaa; 1 << 17];
    let length = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

#[test]
fn a_write_is_visible_at_once_and_on_the_device_after_a_sync() {
    let (volume, file_system) = volume();
    let node = create(&volume, "/file");
    let file = node.open_for(WRITE).unwrap();
    assert_eq!(write(&file, 5000, b"hello"), 5);
    let mut expected = vec![0; 5000];
    expected.extend(b"hello");
    assert_eq!(contents(&file), expected);
    assert_eq!(contents(&node.open().unwrap()), expected);
    assert_eq!(node.attributes().size, 5005);
    file.sync_all().unwrap();
    assert_eq!(file_system.on_disk(node.number()), expected);
    let appending = node.open_for(APPEND).unwrap();
    assert_eq!(write(&appending, 0, b"!"), 1);
    expected.extend(b"!");
    drop((file, appending, node));
    volume.sync().unwrap();
    let number = self::node(&volume, "/file").number();
    assert_eq!(file_system.on_disk(number), expected);
}

#[test]
fn a_file_that_was_written_to_stays_in_memory_until_it_is_on_the_device() {
    let (volume, file_system) = volume_with(1);
    for number in 0..20_u8 {
        let node = create(&volume, &format!("/file-{number}"));
        write(&node.open_for(WRITE).unwrap(), 0, &[number; 100]);
    }
    assert_eq!(file_system.loads(), 1, "a dirty file was evicted");
    volume.close().unwrap();
    drop(volume);
    let volume = open(&file_system, 1);
    for number in 0..20_u8 {
        let node = self::node(&volume, &format!("/file-{number}"));
        assert_eq!(contents(&node.open().unwrap()), [number; 100]);
        assert_eq!(file_system.on_disk(node.number()), [number; 100]);
    }
}

#[test]
fn truncated_data_reads_as_zeroes_after_an_extension() {
    let (volume, file_system) = volume();
    let node = create(&volume, "/file");
    let file = node.open_for(WRITE).unwrap();
    write(&file, 0, &[7; 10_000]);
    file.sync_data().unwrap();
    for size in [4100, 9000] {
        node.set_size(size, Privileges::Keep).unwrap();
    }
    let mut expected = vec![7; 4100];
    expected.resize(9000, 0);
    assert_eq!(contents(&file), expected);
    volume.sync().unwrap();
    assert_eq!(file_system.on_disk(node.number()), expected);
}

#[test]
fn a_write_clears_privileges_and_updates_the_times() {
    let (volume, _) = volume();
    let node = create(&volume, "/file");
    let change = AttributeChange {
        permissions: Some(0o6755),
        modified: Some(Default::default()),
        ..AttributeChange::default()
    };
    node.set_attributes(&change, &ROOT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    write(&file, 0, b"x");
    assert_eq!(node.attributes().permissions, 0o6755);
    assert!(node.attributes().modified.seconds > 1_700_000_000);
    let at = WriteAt::Offset(FileOffset(0));
    file.write_with(at, b"x", Privileges::Drop, RwFlags::default()).unwrap();
    assert_eq!(node.attributes().permissions, 0o755);
}

#[test]
fn writes_need_a_file_opened_for_writing() {
    let (volume, file_system) = volume();
    let node = create(&volume, "/file");
    let file = node.open().unwrap();
    let refused = file.write_at(b"x", 0);
    assert_eq!(refused, Err(Error::NotOpenFor("writing")));
    write(&node.open_for(WRITE).unwrap(), 0, b"abc");
    file_system.set_flags(node.number(), 0x20);
    let opened = node.open_for(WRITE).map(drop);
    assert!(matches!(opened, Err(Error::NotPermitted(_))));
    let file = node.open_for(APPEND).unwrap();
    let refused =
        file.write_with(WriteAt::Offset(FileOffset(2)), b"x", Privileges::Keep, RwFlags::default());
    assert!(matches!(refused, Err(Error::NotPermitted(_))));
    write(&file, 0, b"d");
    assert_eq!(contents(&file), b"abcd");
}

#[test]
fn data_of_a_file_without_a_name_is_freed_with_it() {
    let (volume, file_system) = volume();
    for syncs in [false, true] {
        let node = create(&volume, "/file");
        let file = node.open_for(WRITE).unwrap();
        write(&file, 0, &[1; 9000]);
        volume.remove(b"/file", &ROOT).unwrap();
        write(&file, 100, &[2; 9000]);
        if syncs {
            volume.sync().unwrap();
        }
        assert_eq!(contents(&file).len(), 9100);
        drop((file, node));
        volume.sync().unwrap();
        assert_eq!(file_system.inode_count(), 1);
    }
}

#[test]
fn a_full_volume_refuses_a_write_at_once() {
    let (volume, _) = volume();
    let node = create(&volume, "/file");
    let file = node.open_for(WRITE).unwrap();
    let end = FileOffset(testkit::memory::DATA_BYTES_MAX);
    assert_eq!(file.write_at(b"x", end.0), Err(Error::NoSpace));
    assert_eq!(node.attributes().size, 0);
}

#[test]
fn a_size_that_the_format_refuses_is_not_seen() {
    let (volume, _) = volume();
    let node = create(&volume, "/file");
    let file = node.open_for(WRITE).unwrap();
    write(&file, 0, b"abc");
    let set = node.set_size(1 << 40, Privileges::Keep);
    assert_eq!((set, node.attributes().size), (Err(Error::FileTooLarge), 3));
    assert_eq!(contents(&file), b"abc");
}

#[derive(Clone, Debug)]
enum Step {
    Write(u16, u16, u8),
    SetSize(u16),
    Sync,
    SyncVolume,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..50_000_u16, 1..12_000_u16, 1..=255_u8).prop_map(|(at, n, b)| Step::Write(at, n, b)),
        2 => (0..60_000_u16).prop_map(Step::SetSize),
        1 => Just(Step::Sync),
        1 => Just(Step::SyncVolume),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_file_has_the_data_that_was_written_last(steps in proptest::collection::vec(step(), 1..30)) {
        let (volume, file_system) = volume_with(1);
        let mut node = create(&volume, "/file");
        let mut file = node.open_for(WRITE).unwrap();
        let mut expected: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Write(at, length, byte) => {
                    let (at, end) = (usize::from(at), usize::from(at) + usize::from(length));
                    write(&file, at as u64, &vec![byte; end - at]);
                    expected.resize(expected.len().max(end), 0);
                    expected[at..end].fill(byte);
                }
                Step::SetSize(size) => {
                    node.set_size(size.into(), Privileges::Keep).unwrap();
                    expected.resize(size.into(), 0);
                }
                Step::Sync => {
                    file.sync_data().unwrap();
                    prop_assert_eq!(&file_system.on_disk(node.number()), &expected);
                }
                Step::SyncVolume => volume.sync().unwrap(),
                Step::Reopen => {
                    drop((file, node));
                    // Another node evicts it from the table.
                    volume.sync().unwrap();
                    drop(create(&volume, "/other"));
                    volume.remove(b"/other", &ROOT).unwrap();
                    node = self::node(&volume, "/file");
                    file = node.open_for(WRITE).unwrap();
                }
            }
            prop_assert_eq!(contents(&file), expected.clone());
        }
        volume.close().unwrap();
        prop_assert_eq!(file_system.on_disk(node.number()), expected);
    }
}
