//! Quota files: how much space, and how many inodes, each user, group or project uses. ext4 and
//! f2fs have the same format, which Linux calls vfsv1.
//!
//! The file has blocks of 1 KiB, whatever the volume's blocks are. The first one has a header, the
//! second one is the root of a tree with four levels, one for each byte of an id. Each level has
//! blocks of 256 references, and the last one refers to the block that has the id's entry. Such a
//! block has entries of several ids, which need not be near each other.
//!
//! - `layout.rs`: the structures
//! - `tree.rs`: reading
//! - `change.rs`: changes of usage
//! - `compare.rs`: the comparison with inodes
//!
//! Source: quota-tools (`quotaio_tree.h`, `quotaio_v2.h`).
//! Not here: files and inodes, and what a format counts as used.

mod change;
mod compare;
mod layout;
mod tree;

use base::{Location, Result};

pub use self::change::charge_at;
pub use self::compare::compare_usage;
pub use self::layout::BLOCK_BYTES;
pub use self::tree::QuotaFile;

/// A kind of quota.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum QuotaKind {
    /// The quota of owners.
    User,
    /// The quota of groups.
    Group,
    /// The quota of projects.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order in which superblocks name their files.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// Returns the magic number of the kind's files.
    fn magic(self) -> u32 {
        match self {
            Self::User => 0xD9C0_1F11,
            Self::Group => 0xD9C0_1927,
            Self::Project => 0xD9C0_3F14,
        }
    }
}

/// What an id uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The space, in bytes.
    pub bytes: u64,
    /// The number of inodes.
    pub inodes: u64,
}

/// A change of what an id uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UsageChange {
    /// The change of the space, in bytes.
    pub bytes: i64,
    /// The change of the number of inodes.
    pub inodes: i64,
}

impl UsageChange {
    /// Adds what an inode uses, or if it `was_used` before the change, takes it away. Sums of what
    /// damaged inodes say do not overflow.
    pub fn add(&mut self, usage: Usage, was_used: bool) {
        let sum = |sum: i64, number: u64| {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            if was_used { sum.saturating_sub(number) } else { sum.saturating_add(number) }
        };
        self.bytes = sum(self.bytes, usage.bytes);
        self.inodes = sum(self.inodes, usage.inodes);
    }
}

/// The place of an id's entry. Entries do not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The block of the file.
    block: u32,
    /// The index among the block's entries.
    index: usize,
}

/// A block of a quota file.
pub type QuotaBlock = [u8; BLOCK_BYTES];

/// The blocks of a quota file, for reading.
pub trait ReadBlocks {
    /// Returns the location of the file, for errors.
    fn location(&self) -> Location;

    /// Returns the size of the file in bytes.
    fn size(&self) -> u64;

    /// Returns a block. A hole has zeroes.
    fn read(&self, block: u32) -> Result<QuotaBlock>;
}

/// The blocks of a quota file, for writing.
pub trait WriteBlocks: ReadBlocks {
    /// Replaces a block. The file grows if the block is behind its end.
    fn write(&mut self, block: u32, contents: &QuotaBlock) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_what_many_damaged_inodes_use_do_not_overflow() {
        let usage = Usage { bytes: 1 << 62, inodes: 1 };
        let change = |was_used| {
            let mut change = UsageChange::default();
            (0..3).for_each(|_| change.add(usage, was_used));
            change
        };
        assert_eq!(change(false), UsageChange { bytes: i64::MAX, inodes: 3 });
        assert_eq!(change(true), UsageChange { bytes: i64::MIN, inodes: -3 });
    }
}
