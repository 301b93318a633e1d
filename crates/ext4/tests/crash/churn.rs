//! Several threads that change a volume at the same time (`actor.rs`).

use std::sync::Arc;

use base::attributes::FileType;
use ext4::ROOT_INODE;
use parking_lot::Mutex;

use crate::actor::{Actor, Common};
use crate::common::cached_file::Cache;
use crate::common::new_inode;
use crate::planted::Bug;
use testkit::crash::{
    FileHistory, History, Kind, Pace, Promises, RecordedRun, Snapshot, VolumeSyncs,
};

pub struct Churn {
    run: RecordedRun,
    threads: Vec<Promises>,
    log: FileHistory,
}

impl Churn {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, threads: usize, steps: usize) -> Self {
        let (device, volume) = bug.open(kind, Pace::Slow);
        let root = volume.inode(ROOT_INODE).unwrap();
        let make = |name: &str, kind| root.create(name.as_bytes(), &new_inode(kind)).unwrap();
        let homes: Vec<_> = (0..threads)
            .map(|thread| make(&format!("home{thread}"), FileType::Directory))
            .collect();
        let log = make("log", FileType::Regular);
        let cache = Cache::new();
        let common = Common {
            shared: (make("shared", FileType::Directory), Mutex::new(())),
            log: (cache.file(&log, bug.mapper(&log)), Mutex::new(FileHistory::new(0, true))),
            volume: Arc::clone(&volume),
            device: device.clone(),
            cache,
            bug,
            syncs: VolumeSyncs::new(threads),
        };
        volume.sync().unwrap();
        let begun = device.point();
        let mut promises: Vec<Promises> = std::thread::scope(|scope| {
            let run = |(thread, home)| {
                let actor = Actor::new(&common, thread, home, seed);
                scope.spawn(move || actor.run(steps))
            };
            let all: Vec<_> = homes.into_iter().enumerate().map(run).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        common.syncs.add_to(&mut promises);
        let log = common.log.1.into_inner();
        Self { run: RecordedRun::new(kind, &device, begun), threads: promises, log }
    }
}

impl History for Churn {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        for thread in &self.threads {
            thread.check(point, found)?;
        }
        self.log.check_at("/log", point, found)
    }
}
