//! The opening of f2fs volumes after a power cut while one request fails: either it fails, or the
//! volume has all synced data.

use std::sync::Arc;

use base::IoOperation;
use device::SharedDevice;
use vfs::{Follow, Volume};

use crate::kind::{KINDS, Kind};
use crate::stage::{Faulty, after_cut, rebuilt};
use crate::{WRITE, create, number, write};

/// The number of files. The first ones are in the last checkpoint.
const FILES: usize = 6;
const OLD_FILES: usize = 2;
/// The numbers of requests of an operation that fail, each in a run of its own: of the first ones,
/// and of others.
const FIRST: u64 = 24;
const OTHERS: u64 = 10;

fn data(kind: &Kind, index: usize) -> Vec<u8> {
    vec![index as u8 + 1; kind.length() + 5000 * index]
}

/// Returns a volume after a power cut, with files that were synced after the last checkpoint.
fn cut_off(kind: &'static Kind) -> SharedDevice {
    let Faulty { recorder, .. } = Faulty::new(&kind.contents(), None);
    let volume = kind.open(recorder.clone());
    for index in 0..FILES {
        if index == OLD_FILES {
            volume.sync().unwrap();
        }
        let file = create(&volume, &format!("/file{index}")).unwrap().open_for(WRITE).unwrap();
        let data = data(kind, index);
        assert_eq!(write(&file, 0, &data), Ok(data.len()));
        file.sync_all().unwrap();
    }
    rebuilt(&recorder, false).snapshot()
}

fn check(kind: &Kind, volume: &Volume, place: &str) {
    for index in 0..FILES {
        let path = format!("/file{index}");
        let node = volume.resolve(path.as_bytes(), Follow::No);
        let node = node.unwrap_or_else(|error| panic!("{place}: {path}: {error}"));
        let expected = data(kind, index);
        let mut found = vec![0; expected.len() + 1];
        let length = node.open().unwrap().read_at(&mut found, 0).unwrap();
        assert!(found[..length] == expected, "{place}: {path} has other data");
    }
}

/// Opens the volume, adds a file, and closes it. Returns the number of requests.
fn open(kind: &Kind, contents: &SharedDevice, operation: IoOperation, failing: u64) -> u64 {
    let place = format!("{kind:?}, {operation:?} {failing}");
    let Faulty { faults, recorder } = Faulty::new(contents, Some((operation, failing)));
    let opened = kind.try_open(Arc::clone(&recorder) as SharedDevice, true);
    let requests = faults.requests(operation);
    assert!(opened.is_ok() || !faults.faults().is_empty(), "{place}: {:?}", opened.err());
    if let Ok(volume) = &opened {
        if number(create(volume, "/more").map(drop)) == 0 {
            check(kind, volume, &place);
        }
        let closed = volume.close();
        assert!(closed.is_ok() || !faults.faults().is_empty(), "{place}: {closed:?}");
    }
    drop(opened);
    for keeps_volatile in [false, true] {
        let rebuilt = after_cut(kind, &recorder, keeps_volatile, &place);
        check(kind, &kind.try_open(rebuilt.device(), false).unwrap(), &place);
    }
    requests
}

/// Opens the volume for reading. Returns the number of reads.
fn open_for_reading(kind: &Kind, contents: &SharedDevice, failing: u64) -> u64 {
    let place = format!("{kind:?}, read {failing}");
    let Faulty { faults, recorder } = Faulty::new(contents, Some((IoOperation::Read, failing)));
    let opened = kind.try_open(recorder, false);
    let reads = faults.requests(IoOperation::Read);
    let has_failed = !faults.faults().is_empty();
    match opened {
        Ok(volume) if has_failed => check(kind, &volume, &place),
        opened => assert_eq!(opened.is_err(), has_failed, "{place}: {:?}", opened.err()),
    }
    reads
}

#[test]
fn a_volume_that_is_opened_for_reading_has_all_synced_data_whichever_read_fails() {
    for kind in [&KINDS[1], &KINDS[4]] {
        let contents = cut_off(kind);
        let count = open_for_reading(kind, &contents, u64::MAX);
        assert!(count > 0, "{kind:?}");
        for failing in 0..count {
            open_for_reading(kind, &contents, failing);
        }
    }
}

#[test]
fn a_volume_has_all_synced_data_whichever_request_of_its_opening_fails() {
    for kind in [&KINDS[1], &KINDS[4]] {
        let contents = cut_off(kind);
        for operation in [IoOperation::Read, IoOperation::Write, IoOperation::Flush] {
            let count = open(kind, &contents, operation, u64::MAX);
            assert!(count > 0, "{kind:?}: {operation:?}");
            // The first ones, and others.
            let others = (1..OTHERS).map(|index| index * count / OTHERS);
            for failing in (0..FIRST.min(count)).chain(others.filter(|index| *index >= FIRST)) {
                open(kind, &contents, operation, failing);
            }
        }
    }
}
