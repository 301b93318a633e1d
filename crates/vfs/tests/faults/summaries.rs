//! Checkpoints of f2fs whose logs have begun segments with unreadable summaries.

use std::ops::ControlFlow;

use base::FileOffset;
use f2fs::{SEGMENT_BLOCKS, Superblock};

use crate::kind::KINDS;
use crate::stage::{Faulty, after_cut};
use crate::{WRITE, create, write};

const BLOCK: u64 = 4096;
/// Several segments.
const LENGTH: usize = 10 << 20;
/// The first segments, which the logs of a new volume have.
const FIRST: u64 = 8;

#[test]
fn a_checkpoint_reads_no_summaries_of_segments_that_were_free() {
    let kind = &KINDS[1];
    let Faulty { faults, recorder } = Faulty::new(&kind.contents(), None);
    let volume = kind.open(recorder.clone());
    let geometry = Superblock::read(&kind.contents()).unwrap().geometry;
    let file = create(&volume, "/file").unwrap().open_for(WRITE).unwrap();
    volume.sync().unwrap();
    // Each segment has a block of summaries.
    let first = geometry.ssa.start.0 + FIRST;
    faults.fail_reads_in(first * BLOCK..geometry.ssa.end.0 * BLOCK);
    assert_eq!(write(&file, 0, &vec![7; LENGTH]), Ok(LENGTH));
    assert_eq!(volume.sync(), Ok(()));
    let mut last = 0;
    file.extents(FileOffset(0)..FileOffset(LENGTH as u64), &mut |extent| {
        let blocks = extent.physical.0 / BLOCK - geometry.main.start.0;
        last = last.max(blocks / SEGMENT_BLOCKS);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(last >= FIRST, "no segment with unreadable summaries was begun: {last}");
    faults.heal();
    create(&volume, "/more").unwrap();
    volume.close().unwrap();
    after_cut(kind, &recorder, false, "closed");
}
