//! Filling and listing of f2fs images.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Kind;
use crate::guest::{self, Job, Machine};
use crate::turns::Turn;
use crate::{Manifest, command};

impl Kind {
    /// Creates an image of this kind, has a guest fill it, and returns its manifest.
    pub fn fill(&'static self, image: &Path) -> Manifest {
        self.make(image, self.megabytes);
        let filled = fill_all(&[(self, image.to_owned())]);
        filled.into_iter().next().expect("a manifest")
    }
}

/// Has guests fill images with the trees of their kinds, in one boot for each machine. Returns the manifest of each
/// image, which a second mount made.
pub fn fill_all(images: &[(&'static Kind, PathBuf)]) -> Vec<Manifest> {
    run(images, |kind| Job::Fill(kind.tree()))
}

/// Has guests list images, in one boot for each machine. The kernel recovers volumes that need it.
pub fn list_all(images: &[(&'static Kind, PathBuf)]) -> Vec<Manifest> {
    run(images, |_| Job::List)
}

/// Has guests change images by both parts of a turn with a sync in between, and end without unmounting. Returns the
/// manifests from before. The next mount finds what the last checkpoint and later calls of fsync(2) left.
pub fn break_off(images: &[(&'static Kind, PathBuf)], turn: &Turn) -> Vec<Manifest> {
    run(images, |_| Job::BreakOff(turn.clone()))
}

/// Fills `image`, which is empty, with the files below `source` by sload.f2fs and its `arguments`.
pub fn fill_by_sload(image: &Path, source: &Path, arguments: &str) {
    let arguments = arguments.split_whitespace();
    command::run(
        Command::new("sload.f2fs").args(arguments).arg("-P").arg("-f").arg(source).arg(image),
    );
}

/// Returns the last manifest of each image's job.
fn run(images: &[(&'static Kind, PathBuf)], job: impl Fn(&Kind) -> Job) -> Vec<Manifest> {
    let mut manifests: Vec<Option<Manifest>> = vec![None; images.len()];
    for machine in [Machine::UserMode, Machine::EmulatedF2fs] {
        let chosen = |number: &usize| images[*number].0.machine == machine;
        let numbers: Vec<usize> = (0..images.len()).filter(chosen).collect();
        if numbers.is_empty() {
            continue;
        }
        let task = |number: &usize| {
            let (kind, image) = &images[*number];
            kind.task(image, job(kind))
        };
        let tasks: Vec<_> = numbers.iter().map(task).collect();
        for (number, mut listed) in numbers.into_iter().zip(guest::run_on(machine, &tasks)) {
            manifests[number] = listed.pop();
        }
    }
    manifests.into_iter().map(|manifest| manifest.expect("a manifest of each image")).collect()
}
