//! Damage to the checkpoint packs: what was written last is not missing without a word. What power
//! cuts leave is no damage.

use std::sync::Arc;

use base::Error;
use device::MemoryDevice;
use vfs::{Volume, VolumeOptions};

use super::{
    BLOCK, change, check_contents, check_usable, create, damaged, findings, open, set_word, word,
};

/// The blocks of a segment.
const SEGMENT: usize = 512;
/// The bytes of a pack's first block with the first block of the area of packs, in the superblock,
/// and with the number of blocks of the pack.
const AREA: usize = 1024 + 76;
const PACK_BLOCKS: usize = 136;
/// The bytes of the journal of the node address table in the first summary.
const JOURNAL: usize = 512 * 7;

fn version(image: &[u8], block: usize) -> u64 {
    u64::from_le_bytes(*image[block * BLOCK..].first_chunk().unwrap())
}

/// Returns the blocks of the later pack and of the other one, as ranges.
fn packs(device: &MemoryDevice) -> [std::ops::Range<usize>; 2] {
    let image = device.snapshot();
    let area = word(&image, AREA) as usize;
    let mut packs = [area, area + SEGMENT]
        .map(|start| start..start + word(&image, start * BLOCK + PACK_BLOCKS) as usize);
    packs.sort_by_key(|pack| std::cmp::Reverse(version(&image, pack.start)));
    packs
}

fn fill(image: &mut [u8], block: usize, value: u8) {
    image[block * BLOCK..][..BLOCK].fill(value);
}

/// Returns a volume whose last checkpoint has added the file `last`, and the volume before that.
fn with_last() -> [Arc<MemoryDevice>; 2] {
    let before = super::device();
    let after = change(&super::copy_of(&before), |volume| {
        create(volume, "last").write_all_at(&[b'l'; BLOCK], 0).unwrap();
    });
    [after, before]
}

fn warning(device: &Arc<MemoryDevice>) -> Option<String> {
    Volume::open_device(device.clone(), &VolumeOptions::new()).unwrap().warning()
}

fn has_last(device: &Arc<MemoryDevice>) -> bool {
    let volume = Volume::open_device(device.clone(), &VolumeOptions::new()).unwrap();
    match volume.lookup(&volume.root().unwrap(), b"last") {
        Err(Error::NotFound) => false,
        found => {
            found.unwrap();
            check_contents(&volume, "last", 0, b'l');
            true
        }
    }
}

#[test]
fn a_damaged_first_block_of_the_last_checkpoint_is_read_from_its_copy_and_restored() {
    let [after, _] = with_last();
    let [last, _] = packs(&after);
    for damage in [0_u8, 0xa5, 1] {
        let damaged = damaged(&after, |image| match damage {
            1 => image[last.start * BLOCK + 700] ^= 1,
            value => fill(image, last.start, value),
        });
        let said = warning(&damaged).expect("a warning");
        assert!(said.contains("first block of the last checkpoint is damaged"), "{said}");
        assert!(has_last(&damaged));
        let found = findings(&damaged);
        let [found] = &found[..] else { panic!("{found:?}") };
        let expected = format!("corrupt checkpoint at block {}: ", last.start);
        assert!(found.starts_with(&expected), "{found}");

        let writer = open(&damaged).unwrap();
        let said = writer.warning().expect("a warning");
        assert!(said.contains("the block has been restored"), "{said}");
        // Before anything else is written.
        let restored = super::copy_of(&damaged);
        assert!(restored.snapshot() == after.snapshot());
        writer.close().unwrap();
        drop(writer);
        check_usable(&damaged);
        assert_eq!((warning(&damaged), has_last(&damaged)), (None, true));
        assert_eq!(findings(&damaged), [""; 0]);
    }
}

#[test]
fn a_last_checkpoint_with_more_damage_is_missing_with_a_warning_and_nothing_is_written() {
    let [after, before] = with_last();
    let [last, _] = packs(&after);
    // A write of the first block that a device has lost, and two damaged blocks.
    let unwritten = damaged(&after, |image| {
        let old = before.snapshot()[last.start * BLOCK..][..BLOCK].to_vec();
        image[last.start * BLOCK..][..BLOCK].copy_from_slice(&old);
    });
    let with_journal = damaged(&after, |image| {
        fill(image, last.start, 0);
        set_word(image, (last.start + 1) * BLOCK + JOURNAL, 0xFFFF);
    });
    for device in [unwritten, with_journal] {
        let said = warning(&device).expect("a warning");
        assert!(said.contains("the last checkpoint is damaged"), "{said}");
        assert!(!has_last(&device));
        let found = findings(&device);
        assert!(found.iter().any(|found| found.contains("later checkpoint")), "{found:?}");
        let image = device.snapshot();
        let refused = open(&device).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
        assert!(device.snapshot() == image);
    }
}

#[test]
fn what_power_cuts_leave_is_no_damage() {
    let [after, before] = with_last();
    let [last, older] = packs(&after);
    let old = before.snapshot();
    let restore = |image: &mut [u8], block: usize| {
        image[block * BLOCK..][..BLOCK].copy_from_slice(&old[block * BLOCK..][..BLOCK]);
    };
    let end = last.end - 1;
    let cuts = [
        // The last block was not written, or is torn. The first one was written, or not, or is
        // torn.
        damaged(&after, |image| restore(image, end)),
        damaged(&after, |image| image[end * BLOCK + BLOCK / 2..][..BLOCK / 2].fill(0x5a)),
        damaged(&after, |image| [last.start, end].iter().for_each(|at| restore(image, *at))),
        damaged(&after, |image| {
            restore(image, end);
            fill(image, last.start, 0x5a);
        }),
    ];
    for (number, cut) in cuts.iter().enumerate() {
        assert_eq!((warning(cut), has_last(cut)), (None, false), "{number}");
        assert_eq!(findings(cut), [""; 0], "{number}");
        check_usable(cut);
    }
    // The older one has been torn by a power cut, and its last block is older, too.
    for block in [older.start, older.end - 1] {
        let cut = damaged(&after, |image| fill(image, block, 0x5a));
        assert_eq!((warning(&cut), has_last(&cut)), (None, true));
        assert_eq!(findings(&cut), [""; 0]);
        check_usable(&cut);
    }
}
