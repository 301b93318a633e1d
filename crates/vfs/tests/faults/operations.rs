//! Operations on f2fs that fail, since a block cannot be read: names and attributes are as before,
//! or as after a success; the volume goes on; and what becomes durable later is the same tree.

use std::ops::{ControlFlow, Range};

use base::attributes::{DirCursor, XattrMode};
use base::{Error, FileOffset, IoOperation, Result};
use device::SharedDevice;
use vfs::{Credentials, Fallocate, Follow, Privileges, RenameFlags, Volume};

use crate::kind::{KINDS, Kind};
use crate::stage::{Faulty, after_cut};
use crate::{EIO, WRITE, create, number, write};

const ROOT: &Credentials = &Credentials::ROOT;
const BLOCK: u64 = 16 << 10;
/// The number of files in the directory, whose names need several blocks.
const NAMES: usize = 150;
/// The blocks of the file that have data. Their addresses are in the inode, and in three other
/// nodes.
const BLOCKS: [u64; 4] = [0, 1500, 1502, 6000];

type Operation = fn(&Volume) -> Result<()>;

/// The operations, and whether each of them changes only names and attributes.
const OPERATIONS: &[(&str, bool, Operation)] = &[
    ("create", true, |volume| volume.create_file(b"/d/new", 0o644, ROOT).map(drop)),
    ("mkdir", true, |volume| volume.mkdir(b"/d/new", 0o755, ROOT).map(drop)),
    ("unlink", true, |volume| volume.remove(name(77).as_bytes(), ROOT)),
    ("link", true, |volume| volume.link_at(b"/file", b"/d/new")),
    ("rename", true, |volume| rename(volume, &name(5), "/d/new")),
    ("replace", true, |volume| rename(volume, &name(5), &name(140))),
    ("replace from elsewhere", true, |volume| rename(volume, "/file", &name(140))),
    ("rename of a directory", true, |volume| rename(volume, "/empty", "/d/new")),
    ("rmdir", true, |volume| volume.remove(b"/empty", ROOT)),
    ("setxattr", true, |volume| {
        let node = volume.resolve(b"/file", Follow::No)?;
        node.set_xattr(b"user.large", &[7; 2000], XattrMode::Either, Privileges::Keep)
    }),
    ("truncate", false, |volume| {
        volume.resolve(b"/file", Follow::No)?.set_size(1501 * BLOCK, Privileges::Keep)
    }),
    ("punch", false, |volume| fallocate(volume, Fallocate::PunchHole, 1500..1501)),
    ("collapse", false, |volume| fallocate(volume, Fallocate::CollapseRange, 10..20)),
    ("insert", false, |volume| fallocate(volume, Fallocate::InsertRange, 10..20)),
    ("allocate", false, |volume| {
        fallocate(volume, Fallocate::Allocate { keep_size: true }, 1400..1700)
    }),
    ("write", false, |volume| {
        let file = volume.resolve(b"/file", Follow::No)?.open_for(WRITE)?;
        write(&file, 1501 * BLOCK - 100, &[9; 300])?;
        file.sync_all()
    }),
];

fn name(index: usize) -> String {
    format!("/d/{index}-{}", "n".repeat(100))
}

fn rename(volume: &Volume, from: &str, to: &str) -> Result<()> {
    volume.rename_at(from.as_bytes(), to.as_bytes(), RenameFlags::default(), ROOT)
}

fn fallocate(volume: &Volume, mode: Fallocate, blocks: Range<u64>) -> Result<()> {
    let file = volume.resolve(b"/file", Follow::No)?.open_for(WRITE)?;
    let range = FileOffset(blocks.start * BLOCK)..FileOffset(blocks.end * BLOCK);
    file.fallocate(mode, range, Privileges::Keep)
}

fn populated(kind: &'static Kind) -> SharedDevice {
    let Faulty { recorder, .. } = Faulty::new(&kind.contents(), None);
    let volume = kind.open(recorder.clone());
    volume.mkdir(b"/d", 0o755, ROOT).unwrap();
    volume.mkdir(b"/empty", 0o755, ROOT).unwrap();
    for index in 0..NAMES {
        create(&volume, &name(index)).unwrap();
    }
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    for block in BLOCKS {
        let data = vec![1 + block as u8; BLOCK as usize];
        write(&file, block * BLOCK, &data).unwrap();
    }
    file.node().set_xattr(b"user.small", b"small", XattrMode::Either, Privileges::Keep).unwrap();
    drop(file);
    volume.close().unwrap();
    crate::stage::rebuilt(&recorder, true).snapshot()
}

/// Returns all names, with the attributes that operations change. With `has_data`, also where the
/// file has data.
fn tree(volume: &Volume, has_data: bool) -> Vec<String> {
    let mut found = Vec::new();
    for directory in ["/", "/d"] {
        let node = volume.resolve(directory.as_bytes(), Follow::No).unwrap();
        let mut names = Vec::new();
        node.read_dir(DirCursor::default(), &mut |entry| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        for name in names {
            let node = volume.node(node.lookup(&name).unwrap()).unwrap();
            let attributes = node.attributes();
            let size = if node.kind() == base::attributes::FileType::Regular {
                attributes.size
            } else {
                0
            };
            let xattrs = node.list_xattrs().unwrap();
            let name = String::from_utf8_lossy(&name).into_owned();
            found.push(format!("{directory} {name} {} {size} {xattrs:?}", attributes.links));
        }
    }
    if has_data {
        let file = volume.resolve(b"/file", Follow::No);
        if let Ok(file) = file.and_then(|node| node.open()) {
            for block in [0, 1490, 1500, 1501, 1502, 1510, 5990, 6000, 6010] {
                let mut bytes = [0; 8];
                let length = file.read_at(&mut bytes, block * BLOCK).unwrap();
                found.push(format!("{block}: {:?}", &bytes[..length]));
            }
        }
    }
    found.sort();
    found
}

/// A volume on which an operation is tried, after the first change, which writes a checkpoint.
struct Trial {
    faulty: Faulty,
    volume: Volume,
    result: Result<()>,
    /// The numbers of the reads of the operation.
    reads: Range<u64>,
}

impl Trial {
    /// Tries an operation. Reads of the bytes `bad` fail meanwhile, or else the read with a number.
    fn new(
        kind: &Kind,
        contents: &SharedDevice,
        operation: Operation,
        failing: u64,
        bad: &Range<u64>,
    ) -> Self {
        let faulty = Faulty::new(contents, Some((IoOperation::Read, failing)));
        let volume = kind.open(faulty.recorder.clone());
        create(&volume, "/more").unwrap();
        let before = faulty.faults.requests(IoOperation::Read);
        faulty.faults.fail_reads_in(bad.clone());
        let result = operation(&volume);
        faulty.faults.heal();
        let reads = before..faulty.faults.requests(IoOperation::Read);
        Self { faulty, volume, result, reads }
    }

    /// Checks that the volume goes on, and that what becomes durable is what it shows. Returns its
    /// tree.
    fn check(self, kind: &Kind, is_of_names: bool, place: &str) -> Vec<String> {
        let Self { faulty, volume, result, .. } = self;
        let found = tree(&volume, is_of_names);
        assert_eq!(number(create(&volume, "/other").map(drop)), 0, "{place}");
        let synced = volume.sync();
        // A write that has lost data is reported here, too.
        assert!(synced.is_ok() || result.is_err() && !is_of_names, "{place}: {synced:?}");
        volume.remove(b"/other", ROOT).unwrap();
        volume.close().unwrap();
        drop(volume);
        let rebuilt = after_cut(kind, &faulty.recorder, false, place);
        let volume = kind.try_open(rebuilt.device(), false).unwrap();
        assert_eq!(tree(&volume, is_of_names), found, "{place}: after closing");
        found
    }
}

#[test]
fn an_operation_that_meets_an_unreadable_block_is_done_or_not() {
    let mut failed = 0;
    for kind in [&KINDS[1], &KINDS[4]] {
        let contents = populated(kind);
        for (name, is_of_names, operation) in OPERATIONS {
            let try_with = |operation, failing, bad: &Range<u64>| {
                Trial::new(kind, &contents, operation, failing, bad)
            };
            let check = |trial: Trial, place: &str| trial.check(kind, *is_of_names, place);
            let before = check(try_with(|_| Ok(()), u64::MAX, &(0..0)), name);
            let healthy = try_with(*operation, u64::MAX, &(0..0));
            assert_eq!(healthy.result, Ok(()), "{kind:?}, {name}");
            let reads = healthy.reads.clone();
            let after = check(healthy, name);
            for failing in reads {
                // A read that fails once shows which bytes it reads.
                let once = try_with(*operation, failing, &(0..0));
                let faults = once.faulty.faults.faults();
                let bad = faults[0].offset.0..faults[0].offset.0 + faults[0].length;
                let trial = try_with(*operation, u64::MAX, &bad);
                let errno = trial.result.as_ref().err().map_or(0, Error::errno);
                let place = format!("{kind:?}, {name}, bytes {bad:?}: {:?}", trial.result);
                assert!([0, EIO].contains(&errno), "{place}");
                let expected = if errno == 0 { &after } else { &before };
                assert_eq!(check(trial, &place), *expected, "{place}");
                failed += usize::from(errno > 0);
            }
        }
    }
    assert!(failed > OPERATIONS.len(), "only {failed} operations have failed");
}
