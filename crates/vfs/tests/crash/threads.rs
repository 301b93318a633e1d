//! Several threads that change a volume concurrently (`actor.rs`), while another thread writes back
//! and commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::attributes::FileType;
use testkit::crash::{
    Appended, History, Kind, Pace, Promises, Races, Recorded, RecordedRun, Snapshot, VolumeSyncs,
};
use vfs::{Creation, Credentials, Node};

use crate::actor::{Actor, Common};
use crate::common::make;
use crate::planted::{Bug, Planted};
use crate::raced::{Log, RacedFile};
use crate::stage::open;

/// The pause between two syncs of the volume by the background thread.
const PAUSE: Duration = Duration::from_millis(15);

pub struct Threads {
    run: RecordedRun,
    promises: Vec<Promises>,
    raced: Races,
    log: Appended,
}

impl Threads {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, threads: usize, steps: usize) -> Self {
        let planted = Planted::new(bug);
        // With one thread, a seed reproduces the whole run.
        let pace = if threads == 1 { Pace::AtOnce } else { Pace::Slow };
        let Recorded { recorder, disks } = kind.record(pace, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        let folder = |name: &str| {
            let (root, what) = (volume.root().unwrap(), Creation::of(FileType::Directory, 0o755));
            volume.create_in(&root, name.as_bytes(), &what, &Credentials::ROOT).unwrap()
        };
        let homes: Vec<_> = (0..threads).map(|thread| folder(&format!("home{thread}"))).collect();
        let common = Common {
            volume: &volume,
            recorder: &recorder,
            shared: folder("shared"),
            raced: RacedFile::new(make(&volume, "raced"), kind, &recorder),
            log: Log::new(make(&volume, "log"), threads, seed % 2 == 0, &recorder),
            syncs: VolumeSyncs::new(threads),
            kind,
        };
        common.sync_volume();
        let begun = recorder.point();
        let mut promises = run(&common, homes, seed, steps);
        common.syncs.add_to(&mut promises);
        if bug == Bug::None {
            common.raced.check_contents();
        }
        let (raced, log) = (common.raced.into_races(), common.log.into_appended());
        Self { run: RecordedRun::new(kind, &recorder, begun), promises, raced, log }
    }
}

/// Runs `steps` operations on each thread.
fn run(common: &Common<'_>, homes: Vec<Arc<Node>>, seed: u64, steps: usize) -> Vec<Promises> {
    let is_over = AtomicBool::new(false);
    let has_background = homes.len() > 1;
    std::thread::scope(|scope| {
        let run = |(thread, home)| {
            let actor = Actor::new(common, thread, home, seed);
            scope.spawn(move || actor.run(steps))
        };
        let all: Vec<_> = homes.into_iter().enumerate().map(run).collect();
        if has_background {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(PAUSE);
                    common.sync_volume();
                }
            });
        }
        let ended: Vec<_> = all.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().map(|result| result.unwrap()).collect()
    })
}

impl History for Threads {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        for thread in &self.promises {
            thread.check(point, found)?;
        }
        let raced = self.raced.check(point, found.file("/raced")?);
        raced.map_err(|what| format!("the file that all write to has {what}"))?;
        let log = self.log.check(point, found.file("/log")?);
        log.map_err(|what| format!("the file that all append to: {what}"))
    }
}
