//! Blocks of a directory that are reused for a file's data on a volume that is almost full, while
//! the log still has older transactions with these blocks. Recovery must not write those blocks
//! over the data.

use base::attributes::FileType;
use ext4::{Inode, ROOT_INODE};
use testkit::Random;

use crate::common::cached_file::{Cache, CachedFile};
use crate::common::{TIME, new_file, new_inode};
use crate::planted::Bug;
use testkit::crash::{FileHistory, History, Kind, Pace, RecordedRun, Snapshot};

const CHUNK: usize = 64 << 10;
/// Space that is left free, and the part of it that the file uses.
const FREE: usize = 160 << 10;
const FILE_MAX: u64 = 100 << 10;

pub struct Space {
    run: RecordedRun,
    file: FileHistory,
}

impl Space {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, rounds: usize) -> Self {
        let (device, volume) = bug.open(kind, Pace::AtOnce);
        let root = volume.inode(ROOT_INODE).unwrap();
        let cache = Cache::new();
        let make = |name: &str| {
            let inode = new_file(&volume, name);
            cache.file(&inode, bug.mapper(&inode))
        };
        let (ballast, file) = (make("ballast"), make("file"));
        fill(&ballast);
        volume.sync().unwrap();
        let mut history = FileHistory::new(1, false);
        let begun = device.point();
        let mut random = Random(seed);
        for round in 0..rounds {
            let name = format!("directory{round}");
            let directory = root.create(name.as_bytes(), &new_inode(FileType::Directory));
            let directory = directory.unwrap();
            let names =
                (0..10 + random.below(40)).map(|index| format!("{index}-{}", "n".repeat(150)));
            let inodes: Vec<_> = names.map(|name| (make_fifo(&directory, &name), name)).collect();
            volume.sync().unwrap();
            for (inode, name) in inodes {
                directory.unlink(name.as_bytes(), &inode, TIME).unwrap();
                inode.release().unwrap();
            }
            root.rmdir(name.as_bytes(), &directory, TIME).unwrap();
            directory.release().unwrap();
            file.set_size(0);
            history.set_size(0);
            volume.sync().unwrap();
            let data = history.bytes(0, 1 + random.below(FILE_MAX) as usize);
            file.write(0, &data).unwrap();
            history.write(0, &data);
            file.sync(false);
            history.is_durable(device.point(), history.version());
        }
        Self { run: RecordedRun::new(kind, &device, begun), file: history }
    }
}

/// Fills the volume with `ballast`, except for `FREE` bytes.
pub fn fill(ballast: &CachedFile) {
    let mut filled = 0;
    while ballast.write(filled, &[1; CHUNK]).is_ok() {
        filled += CHUNK;
    }
    ballast.write_back();
    ballast.set_size(filled - FREE);
}

fn make_fifo(directory: &Inode, name: &str) -> std::sync::Arc<Inode> {
    directory.create(name.as_bytes(), &new_inode(FileType::Fifo)).unwrap()
}

impl History for Space {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.file.check_at("/file", point, found)
    }
}
