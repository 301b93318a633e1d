//! What is asked for, and what is answered.

use std::sync::mpsc;

use base::{Error, FileOffset};
use vfs::{DirectIo, File, OpenMode, Privileges, XattrMode};

use crate::common::{self, close, open};
use crate::{Stage, write_direct};

#[test]
fn what_is_not_whole_sectors_is_refused() {
    let (stage, file) = Stage::with_file(1 << 20, |device| device);
    for (at, length) in [(1, 512), (0, 511), (100, 100), (512, 1)] {
        let written = write_direct(&file, at, &vec![1; length]);
        assert!(matches!(written, Err(Error::InvalidArgument(_))), "{at} {length}: {written:?}");
        let read = file.read_direct(FileOffset(at), &mut vec![0; length]);
        assert!(matches!(read, Err(Error::InvalidArgument(_))), "{at} {length}: {read:?}");
    }
    // The end of the file need not be one of a sector.
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

/// What ended, of requests that were started.
fn started(
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
fn many_requests_of_one_caller_are_under_way_at_once() {
    let (stage, file) = Stage::with_file(4 << 20, |device| device);
    let places: Vec<u64> = (0..500).map(|index| index * 8192).collect();
    let block = |at: u64| vec![(at >> 13) as u8 | 1; 4096];
    let ended = started(&file, places.iter().map(|&at| (at, Some(block(at)))), false);
    assert_eq!(ended.len(), places.len());
    assert!(ended.iter().all(|(.., result)| *result == Ok(4096)), "{ended:?}");
    let ended = started(&file, places.iter().map(|&at| (at, None)), false);
    assert!(ended.iter().all(|(at, found, result)| *result == Ok(4096) && *found == block(*at)));
    // Past the end, in the middle of what is there, and where it cannot be.
    let size = 4 << 20;
    let requests =
        [(size, Some(vec![9; 8192])), (512, Some(vec![8; 512])), (100, Some(vec![7; 512]))];
    let ended = started(&file, requests, false);
    assert!(matches!(ended[0].2, Err(Error::InvalidArgument(_))), "{:?}", ended[0].2);
    assert_eq!((&ended[1].2, &ended[2].2), (&Ok(512), &Ok(8192)));
    assert_eq!(file.node().attributes().size, size + 8192);
    let mut found = vec![0; 1024];
    file.read_at(&mut found, 0).unwrap();
    assert!(found[..512] == [1; 512] && found[512..] == [8; 512]);
    drop(file);
    stage.close();
}

#[test]
fn who_does_not_want_to_wait_is_told() {
    let (stage, file) = Stage::with_file(1 << 20, |device| device);
    let one = |at: u64, data: Option<Vec<u8>>| started(&file, [(at, data)], true).remove(0).2;
    assert_eq!(write_direct(&file, 0, &[1; 4096]), Ok(4096));
    assert_eq!(one(4096, Some(vec![2; 4096])), Ok(4096));
    assert_eq!(one(4096, None), Ok(4096));
    // Past the end, a part of a block that holds nothing, and what is in the cache.
    assert_eq!(one(1 << 20, Some(vec![2; 4096])), Err(Error::WouldBlock));
    assert_eq!(one(8192, Some(vec![2; 512])), Err(Error::WouldBlock));
    file.write_at(&[3], 65_536).unwrap();
    assert_eq!(one(65_536, Some(vec![2; 4096])), Err(Error::WouldBlock));
    assert_eq!(one(65_536, None), Err(Error::WouldBlock));
    file.sync_all().unwrap();
    drop(file);
    close(stage.volume, &stage.image);
    // A map that nobody has read.
    let volume = open(&stage.image);
    let file = common::file(&volume, "a");
    let one = |at: u64| started(&file, [(at, None)], true).remove(0).2;
    assert_eq!(one(0), Err(Error::WouldBlock));
    // Nobody has looked whether the file has privileges.
    let written = started(&file, [(0, Some(vec![1; 4096]))], true).remove(0).2;
    assert_eq!(written, Err(Error::WouldBlock));
    let mut found = vec![0; 4096];
    assert_eq!(file.read_direct(FileOffset(0), &mut found), Ok(4096));
    assert_eq!(one(0), Ok(4096));
    drop(file);
    close(volume, &stage.image);
}

#[test]
fn only_what_is_written_takes_privileges_away() {
    let (stage, file) = Stage::with_file(1 << 20, |device| device);
    let (name, value) = (b"security.capability".as_slice(), b"\x01\x00\x00\x02".as_slice());
    let has_capability = |file: &File| file.node().get_xattr(name).is_ok();
    let set = || file.node().set_xattr(name, value, XattrMode::Either, Privileges::Keep).unwrap();
    set();
    let read = started(&file, [(0, None)], false).remove(0).2;
    assert_eq!((read, has_capability(&file)), (Ok(4096), true), "a read");
    let refused = started(&file, [(100, Some(vec![1; 512]))], false).remove(0).2;
    assert!(refused.is_err() && has_capability(&file), "{refused:?}");
    let refused = write_direct(&file, u64::MAX / 512 * 512 - 512, &[1; 512]);
    assert!(refused.is_err() && has_capability(&file), "{refused:?}");
    let written = started(&file, [(0, Some(vec![1; 4096]))], false).remove(0).2;
    assert_eq!((written, has_capability(&file)), (Ok(4096), false));
    set();
    assert_eq!(write_direct(&file, 4096, &[1; 4096]), Ok(4096));
    assert!(!has_capability(&file));
    drop(file);
    stage.close();
}
