//! One thread with random operations on three files: cached and direct writes, truncation, punching
//! and shifting, moving of extents, and syncs. It also appends to a fourth file.

use base::Error;
use ext4::InodeFlags;
use iomap::Caching;
use testkit::Random;

use crate::common::cached_file::{Cache, CachedFile};
use crate::common::new_file;
use crate::direct;
use crate::planted::Bug;
use testkit::crash::{FileHistory, History, Kind, NamedFiles, Pace, RecordedRun, Snapshot};

const NAMES: [&str; 4] = ["a", "b", "c", "log"];
/// The index of the file that is only appended to.
const LOG: usize = 3;
const SIZE_MAX: u64 = 60_000;

pub struct Data {
    run: RecordedRun,
    pub files: NamedFiles,
}

impl Data {
    pub fn record(kind: &Kind, bug: Bug, seed: u64, steps: usize) -> Self {
        let pace = if seed % 2 == 0 { Pace::Slow } else { Pace::AtOnce };
        let (device, volume) = bug.open(kind, pace);
        let cache = Cache::new();
        let mut files: Vec<(CachedFile, FileHistory)> = (0..)
            .zip(NAMES)
            .map(|(number, name)| {
                let inode = new_file(&volume, name);
                let file = cache.file(&inode, bug.mapper(&inode));
                (file, FileHistory::new(number, number == LOG as u64))
            })
            .collect();
        volume.sync().unwrap();
        let begun = device.point();
        let size_max = SIZE_MAX.max(2 * files[0].0.inode.allocation_unit());
        let mut random = Random(seed);
        let mut touched = Vec::new();
        let mut is_clean = [true; NAMES.len()];
        for _ in 0..steps {
            let operation = random.below(33);
            let index = if operation > 29 { LOG } else { random.below(LOG as u64) as usize };
            if (21..24).contains(&operation) {
                let donor = (index + 1 + random.below(2) as usize) % LOG;
                (is_clean[index], is_clean[donor]) = (false, false);
                touched.extend([(device.point(), index), (device.point(), donor)]);
                move_extents(&mut files, index, donor, &mut random);
                continue;
            }
            let (file, history) = &mut files[index];
            if !(13..16).contains(&operation) {
                touched.push((device.point(), index));
            }
            match operation {
                0..=9 => file.write_somewhere(history, &mut random, size_max, 14).unwrap(),
                10 => {
                    let size = random.below(history.now().len() as u64 + 1) as usize;
                    file.set_size(size);
                    history.set_size(size);
                }
                11..=12 => file.write_back(),
                13 => {
                    touched.push((device.point(), index));
                    file.allocate_delayed();
                    volume.sync().unwrap();
                    let clean = files.iter_mut().zip(is_clean).filter(|(_, is_clean)| *is_clean);
                    for ((_, history), _) in clean {
                        history.is_durable(device.point(), history.version());
                    }
                    continue;
                }
                16..=20 => fallocate(file, history, &mut random),
                24..=25 => {
                    let caching = Caching::Dropbehind;
                    file.write_somewhere_as(history, &mut random, size_max, 14, caching).unwrap();
                }
                26..=29 => {
                    let stays_clean = direct::write_somewhere(file, history, &mut random, size_max);
                    is_clean[index] &= stays_clean.unwrap();
                    continue;
                }
                30..=31 => direct::append(file, history, &mut random).unwrap(),
                _ => {
                    file.sync(random.below(2) == 0);
                    history.is_durable(device.point(), history.version());
                }
            }
            is_clean[index] = matches!(operation, 11..=12 | 14..=15 | 32);
        }
        let histories = files.into_iter().map(|(_, history)| history).collect();
        let files = NamedFiles::new(kind, &NAMES, histories, touched);
        Self { run: RecordedRun::new(kind, &device, begun), files }
    }
}

/// Preallocates, punches, zeroes, collapses or inserts a part of a file.
fn fallocate(file: &CachedFile, history: &mut FileHistory, random: &mut Random) {
    let size = history.now().len();
    let start = random.below(size as u64 + 1) as usize;
    let end = start + 1 + random.below(9000) as usize;
    let unit = file.inode.allocation_unit() as usize;
    let whole = start / unit * unit..end.next_multiple_of(unit);
    let done = match random.below(5) {
        0 => file.preallocate(start..end),
        1 => file.clear(start..end, false).map(|()| history.clear(start..end)),
        2 => file.clear(start..end, true).map(|()| history.clear(start..end)),
        3 if whole.end < size => {
            file.shift(whole.clone(), false).map(|()| history.shift(whole, false))
        }
        4 if whole.start < size && size + whole.len() < SIZE_MAX as usize => {
            file.shift(whole.clone(), true).map(|()| history.shift(whole, true))
        }
        _ => return,
    };
    match done {
        Ok(()) => {}
        // In block maps, only punching is possible.
        Err(Error::Unsupported(_)) if !has_extents(file) => {}
        Err(error) => panic!("{error}"),
    }
}

fn has_extents(file: &CachedFile) -> bool {
    file.inode.has(InodeFlags::EXTENTS)
}

/// Moves extents between two files.
fn move_extents(
    files: &mut [(CachedFile, FileHistory)],
    index: usize,
    donor: usize,
    random: &mut Random,
) {
    let (file, history) = &files[index];
    let (donor_file, donor_history) = &files[donor];
    let unit = file.inode.allocation_unit() as usize;
    let mut pick_blocks = |history: &FileHistory| {
        let blocks = history.now().len().div_ceil(unit);
        let first = random.below(blocks as u64 + 1) as usize;
        (first, (blocks - first).min(1 + random.below(12) as usize))
    };
    let ((first, count), (donor_first, donor_count)) =
        (pick_blocks(history), pick_blocks(donor_history));
    let range = first * unit..(first + count.min(donor_count)) * unit;
    // Block maps, clusters and inline data are not moved.
    let has_clusters = unit as u32 != file.inode.volume().geometry().block_size.bytes();
    let is_refused = has_clusters || !has_extents(file) || !has_extents(donor_file);
    match file.move_extents(range, donor_file, donor_first * unit) {
        Ok(cleared) => {
            let history = &mut files[donor].1;
            cleared.into_iter().for_each(|range| history.clear(range));
        }
        Err(Error::Unsupported(_)) if is_refused => {}
        Err(error) => panic!("{error}"),
    }
}

impl History for Data {
    fn run(&self) -> &RecordedRun {
        &self.run
    }

    fn judge(&self, point: usize, found: &Snapshot) -> Result<(), String> {
        self.files.check(point, found)
    }
}
