//! Filling and listing of f2fs images.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{BLOCK_SIZE, Filler, Kind, Tools};
use crate::guest::{self, Job, Machine, Task};
use crate::host::command;
use crate::tree::{TreeOptions, populate_for_copy};
use crate::turns::{Step, Turn};
use crate::{Manifest, must};

impl Kind {
    /// Creates an image of this kind, has a guest fill it, and returns its manifest.
    pub fn fill(&'static self, image: &Path) -> Manifest {
        self.make(image, self.megabytes);
        let filled = fill_all(&[(self, image.to_owned())]);
        filled.into_iter().next().expect("a manifest")
    }
}

/// Has guests and sload.f2fs fill images with the trees of their kinds. The guests of each machine
/// need one boot. Returns the manifest of each image, which a second mount made without keys.
pub fn fill_all(images: &[(&'static Kind, PathBuf)]) -> Vec<Manifest> {
    fill_and_decrypt_all(images).into_iter().map(|(manifest, _)| manifest).collect()
}

/// As [`fill_all`]. Returns also a manifest that was made with the keys for each image with
/// encrypted files.
pub fn fill_and_decrypt_all(
    images: &[(&'static Kind, PathBuf)],
) -> Vec<(Manifest, Option<Manifest>)> {
    let by_sload = || images.iter().filter(|(kind, _)| kind.filler == Filler::Sload);
    if by_sload().next().is_some() {
        let source = must(TempDir::new(), "a source");
        populate_for_copy(source.path(), &TreeOptions::new(BLOCK_SIZE));
        for (kind, image) in by_sload() {
            load(kind.tools, image, source.path());
        }
    }
    let listed = run_and_return_all(images, |kind, image| {
        let job = match kind.filler {
            Filler::Guest => Job::Fill(kind.tree()),
            Filler::Sload => Job::List,
        };
        kind.task(image, job)
    });
    let both = |mut manifests: Vec<Manifest>| {
        let decrypted = (manifests.len() > 1).then(|| manifests.remove(0));
        (manifests.remove(0), decrypted)
    };
    listed.into_iter().map(both).collect()
}

/// Has guests list images, in one boot for each machine. The kernel rolls volumes forward that need
/// it.
pub fn list_all(images: &[(&'static Kind, PathBuf)]) -> Vec<Manifest> {
    run(images, |kind, image| kind.task(image, Job::List))
}

/// Has guests list images without rolling them forward, which does not change them.
pub fn list_last_checkpoints(images: &[(&'static Kind, PathBuf)]) -> Vec<Manifest> {
    run(images, |kind, image| {
        let task = kind.task(image, Job::List);
        let separator = if task.options.is_empty() { "" } else { "," };
        Task { options: format!("{}{separator}norecovery", task.options), ..task }
    })
}

/// Has guests change images by `steps`. Returns the manifest of each image after that.
pub fn change_all(images: &[(&'static Kind, PathBuf)], steps: &[Step]) -> Vec<Manifest> {
    run(images, |kind, image| kind.task(image, Job::Change(steps.to_vec())))
}

/// Has guests change images with encrypted files by `steps`. Returns three manifests of each image:
/// before that with the keys, and after that with the keys and without.
pub fn change_all_encrypted(
    images: &[(&'static Kind, PathBuf)],
    steps: &[Step],
) -> Vec<[Manifest; 3]> {
    let all = run_and_return_all(images, |kind, image| {
        kind.task(image, Job::ChangeEncrypted(steps.to_vec()))
    });
    all.into_iter().map(|listed| listed.try_into().expect("three manifests")).collect()
}

/// Has guests change images by both parts of a turn with a sync in between, and end without
/// unmounting. The next mount finds what the last checkpoint and later calls of fsync(2) left.
pub fn break_off(images: &[(&'static Kind, PathBuf)], turn: &Turn) {
    run(images, |kind, image| kind.task(image, Job::BreakOff(turn.clone())));
}

/// Copies the files below `source` to `image`, with their owners.
fn load(tools: Tools, image: &Path, source: &Path) {
    command::run(tools.command("sload.f2fs").arg("-P").arg("-f").arg(source).arg(image));
}

/// Has guests do a task with each image, in one boot for each machine. Returns the last manifest of
/// each.
pub(super) fn run(
    images: &[(&'static Kind, PathBuf)],
    task: impl Fn(&'static Kind, &Path) -> Task,
) -> Vec<Manifest> {
    let last = |mut manifests: Vec<Manifest>| manifests.pop().expect("a manifest of each image");
    run_and_return_all(images, task).into_iter().map(last).collect()
}

/// As [`run`]. Returns all manifests of each image.
fn run_and_return_all(
    images: &[(&'static Kind, PathBuf)],
    task: impl Fn(&'static Kind, &Path) -> Task,
) -> Vec<Vec<Manifest>> {
    let mut manifests = vec![Vec::new(); images.len()];
    for machine in [Machine::UserMode, Machine::EmulatedF2fs] {
        let chosen = |number: &usize| images[*number].0.machine == machine;
        let numbers: Vec<usize> = (0..images.len()).filter(chosen).collect();
        if numbers.is_empty() {
            continue;
        }
        let tasks = numbers.iter().map(|number| task(images[*number].0, &images[*number].1));
        let listed = guest::run_on(machine, &tasks.collect::<Vec<_>>());
        for (number, listed) in numbers.into_iter().zip(listed) {
            manifests[number] = listed;
        }
    }
    manifests
}
