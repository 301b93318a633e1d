//! The tags of a descriptor block and the records of a revoke block.
//! Not here: verifying the block's checksum, and using the tags.

use base::{Error, FsBlock, Location, Problem, Result};
use zerocopy::FromBytes;
use zerocopy::big_endian::{U32, U64};

use super::ondisk::{self, RawHeader, RawRevokeHeader, RawTag, RawTag3};
use super::superblock::JournalFeatures;

/// The tag of a data block in the log, which is a copy of a block of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag {
    /// The block of the volume.
    pub target: FsBlock,
    /// Whether the data's first word is [`ondisk::MAGIC`], which the log replaces by zero.
    pub escaped: bool,
    /// The data's checksum: 32 bits in checksum version 3, the low 16 bits in version 2, or else 0.
    pub checksum: u32,
}

/// Returns the tags of the descriptor block `block`, up to the last tag or to the end of the block.
pub(super) fn descriptor_tags(
    block: &[u8],
    features: JournalFeatures,
) -> impl Iterator<Item = Tag> + '_ {
    let tail = if features.has_block_checksums() { ondisk::BLOCK_TAIL_BYTES } else { 0 };
    let body = block.len().checked_sub(tail).and_then(|end| block.get(size_of::<RawHeader>()..end));
    let mut rest = body.unwrap_or_default();
    std::iter::from_fn(move || {
        let (tag, flags, length) = parse_tag(rest, features)?;
        let uuid = if flags & ondisk::TAG_SAME_UUID == 0 { 16 } else { 0 };
        let last = flags & ondisk::TAG_LAST != 0;
        rest = if last { &[] } else { rest.get(length + uuid..).unwrap_or_default() };
        Some(tag)
    })
}

/// Returns the tag at the start of `bytes`, its flags, and its length without a UUID; `None` if
/// `bytes` is too short.
fn parse_tag(bytes: &[u8], features: JournalFeatures) -> Option<(Tag, u16, usize)> {
    let wide = features.block_numbers_64;
    let block = |low: U32, high: u32| {
        FsBlock(u64::from(low.get()) | if wide { u64::from(high) << 32 } else { 0 })
    };
    if features.checksum_v3 {
        let (raw, _) = RawTag3::ref_from_prefix(bytes).ok()?;
        let flags = raw.t_flags.get() as u16;
        let tag = Tag {
            target: block(raw.t_blocknr, raw.t_blocknr_high.get()),
            escaped: flags & ondisk::TAG_ESCAPED != 0,
            checksum: raw.t_checksum.get(),
        };
        return Some((tag, flags, size_of::<RawTag3>()));
    }
    let length =
        size_of::<RawTag>() + if wide { 4 } else { 0 } + if features.checksum_v2 { 2 } else { 0 };
    let (raw, rest) = RawTag::ref_from_prefix(bytes.get(..length)?).ok()?;
    let high = U32::ref_from_prefix(rest).ok().filter(|_| wide).map_or(0, |(high, _)| high.get());
    let flags = raw.t_flags.get();
    let tag = Tag {
        target: block(raw.t_blocknr, high),
        escaped: flags & ondisk::TAG_ESCAPED != 0,
        checksum: raw.t_checksum.get().into(),
    };
    Some((tag, flags, length))
}

/// Returns the blocks that are revoked by the revoke block `block`, which is at `location`.
pub(super) fn revoked_blocks<'a>(
    block: &'a [u8],
    features: JournalFeatures,
    location: Location,
) -> Result<impl Iterator<Item = FsBlock> + 'a> {
    const STRUCTURE: &str = "journal revoke block";
    let header: &RawRevokeHeader = base::view::view_at(block, 0, STRUCTURE, location)?;
    let used = header.r_count.get();
    let tail = if features.has_block_checksums() { ondisk::BLOCK_TAIL_BYTES } else { 0 };
    let min = size_of::<RawRevokeHeader>();
    let max = block.len().saturating_sub(tail);
    let records = usize::try_from(used)
        .ok()
        .filter(|&used| used <= max)
        .and_then(|used| block.get(min..used))
        .ok_or_else(|| {
            let (min, max) = (min as u64, max as u64);
            let problem = Problem::Range { field: "r_count", found: used.into(), min, max };
            Error::corrupt(STRUCTURE, location, problem)
        })?;
    let width = if features.block_numbers_64 { 8 } else { 4 };
    Ok(records.chunks_exact(width).map(move |record| {
        let wide = U64::read_from_bytes(record).map(U64::get);
        let narrow = U32::read_from_bytes(record).map(|block| u64::from(block.get()));
        FsBlock(wide.or(narrow).unwrap_or_default())
    }))
}
