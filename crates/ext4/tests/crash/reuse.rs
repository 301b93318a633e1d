//! Two files that are written in turns on a volume that is almost full, each in the blocks that the
//! other file has just released. Nothing is promised to be durable, but neither file ever shows
//! data of the other.

use iomap::SplitExtents;
use testkit::Random;

use crate::common::cached_file::Cache;
use crate::common::new_file;
use crate::direct::SECTOR;
use crate::planted::Bug;
use crate::space::fill;
use testkit::crash::{FileHistory, History, Kind, Pace, RecordedRun, Snapshot};

const NAMES: [&str; 2] = ["one", "other"];
/// Minimum size of each file. Somewhat more space is free.
const FILE_MIN: u64 = 90 << 10;

pub struct Reuse {
    run: RecordedRun,
    files: [FileHistory; 2],
}

impl Reuse {
    /// Records the workload. With `direct`, it writes directly.
    pub fn record(kind: &Kind, bug: Bug, seed: u64, rounds: usize, direct: bool) -> Self {
        let (device, volume) = bug.open(kind, Pace::AtOnce);
        let cache = Cache::new();
        let make = |name: &str| {
            let inode = new_file(&volume, name);
            cache.file(&inode, bug.mapper(&inode))
        };
        let files = NAMES.map(make);
        fill(&make("ballast"));
        volume.sync().unwrap();
        let mut histories = [1, 2].map(|number| FileHistory::new(number, false));
        let mut begun = device.point();
        let mut random = Random(seed);
        for round in 0..rounds {
            if round == 2 {
                // The files' creation is durable, even if the last two transactions are not.
                begun = device.point();
            }
            let (written, given_up) = (round % 2, (round + 1) % 2);
            files[given_up].set_size(0);
            histories[given_up].set_size(0);
            volume.sync().unwrap();
            let length = FILE_MIN + random.below(FILE_MIN / 4);
            let length = (length as usize).next_multiple_of(SECTOR);
            let data = histories[written].bytes(0, length);
            if direct {
                let split = SplitExtents::AtEnd;
                let around = files[written].write_direct(0, &data, split, false).unwrap();
                assert!(around, "the write must be direct");
            } else {
                files[written].write(0, &data).unwrap();
            }
            histories[written].write(0, &data);
            files[written].write_back();
            volume.sync().unwrap();
        }
        Self { run: RecordedRun::new(kind, &device, begun), files: histories }
    }
}

impl History for Reuse {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let mut files = self.files.iter().zip(NAMES);
        files.try_for_each(|(file, name)| file.check_at(&format!("/{name}"), point, found))
    }
}
