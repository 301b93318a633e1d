//! Collapsed ranges of f2fs files whose moved data cannot be read by the next checkpoint.

use std::ops::ControlFlow;

use base::FileOffset;
use vfs::{Fallocate, File, Follow, Privileges};

use crate::kind::KINDS;
use crate::stage::{Faulty, after_cut};
use crate::{WRITE, create, write};

/// Longer than the segments of both block sizes.
const LENGTH: usize = 10 << 20;
/// A byte that cannot be read later.
const AT: u64 = 3 << 20;

/// Returns the place of a byte of a file on the device.
pub fn place_of(file: &File, at: u64) -> u64 {
    let mut found = None;
    let emit = &mut |extent: iomap::FiemapExtent| {
        found = Some(extent.physical.0 + (at - extent.logical.0));
        ControlFlow::Break(())
    };
    file.extents(FileOffset(at)..FileOffset(at + 1), emit).unwrap();
    found.expect("the file has data")
}

#[test]
fn a_checkpoint_is_written_although_moved_data_cannot_be_read() {
    for kind in [&KINDS[1], &KINDS[4]] {
        let place = format!("{kind:?}");
        let Faulty { faults, recorder } = Faulty::new(&kind.contents(), None);
        let volume = kind.open(recorder.clone());
        let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
        let unit = kind.unit();
        let data: Vec<u8> = (0..LENGTH).map(|at| (at / unit) as u8).collect();
        assert_eq!(write(&file, 0, &data), Ok(LENGTH));
        volume.sync().unwrap();
        let bad = place_of(&file, AT);
        // In the same segment.
        let beside = [AT - 3 * unit as u64, AT + 3 * unit as u64];
        let before = beside.map(|at| place_of(&file, at));
        faults.fail_reads_in(bad..bad + 1);

        let removed = FileOffset(0)..FileOffset(unit as u64);
        file.fallocate(Fallocate::CollapseRange, removed, Privileges::Keep).unwrap();
        volume.sync().unwrap();
        assert!(!faults.faults().is_empty(), "{place}: the checkpoint has not read moved data");
        assert_eq!(place_of(&file, AT - unit as u64), bad, "{place}");
        for (at, before) in beside.into_iter().zip(before) {
            assert_ne!(place_of(&file, at - unit as u64), before, "{place}: {at}");
        }
        create(&volume, "/more").unwrap();
        volume.close().unwrap();
        let rebuilt = after_cut(kind, &recorder, false, &place);
        let volume = kind.try_open(rebuilt.device(), false).unwrap();
        let node = volume.resolve(b"/file", Follow::No).unwrap();
        let mut found = vec![0; LENGTH];
        let length = node.open().unwrap().read_at(&mut found, 0).unwrap();
        assert!(found[..length] == data[unit..], "{place}");
    }
}
