//! Atomic writes on volumes that become full.

use base::Error;
use vfs::{AtomicWrite, File, Volume};

use crate::atomic::stage::{ALL, Stage, data, read};
use crate::common::make;

const MEGABYTES: u64 = 64;
const BLOCK: usize = 4096;

/// Fills the volume until it has about `blocks` free blocks.
fn fill_up_to(volume: &Volume, blocks: u64) {
    let file = make(volume, "filler");
    let mut at = 0;
    loop {
        let free = volume.statfs().blocks_available.saturating_sub(blocks);
        let length = free.min(256) * BLOCK as u64;
        if length < 16 * BLOCK as u64 {
            break;
        }
        file.write_all_at(&data(at + 1, length as usize), at).unwrap();
        at += length;
        if at % (8 << 20) == 0 {
            file.sync_all().unwrap();
        }
    }
    file.sync_all().unwrap();
    volume.sync().unwrap();
}

#[test]
fn a_write_that_finds_no_space_leaves_the_old_contents_and_loses_none() {
    let stage = Stage::of(MEGABYTES);
    let volume = stage.open();
    let file = make(&volume, "f");
    let old = data(1, 600 * BLOCK);
    file.write_all_at(&old, 0).unwrap();
    file.sync_all().unwrap();
    fill_up_to(&volume, 400);
    for round in 0..3 {
        let before = volume.statfs().blocks_free;
        file.atomic_start(AtomicWrite::Update).unwrap();
        let new = data(2 + round, 600 * BLOCK);
        let mut written = 0;
        let error = loop {
            match file.write_at(&new[written..][..BLOCK], written as u64) {
                Ok(length) => written += length,
                Err(error) => break error,
            }
        };
        assert_eq!(error, Error::NoSpace);
        // The old blocks and the new ones exist at the same time.
        assert!((300..420).contains(&(written / BLOCK)), "{} blocks", written / BLOCK);
        assert!(read(&file)[..written] == new[..written], "before the abort");
        file.atomic_abort().unwrap();
        assert!(read(&file) == old, "after the abort");
        assert_eq!(volume.statfs().blocks_free, before, "after the abort");
    }
    // What fits is committed.
    file.atomic_start(AtomicWrite::Update).unwrap();
    let new = data(9, 250 * BLOCK);
    file.write_all_at(&new, 0).unwrap();
    volume.sync().unwrap();
    file.atomic_commit().unwrap();
    let expected = [new, old[250 * BLOCK..].to_vec()].concat();
    assert!(stage.contents_on_device("f") == expected, "after the commit");
    drop(file);
    stage.close(volume);
}

#[test]
fn blocks_that_are_written_again_before_the_commit_are_free_again() {
    let stage = Stage::of(MEGABYTES);
    let volume = stage.open();
    let file = make(&volume, "f");
    file.write_all_at(&data(1, 500 * BLOCK), 0).unwrap();
    file.sync_all().unwrap();
    let before = volume.statfs().blocks_free;
    file.atomic_start(AtomicWrite::Update).unwrap();
    // More than the volume has.
    for round in 0..40 {
        file.write_all_at(&data(round, 500 * BLOCK), 0).unwrap();
        file.sync_range(0..u64::MAX, ALL).unwrap();
    }
    file.atomic_commit().unwrap();
    assert!(stage.contents_on_device("f") == data(39, 500 * BLOCK));
    volume.sync().unwrap();
    assert_eq!(volume.statfs().blocks_free, before);
    drop(file);
    stage.close(volume);
}

/// Writes every second block of `contents` until the volume is full, and updates `contents`.
/// Returns the number of blocks.
fn write_until_full(file: &File, contents: &mut Vec<u8>, seed: u64) -> usize {
    for written in 0.. {
        let (at, new) = (2 * written * BLOCK, data(seed + written as u64, BLOCK));
        match file.write_at(&new, at as u64) {
            Ok(length) => assert_eq!(length, BLOCK),
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                return written;
            }
        }
        contents.resize(contents.len().max(at + BLOCK), 0);
        contents[at..at + BLOCK].copy_from_slice(&new);
    }
    unreachable!("the volume becomes full")
}

#[test]
fn a_commit_needs_no_free_block_and_a_write_without_space_succeeds_after_a_deletion() {
    for kind in [AtomicWrite::Update, AtomicWrite::Replace] {
        let stage = Stage::of(MEGABYTES);
        let volume = stage.open();
        let file = make(&volume, "f");
        let old = data(1, 2500 * BLOCK);
        file.write_all_at(&old, 0).unwrap();
        file.sync_all().unwrap();
        fill_up_to(&volume, 800);
        let [rest, ballast] = ["rest", "ballast"].map(|name| make(&volume, name));
        let begin = |old: &[u8]| {
            file.atomic_start(kind).unwrap();
            if kind == AtomicWrite::Replace { Vec::new() } else { old.to_vec() }
        };
        let before = volume.statfs().blocks_free;
        let aborted = write_until_full(&file, &mut begin(&old), 100);
        file.atomic_abort().unwrap();
        assert!(read(&file) == old, "{kind:?}: after the abort");
        assert_eq!(volume.statfs().blocks_free, before, "{kind:?}: after the abort");
        let mut new = begin(&old);
        let written = write_until_full(&file, &mut new, 200);
        assert!((600..850).contains(&written), "{written} blocks");
        assert_eq!(written, aborted, "{kind:?}: the aborted write has lost space");
        file.sync_range(0..u64::MAX, ALL).unwrap();
        // What is left is too small for a block and its nodes.
        write_until_full(&rest, &mut Vec::new(), 50);
        rest.sync_all().unwrap();
        assert_eq!(volume.statfs().blocks_available, 0, "{kind:?}");
        file.atomic_commit().unwrap();
        assert!(read(&file) == new, "{kind:?}: after the commit");
        assert!(stage.contents_on_device("f") == new, "{kind:?}: after the commit");
        let freed = match kind {
            AtomicWrite::Update => written,
            AtomicWrite::Replace => 2500,
        };
        let free = volume.statfs().blocks_free as usize;
        assert!((freed..freed + 20).contains(&free), "{kind:?}: {free} blocks are free");

        // A write that finds no space keeps the old contents, and succeeds after a deletion.
        let old = new;
        let filled = write_until_full(&ballast, &mut Vec::new(), 70);
        ballast.sync_all().unwrap();
        let full = volume.statfs().blocks_free;
        let mut new = begin(&old);
        assert_eq!(write_until_full(&file, &mut new, 300), 0, "{kind:?}: the volume is full");
        assert!(read(&file) == new, "{kind:?}: in memory");
        file.atomic_abort().unwrap();
        assert!(read(&file) == old, "{kind:?}: after the abort");
        assert_eq!(volume.statfs().blocks_free, full, "{kind:?}: after the abort");
        drop(ballast);
        volume.remove_file("/ballast").unwrap();
        let mut new = begin(&old);
        let again = write_until_full(&file, &mut new, 400);
        assert!(again > filled / 2, "{kind:?}: {again} blocks after the deletion");
        file.atomic_commit().unwrap();
        assert!(stage.contents_on_device("f") == new, "{kind:?}: after the second commit");
        drop((file, rest));
        stage.close(volume);
    }
}
