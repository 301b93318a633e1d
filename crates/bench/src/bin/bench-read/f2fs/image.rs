//! The f2fs image for reads: 4 KiB blocks, filled by a guest's kernel.

use std::sync::Arc;

use device::{MemoryDevice, SharedDevice};
use tempfile::TempDir;
use testkit::f2fs::{self, Kind};
use testkit::turns::{Bytes, Step};

use crate::case::Content;
use crate::image::{FILE_BYTES, name};

/// The size of the image in MiB: the file of data, and space that f2fs reserves.
const MEGABYTES: u64 = (FILE_BYTES >> 20) + 256;

/// The bytes that the guest writes at a time.
const PIECE: usize = 1 << 20;

/// Returns a device in memory with a file of data and a file that is a hole.
pub fn make() -> SharedDevice {
    let folder = TempDir::new_in("/dev/shm").expect("a folder on tmpfs");
    let path = folder.path().join("image");
    let kind = Kind::named("plain");
    kind.make(&path, MEGABYTES);
    f2fs::change_all(&[(kind, path.clone())], &steps());
    f2fs::check_by_fsck(&path);
    Arc::new(MemoryDevice::new(std::fs::read(&path).expect("the image")))
}

fn steps() -> Vec<Step> {
    let text = |content| name(content).display().to_string();
    let [data, hole] = [Content::Data, Content::Hole].map(text);
    let piece = |at: u64| {
        let bytes = Bytes { seed: at, length: PIECE };
        Step::Write(data.clone(), at, bytes)
    };
    let mut steps: Vec<Step> = (0..FILE_BYTES).step_by(PIECE).map(piece).collect();
    steps.push(Step::Sync(data.clone()));
    steps.push(Step::Write(hole.clone(), 0, Bytes { seed: 0, length: 0 }));
    steps.push(Step::SetSize(hole, FILE_BYTES));
    steps
}
