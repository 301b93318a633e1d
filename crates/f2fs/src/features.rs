//! Features of a volume, and those that are implemented.

use base::{Error, Result, Unsupported};

/// A feature of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Files may be encrypted.
    Encrypt,
    /// The device has zones that are written in order.
    BlockZoned,
    /// Obsolete.
    AtomicWrite,
    /// Inodes have extra attributes.
    ExtraAttributes,
    /// Inodes have a project.
    ProjectQuota,
    /// Inodes have a checksum.
    InodeChecksum,
    /// Each inode has its own size of inline extended attributes.
    FlexibleInlineXattr,
    /// Quota files are inodes that the superblock names.
    QuotaInodes,
    /// Inodes have a time of creation.
    InodeCreationTime,
    /// There is a directory `lost+found`.
    LostFound,
    /// Files may have fs-verity.
    Verity,
    /// The superblock has a checksum.
    SuperblockChecksum,
    /// Directories may ignore case.
    Casefold,
    /// Files may be compressed.
    Compression,
    /// The volume is never written.
    ReadOnly,
    /// A file may represent a whole device.
    DeviceAlias,
    /// A block of the summary area holds the summaries of several segments.
    PackedSummaries,
}

/// All features: bit, feature, and name as f2fs-tools and the kernel spell it.
const FEATURES: [(u32, Feature, &str); 17] = [
    (0x1, Feature::Encrypt, "encrypt"),
    (0x2, Feature::BlockZoned, "blkzoned"),
    (0x4, Feature::AtomicWrite, "atomic_write"),
    (0x8, Feature::ExtraAttributes, "extra_attr"),
    (0x10, Feature::ProjectQuota, "project_quota"),
    (0x20, Feature::InodeChecksum, "inode_checksum"),
    (0x40, Feature::FlexibleInlineXattr, "flexible_inline_xattr"),
    (0x80, Feature::QuotaInodes, "quota"),
    (0x100, Feature::InodeCreationTime, "inode_crtime"),
    (0x200, Feature::LostFound, "lost_found"),
    (0x400, Feature::Verity, "verity"),
    (0x800, Feature::SuperblockChecksum, "sb_checksum"),
    (0x1000, Feature::Casefold, "casefold"),
    (0x2000, Feature::Compression, "compression"),
    (0x4000, Feature::ReadOnly, "ro"),
    (0x8000, Feature::DeviceAlias, "device_alias"),
    (0x1_0000, Feature::PackedSummaries, "packed_ssa"),
];

/// The features of a volume. The kernel ignores bits that it does not know; here they are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(u32);

impl Features {
    /// Returns the features for the bits in a superblock. Errors: `Unsupported` for unknown bits.
    pub fn new(bits: u32) -> Result<Self> {
        let known = FEATURES.iter().fold(0, |known, (bit, _, _)| known | bit);
        let unknown = bits & !known;
        if unknown != 0 {
            let names = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| unknown & bit != 0);
            let names = names.map(|bit| format!("{bit:#x}")).collect();
            return Err(Unsupported::Features { names }.into());
        }
        if bits & 0x8000 != 0 {
            let names = vec!["device_alias".to_owned()];
            return Err(Error::from(Unsupported::Features { names }));
        }
        Ok(Self(bits))
    }

    /// Returns whether the volume has the feature.
    pub fn has(self, feature: Feature) -> bool {
        FEATURES.iter().any(|(bit, known, _)| *known == feature && self.0 & bit != 0)
    }

    /// Returns the bits in the superblock.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns the names of all features of the volume.
    pub fn names(self) -> Vec<String> {
        let present = FEATURES.iter().filter(|(bit, _, _)| self.0 & bit != 0);
        present.map(|(_, _, name)| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_refused_by_their_bits() {
        let features = Features::new(0x2009).unwrap();
        assert_eq!(features.names(), ["encrypt", "extra_attr", "compression"]);
        assert!(features.has(Feature::Compression) && !features.has(Feature::Verity));
        let names = vec!["0x20000".to_owned(), "0x80000000".to_owned()];
        let error = Features::new(0x8002_0001).unwrap_err();
        assert_eq!(error, Unsupported::Features { names }.into());
    }
}
