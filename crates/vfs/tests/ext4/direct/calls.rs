//! Arguments and results of direct calls.

use std::sync::{Arc, Mutex, mpsc};

use base::{Error, FileOffset};
use device::{Bio, SharedDevice};
use testkit::{DeviceHooks, HookedDevice};
use vfs::{DirectIo, File, OpenMode, Privileges, XattrMode};

use crate::common::{self, close, open};
use crate::direct::{Stage, write_direct};

#[test]
fn requests_that_are_not_whole_sectors_are_refused() {
    let (stage, file) = Stage::with_file(1 << 20, |device| device);
    for (at, length) in [(1, 512), (0, 511), (100, 100), (512, 1)] {
        let written = write_direct(&file, at, &vec![1; length]);
        assert!(matches!(written, Err(Error::InvalidArgument(_))), "{at} {length}: {written:?}");
        let read = file.read_direct(FileOffset(at), &mut vec![0; length]);
        assert!(matches!(read, Err(Error::InvalidArgument(_))), "{at} {length}: {read:?}");
    }
    // The file may end within a sector.
    file.node().set_size(1000, Privileges::Keep).unwrap();
    let mut found = vec![7; 2048];
    assert_eq!(file.read_direct(FileOffset(0), &mut found), Ok(1000));
    assert_eq!(file.read_direct(FileOffset(1024), &mut found), Ok(0));
    assert_eq!(file.read_direct(FileOffset(1001), &mut found[..5]), Ok(0), "past the end");
    let appending = OpenMode { write: true, append: true };
    let appending = file.node().open_for(appending).unwrap();
    let appended = write_direct(&appending, 0, &[1; 512]);
    assert!(matches!(appended, Err(Error::InvalidArgument(_))), "{appended:?}");
    file.node().set_size(1024, Privileges::Keep).unwrap();
    assert_eq!(write_direct(&appending, 0, &[1; 512]), Ok(512));
    assert_eq!(file.node().attributes().size, 1536);
    drop((file, appending));
    stage.close();
}

/// Submits requests, and returns their results in the order of their offsets.
fn submit(
    file: &File,
    requests: impl IntoIterator<Item = (u64, Option<Vec<u8>>)>,
    at_once: bool,
) -> Vec<(u64, Vec<u8>, base::Result<usize>)> {
    let (sender, ended) = mpsc::channel();
    let batch = requests.into_iter().map(|(at, data)| {
        let sender = sender.clone();
        let done = move |buffer, result| sender.send((at, buffer, result)).unwrap();
        match data {
            Some(data) => DirectIo::write(FileOffset(at), data, done),
            None => DirectIo::read(FileOffset(at), vec![0xEE; 4096], done),
        }
    });
    file.submit_direct(batch.collect(), Privileges::Keep, at_once);
    drop(sender);
    let mut ended: Vec<_> = ended.iter().collect();
    ended.sort_by_key(|(at, ..)| *at);
    ended
}

#[test]
fn one_caller_may_submit_many_requests_at_once() {
    let (stage, file) = Stage::with_file(4 << 20, |device| device);
    let offsets: Vec<u64> = (0..500).map(|index| index * 8192).collect();
    let block = |at: u64| vec![(at >> 13) as u8 | 1; 4096];
    let ended = submit(&file, offsets.iter().map(|&at| (at, Some(block(at)))), false);
    assert_eq!(ended.len(), offsets.len());
    assert!(ended.iter().all(|(.., result)| *result == Ok(4096)), "{ended:?}");
    let ended = submit(&file, offsets.iter().map(|&at| (at, None)), false);
    assert!(ended.iter().all(|(at, found, result)| *result == Ok(4096) && *found == block(*at)));
    // Past the end, within existing data, and at an invalid offset.
    let size = 4 << 20;
    let requests =
        [(size, Some(vec![9; 8192])), (512, Some(vec![8; 512])), (100, Some(vec![7; 512]))];
    let ended = submit(&file, requests, false);
    assert!(matches!(ended[0].2, Err(Error::InvalidArgument(_))), "{:?}", ended[0].2);
    assert_eq!((&ended[1].2, &ended[2].2), (&Ok(512), &Ok(8192)));
    assert_eq!(file.node().attributes().size, size + 8192);
    let mut found = vec![0; 1024];
    file.read_at(&mut found, 0).unwrap();
    assert!(found[..512] == [1; 512] && found[512..] == [8; 512]);
    drop(file);
    stage.close();
}

/// The number of bios of each batch that a device receives.
#[derive(Debug, Default)]
struct Batches(Mutex<Vec<usize>>);

impl DeviceHooks for Batches {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        self.0.lock().unwrap().push(batch.len());
        device.submit(batch);
    }
}

#[test]
fn requests_for_cached_data_that_is_written_back_are_submitted_at_once() {
    let mut batches = None;
    let wrap = |device| -> SharedDevice {
        batches.insert(Arc::new(HookedDevice::new(device, Batches::default()))).clone()
    };
    let (stage, file) = Stage::with_file(1 << 20, wrap);
    let batches = batches.unwrap();
    for data in [None, Some(vec![2; 4096])] {
        assert_eq!(file.write_at(&vec![1; 1 << 20], 0), Ok(1 << 20));
        stage.volume.sync().unwrap();
        batches.0.lock().unwrap().clear();
        let ended = submit(&file, (0..4).map(|index| (index * 65_536, data.clone())), false);
        assert!(ended.iter().all(|(.., result)| *result == Ok(4096)), "{ended:?}");
        assert_eq!(*batches.0.lock().unwrap(), [4], "a write: {}", data.is_some());
    }
    drop(file);
    stage.close();
}

#[test]
fn requests_at_once_that_would_wait_end_with_would_block() {
    let (stage, file) = Stage::with_file(1 << 20, |device| device);
    let submit_one = |at: u64, data: Option<Vec<u8>>| submit(&file, [(at, data)], true).remove(0).2;
    assert_eq!(write_direct(&file, 0, &[1; 4096]), Ok(4096));
    assert_eq!(submit_one(4096, Some(vec![2; 4096])), Ok(4096));
    assert_eq!(submit_one(4096, None), Ok(4096));
    // Past the end, a part of a block without data, and dirty data in the cache.
    assert_eq!(submit_one(1 << 20, Some(vec![2; 4096])), Err(Error::WouldBlock));
    assert_eq!(submit_one(8192, Some(vec![2; 512])), Err(Error::WouldBlock));
    file.write_at(&[3], 65_536).unwrap();
    assert_eq!(submit_one(65_536, Some(vec![2; 4096])), Err(Error::WouldBlock));
    assert_eq!(submit_one(65_536, None), Err(Error::WouldBlock));
    file.sync_all().unwrap();
    drop(file);
    close(stage.volume, &stage.image);
    // The map is not cached yet.
    let volume = open(&stage.image);
    let file = common::file(&volume, "a");
    let submit_one = |at: u64| submit(&file, [(at, None)], true).remove(0).2;
    assert_eq!(submit_one(0), Err(Error::WouldBlock));
    // It is not known yet whether the file has privileges.
    let written = submit(&file, [(0, Some(vec![1; 4096]))], true).remove(0).2;
    assert_eq!(written, Err(Error::WouldBlock));
    let mut found = vec![0; 4096];
    assert_eq!(file.read_direct(FileOffset(0), &mut found), Ok(4096));
    assert_eq!(submit_one(0), Ok(4096));
    drop(file);
    close(volume, &stage.image);
}

#[test]
fn only_successful_writes_clear_privileges() {
    let (stage, file) = Stage::with_file(1 << 20, |device| device);
    let name = b"security.capability".as_slice();
    let value = &[&b"\x01\x00\x00\x02"[..], &[0; 16]].concat();
    let has_capability = |file: &File| file.node().get_xattr(name).is_ok();
    let set = || file.node().set_xattr(name, value, XattrMode::Either, Privileges::Keep).unwrap();
    set();
    let read = submit(&file, [(0, None)], false).remove(0).2;
    assert_eq!((read, has_capability(&file)), (Ok(4096), true), "a read");
    let refused = submit(&file, [(100, Some(vec![1; 512]))], false).remove(0).2;
    assert!(refused.is_err() && has_capability(&file), "{refused:?}");
    let refused = write_direct(&file, u64::MAX / 512 * 512 - 512, &[1; 512]);
    assert!(refused.is_err() && has_capability(&file), "{refused:?}");
    let written = submit(&file, [(0, Some(vec![1; 4096]))], false).remove(0).2;
    assert_eq!((written, has_capability(&file)), (Ok(4096), false));
    set();
    assert_eq!(write_direct(&file, 4096, &[1; 4096]), Ok(4096));
    assert!(!has_capability(&file));
    drop(file);
    stage.close();
}
