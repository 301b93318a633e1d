//! Volumes without a journal. A commit writes where things belong, and a power cut during one can
//! leave anything that e2fsck has to mend. But data and zeroes come first, so that nothing stale
//! appears; and once all of a commit's writes are there, the volume is sound.

use std::sync::Arc;

use device::{RecordedWrite, Replay};

use crate::data::Data;
use testkit::crash::{Disks, History, STALE, Violation, count_mended_state, mended, read};

/// Judges what cuts leave that come when all of a commit has been written, and nothing of it need be
/// durable: of that, only metadata is there.
pub fn judge_whole_commits(history: &Data) -> Option<Violation> {
    let run = history.run();
    let recording = &run.recording;
    let before = recording.image(0, |_, _| false);
    let mut replay = Replay::new(recording);
    let points = recording.flush_points().into_iter().map(|point| point - 1);
    for point in points.filter(|point| *point > run.begun) {
        let keep = |write: &RecordedWrite, _| is_metadata(&before, write);
        let device = replay.device(point, keep).unwrap();
        count_mended_state();
        let disks = Disks::of(Arc::clone(&device), None);
        let found = mended(&disks).and_then(|mended| read(&mended));
        if let Err(what) = found.and_then(|found| history.files.check_all(point, &found)) {
            return Some(Violation::new(format!("cut at {point}: {what}"), None, &device));
        }
    }
    None
}

/// Whether a write is of metadata: of a block that was no free one before anything was written, or of
/// a block of pointers or extents.
fn is_metadata(before: &[u8], write: &RecordedWrite) -> bool {
    if before[write.offset.0 as usize] != STALE {
        return true;
    }
    let words = write.data.chunks_exact(4).map(|word| word.try_into().map(u32::from_le_bytes));
    let words: Vec<u32> = words.map(Result::unwrap).collect();
    // Data has no zeroes, and no byte as large as one of these.
    words[0] & 0xFFFF == 0xF30A
        || words.iter().any(|word| *word != 0) && words.iter().all(|word| *word < 12 << 10)
}
