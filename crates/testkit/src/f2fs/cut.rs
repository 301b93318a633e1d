//! States of images in the middle of a turn: copies that are taken while the guest is stopped, and damage to the nodes
//! that a roll-forward reads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use super::Kind;
use super::layout::{BLOCK, FOOTER, Layout, SEGMENT, mend_checkpoint, word};
use crate::guest::{self, Job, Task};
use crate::turns::Turn;
use crate::{Random, command, must};

/// Has a guest change images by a turn as [`break_off`](super::break_off) does. Copies images to `folder` at random
/// moments that `seed` chooses, whenever they have changed. Returns at most `states_max` of the copies. All kinds have
/// the same machine.
pub fn cut_states(
    images: &[(&'static Kind, PathBuf)],
    turn: &Turn,
    seed: u64,
    states_max: usize,
    folder: &Path,
) -> Vec<(&'static Kind, PathBuf)> {
    let tasks: Vec<Task> =
        images.iter().map(|(kind, image)| kind.task(image, Job::BreakOff(turn.clone()))).collect();
    let machine = images.first().expect("an image").0.machine;
    let modified = |image: &Path| -> SystemTime {
        must(must(image.metadata(), image.display()).modified(), image.display())
    };
    let mut seen: Vec<SystemTime> = images.iter().map(|(_, image)| modified(image)).collect();
    let mut chosen = Random(seed);
    let mut states: Vec<(&'static Kind, PathBuf)> = Vec::new();
    let mut count = 0_u64;
    let mut random = Random(seed.wrapping_add(1));
    guest::run_with_stops(machine, &tasks, &mut random, &mut || {
        for ((kind, image), seen) in images.iter().zip(&mut seen) {
            let now = modified(image);
            if now == *seen {
                continue;
            }
            *seen = now;
            count += 1;
            // Each copy is among the chosen ones with the same probability.
            let place = if states.len() < states_max {
                states.push((kind, folder.join(format!("state{}", states.len()))));
                states.len() - 1
            } else {
                chosen.below(count) as usize
            };
            if let Some((of_state, state)) = states.get_mut(place) {
                *of_state = kind;
                command::run(Command::new("cp").arg("--sparse=always").arg(image).arg(state));
            }
        }
    });
    states
}

/// Sets flags of the current checkpoint, and corrects its checksum. Without flags, only the checksum changes.
pub fn set_checkpoint_flags(image: &Path, flags: u32) {
    let mut bytes = must(std::fs::read(image), image.display());
    let layout = Layout::of(&bytes);
    let pack = layout.checkpoint(&bytes);
    let last = pack + (word(&bytes, pack + 136) as usize - 1) * BLOCK;
    for head in [pack, last] {
        let head = &mut bytes[head..head + BLOCK];
        let changed = word(head, 132) | flags;
        head[132..136].copy_from_slice(&changed.to_le_bytes());
        // The time for which the volume was mounted.
        head[168] ^= 1;
        mend_checkpoint(head);
    }
    must(std::fs::write(image, bytes), image.display());
}

/// Changes one word of a node that was written after the last checkpoint, or of its footer. The choice is by `seed`. Corrects
/// the node's checksum. Returns a description, or `None` if there is no such node.
pub fn damage_synced_node(image: &mut [u8], seed: u64) -> Option<String> {
    let layout = Layout::of(image);
    let mut random = Random(seed);
    let version = word(image, layout.checkpoint(image));
    let mut nodes = layout.nodes(image);
    nodes.retain(|node| word(image, node + FOOTER + 12) == version);
    let node = *random.pick(&nodes)?;
    let at = match random.below(4) {
        // Numbers, flags, and the next node.
        0 => node + FOOTER + *random.pick(&[0, 4, 8, 20]).expect("a field"),
        // Fields of an inode.
        1 => node + 4 * random.below(100) as usize,
        _ => {
            let mut at = node;
            for _ in 0..64 {
                at = node + 4 * random.below((FOOTER / 4) as u64) as usize;
                if word(image, at) != 0 {
                    break;
                }
            }
            at
        }
    };
    let old = word(image, at);
    let other = *random.pick(&nodes)? / BLOCK;
    let in_main = (layout.main.start / BLOCK) as u64 + random.below((8 * SEGMENT) as u64);
    let new = match random.below(8) {
        0 => 0,
        1 => u32::MAX - random.below(2) as u32,
        2 => old ^ 1 << random.below(32),
        3 | 4 => other as u32,
        5 => in_main as u32,
        6 => random.below(50) as u32,
        _ => random.draw() as u32,
    };
    image[at..at + 4].copy_from_slice(&new.to_le_bytes());
    layout.mend_node(image, node);
    Some(format!("byte {} of the node at {node:#x}: {old:#x} -> {new:#x}", at - node))
}
