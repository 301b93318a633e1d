//! Several threads that change a volume at the same time (`actor.rs`).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use base::attributes::FileType;
use device::Recording;
use ext4::ROOT_INODE;
use parking_lot::Mutex;

use crate::actor::{Actor, Common};
use crate::common::cached_file::Cache;
use crate::common::new_inode;
use crate::planted::Bug;
use testkit::crash::{FileHistory, History, Kind, Pace, Promises, Snapshot};

const LOG: &str = "/log";

pub struct Churn {
    recording: Recording,
    threads: Vec<Promises>,
    log: FileHistory,
    begun: usize,
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
            done: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            syncs: Mutex::default(),
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
        for (point, versions) in common.syncs.lock().iter() {
            for (thread, version) in promises.iter_mut().zip(versions) {
                thread.are_durable(*point, *version);
            }
        }
        let log = common.log.1.into_inner();
        Self { recording: device.recording(), threads: promises, log, begun }
    }
}

impl History for Churn {
    fn recording(&self) -> &Recording {
        &self.recording
    }

    fn begun(&self) -> usize {
        self.begun
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        for thread in &self.threads {
            thread.check(point, found)?;
        }
        let log = found.tree.get(LOG).ok_or("the log is missing")?;
        self.log.check(point, &found.contents[&log.inode]).map_err(|what| format!("log: {what}"))
    }
}
