//! Reuse of freed blocks on a volume that is almost full. Two files are written in turn, each in
//! the space that the other one has just freed by a hole, a collapsed range or a truncation. None
//! of this is promised to be durable, but neither file must ever show contents of the other.

use testkit::Random;
use testkit::crash::{FileHistory, History, Kind, Pace, Recorded, RecordedRun, Snapshot};
use vfs::{Fallocate, File, Privileges, RwFlags, WriteAt, WriteSync};

use base::FileOffset;

use crate::common::{bytes, make};
use crate::planted::{Bug, Planted};
use crate::stage::open;
use crate::subject::SECTOR;

const NAMES: [&str; 2] = ["one", "other"];
/// The minimum size of each file, in bytes.
const FILE_MIN: usize = 90 << 10;
/// The space for both files, in bytes.
const FREE: u64 = 160 << 10;
const CHUNK: usize = 64 << 10;

pub struct Reuse {
    run: RecordedRun,
    histories: [FileHistory; 2],
}

impl Reuse {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, rounds: usize) -> Self {
        let planted = Planted::new(bug);
        let Recorded { recorder, disks } =
            kind.record(Pace::AtOnce, |device| planted.device(device));
        let volume = open(&disks, bug, seed);
        let files = NAMES.map(|name| make(&volume, name));
        fill(&make(&volume, "ballast"));
        volume.sync().unwrap();
        let mut histories = [1, 2].map(|number| FileHistory::new(number, false));
        let mut begun = recorder.point();
        let mut random = Random(seed);
        for round in 0..rounds {
            if round == 2 {
                // From here on, the creation of the files is durable even if the last two
                // transactions are not.
                begun = recorder.point();
            }
            let written = round % 2;
            let freed = (round + 1) % 2;
            free_space(&files[freed], &mut histories[freed], &mut random);
            volume.sync().unwrap();
            let length = FILE_MIN + random.below(FILE_MIN as u64 / 4) as usize;
            let data = histories[written].bytes(0, length.next_multiple_of(SECTOR));
            write(&files[written], &data, &mut random);
            histories[written].write(0, &data);
            volume.sync().unwrap();
        }
        Self { run: RecordedRun::new(kind, &recorder, begun), histories }
    }
}

/// Frees most of a file's blocks.
fn free_space(file: &File, history: &mut FileHistory, random: &mut Random) {
    let (size, unit) = (history.now().len(), file.allocation_unit() as usize);
    let end = size.saturating_sub(1) / unit * unit;
    let range = bytes(0..end as u64);
    match random.below(3) {
        _ if end == 0 => {}
        0 => {
            file.fallocate(Fallocate::PunchHole, range, Privileges::Keep).unwrap();
            history.clear(0..end);
        }
        1 => {
            file.fallocate(Fallocate::CollapseRange, range, Privileges::Keep).unwrap();
            history.shift(0..end, false);
        }
        _ => {
            file.node().set_size(0, Privileges::Keep).unwrap();
            history.set_size(0);
        }
    }
}

/// Writes to the beginning of a file: cached, uncached or directly.
fn write(file: &File, data: &[u8], random: &mut Random) {
    let at = WriteAt::Offset(FileOffset(0));
    let written = match random.below(3) {
        0 => file.write_direct(at, data, Privileges::Keep, WriteSync::None),
        kind => {
            let flags = RwFlags { dontcache: kind == 1, ..RwFlags::default() };
            file.write_with(at, data, Privileges::Keep, flags)
        }
    };
    assert_eq!(written, Ok(data.len()));
}

/// Allocates all space except [`FREE`] bytes for `ballast`.
fn fill(ballast: &File) {
    let mut size = 0;
    while ballast.write_at(&[1; CHUNK], size) == Ok(CHUNK) {
        size += CHUNK as u64;
    }
    ballast.sync_all().unwrap();
    ballast.node().set_size(size - FREE, Privileges::Keep).unwrap();
}

impl History for Reuse {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let mut files = self.histories.iter().zip(NAMES);
        files.try_for_each(|(file, name)| file.check_at(&format!("/{name}"), point, found))
    }
}
