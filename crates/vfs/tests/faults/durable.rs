//! Writes that are durable without an fsync, on all kinds of volumes.

use std::sync::Arc;

use base::FileOffset;
use vfs::{Node, Privileges, RwFlags, WriteAt, WriteSync};

use crate::kind::{KINDS, Kind};
use crate::stage::Stage;
use crate::{APPEND, WRITE, write};

/// Returns the contents of `/file` after some writes and a power cut that loses all volatile
/// writes.
fn contents_after_cut(kind: &'static Kind, writes: impl FnOnce(&Arc<Node>)) -> Vec<u8> {
    let stage = Stage::new(kind, None);
    writes(&stage.node);
    stage.contents_after_cut(false)
}

#[test]
fn synchronous_writes_are_durable_when_they_return() {
    KINDS.iter().for_each(write_synchronously);
}

fn write_synchronously(kind: &'static Kind) {
    let after_cut = |writes: &dyn Fn(&Arc<Node>)| contents_after_cut(kind, writes);
    for sync in [WriteSync::Data, WriteSync::All] {
        let found = after_cut(&|node| {
            let file = node.open_for(WRITE).unwrap().synchronous(sync);
            write(&file, 0, &[1; 1500]).unwrap();
            // Past the end: the rest of the last block on the disk must be written first.
            write(&file, 5000, &[2; 100]).unwrap();
        });
        let expected = [vec![1; 1500], vec![0; 3500], vec![2; 100]].concat();
        assert!(found == expected, "{kind:?}, {sync:?}: {} bytes", found.len());
        let found = after_cut(&|node| {
            let file = node.open_for(APPEND).unwrap().synchronous(sync);
            write(&file, 0, &[3; 1500]).unwrap();
            write(&file, 0, &[3; 50]).unwrap();
        });
        assert!(found == [3; 1550], "{kind:?}, {sync:?}: {} bytes", found.len());
        let found = after_cut(&|node| {
            let file = node.open_for(WRITE).unwrap();
            let (at, keep) = (WriteAt::Offset(FileOffset(0)), Privileges::Keep);
            file.write_with(at, &[4; 3000], keep, RwFlags { sync, ..RwFlags::default() }).unwrap();
            write(&file, 0, &[5; 3000]).unwrap();
        });
        assert!(found == [4; 3000], "{kind:?}, {sync:?}: {} bytes", found.len());
        let found = after_cut(&|node| {
            let file = node.open_for(WRITE).unwrap().synchronous(sync);
            write(&file, 0, &[6; 3000]).unwrap();
            // Copies data, and a hole.
            for (from, at, length) in [(0, 8000, 3000), (4096, 12_000, 1024)] {
                let (from, at, keep) = (FileOffset(from), FileOffset(at), Privileges::Keep);
                assert_eq!(file.copy_to(from, &file, at, length, keep), Ok(length));
            }
        });
        let expected = [vec![6; 3000], vec![0; 5000], vec![6; 3000], vec![0; 2024]].concat();
        assert!(found == expected, "{kind:?}, {sync:?}: {} bytes", found.len());
    }
}
