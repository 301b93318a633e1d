//! Cleaning of f2fs while one request fails: no file loses a byte, whether the section is left as
//! it was, or the volume is shut down.

use std::sync::Arc;

use base::{FileOffset, FsBlock, IoOperation};
use device::{MemoryDevice, SharedDevice};
use vfs::{Credentials, Fallocate, File, Follow, Privileges, RangeCleaning, Volume};

use crate::kind::{KINDS, Kind};
use crate::shifted::place_of;
use crate::stage::{Faulty, after_cut};
use crate::{EIO, WRITE, create, number, write};

/// The number of files, of which one in three stays.
const FILES: usize = 30;
/// The number of parts of a file. The parts of all files are written by turns.
const PARTS: usize = 8;
/// The number of requests of an operation that fail, each in a run of its own.
const RUNS: u64 = 6;

fn path(index: usize) -> String {
    format!("/file{index}")
}

fn data(kind: &Kind, index: usize) -> Vec<u8> {
    let length = PARTS * if kind.is_compressed() { 2 } else { 8 } * kind.unit();
    (0..length).map(|at| (at / 512 + 31 * index) as u8).collect()
}

/// Returns a volume whose sections have some blocks in use each.
fn scattered(kind: &Kind) -> SharedDevice {
    let disk = kind.disk();
    let volume = kind.open(disk.clone());
    let open = |index| create(&volume, &path(index)).unwrap().open_for(WRITE).unwrap();
    let files: Vec<File> = (0..FILES).map(open).collect();
    for part in 0..PARTS {
        for (index, file) in files.iter().enumerate() {
            let data = data(kind, index);
            let length = data.len() / PARTS;
            let range = part * length..(part + 1) * length;
            write(file, range.start as u64, &data[range]).unwrap();
            file.sync_all().unwrap();
        }
    }
    drop(files);
    for index in (0..FILES).filter(|index| index % 3 > 0) {
        volume.remove(path(index).as_bytes(), &Credentials::ROOT).unwrap();
    }
    volume.close().unwrap();
    let mut image = vec![0; disk.size() as usize];
    disk.read_at(base::DeviceOffset(0), &mut image).unwrap();
    Arc::new(MemoryDevice::new(image))
}

fn check(kind: &Kind, volume: &Volume, place: &str) {
    for index in (0..FILES).step_by(3) {
        let file = volume.resolve(path(index).as_bytes(), Follow::No).unwrap().open().unwrap();
        let expected = data(kind, index);
        let mut found = vec![0; expected.len() + 1];
        let length = file.read_at(&mut found, 0).unwrap();
        assert!(found[..length] == expected, "{place}: {} has other data", path(index));
    }
}

/// Cleans the volume while a request fails. Returns the numbers of requests before and after the
/// cleaning.
fn clean(kind: &Kind, contents: &SharedDevice, operation: IoOperation, failing: u64) -> [u64; 2] {
    let place = format!("{kind:?}, {operation:?} {failing}");
    let Faulty { faults, recorder } = Faulty::new(contents, Some((operation, failing)));
    let volume = kind.open(recorder.clone());
    create(&volume, "/more").unwrap();
    let before = faults.requests(operation);
    let cleaned = volume.clean();
    let after = faults.requests(operation);
    let error = cleaned.as_ref().err().map_or(0, base::Error::errno);
    assert!([0, EIO].contains(&error), "{place}: {cleaned:?}");
    let has_failed = !faults.faults().is_empty();
    assert!(error == 0 || has_failed, "{place}: {cleaned:?}");
    let is_shut = number(create(&volume, "/other").map(drop)) > 0;
    assert!(!is_shut || error == EIO, "{place}: the volume is shut down without an error");
    check(kind, &volume, &place);
    if !is_shut {
        assert_eq!(number(volume.sync()), 0, "{place}");
    }
    for keeps_volatile in [false, true] {
        let rebuilt = after_cut(kind, &recorder, keeps_volatile, &place);
        check(kind, &kind.try_open(rebuilt.device(), false).unwrap(), &place);
    }
    assert_eq!(volume.close().is_err(), is_shut, "{place}");
    [before, after]
}

#[test]
fn cleaning_loses_nothing_whichever_request_fails() {
    for kind in [&KINDS[1], &KINDS[2], &KINDS[4]] {
        let contents = scattered(kind);
        for operation in [IoOperation::Read, IoOperation::Write, IoOperation::Flush] {
            let [before, after] = clean(kind, &contents, operation, u64::MAX);
            let count = after - before;
            assert!(count > 0, "{kind:?}: cleaning has no {operation:?}");
            for index in 0..RUNS.min(count) {
                let failing = before + index * count / RUNS.min(count);
                clean(kind, &contents, operation, failing);
            }
        }
    }
}

#[test]
fn free_blocks_that_cannot_be_read_keep_no_section_from_being_cleaned() {
    const BLOCK: u64 = 4096;
    /// Longer than several sections.
    const LENGTH: usize = 10 << 20;
    const START: u64 = 5 << 20;
    /// The first bytes of holes with several lengths, between blocks of one section.
    const HOLES: [(u64, u64); 3] = [(START, 1), (START + 5 * BLOCK, 4), (START + 13 * BLOCK, 90)];
    let kind = &KINDS[1];
    let Faulty { faults, recorder } = Faulty::new(&kind.contents(), None);
    let volume = kind.open(recorder.clone());
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    let mut data: Vec<u8> = (0..LENGTH).map(|at| (at / 4096) as u8).collect();
    assert_eq!(write(&file, 0, &data), Ok(LENGTH));
    volume.sync().unwrap();
    for (at, blocks) in HOLES {
        let bad = place_of(&file, at);
        faults.fail_reads_in(bad..bad + blocks * BLOCK);
        let hole = FileOffset(at)..FileOffset(at + blocks * BLOCK);
        file.fallocate(Fallocate::PunchHole, hole, Privileges::Keep).unwrap();
        data[at as usize..(at + blocks * BLOCK) as usize].fill(0);
    }
    let block = FsBlock(place_of(&file, START - BLOCK) / BLOCK);
    assert_eq!(volume.clean_range(block..=block, false), Ok(RangeCleaning::Done));
    assert_ne!(FsBlock(place_of(&file, START - BLOCK) / BLOCK), block);
    drop(file);
    volume.close().unwrap();
    let rebuilt = after_cut(kind, &recorder, false, "cleaned");
    let volume = kind.try_open(rebuilt.device(), false).unwrap();
    let file = volume.resolve(b"/file", Follow::No).unwrap().open().unwrap();
    let mut found = vec![7; LENGTH + 1];
    assert_eq!(file.read_at(&mut found, 0), Ok(LENGTH));
    assert!(found[..LENGTH] == data);
}
