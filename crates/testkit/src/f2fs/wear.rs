//! Steps that wear a volume: they fill most of it and overwrite parts at random, so that files have
//! many extents and the kernel cleans segments.

use std::iter;

use crate::Random;
use crate::turns::{Bytes, Step};

/// The size of a file in KiB.
const FILE_KIB: u64 = 300;
/// The parts of a file that are written at a time, in KiB.
const PART_KIB: u64 = 12;

/// Chooses steps by `seed` for an empty volume that has room for `megabytes` of data: they fill it,
/// remove a third of the files, and write as much again to the other files.
pub fn wearing_steps(seed: u64, megabytes: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let count = megabytes * 1024 / FILE_KIB;
    let name = |number: u64| format!("worn/{number}");
    let bytes = |random: &mut Random, kib: u64| Bytes {
        seed: random.draw(),
        length: (kib * 1024) as usize,
    };
    let mut steps: Vec<Step> = iter::once(Step::Mkdir("worn".to_owned())).collect();
    for number in 0..count {
        steps.push(Step::Write(name(number), 0, bytes(&mut random, FILE_KIB)));
    }
    steps.push(Step::Sync(name(0)));
    let (removed, kept): (Vec<u64>, Vec<u64>) = (1..count).partition(|number| number % 3 == 0);
    steps.extend(removed.into_iter().map(|number| Step::Remove(name(number))));
    for turn in 0..count * FILE_KIB / PART_KIB {
        let number = *random.pick(&kept).expect("a file");
        let at = random.below(FILE_KIB - PART_KIB) * 1024;
        steps.push(Step::Write(name(number), at, bytes(&mut random, PART_KIB)));
        // Writes to the device, so that the next write to the same part needs other blocks.
        if turn % 16 == 0 {
            steps.push(Step::Sync(name(number)));
        }
    }
    steps
}
