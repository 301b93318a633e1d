//! Tests of preallocation for files that grow in turns.

use base::FileOffset;
use iomap::{FinishedRange, IomapKind, MapRead, MapWrite};

use super::common::{Image, new_file, runs};
use super::*;
use crate::inode::Inode;

const FILES: usize = 8;
const KINDS: &[&str] = &[
    "-t ext4 -b 1024",
    "-t ext4 -b 4096",
    "-t ext4 -b 4096 -O ^flex_bg -g 2048",
    "-t ext4 -b 1024 -O bigalloc,^resize_inode -C 8192",
    "-t ext3 -b 1024",
];

fn volume(options: &str) -> (Image, Arc<Volume>) {
    let image = Image::make(64, &options.split_whitespace().collect::<Vec<_>>());
    let volume = open_for_writing(&image);
    (image, volume)
}

/// Appends `blocks` blocks to a file, as a write, its writeback and its end of I/O do.
fn grow(volume: &Volume, inode: &Inode, blocks: u64) -> Result<()> {
    let (at, length) = (inode.size(), blocks * u64::from(volume.geometry().block_size.bytes()));
    inode.map_write(FileOffset(at), length)?;
    let mut done = 0;
    while done < length {
        let here = FileOffset(at + done);
        let map = inode.map_writeback(here, length - done)?;
        let (kind, part) = (map.kind, (map.end() - here.0).min(length - done));
        let finished = FinishedRange { offset: here, length: part, kind, token: None };
        inode.end_io(&[finished], FileOffset(here.0 + part))?;
        assert!(matches!(inode.map_read(here, 1)?.kind, IomapKind::Mapped));
        done += part;
    }
    Ok(())
}

fn files(volume: &Arc<Volume>, count: usize) -> Vec<Arc<Inode>> {
    (0..count).map(|index| new_file(volume, &format!("file {index}"))).collect()
}

#[test]
fn the_blocks_of_files_that_grow_in_turns_do_not_alternate() {
    const TURNS: usize = 256;
    for options in KINDS {
        let (image, volume) = volume(options);
        let files = files(&volume, FILES);
        files.iter().for_each(|file| file.opened_for_writing());
        for _ in 0..TURNS {
            files.iter().for_each(|file| grow(&volume, file, 1).unwrap());
        }
        for file in &files {
            let runs = runs(&volume, file);
            // A new run with each doubling of the preallocation, from its minimum on.
            assert!(runs.len() <= 6, "{options}: {runs:?}");
        }
        files.iter().for_each(|file| file.closed_for_writing());
        volume.close().unwrap();
        image.check_by_e2fsck();
    }
}

#[test]
fn small_files_are_adjacent_in_spite_of_preallocations_for_other_files() {
    let (image, volume) = volume("-t ext4 -b 4096");
    let growing = files(&volume, FILES);
    growing.iter().for_each(|file| file.opened_for_writing());
    let mut small = Vec::new();
    for turn in 0..30 {
        growing.iter().for_each(|file| grow(&volume, file, 1).unwrap());
        let file = new_file(&volume, &format!("small {turn}"));
        file.opened_for_writing();
        grow(&volume, &file, 3).unwrap();
        file.closed_for_writing();
        small.push(runs(&volume, &file)[0].1);
    }
    let gaps = small.windows(2).filter(|pair| pair[0] + 3 != pair[1]).count();
    assert!(gaps <= 3, "{small:?}");
    volume.close().unwrap();
    image.check_by_e2fsck();
}

#[test]
fn preallocated_clusters_count_as_free_and_are_allocated_if_there_are_no_others() {
    for options in KINDS {
        let (image, volume) = volume(options);
        let growing = files(&volume, FILES);
        growing.iter().for_each(|file| file.opened_for_writing());
        let before = volume.statfs();
        for _ in 0..16 {
            growing.iter().for_each(|file| grow(&volume, file, 1).unwrap());
        }
        let preallocated = |volume: &Volume| -> u64 {
            let groups = &volume.writer().unwrap().allocator.groups;
            groups.iter().map(|group| u64::from(group.lock().preallocations.total())).sum()
        };
        assert!(preallocated(&volume) > 0, "{options}");
        let used: u64 = growing
            .iter()
            .map(|file| file.record().blocks >> (volume.geometry().block_size.shift() - 9))
            .sum();
        assert_eq!(volume.statfs().blocks_free + used, before.blocks_free, "{options}");
        let filler = new_file(&volume, "filler");
        while grow(&volume, &filler, 64).is_ok() {}
        while grow(&volume, &filler, 1).is_ok() {}
        let (left, cluster) = (volume.statfs().blocks_free, 1 << volume.geometry().cluster_shift);
        let unusable = kernel_reserve(volume.geometry());
        assert!(left <= unusable + cluster, "{options}: {left}");
        assert!(preallocated(&volume) << volume.geometry().cluster_shift <= left, "{options}");
        assert_eq!(grow(&volume, &growing[0], 500), Err(Error::NoSpace), "{options}");
        volume.close().unwrap();
        image.check_by_e2fsck();
    }
}

#[test]
fn a_closed_or_truncated_file_has_no_preallocation() {
    let (_image, volume) = volume("-t ext4 -b 4096");
    let preallocated = || {
        let groups = &volume.writer().unwrap().allocator.groups;
        groups.iter().map(|group| group.lock().preallocations.total()).sum::<u32>()
    };
    let file = new_file(&volume, "file");
    let grow_twice = || {
        grow(&volume, &file, 1).unwrap();
        assert_eq!(preallocated(), 0, "it has not grown before");
        grow(&volume, &file, 1).unwrap();
        assert!(preallocated() > 0);
    };
    file.opened_for_writing();
    grow_twice();
    file.set_size(0, false, base::attributes::Timestamp::default()).unwrap();
    assert_eq!(preallocated(), 0);
    grow_twice();
    file.closed_for_writing();
    assert_eq!(preallocated(), 0);
    grow(&volume, &file, 1).unwrap();
    assert_eq!(preallocated(), 0, "no user has the file open");
    file.opened_for_writing();
    grow(&volume, &file, 1).unwrap();
    assert!(preallocated() > 0);
    // Data that is still delayed when the file is closed.
    let (at, block) = (FileOffset(file.size()), 4096);
    file.map_write(at, block).unwrap();
    file.closed_for_writing();
    assert!(preallocated() > 0);
    file.map_writeback(at, block).unwrap();
    assert_eq!(preallocated(), 0);
    assert_eq!(runs(&volume, &file).iter().map(|run| run.2).sum::<u64>(), 5);
    volume.close().unwrap();
}
