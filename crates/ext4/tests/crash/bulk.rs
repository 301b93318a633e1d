//! Transactions so large that a few of them fill the log: in each round, a name changes in many
//! directories.

use base::attributes::FileType;
use ext4::ROOT_INODE;
use testkit::Random;

use crate::common::{TIME, new_file, new_inode};
use crate::planted::Bug;
use testkit::crash::{History, Kind, Pace, RecordedRun, Snapshot};

const DIRECTORIES: usize = 220;
const CHANGED: usize = 100;

pub struct Bulk {
    run: RecordedRun,
    /// For each directory, the names that it had. Each name has two points of the recording: from
    /// the first on it may exist, from the second on it is durable.
    names: Vec<Vec<(String, usize, usize)>>,
}

impl Bulk {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, rounds: usize) -> Self {
        let (device, volume) = bug.open(kind, Pace::AtOnce);
        let root = volume.inode(ROOT_INODE).unwrap();
        let file = new_file(&volume, "file");
        let directories: Vec<_> = (0..DIRECTORIES)
            .map(|index| {
                let new = new_inode(FileType::Directory);
                let directory = root.create(format!("{index}").as_bytes(), &new).unwrap();
                directory.link(b"first", &file, TIME).unwrap();
                directory
            })
            .collect();
        volume.sync().unwrap();
        let begun = device.point();
        let mut names = vec![vec![("first".to_owned(), 0, begun)]; DIRECTORIES];
        let mut random = Random(seed);
        for round in 0..rounds {
            let point = device.point();
            let first = random.below(DIRECTORIES as u64) as usize;
            let step = 1 + 2 * random.below(4) as usize;
            let changed = (0..CHANGED).map(|index| (first + index * step) % DIRECTORIES);
            let mut changed: Vec<usize> = changed.collect();
            changed.sort_unstable();
            changed.dedup();
            for &index in &changed {
                let (directory, new) = (&directories[index], format!("round {round}"));
                let old = names[index].last().map(|(name, ..)| name.clone()).unwrap();
                directory.link(new.as_bytes(), &file, TIME).unwrap();
                directory.unlink(old.as_bytes(), &file, TIME).unwrap();
                names[index].push((new, point, usize::MAX));
            }
            volume.sync().unwrap();
            for index in changed {
                names[index].last_mut().unwrap().2 = device.point();
            }
        }
        Self { run: RecordedRun::new(kind, &device, begun), names }
    }
}

impl History for Bulk {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    /// Requires that each directory has one name, or two between linking and unlinking, and none
    /// that is older than the last durable round.
    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        for (index, names) in self.names.iter().enumerate() {
            let must = names.iter().rposition(|(_, _, from)| *from <= point).unwrap_or(0);
            let may = names.iter().rposition(|(_, from, _)| *from <= point).unwrap_or(0);
            let is_there = |name: &str| found.tree.contains_key(&format!("/{index}/{name}"));
            let there: Vec<usize> =
                (0..names.len()).filter(|&number| is_there(&names[number].0)).collect();
            let is_right = match there[..] {
                [one] => (must..=may).contains(&one),
                [one, next] => one >= must && next <= may && next == one + 1,
                _ => false,
            };
            if !is_right {
                return Err(format!("directory {index} has names {there:?}, not {must} to {may}"));
            }
        }
        Ok(())
    }
}
