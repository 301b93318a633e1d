//! Threads that do little but sync files of their own, new ones and ones that were synced before:
//! so several of them sync at the same time, and share flushes.

use std::thread;

use device::RecordDevice;
use testkit::Random;
use testkit::crash::{FileHistory, History, Kind, Pace, Recorded, RecordedRun, Snapshot};
use vfs::{File, Volume};

use crate::common::{make, sync};
use crate::planted::{Bug, Planted};
use crate::stage::open;

const THREADS: u64 = 8;
/// One in so many syncs is of a new file.
const NEW_FILES: u64 = 4;
/// The maximum size of a file and of a write, in bytes.
const FILE_BYTES: u64 = 24 << 10;
const WRITE_BYTES: u64 = 9 << 10;

pub struct Synced {
    run: RecordedRun,
    files: Vec<(String, FileHistory)>,
}

impl Synced {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, syncs: usize) -> Self {
        let planted = Planted::new(bug);
        let Recorded { recorder, disks } = kind.record(Pace::Slow, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        volume.sync().unwrap();
        let begun = recorder.point();
        let files = thread::scope(|scope| {
            let (volume, recorder) = (&volume, &recorder);
            let run = |thread| scope.spawn(move || run(volume, recorder, thread, seed, syncs));
            let threads: Vec<_> = (0..THREADS).map(run).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        Self { run: RecordedRun::new(kind, &recorder, begun), files }
    }
}

/// Writes and syncs files `syncs` times. Returns their names and histories.
fn run(
    volume: &Volume,
    recorder: &RecordDevice,
    thread: u64,
    seed: u64,
    syncs: usize,
) -> Vec<(String, FileHistory)> {
    let mut random = Random(seed << 8 | thread);
    let mut files: Vec<(String, File, FileHistory)> = Vec::new();
    for _ in 0..syncs {
        if files.is_empty() || random.below(NEW_FILES) == 0 {
            let number = files.len() as u64;
            let name = format!("file{thread}.{number}");
            let history = FileHistory::new(thread << 16 | number, false);
            files.push((name.clone(), make(volume, &name), history));
        }
        // Mostly the last one, which is new.
        let index = (files.len() - 1).saturating_sub(random.below(3) as usize / 2);
        let (_, file, history) = &mut files[index];
        let at = random.below(FILE_BYTES);
        let data = history.bytes(at as usize, 1 + random.below(WRITE_BYTES) as usize);
        assert_eq!(file.write_at(&data, at), Ok(data.len()));
        history.write(at as usize, &data);
        sync(file, random.below(2) == 0);
        history.is_durable(recorder.point(), history.version());
    }
    files.into_iter().map(|(name, _, history)| (name, history)).collect()
}

impl History for Synced {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.files.iter().try_for_each(|(name, history)| {
            let path = format!("/{name}");
            if history.synced(point) == 0 && found.file(&path).is_err() {
                return Ok(());
            }
            history.check_at(&path, point, found)
        })
    }
}
