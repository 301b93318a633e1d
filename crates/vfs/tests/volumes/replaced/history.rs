//! Replacements of the target's contents, and the contents that a power cut may leave.

use std::panic::{AssertUnwindSafe, catch_unwind};

use device::{Recording, Replay, SharedDevice};
use testkit::Random;
use vfs::{Follow, Volume, VolumeOptions};

use crate::replaced::TARGET;

/// The number of random cuts of one history, in addition to those around its flushes.
const CUTS: u64 = 120;

/// One replacement of the target's contents.
#[derive(Debug)]
pub struct Replacement {
    /// The point before the replacement.
    pub begun: usize,
    /// The point from which on the replacement is durable, if it was synced.
    pub durable: Option<usize>,
    /// Whether a commit came between the truncation and the close. Then the file may have a part of
    /// the new contents until it is durable.
    pub may_be_short: bool,
    /// The new contents.
    pub new: Vec<u8>,
}

/// A recording of replacements.
#[derive(Debug)]
pub struct History {
    pub recording: Recording,
    /// The contents of the target at the beginning.
    pub first: Vec<u8>,
    pub steps: Vec<Replacement>,
}

impl History {
    /// Checks the states after many cuts. Errors: a description of the first state that is not
    /// allowed.
    pub fn judge(&self, seed: u64) -> Result<(), String> {
        let mut random = Random(seed ^ 0xC0FF_EE00);
        let (begun, end) = (self.steps[0].begun, self.recording.crash_points().end - 1);
        // Right before and after each flush, with none or all of the volatile writes.
        let flushes = self.recording.flush_points().into_iter().filter(|&flush| flush > begun);
        let mut cuts: Vec<(usize, u64)> = flushes
            .chain([end])
            .flat_map(|flush| [(flush, 0), (flush - 1, 0), (flush - 1, 8)])
            .collect();
        let span = (end - begun) as u64;
        cuts.extend((0..CUTS).map(|_| (begun + random.below(span) as usize, random.below(9))));
        cuts.sort_unstable();
        let mut replay = Replay::new(&self.recording);
        for (point, of_8) in cuts.into_iter().filter(|&(point, _)| point >= begun) {
            let mut keeps = false;
            let device = replay.device(point, |_, sector| {
                if sector == 0 {
                    keeps = random.below(8) < of_8;
                }
                keeps
            });
            let found = catch_unwind(AssertUnwindSafe(|| read_target(device.unwrap().device())));
            let found = found
                .map_err(|_| format!("a panic after a cut at {point}; its message is above"))?;
            if !self.allows(point, &found) {
                let (length, start) = (found.len(), &found[..found.len().min(8)]);
                return Err(format!(
                    "{length} bytes, {start:?} .., after a cut at {point} ({of_8} of 8)"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the target may have these contents after a cut.
    fn allows(&self, point: usize, found: &[u8]) -> bool {
        for step in self.steps.iter().rev().filter(|step| step.begun <= point) {
            let is_durable = step.durable.is_some_and(|durable| durable <= point);
            let is_part = step.may_be_short && !is_durable && step.new.starts_with(found);
            if found == step.new || is_part {
                return true;
            }
            if is_durable {
                return false;
            }
        }
        found == self.first
    }
}

fn read_target(device: SharedDevice) -> Vec<u8> {
    let mut options = VolumeOptions::default();
    options.cache.bytes_max = 4 << 20;
    let volume = Volume::open_device(device, &options).unwrap();
    let node = volume.resolve(format!("/{TARGET}").as_bytes(), Follow::No).unwrap();
    let mut contents = vec![0; node.attributes().size as usize];
    let length = node.open().unwrap().read_at(&mut contents, 0).unwrap();
    assert_eq!(length, contents.len());
    contents
}
