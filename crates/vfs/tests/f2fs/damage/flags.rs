//! Flags and numbers of features that a volume does not have: the check finds them, and a recovery
//! does not store them.

use std::process::Command;
use std::sync::Arc;

use base::Error;
use device::MemoryDevice;
use testkit::command::run;
use vfs::Credentials;

use crate::damage::synced::{change_synced, cut_after_sync};
use crate::damage::{
    BLOCK, SUPERBLOCKS, blocks_of, change, check_usable, create, damage_inode, damaged,
    device_with, findings, first_address, number, set_word, word,
};

/// Bits of an inode: the byte of their word, and the bits.
const ADVICE: usize = 2;
const FLAGS: usize = 80;
const COMPRESSED: u32 = 4;
const CASEFOLDED: u32 = 0x4000_0000;
const DEVICE_ALIAS: u32 = 0x8000_0000;
const ENCRYPTED: u8 = 4;
const VERITY: u8 = 0x40;
/// The numbers of the quota files in a superblock.
const QUOTA_FILES: usize = 2745;
/// The features: extra attributes, compression.
const WITH_COMPRESSION: u32 = 0x2008;

fn set_flags(inode: &mut [u8], bits: u32) {
    set_word(inode, FLAGS, word(inode, FLAGS) | bits);
}

/// The field that a change of an inode makes wrong, and the change.
type Damage = (&'static str, &'static dyn Fn(&mut [u8]));

/// Changes of an inode that no feature of the volume allows.
fn impossible() -> [Damage; 5] {
    [
        ("flags", &|inode| set_flags(inode, COMPRESSED)),
        ("flags", &|inode| set_flags(inode, CASEFOLDED)),
        ("flags", &|inode| set_flags(inode, DEVICE_ALIAS)),
        ("advice", &|inode| inode[ADVICE] |= ENCRYPTED),
        ("advice", &|inode| inode[ADVICE] |= VERITY),
    ]
}

#[test]
fn the_check_finds_flags_without_their_feature() {
    let whole = crate::damage::device();
    assert_eq!(findings(&whole), [""; 0]);
    for (number, (field, change)) in impossible().into_iter().enumerate() {
        let found = findings(&damage_inode(&whole, "data", change));
        assert!(found.iter().any(|found| found.contains(field)), "{number}: {found:?}");
    }
    let with_quota = damaged(&whole, |image| {
        SUPERBLOCKS.iter().for_each(|at| set_word(image, at + QUOTA_FILES, 4));
    });
    let found = findings(&with_quota);
    assert!(found.iter().any(|found| found.contains("quota inode")), "{found:?}");
}

#[test]
fn a_recovery_stores_no_flags_without_their_feature() {
    let cut = cut_after_sync(&crate::damage::device(), |_| ());
    for (number, (_, damage)) in impossible().into_iter().enumerate() {
        let cut = change_synced(&cut, |_, inode| damage(inode));
        assert_eq!(findings(&cut), [""; 0], "{number}: before the recovery");
        let recovered = change(&cut, |_| ());
        assert_eq!(findings(&recovered), [""; 0], "{number}: after the recovery");
        check_usable(&recovered);
    }
}

/// Returns a volume with the file `data`, and a compressed file. Also returns the block of its
/// first cluster.
fn with_cluster() -> (Arc<MemoryDevice>, u32) {
    let whole = change(&device_with(WITH_COMPRESSION), |volume| {
        let file = create(volume, "compressed");
        file.node().set_flags(COMPRESSED, &Credentials::ROOT).unwrap();
        file.write_all_at(&[b'c'; 16 * BLOCK], 0).unwrap();
    });
    assert_eq!(first_address(&whole, "compressed"), 0xFFFF_FFFE, "a compressed cluster");
    let inode = number(&whole, "compressed");
    let image = whole.snapshot();
    let last = *blocks_of(&image, inode, inode).last().unwrap();
    let block = word(&image[last * BLOCK..], crate::damage::FIRST_ADDRESS + 4);
    (whole, block)
}

#[test]
fn the_check_finds_what_a_recovery_damages() {
    let (whole, block) = with_cluster();
    assert_eq!(findings(&whole), [""; 0]);
    let cut = cut_after_sync(&whole, |_| ());
    assert_eq!(findings(&cut), [""; 0], "a sound recovery");
    let cut = change_synced(&cut, |_, inode| {
        set_word(inode, crate::damage::FIRST_ADDRESS + 3 * 4, block)
    });
    let before = findings(&cut);
    assert!(!before.is_empty(), "the recovery takes a block of a cluster away");
    assert_eq!(findings(&change(&cut, |_| ())), before);
}

/// The entries of segments that such a new volume uses are in the journal of the checkpoint only,
/// and it has no summaries.
#[test]
fn read_only_volumes_are_sound_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    for features in ["ro", "ro,extra_attr,compression"] {
        std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
        let mut mkfs = Command::new("mkfs.f2fs");
        run(mkfs.args(["-q", "-f", "-O", features]).arg(&path));
        let device = Arc::new(MemoryDevice::new(std::fs::read(&path).unwrap()));
        assert_eq!(findings(&device), [""; 0], "{features}");
        let refused = crate::damage::open(&device).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        assert!(refused.to_string().contains("feature `ro`"), "{refused}");
    }
}
