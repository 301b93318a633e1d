//! One thread that creates, links, renames and removes names at random. After a cut, the tree is
//! the one after some operation, and not before one that was known to be durable.

use std::collections::BTreeMap;

use testkit::Random;

use crate::namespace::{Tree, World};
use crate::planted::Bug;
use testkit::crash::{History, Kind, Pace, RecordedRun, Snapshot};

pub struct Names {
    run: RecordedRun,
    /// The tree after each operation. The first is the tree before any operation.
    trees: Vec<Tree>,
    /// Points of the recording, each with the number of operations that are durable from there on.
    durable: Vec<(usize, usize)>,
    /// Contents of the files at the beginning.
    contents: BTreeMap<u64, Vec<u8>>,
}

impl Names {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, steps: usize) -> Self {
        let (device, volume) = bug.open(kind, Pace::AtOnce);
        let e2fsck_from = if kind.has_fast_commits { device.point() } else { 0 };
        let contents = Snapshot::read(&*volume.file_system()).unwrap().contents;
        let mut world = World::new(volume, seed, 12);
        let mut random = Random(seed ^ 0x5555);
        let mut trees = vec![world.tree.clone()];
        let mut durable = Vec::new();
        for _ in 0..steps {
            world.step();
            trees.push(world.tree.clone());
            if random.below(6) == 0 {
                if bug == Bug::None && durable.len() % 3 == 1 {
                    // The next change marks the volume as in use again.
                    world.volume.mark_clean().unwrap();
                } else {
                    world.volume.sync().unwrap();
                }
                durable.push((device.point(), trees.len() - 1));
            }
        }
        let run = RecordedRun::new(kind, &device, 0).with_e2fsck_from(e2fsck_from);
        Self { run, trees, durable, contents }
    }
}

impl History for Names {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        let before = self.durable.iter().take_while(|(from, _)| *from <= point);
        let durable = before.last().map_or(0, |(_, operations)| *operations);
        match self.trees[durable..].iter().position(|tree| *tree == found.tree) {
            Some(0) if durable == 0 && found.contents != self.contents => {
                Err("files have other contents than at the beginning".into())
            }
            Some(_) => Ok(()),
            None => Err(format!("the tree equals none since operation {durable}")),
        }
    }
}
