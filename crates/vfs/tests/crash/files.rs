//! One thread that changes the data of three files in every way (`subject.rs`), and syncs them.
//! Their names stay, so that syncs are promises also without a journal.

use testkit::Random;
use testkit::crash::{
    FileHistory, History, Kind, NamedFiles, Pace, Recorded, RecordedRun, Snapshot,
};

use crate::common::{make, sync};
use crate::planted::{Bug, Planted};
use crate::stage::{compress_new_files, open};
use crate::subject::{Notes, Subject, move_extents};

/// FS_ENCRYPT_FL.
const ENCRYPTED: u32 = 0x800;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Names of cold files on f2fs: the extension is on the list that mkfs.f2fs writes.
const COLD_NAMES: [&str; 3] = ["a.mp4", "b.mp4", "c.mp4"];

pub struct Files {
    run: RecordedRun,
    files: NamedFiles,
}

impl Files {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, steps: usize) -> Self {
        Self::record_named(kind, bug, seed, steps, &NAMES)
    }

    /// The files are cold, so that f2fs overwrites them in place.
    pub fn record_cold(kind: &Kind, bug: Bug, seed: u64, steps: usize) -> Self {
        Self::record_named(kind, bug, seed, steps, &COLD_NAMES)
    }

    fn record_named(
        kind: &Kind,
        bug: Bug,
        seed: u64,
        steps: usize,
        names: &'static [&'static str; 3],
    ) -> Self {
        let planted = Planted::new(bug);
        let Recorded { recorder, disks } =
            kind.record(Pace::AtOnce, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        if kind.is_compressed() {
            compress_new_files(&volume);
        }
        let mut subjects: Vec<Subject> =
            names.iter().map(|name| Subject::new(make(&volume, name))).collect();
        for subject in &subjects {
            let flags = subject.file.node().attributes().flags;
            assert_eq!(flags & ENCRYPTED != 0, kind.is_encrypted(), "{kind:?}");
        }
        let history = |number| match kind.is_compressed() {
            true => FileHistory::compressible(number),
            false => FileHistory::new(number, false),
        };
        let mut histories: Vec<FileHistory> =
            (1..).zip(names).map(|(number, _)| history(number)).collect();
        volume.sync().unwrap();
        let begun = recorder.point();
        let mut random = Random(seed);
        let mut touched = Vec::new();
        // The sum after all steps.
        let mut saved = 0;
        for _ in 0..steps {
            let index = random.below(names.len() as u64) as usize;
            touched.push((recorder.point(), index));
            let operation = random.below(100);
            if operation < 5 && kind.is_ext4() {
                let donor = (index + 1 + random.below(2) as usize) % names.len();
                touched.push((recorder.point(), donor));
                // A copy, since two histories are changed at once.
                let mut history = histories[index].clone();
                let mut notes = Notes { history: &mut history, recorder: &recorder, kind };
                let donor_history = &mut histories[donor];
                let mut donor_notes = Notes { history: donor_history, recorder: &recorder, kind };
                let blocks = subjects[index].sync_to_blocks(&mut notes);
                let donor_blocks = subjects[donor].sync_to_blocks(&mut donor_notes);
                touched.extend([(recorder.point(), index), (recorder.point(), donor)]);
                move_extents(
                    (&subjects[index], &notes, &blocks),
                    (&subjects[donor], &mut donor_notes, &donor_blocks),
                    &mut random,
                );
                histories[index] = history;
                continue;
            }
            let (subject, history) = (&mut subjects[index], &mut histories[index]);
            let blocks = planted.blocks_of(&subject.file);
            let mut notes = Notes { history, recorder: &recorder, kind };
            match operation {
                5..=25 => {
                    let version = notes.history.version();
                    sync(&subject.file, random.below(2) == 0);
                    notes.durable(version);
                }
                26..=45 => subject.store_and_sync(&mut notes, &mut random, &planted),
                46..=47 if kind.is_ext4() => {
                    volume.defragment(subject.file.node()).unwrap();
                }
                48..=53 => subject.rewrite(&mut notes, &mut random),
                _ => {
                    subject.change(&mut notes, &mut random);
                }
            }
            planted.had_blocks(&subject.file, blocks);
            saved += subject.saved_blocks();
        }
        assert!(!kind.is_compressed() || saved > 0, "nothing is compressed");
        let files = NamedFiles::new(kind, names, histories, touched);
        Self { run: RecordedRun::new(kind, &recorder, begun), files }
    }
}

impl History for Files {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.files.check(point, found)
    }
}
