//! Tests of recovery from logs built by hand, with every checksum version and block number width.

use std::sync::Arc;

use base::checksum::{crc32_be, crc32c};
use base::{BlockSize, Error, FsBlock, InodeNumber, Problem, TransactionId};
use device::{MemoryDevice, SharedDevice};
use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::ondisk::*;
use super::*;

mod log;

const BLOCK: usize = 1024;
const BLOCK_SIZE: BlockSize = BlockSize::from_bytes(BLOCK as u64).unwrap();
const UUID: [u8; 16] = *b"journal's uuid!!";
/// The number of blocks of the volume under test. Its journal has `JOURNAL` of them, from
/// `JOURNAL_AT` on.
const VOLUME: u64 = 256;
const JOURNAL_AT: u64 = 64;
const JOURNAL: u32 = 32;
const LOGGED_VOLUME: LoggedVolume =
    LoggedVolume { block_count: VOLUME, superblock: FsBlock(1), block_count_in: |_, _| None };

#[derive(Clone, Copy, Debug)]
struct Shape {
    checksum: u8,
    wide: bool,
    async_commit: bool,
}

impl Shape {
    fn all() -> impl Iterator<Item = Self> {
        (0..=3).flat_map(|checksum| {
            [false, true].map(|wide| Self { checksum, wide, async_commit: false })
        })
    }

    fn incompat(self) -> u32 {
        1 | u32::from(self.wide) << 1
            | u32::from(self.async_commit) << 2
            | u32::from(self.checksum == 2) << 3
            | u32::from(self.checksum == 3) << 4
    }
}

/// A block to log: its home location and its contents.
type Copy<'a> = (u64, &'a [u8]);

/// A volume with a journal. Each other block is filled with its own number.
struct Image {
    shape: Shape,
    bytes: Vec<u8>,
    at: u32,
    sequence: u32,
    sum: u32,
    seconds: u64,
}

impl Image {
    fn new(shape: Shape, start: u32, sequence: u32) -> Self {
        let mut bytes: Vec<u8> = (0..VOLUME).flat_map(|block| [block as u8; BLOCK]).collect();
        bytes[JOURNAL_AT as usize * BLOCK..][..JOURNAL as usize * BLOCK].fill(0);
        let mut image = Self { shape, bytes, at: start, sequence, sum: !0, seconds: 1_700_000_000 };
        let mut raw = RawSuperblock::new_zeroed();
        raw.s_header = image.header(BLOCK_SUPERBLOCK_V2);
        raw.s_blocksize = (BLOCK as u32).into();
        raw.s_maxlen = JOURNAL.into();
        raw.s_first = 1.into();
        raw.s_sequence = sequence.into();
        raw.s_start = start.into();
        raw.s_feature_compat = u32::from(shape.checksum == 1).into();
        raw.s_feature_incompat = shape.incompat().into();
        raw.s_uuid = UUID;
        raw.s_nr_users = 1.into();
        image.store_superblock(raw);
        image
    }

    fn store_superblock(&mut self, mut raw: RawSuperblock) {
        if self.shape.checksum >= 2 {
            raw.s_checksum_type = CHECKSUM_CRC32C;
            raw.s_checksum = 0.into();
            raw.s_checksum = crc32c(!0, raw.as_bytes()).into();
        }
        self.journal(0)[..1024].copy_from_slice(raw.as_bytes());
    }

    fn edit_superblock(&mut self, edit: impl FnOnce(&mut RawSuperblock)) {
        let mut raw = *base::view::view_at(self.journal(0), 0, "", Default::default()).unwrap();
        edit(&mut raw);
        self.store_superblock(raw);
    }

    fn header(&self, kind: u32) -> RawHeader {
        RawHeader {
            h_magic: MAGIC.into(),
            h_blocktype: kind.into(),
            h_sequence: self.sequence.into(),
        }
    }

    fn journal(&mut self, block: u32) -> &mut [u8] {
        &mut self.bytes[(JOURNAL_AT as usize + block as usize) * BLOCK..][..BLOCK]
    }

    fn seed(&self) -> u32 {
        crc32c(!0, &UUID)
    }

    fn append(&mut self, block: &[u8]) -> u32 {
        let at = self.at;
        self.journal(at).copy_from_slice(block);
        self.at = if at + 1 == JOURNAL { 1 } else { at + 1 };
        at
    }

    fn seal(&self, block: &mut [u8]) {
        if self.shape.checksum >= 2 {
            let sum = crc32c(self.seed(), block);
            block[BLOCK - 4..].copy_from_slice(&sum.to_be_bytes());
        }
    }

    fn tag(&self, target: u64, flags: u16, data: &[u8]) -> Vec<u8> {
        let sum = crc32c(crc32c(self.seed(), &self.sequence.to_be_bytes()), data);
        let high = ((target >> 32) as u32).to_be_bytes();
        let mut tag = (target as u32).to_be_bytes().to_vec();
        if self.shape.checksum == 3 {
            tag.extend(u32::from(flags).to_be_bytes());
            tag.extend(high);
            tag.extend(sum.to_be_bytes());
        } else {
            let low = if self.shape.checksum == 2 { sum as u16 } else { 0 };
            tag.extend(low.to_be_bytes());
            tag.extend(flags.to_be_bytes());
            if self.shape.wide {
                tag.extend(high);
            }
            if self.shape.checksum == 2 {
                tag.extend([0; 2]);
            }
        }
        if flags & TAG_SAME_UUID == 0 {
            tag.extend(UUID);
        }
        tag
    }

    /// Logs a descriptor block and its data. Returns the journal blocks of the data.
    fn descriptor(&mut self, copies: &[Copy]) -> Vec<u32> {
        let mut block = self.header(BLOCK_DESCRIPTOR).as_bytes().to_vec();
        let mut data = Vec::new();
        for (index, &(target, content)) in copies.iter().enumerate() {
            let mut content = content.to_vec();
            let mut flags = if index == 0 { 0 } else { TAG_SAME_UUID };
            if content[..4] == MAGIC.to_be_bytes() {
                content[..4].fill(0);
                flags |= TAG_ESCAPED;
            }
            if index + 1 == copies.len() {
                flags |= TAG_LAST;
            }
            block.extend(self.tag(target, flags, &content));
            data.push(content);
        }
        block.resize(BLOCK, 0);
        self.seal(&mut block);
        self.append(&block);
        self.sum = crc32_be(self.sum, &block);
        data.iter()
            .map(|content| {
                self.sum = crc32_be(self.sum, content);
                self.append(content)
            })
            .collect()
    }

    fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let mut block = self.header(BLOCK_REVOKE).as_bytes().to_vec();
        let width = if self.shape.wide { 8 } else { 4 };
        block.extend((16 + (blocks.len() * width) as u32).to_be_bytes());
        for revoked in blocks {
            block.extend(&revoked.to_be_bytes()[8 - width..]);
        }
        block.resize(BLOCK, 0);
        self.seal(&mut block);
        self.append(&block)
    }

    fn commit(&mut self) -> u32 {
        let mut raw = RawCommit::new_zeroed();
        raw.h_header = self.header(BLOCK_COMMIT);
        raw.h_commit_sec = self.seconds.into();
        if self.shape.checksum == 1 {
            (raw.h_chksum_type, raw.h_chksum_size) = (CHECKSUM_CRC32, 4);
            raw.h_chksum[0] = self.sum.into();
        }
        let mut block = raw.as_bytes().to_vec();
        block.resize(BLOCK, 0);
        if self.shape.checksum >= 2 {
            let sum = crc32c(self.seed(), &block);
            block[16..20].copy_from_slice(&sum.to_be_bytes());
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.sum = !0;
        self.seconds += 1;
        self.append(&block)
    }

    fn transaction(&mut self, copies: &[Copy]) {
        self.descriptor(copies);
        self.commit();
    }

    fn flip(&mut self, journal_block: u32, byte: usize) {
        self.journal(journal_block)[byte] ^= 0x40;
    }

    fn open(&self) -> Result<(SharedDevice, Journal)> {
        let device: SharedDevice = Arc::new(MemoryDevice::new(self.bytes.clone()));
        // Two runs, which are adjacent on the device: journal block n is at JOURNAL_AT + n.
        let runs = [(0, 20), (20, JOURNAL - 20)]
            .map(|(first, length)| JournalRun {
                first,
                physical: FsBlock(JOURNAL_AT + u64::from(first)),
                length,
            })
            .to_vec();
        let blocks = JournalBlocks::of_inode(device.clone(), BLOCK_SIZE, InodeNumber(8), runs)?;
        Ok((device, Journal::open(blocks)?))
    }

    /// Recovers onto a copy. Returns the copy's contents, too.
    fn recover(&self) -> Result<(Recovery, Recovered)> {
        let (_, journal) = self.open()?;
        let target = Arc::new(MemoryDevice::new(self.bytes.clone()));
        let recovery = journal.recover(&(target.clone() as SharedDevice), LOGGED_VOLUME)?;
        let mut bytes = target.snapshot();
        let journal =
            JOURNAL_AT as usize * BLOCK..(JOURNAL_AT + u64::from(JOURNAL)) as usize * BLOCK;
        assert!(bytes[journal.clone()] == self.bytes[journal.clone()], "the journal was changed");
        bytes[journal].fill(0);
        Ok((recovery, Recovered(bytes)))
    }
}

struct Recovered(Vec<u8>);

impl Recovered {
    /// Checks that the blocks in `expected` have these contents, and that all other blocks are
    /// unchanged.
    #[track_caller]
    fn check(&self, expected: &[Copy]) {
        for block in (0..VOLUME).filter(|block| !(JOURNAL_AT..JOURNAL_AT + 32).contains(block)) {
            let unchanged = [block as u8; BLOCK];
            let expected = expected
                .iter()
                .find(|(target, _)| *target == block)
                .map_or(&unchanged[..], |(_, content)| content);
            assert!(&self.0[block as usize * BLOCK..][..BLOCK] == expected, "block {block}");
        }
    }
}

fn filled(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

#[track_caller]
fn check_corrupt(result: Result<(Recovery, Recovered)>, structure: &str) -> Problem {
    match result.map(|(recovery, _)| recovery) {
        Err(Error::Corrupt(corrupt)) => {
            assert_eq!(corrupt.structure, structure, "{corrupt}");
            corrupt.problem
        }
        other => panic!("expected a corrupt {structure}, got {other:?}"),
    }
}

#[test]
fn the_last_copy_of_each_block_is_replayed_in_every_shape() {
    let (a, b, c) = (filled(0xEA), filled(0xEB), filled(0xEC));
    for shape in Shape::all() {
        let mut image = Image::new(shape, 1, 7);
        image.transaction(&[(10, &a), (11, &a), (12, &a)]);
        image.transaction(&[(11, &b), (200, &c)]);
        let (recovery, volume) = image.recover().unwrap();
        volume.check(&[(10, &a), (11, &b), (12, &a), (200, &c)]);
        assert_eq!((recovery.transactions, recovery.end), (2, TransactionId(9)), "{shape:?}");
        assert_eq!(recovery.blocks_changed, 4);
        assert!(recovery.damage.is_none());
    }
}

#[test]
fn blocks_that_begin_with_the_magic_number_are_unescaped() {
    let mut magic = filled(0xEA);
    magic[..4].copy_from_slice(&MAGIC.to_be_bytes());
    for shape in Shape::all() {
        let mut image = Image::new(shape, 1, 7);
        image.transaction(&[(10, &magic), (11, &filled(1))]);
        image.recover().unwrap().1.check(&[(10, &magic), (11, &filled(1))]);
    }
}

#[test]
fn a_revoke_applies_to_copies_in_its_own_and_earlier_transactions_only() {
    let (a, b) = (filled(0xEA), filled(0xEB));
    for shape in Shape::all() {
        let mut image = Image::new(shape, 1, 7);
        image.transaction(&[(10, &a), (11, &a), (12, &a)]);
        image.descriptor(&[(12, &b)]);
        image.revoke(&[10, 11, 12, 99]);
        image.commit();
        image.transaction(&[(11, &b)]);
        let (recovery, volume) = image.recover().unwrap();
        volume.check(&[(11, &b)]);
        assert_eq!(recovery.blocks_revoked, 4, "{shape:?}");
    }
}

#[test]
fn revokes_of_an_incomplete_transaction_are_ignored() {
    let a = filled(0xEA);
    for shape in Shape::all() {
        let mut image = Image::new(shape, 1, 7);
        image.transaction(&[(10, &a)]);
        image.descriptor(&[(11, &a)]);
        image.revoke(&[10]);
        let (recovery, volume) = image.recover().unwrap();
        volume.check(&[(10, &a)]);
        assert_eq!(recovery.transactions, 1, "{shape:?}");
    }
}

#[test]
fn the_log_and_the_ids_wrap_around() {
    let (a, b) = (filled(0xEA), filled(0xEB));
    for shape in Shape::all() {
        let mut image = Image::new(shape, JOURNAL - 2, u32::MAX);
        image.transaction(&[(10, &a), (11, &a), (12, &a)]);
        image.transaction(&[(10, &b)]);
        let (recovery, volume) = image.recover().unwrap();
        volume.check(&[(10, &b), (11, &a), (12, &a)]);
        assert_eq!(recovery.end, TransactionId(1), "{shape:?}");
    }
}

#[test]
fn a_clean_journal_is_not_replayed() {
    let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
    image.transaction(&[(10, &filled(0xEA))]);
    image.edit_superblock(|raw| raw.s_start = 0.into());
    let (recovery, volume) = image.recover().unwrap();
    volume.check(&[]);
    assert_eq!(recovery.transactions, 0);
}

#[test]
fn a_log_without_commits_ends_after_one_round() {
    for shape in Shape::all() {
        let mut image = Image::new(shape, 5, 7);
        for _ in 1..JOURNAL {
            image.revoke(&[10]);
        }
        assert_eq!(image.recover().unwrap().0.transactions, 0);
    }
}

#[test]
fn a_flipped_bit_in_a_data_block_is_corruption_with_block_checksums() {
    for checksum in [2, 3] {
        let mut image = Image::new(Shape { checksum, wide: true, async_commit: false }, 1, 7);
        let data = image.descriptor(&[(10, &filled(0xEA)), (11, &filled(0xEA))]);
        image.commit();
        image.flip(data[1], 77);
        let problem = check_corrupt(image.recover(), "journal data block");
        assert!(matches!(problem, Problem::Checksum { .. }));
    }
}

#[test]
fn a_damaged_descriptor_is_corruption_if_its_commit_exists_and_else_ends_the_log() {
    for commit in [false, true] {
        let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
        image.transaction(&[(10, &filled(0xEA))]);
        let descriptor = image.at;
        image.descriptor(&[(11, &filled(0xEA))]);
        if commit {
            image.commit();
        }
        image.flip(descriptor, 900);
        if commit {
            check_corrupt(image.recover(), "journal descriptor block");
        } else {
            image.recover().unwrap().1.check(&[(10, &filled(0xEA))]);
        }
    }
}

#[test]
fn stale_blocks_of_an_older_journal_end_the_log() {
    let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
    image.transaction(&[(10, &filled(0xEA))]);
    image.seconds -= 1000;
    let descriptor = image.at;
    image.transaction(&[(11, &filled(0xEA))]);
    image.flip(descriptor, 900);
    let (recovery, volume) = image.recover().unwrap();
    volume.check(&[(10, &filled(0xEA))]);
    assert!(recovery.damage.is_none());
}

#[test]
fn a_damaged_commit_block_ends_the_log_and_is_reported() {
    let a = filled(0xEA);
    for checksum in [1, 2, 3] {
        let mut image = Image::new(Shape { checksum, wide: false, async_commit: false }, 1, 7);
        image.transaction(&[(10, &a)]);
        image.descriptor(&[(11, &a)]);
        let commit = image.commit();
        image.transaction(&[(12, &a)]);
        image.flip(commit, 17);
        let (recovery, volume) = image.recover().unwrap();
        volume.check(&[(10, &a)]);
        assert!(matches!(recovery.damage, Some(Error::Corrupt(_))), "version {checksum}");
    }
}

#[test]
fn checksum_version_1_covers_descriptors_and_data() {
    let a = filled(0xEA);
    for async_commit in [false, true] {
        for followed in [false, true] {
            let mut image = Image::new(Shape { checksum: 1, wide: false, async_commit }, 1, 7);
            image.transaction(&[(10, &a)]);
            let data = image.descriptor(&[(11, &a), (12, &a)]);
            image.commit();
            if followed {
                image.transaction(&[(13, &a)]);
            }
            image.flip(data[1], 500);
            let (recovery, volume) = image.recover().unwrap();
            volume.check(&[(10, &a)]);
            // With async_commit, a crash may have interrupted the last transaction.
            assert_eq!(recovery.damage.is_some(), followed || !async_commit);
        }
    }
}

#[test]
fn a_commit_block_is_valid_if_only_its_first_sector_was_written() {
    let mut image = Image::new(Shape { checksum: 3, wide: false, async_commit: false }, 1, 7);
    image.descriptor(&[(10, &filled(0xEA))]);
    let commit = image.commit();
    image.journal(commit)[512..].fill(0x55);
    image.recover().unwrap().1.check(&[(10, &filled(0xEA))]);
}

#[test]
fn targets_outside_the_device_or_inside_the_journal_are_refused() {
    for target in [VOLUME, 1 << 31, JOURNAL_AT, JOURNAL_AT + 31] {
        let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
        image.transaction(&[(target, &filled(0xEA))]);
        check_corrupt(image.recover(), "journal tag");
    }
    let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
    image.transaction(&[(1 << 40, &filled(0xEA))]);
    check_corrupt(image.recover(), "journal tag");
}

#[test]
fn high_halves_of_block_numbers_are_ignored_without_64bit() {
    for checksum in [0, 3] {
        let mut image = Image::new(Shape { checksum, wide: false, async_commit: false }, 1, 7);
        image.transaction(&[(10 + (1 << 40), &filled(0xEA)), (12, &filled(0xEB))]);
        image.recover().unwrap().1.check(&[(10, &filled(0xEA)), (12, &filled(0xEB))]);
    }
}

#[test]
fn a_revoke_block_with_an_invalid_count_is_corrupt() {
    let mut image = Image::new(Shape { checksum: 0, wide: false, async_commit: false }, 1, 7);
    image.descriptor(&[(10, &filled(0xEA))]);
    let revoke = image.revoke(&[10]);
    image.commit();
    for count in [0u32, 15, BLOCK as u32 + 1, u32::MAX] {
        image.journal(revoke)[12..16].copy_from_slice(&count.to_be_bytes());
        check_corrupt(image.recover(), "journal revoke block");
    }
}

#[test]
fn superblock_fields_out_of_range_are_refused() {
    let edits: [fn(&mut RawSuperblock); 9] = [
        |raw| raw.s_header.h_magic = 1.into(),
        |raw| raw.s_header.h_blocktype = 2.into(),
        |raw| raw.s_blocksize = 4096.into(),
        |raw| raw.s_maxlen = (JOURNAL + 1).into(),
        |raw| raw.s_maxlen = 0.into(),
        |raw| raw.s_first = 0.into(),
        |raw| raw.s_first = JOURNAL.into(),
        |raw| raw.s_start = JOURNAL.into(),
        |raw| raw.s_feature_incompat = (raw.s_feature_incompat.get() | 0x20).into(),
    ];
    for (index, edit) in edits.into_iter().enumerate() {
        let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
        image.edit_superblock(edit);
        let problem = check_corrupt(image.recover(), "journal superblock");
        assert!(!matches!(problem, Problem::Checksum { .. }), "edit {index}: {problem}");
    }
    let mut image = Image::new(Shape { checksum: 3, wide: true, async_commit: false }, 1, 7);
    image.flip(0, 600);
    let problem = check_corrupt(image.recover(), "journal superblock");
    assert!(matches!(problem, Problem::Checksum { .. }));
}

#[test]
fn unknown_features_are_refused_by_name() {
    let mut image = Image::new(Shape { checksum: 0, wide: true, async_commit: false }, 1, 7);
    image.edit_superblock(|raw| raw.s_feature_incompat = 0x1000_0041.into());
    let error = image.recover().map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unsupported features: journal incompat 0x40, journal incompat 0x10000000"
    );
}

#[test]
fn a_version_1_superblock_has_no_features() {
    let mut image = Image::new(Shape { checksum: 0, wide: false, async_commit: false }, 1, 7);
    image.edit_superblock(|raw| {
        raw.s_header.h_blocktype = BLOCK_SUPERBLOCK_V1.into();
        raw.s_feature_incompat = u32::MAX.into();
    });
    image.transaction(&[(10, &filled(0xEA))]);
    image.recover().unwrap().1.check(&[(10, &filled(0xEA))]);
}

#[test]
fn a_log_marked_empty_has_nothing_to_replay() {
    for shape in Shape::all() {
        let mut image = Image::new(shape, 1, 7);
        image.transaction(&[(10, &filled(0xEA))]);
        let (device, journal) = image.open().unwrap();
        let recovery = journal.recover(&device, LOGGED_VOLUME).unwrap();
        journal.mark_empty(recovery.end, &device).unwrap();
        let again = Journal::open(journal.blocks().clone()).unwrap();
        assert_eq!(again.superblock().start, None);
        assert_eq!(again.superblock().sequence, TransactionId(9));
    }
}

#[test]
fn runs_with_gaps_overlaps_or_outside_the_device_are_refused() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(vec![0; 100 * BLOCK]));
    let run = |first, physical, length| JournalRun { first, physical: FsBlock(physical), length };
    for runs in [
        vec![],
        vec![run(1, 10, 5)],
        vec![run(0, 10, 5), run(6, 20, 5)],
        vec![run(0, 10, 5), run(5, 14, 5)],
        vec![run(0, 10, 5), run(5, 8, 3)],
        vec![run(0, 0, 5)],
        vec![run(0, 96, 5)],
        vec![run(0, u64::MAX, 5)],
        vec![run(0, 10, 0)],
    ] {
        let blocks = JournalBlocks::of_inode(device.clone(), BLOCK_SIZE, InodeNumber(8), runs);
        assert!(matches!(blocks, Err(Error::Corrupt(_))), "{blocks:?}");
    }
}

fn busy_image(shape: Shape) -> Image {
    let mut image = Image::new(shape, 24, 7);
    image.transaction(&[(10, &filled(0xEA)), (11, &filled(0xEA)), (12, &filled(0xEA))]);
    image.revoke(&[10, 11]);
    image.transaction(&[(20, &filled(0xEB)), (11, &filled(0xEB))]);
    image.transaction(&[(30, &filled(0xEC))]);
    image
}

proptest! {
    #[test]
    fn damage_anywhere_in_the_journal_never_panics(
        checksum in 0u8..4,
        wide: bool,
        async_commit: bool,
        fix_superblock: bool,
        damage in prop::collection::vec((0..JOURNAL, 0..BLOCK, any::<u8>()), 1..8),
    ) {
        let mut image = busy_image(Shape { checksum, wide, async_commit });
        for (block, byte, value) in damage {
            // Control blocks have their fields at the start. Half of the damage goes there.
            let byte = if value & 1 == 1 { byte % 64 } else { byte };
            image.journal(block)[byte] = value;
        }
        if fix_superblock {
            image.edit_superblock(|_| ());
        }
        let _ = image.recover();
    }

    #[test]
    fn a_log_truncated_anywhere_replays_whole_transactions(checksum in 0u8..4, cut in 1..JOURNAL) {
        let mut image = busy_image(Shape { checksum, wide: true, async_commit: false });
        // The log starts at block 24 and wraps around. Writing stopped after `cut` blocks.
        for written in cut..JOURNAL {
            let block = 1 + (23 + written) % (JOURNAL - 1);
            image.journal(block).fill(0);
        }
        let (recovery, volume) = image.recover().unwrap();
        let (a, b, c) = (filled(0xEA), filled(0xEB), filled(0xEC));
        let states: [&[Copy]; 4] = [
            &[],
            &[(10, &a), (11, &a), (12, &a)],
            &[(12, &a), (20, &b)],
            &[(12, &a), (20, &b), (30, &c)],
        ];
        volume.check(states[recovery.transactions as usize]);
    }
}
