//! What f2fs does when single requests of its own fail: each of a checkpoint, a node of a sync, and
//! reads of nodes and of blocks that are cleaned.

use base::IoOperation;
use vfs::{AtomicWrite, Credentials, Privileges};

use crate::kind::{KINDS, Kind};
use crate::stage::Stage;
use crate::{ALL, EIO, EROFS, create, number, write};

#[test]
fn a_checkpoint_that_fails_at_any_request_shuts_the_volume_down() {
    for kind in &KINDS[1..] {
        for operation in [IoOperation::Read, IoOperation::Write, IoOperation::Flush] {
            let [before, after] = write_a_checkpoint(kind, operation, None);
            assert!(after - before >= 2, "{kind:?}: {before} to {after} of {operation:?}");
            for index in before..after {
                write_a_checkpoint(kind, operation, Some(index));
            }
        }
    }
}

/// Writes a checkpoint, which fails if request `failing` of `operation` does. Returns the numbers
/// of such requests before and after it.
fn write_a_checkpoint(
    kind: &'static Kind,
    operation: IoOperation,
    failing: Option<u64>,
) -> [u64; 2] {
    let place = format!("{kind:?}, {operation:?} {failing:?}");
    let stage = Stage::new(kind, failing.map(|number| (operation, number)));
    let Stage { volume, node, files: [file, _], .. } = &stage;
    let data = vec![7; kind.length()];
    assert_eq!(write(file, 0, &data), Ok(data.len()));
    file.sync_range(0..u64::MAX, ALL).unwrap();
    create(volume, "/more").unwrap();
    let before = stage.faults.requests(operation);
    let synced = number(volume.sync());
    let after = stage.faults.requests(operation);
    let has_failed = synced > 0;
    if operation == IoOperation::Read {
        // The checkpoint does not need all that is read.
        assert!([0, if failing.is_some() { EIO } else { 0 }].contains(&synced), "{place}");
    } else {
        assert_eq!(synced, if failing.is_some() { EIO } else { 0 }, "{place}");
    }
    if has_failed {
        assert_eq!(number(create(volume, "/other").map(drop)), EROFS, "{place}");
        assert_eq!(number(write(file, 0, b"x").map(drop)), EROFS, "{place}");
        assert_eq!(number(node.set_size(0, Privileges::Keep)), EROFS, "{place}");
        assert_eq!(number(file.sync_all()), EIO, "{place}");
        assert_ne!(number(volume.close()), 0, "{place}");
    }
    for keeps_volatile in [false, true] {
        let found = stage.contents_after_cut(keeps_volatile);
        let may_be_old = has_failed && found.is_empty();
        assert!(may_be_old || found == data, "{place}: {} bytes", found.len());
    }
    [before, after]
}

/// The nodes of a sync that cannot be written are written by a checkpoint, and the sync succeeds.
#[test]
fn a_sync_whose_nodes_cannot_be_written_is_durable_all_the_same() {
    for kind in &KINDS[1..] {
        let sync = |failing: Option<u64>| {
            let stage = Stage::new(kind, failing.map(|number| (IoOperation::Write, number)));
            let Stage { volume, files: [file, other], .. } = &stage;
            let data = vec![7; kind.length()];
            assert_eq!(write(file, 0, &data), Ok(data.len()));
            file.sync_range(0..u64::MAX, ALL).unwrap();
            let before = stage.faults.requests(IoOperation::Write);
            let synced = number(file.sync_all());
            let failed = stage.faults.faults().len();
            if synced == 0 {
                assert_eq!(number(other.sync_all()), 0, "{kind:?}");
                for keeps_volatile in [false, true] {
                    let found = stage.contents_after_cut(keeps_volatile);
                    assert!(found == data, "{kind:?}: {} bytes", found.len());
                }
                assert_eq!(number(volume.close()), 0, "{kind:?}");
            }
            (before, synced, failed)
        };
        let (first, synced, _) = sync(None);
        assert_eq!(synced, 0);
        // A compressed file is synced by a checkpoint, whose failure is no detour.
        let expected =
            if kind.unit() == 16 << 10 && !kind.stores_data_as_it_is() { EIO } else { 0 };
        assert_eq!(sync(Some(first)), (first, expected, 1), "{kind:?}");
    }
}

#[test]
fn lost_data_gives_back_its_space_when_it_is_written_again_or_cut_off_or_its_file_is_deleted() {
    for kind in &KINDS[1..] {
        for way in 0..3 {
            let lose = |failing: Option<u64>| {
                let stage = Stage::new(kind, failing.map(|number| (IoOperation::Write, number)));
                let Stage { volume, files: [file, _], .. } = &stage;
                let free = volume.statfs().blocks_free;
                let before = stage.faults.requests(IoOperation::Write);
                let data = vec![7; kind.length()];
                assert_eq!(write(file, 0, &data), Ok(data.len()));
                let lost = number(file.sync_all());
                (stage, free, before, lost, data)
            };
            let (healthy, free, before, ..) = lose(None);
            let used = free - healthy.volume.statfs().blocks_free;
            assert!(used > 0);
            let (stage, free, _, lost, data) = lose(Some(before));
            let place = format!("{kind:?}, {way}");
            assert_eq!(lost, EIO, "{place}");
            let Stage { volume, node, files: [file, other], .. } = stage;
            match way {
                0 => assert_eq!(write(&file, 0, &data), Ok(data.len())),
                1 => node.set_size(0, Privileges::Keep).unwrap(),
                _ => volume.remove(b"/file", &Credentials::ROOT).unwrap(),
            }
            drop((file, other, node));
            assert_eq!(number(volume.sync()), EIO, "{place}: it reports the loss, too");
            let left = volume.statfs().blocks_free;
            match way {
                0 => assert_eq!(free - left, used, "{place}"),
                1 => assert_eq!(left, free, "{place}"),
                _ => assert!(left > free, "{place}: the inode is free, too"),
            }
            volume.close().unwrap();
        }
    }
}

#[test]
fn a_file_that_has_lost_data_can_be_written_atomically() {
    for kind in KINDS[1..].iter().filter(|kind| !kind.is_compressed()) {
        let unit = kind.unit();
        let write_both = |failing: Option<u64>| {
            let stage = Stage::new(kind, failing.map(|number| (IoOperation::Write, number)));
            let Stage { volume, files: [file, _], .. } = &stage;
            let free = volume.statfs().blocks_free;
            let before = stage.faults.requests(IoOperation::Write);
            assert_eq!(write(file, 4 * unit as u64, &vec![7; unit]), Ok(unit));
            let lost = number(file.sync_all());
            file.atomic_start(AtomicWrite::Update).unwrap();
            assert_eq!(write(file, 0, &vec![8; unit]), Ok(unit));
            assert_eq!(number(file.atomic_commit()), 0, "{kind:?}");
            let used = free - volume.statfs().blocks_free;
            for keeps_volatile in [false, true] {
                let found = stage.contents_after_cut(keeps_volatile);
                assert!(found.starts_with(&vec![8; unit]), "{kind:?}: {} bytes", found.len());
            }
            (before, lost, used)
        };
        let (first, lost, used) = write_both(None);
        assert_eq!((lost, used), (0, 2), "{kind:?}");
        assert_eq!(write_both(Some(first)), (first, EIO, 1), "{kind:?}");
    }
}
