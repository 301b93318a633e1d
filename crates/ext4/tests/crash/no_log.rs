//! Power cuts on volumes without a journal. A commit writes blocks to their home locations, and a
//! power cut during it can leave any state that e2fsck must repair. But data and zeroes are written
//! first, so that no stale data is exposed. After all writes of a commit, the volume is consistent.

use std::sync::Arc;

use device::{RecordedWrite, Replay};

use crate::data::Data;
use testkit::crash::{
    Disks, History, STALE, Violation, VolumeFormat, count_mended_state, mended, read,
};

/// Judges the images after cuts at the end of a commit's writes, before they are durable. Only the
/// metadata among them is kept.
pub fn judge_whole_commits(history: &Data) -> Option<Violation> {
    let run = history.run();
    let recording = &run.recording;
    let before = recording.image(0, |_, _| false);
    let mut replay = Replay::new(recording);
    let points = recording.flush_points().into_iter().map(|point| point - 1);
    for point in points.filter(|point| *point > run.begun) {
        let keep = |write: &RecordedWrite, _| is_metadata(&before, write);
        let device = replay.device(point, keep).unwrap().device();
        count_mended_state();
        let disks = Disks::new(Arc::clone(&device), VolumeFormat::Ext4);
        let found = mended(&disks).and_then(|mended| read(&mended));
        if let Err(what) = found.and_then(|found| history.files.check_all(point, &found)) {
            return Some(Violation::new(format!("cut at {point}: {what}"), None, &device));
        }
    }
    None
}

/// Returns whether a write is of metadata: of a block that was not free at the beginning, or of a
/// block of pointers or extents.
fn is_metadata(before: &[u8], write: &RecordedWrite) -> bool {
    if before[write.offset.0 as usize] != STALE {
        return true;
    }
    let words = write.data.chunks_exact(4).map(|word| word.try_into().map(u32::from_le_bytes));
    let words: Vec<u32> = words.map(Result::unwrap).collect();
    // Data has no zeroes, and no byte as large as these values.
    words[0] & 0xFFFF == 0xF30A
        || words.iter().any(|word| *word != 0) && words.iter().all(|word| *word < 12 << 10)
}
