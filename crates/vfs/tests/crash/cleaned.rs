//! Cleaning of a volume whose files are scattered. Files that nobody changes must be the same after
//! each power cut, wherever their blocks were moved. Another file is changed and synced meanwhile.
//! It may be pinned, so that it is overwritten in place, next to blocks that move and to blocks
//! that were its own.

use base::FileOffset;
use testkit::Random;
use testkit::crash::{FileHistory, History, Kind, Pace, Recorded, RecordedRun, Snapshot};
use vfs::{Credentials, File, RwFlags, Volume, WriteAt, WriteSync};

use crate::common::{make, sync};
use crate::planted::{Bug, Planted};
use crate::stage::open;
use crate::subject::{Notes, Subject};

/// The maximum number of rounds until something is cleaned.
const ROUNDS_MAX: usize = 20;
/// The name of the other file, if it is not cold.
const CHANGED: &str = "changed";
/// The extension is on the list of cold files that mkfs.f2fs writes.
const COLD: &str = "changed.mp4";
/// The number of files that stay.
const KEPT: usize = 24;
/// The number of files that are deleted and written again in each round.
const REWRITTEN: usize = 48;
/// The maximum length of a file, in pages.
const PAGES_MAX: u64 = 40;

pub struct Cleaned {
    run: RecordedRun,
    /// The contents of the files that stay.
    kept: Vec<Vec<u8>>,
    /// The other file.
    changed: FileHistory,
    name: &'static str,
}

impl Cleaned {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, rounds: usize) -> Self {
        Self::record_with(kind, bug, seed, rounds, CHANGED, false)
    }

    /// The file that is changed is pinned.
    pub fn record_pinned(kind: &Kind, bug: Bug, seed: u64, rounds: usize) -> Self {
        Self::record_with(kind, bug, seed, rounds, CHANGED, true)
    }

    /// The file that is changed is cold.
    pub fn record_cold(kind: &Kind, bug: Bug, seed: u64, rounds: usize) -> Self {
        Self::record_with(kind, bug, seed, rounds, COLD, false)
    }

    fn record_with(
        kind: &Kind,
        bug: Bug,
        seed: u64,
        rounds: usize,
        name: &'static str,
        is_pinned: bool,
    ) -> Self {
        let planted = Planted::new(bug);
        let Recorded { recorder, disks } =
            kind.record(Pace::AtOnce, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        let mut random = Random(seed);
        let mut subject = Subject::new(make(&volume, name));
        if is_pinned {
            subject.pin();
        }
        let mut changed = FileHistory::new(1, false);
        let mut kept = Vec::new();
        for number in 0..REWRITTEN {
            write_new(&volume, &format!("rewritten{number}"), PAGES_MAX, &mut random);
            if number * KEPT / REWRITTEN == kept.len() {
                kept.push(write_new(
                    &volume,
                    &format!("kept{}", kept.len()),
                    PAGES_MAX,
                    &mut random,
                ));
            }
        }
        volume.sync().unwrap();
        let begun = recorder.point();
        let change = if is_pinned { Subject::change_pinned } else { Subject::change };
        let (mut round, mut cleaned) = (0, 0);
        while round < rounds || cleaned == 0 {
            assert!(round < ROUNDS_MAX, "nothing was cleaned");
            round += 1;
            // With large segments, short files may leave nothing to clean in any round.
            let pages_max = PAGES_MAX * (1 + round.saturating_sub(rounds) as u64);
            for number in 0..REWRITTEN {
                let path = format!("/rewritten{number}");
                volume.remove(path.as_bytes(), &Credentials::ROOT).unwrap();
            }
            let mut notes = Notes { history: &mut changed, recorder: &recorder, kind };
            for _ in 0..6 {
                change(&mut subject, &mut notes, &mut random);
            }
            cleaned += volume.clean().unwrap().sections;
            let version = notes.history.version();
            sync(&subject.file, random.below(2) == 0);
            notes.durable(version);
            for number in 0..REWRITTEN {
                write_new(&volume, &format!("rewritten{number}"), pages_max, &mut random);
                if number % 16 == 0 {
                    change(&mut subject, &mut notes, &mut random);
                    let version = notes.history.version();
                    sync(&subject.file, false);
                    notes.durable(version);
                }
            }
            volume.sync().unwrap();
        }
        Self { run: RecordedRun::new(kind, &recorder, begun), kept, changed, name }
    }
}

/// Writes a new file with random contents of at most `pages_max` pages, which are returned.
fn write_new(volume: &Volume, name: &str, pages_max: u64, random: &mut Random) -> Vec<u8> {
    let file: File = make(volume, name);
    let word = random.draw().to_le_bytes();
    let length = (random.below(pages_max) + 1) as usize * 4096;
    let data = word.repeat(length / word.len());
    let at = WriteAt::Offset(FileOffset(0));
    let written = match random.below(2) {
        0 => file.write_direct(at, &data, vfs::Privileges::Keep, WriteSync::None),
        _ => file.write_with(at, &data, vfs::Privileges::Keep, RwFlags::default()),
    };
    assert_eq!(written, Ok(length));
    data
}

impl History for Cleaned {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        for (number, expected) in self.kept.iter().enumerate() {
            let path = format!("/kept{number}");
            let data = found.file(&path)?;
            if data != expected {
                let at = data.iter().zip(expected).position(|(found, expected)| found != expected);
                return Err(format!("{path} has other contents, from byte {at:?} on"));
            }
        }
        self.changed.check_at(&format!("/{}", self.name), point, found)
    }
}
