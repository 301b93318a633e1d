//! States of images in the middle of a turn: copies that are taken while the guest is stopped,
//! power cuts in recordings of its writes, and damage to the nodes that a roll-forward reads.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

use device::{MemoryDevice, RecordDevice, Recording, Replay, SharedDevice};

use super::Kind;
use super::layout::{
    BLOCK, FLAG_BITS, FOOTER, Layout, SEGMENT, XATTR_POSITION, mend_checkpoint, word,
};
use crate::guest::{self, Job, Machine, Task};
use crate::host::command;
use crate::images::log_writes;
use crate::turns::Turn;
use crate::{Random, must};

/// The size of a sector, in bytes.
const SECTOR: u64 = 512;

/// Has a guest change images by a turn as [`break_off`](super::break_off) does. Copies images to
/// `folder` at random moments that `seed` chooses, whenever they have changed. Returns at most
/// `states_max` of the copies. All kinds have the same machine.
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

/// Has a guest change an image by a turn as [`break_off`](super::break_off) does, and records its
/// writes and flushes. Writes states after power cuts at random moments to `folder`: of the blocks
/// that no flush has made durable, any may be lost.
pub fn recorded_states(
    kind: &'static Kind,
    image: &Path,
    turn: &Turn,
    seed: u64,
    count: usize,
    folder: &Path,
) -> Vec<(&'static Kind, PathBuf)> {
    let before = must(std::fs::read(image), image.display());
    let log = folder.join("log");
    let task = Task { log: Some(log.clone()), ..kind.task(image, Job::BreakOff(turn.clone())) };
    guest::run_on(Machine::EmulatedF2fs, &[task]);
    let base: SharedDevice = Arc::new(MemoryDevice::new(before));
    let device = Arc::new(must(RecordDevice::new(base), "a recorder"));
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    log_writes::replay(&log_writes::read(&log), &shared);
    must(std::fs::remove_file(&log), log.display());
    let points = device.recording().crash_points();
    states_after_cuts(kind, &device.recording(), points, seed, count, folder)
}

/// Writes states after power cuts at random moments of a recording, within `points`, to `folder`:
/// of the blocks that no flush has made durable, any may be lost.
pub fn states_after_cuts(
    kind: &'static Kind,
    recording: &Recording,
    points: Range<usize>,
    seed: u64,
    count: usize,
    folder: &Path,
) -> Vec<(&'static Kind, PathBuf)> {
    let mut random = Random(seed);
    let mut chosen: Vec<usize> =
        (0..count).map(|_| points.start + random.below(points.len() as u64) as usize).collect();
    chosen.sort_unstable();
    let mut replay = Replay::new(recording);
    let states = chosen.into_iter().enumerate().map(|(number, point)| {
        let kept = random.below(9);
        // f2fs expects of a device that power cuts leave blocks whole.
        let mut last = None;
        let bytes = replay.image(point, |write, sector| {
            let block = (write.offset.0 / SECTOR + sector) / (BLOCK as u64 / SECTOR);
            let is_kept = match last {
                Some((of_last, is_kept)) if of_last == block => is_kept,
                _ => random.below(8) < kept,
            };
            last = Some((block, is_kept));
            is_kept
        });
        let path = folder.join(format!("recorded{number}"));
        write_sparse(&path, &bytes);
        (kind, path)
    });
    states.collect()
}

/// Writes a file with holes in place of blocks of zeroes.
fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = must(File::create(path), path.display());
    must(file.set_len(bytes.len() as u64), path.display());
    for (number, block) in (0..).zip(bytes.chunks(BLOCK)) {
        if block.iter().any(|byte| *byte != 0) {
            must(file.write_all_at(block, number * BLOCK as u64), path.display());
        }
    }
}

/// Sets flags of the current checkpoint, and corrects its checksum. Without flags, only the
/// checksum changes.
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

/// Changes one word of a node that was written after the last checkpoint, or of its footer. The
/// choice is by `seed`. Corrects the node's checksum. Returns a description, or `None` if there is
/// no such node.
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

/// The part of a node that was written after the last checkpoint that a power cut leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Torn {
    /// The last sector, which has the footer.
    Last,
    /// None.
    Nothing,
}

/// Leaves a part of an inode that was written after the last checkpoint. The choice is by `seed`.
/// Returns whether there is such a node.
pub fn tear_synced_inode(image: &mut [u8], seed: u64, torn: Torn) -> bool {
    let layout = Layout::of(image);
    let version = word(image, layout.checkpoint(image));
    let mut nodes = layout.nodes(image);
    let is_synced = |node: &usize| word(image, node + FOOTER + 12) == version;
    nodes.retain(|node| is_synced(node) && layout.is_inode(&image[*node..node + BLOCK]));
    let Some(node) = Random(seed).pick(&nodes).copied() else { return false };
    let kept = if torn == Torn::Last { SECTOR as usize } else { 0 };
    image[node..node + BLOCK - kept].fill(0);
    true
}

/// Loses the node with extended attributes that the last sync of an inode wrote after the last
/// checkpoint, as if the inode had been written before it. Linux writes them in this order, and
/// marks both. Panics if there is no such node.
pub fn lose_synced_xattr_node(image: &mut [u8]) {
    let layout = Layout::of(image);
    let version = word(image, layout.checkpoint(image));
    let is_synced = |block: &usize| word(image, block + FOOTER + 12) == version;
    let synced: Vec<usize> = layout.main.clone().step_by(BLOCK).filter(is_synced).collect();
    let is_xattr_node =
        |node: &&usize| word(image, **node + FOOTER + 8) >> FLAG_BITS == XATTR_POSITION;
    let lost = *synced.iter().rfind(is_xattr_node).expect("a node with attributes");
    let number = word(image, lost + FOOTER + 4);
    // Nodes are synced in the order of their blocks.
    let is_inode = |node: &&usize| **node > lost && word(image, **node + FOOTER) == number;
    let inode = *synced.iter().find(is_inode).expect("its inode");
    let next = lost + FOOTER + 20..lost + FOOTER + 24;
    let next_of_lost = image[next.clone()].to_vec();
    image.copy_within(inode..inode + BLOCK, lost);
    image[next].copy_from_slice(&next_of_lost);
    layout.mend_node(image, lost);
    image[inode..inode + BLOCK].fill(0);
}
