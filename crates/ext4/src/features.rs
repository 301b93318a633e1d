//! Feature bits of a volume, by the names that e2fsprogs uses, and lists of the features that can
//! be read and written.

use base::{Result, Unsupported};

/// The set that a feature belongs to, which decides how a reader treats it if the reader does not
/// know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeatureSet {
    /// Unknown features may be ignored.
    Compatible,
    /// A volume with unknown features is not opened.
    Incompatible,
    /// A volume with unknown features is opened for reading only.
    ReadOnlyCompatible,
}

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident = $set:ident, $bit:literal, $name:literal;)*) => {
        /// A known feature.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Feature {
            $($(#[$doc])* $variant,)*
        }

        impl Feature {
            /// All known features.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the feature's set, and its bit in that set.
            pub const fn position(self) -> (FeatureSet, u32) {
                match self {
                    $(Self::$variant => (FeatureSet::$set, $bit),)*
                }
            }

            /// Returns the feature's name in e2fsprogs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

features! {
    /// Directories preallocate blocks.
    DirPrealloc = Compatible, 0, "dir_prealloc";
    /// AFS inodes.
    ImagicInodes = Compatible, 1, "imagic_inodes";
    /// There is a journal.
    HasJournal = Compatible, 2, "has_journal";
    /// There are extended attributes.
    ExtAttr = Compatible, 3, "ext_attr";
    /// Inode 7 holds blocks reserved for more group descriptors.
    ResizeInode = Compatible, 4, "resize_inode";
    /// Directories may be hashed.
    DirIndex = Compatible, 5, "dir_index";
    /// Groups may be uninitialised; never used.
    LazyBg = Compatible, 6, "lazy_bg";
    /// Snapshots, not in mainline.
    SnapshotBitmap = Compatible, 8, "snapshot_bitmap";
    /// At most two superblock copies.
    SparseSuper2 = Compatible, 9, "sparse_super2";
    /// The journal has a fast-commit area.
    FastCommit = Compatible, 10, "fast_commit";
    /// Inode numbers never change.
    StableInodes = Compatible, 11, "stable_inodes";
    /// Orphans are kept in a file.
    OrphanFile = Compatible, 12, "orphan_file";

    /// Superblock copies only in groups 0, 1 and powers of 3, 5 and 7.
    SparseSuper = ReadOnlyCompatible, 0, "sparse_super";
    /// Some file is larger than 2 GiB.
    LargeFile = ReadOnlyCompatible, 1, "large_file";
    /// Block counts of inodes have 48 bits.
    HugeFile = ReadOnlyCompatible, 3, "huge_file";
    /// Group descriptors have a crc16, and groups may be uninitialised.
    UninitBg = ReadOnlyCompatible, 4, "uninit_bg";
    /// Directories may have more than 65000 subdirectories.
    DirNlink = ReadOnlyCompatible, 5, "dir_nlink";
    /// Inodes have extra fields.
    ExtraIsize = ReadOnlyCompatible, 6, "extra_isize";
    /// Quota files are in hidden inodes.
    Quota = ReadOnlyCompatible, 8, "quota";
    /// Space is allocated in clusters of blocks.
    Bigalloc = ReadOnlyCompatible, 9, "bigalloc";
    /// All metadata has a crc32c.
    MetadataCsum = ReadOnlyCompatible, 10, "metadata_csum";
    /// Replicas, not in mainline.
    Replica = ReadOnlyCompatible, 11, "replica";
    /// The volume is never written.
    ReadOnly = ReadOnlyCompatible, 12, "read-only";
    /// Inodes have project ids.
    Project = ReadOnlyCompatible, 13, "project";
    /// Files share blocks.
    SharedBlocks = ReadOnlyCompatible, 14, "shared_blocks";
    /// Some file is protected by fs-verity.
    Verity = ReadOnlyCompatible, 15, "verity";
    /// The orphan file is not empty.
    OrphanPresent = ReadOnlyCompatible, 16, "orphan_present";

    /// Compressed files; never in mainline.
    Compression = Incompatible, 0, "compression";
    /// Directory entries have a type.
    Filetype = Incompatible, 1, "filetype";
    /// The journal must be replayed.
    NeedsRecovery = Incompatible, 2, "needs_recovery";
    /// This is an external journal.
    JournalDev = Incompatible, 3, "journal_dev";
    /// Descriptor blocks lie in the groups that they describe.
    MetaBg = Incompatible, 4, "meta_bg";
    /// Files may use extents.
    Extent = Incompatible, 6, "extent";
    /// Block numbers have up to 48 bits.
    SixtyFourBit = Incompatible, 7, "64bit";
    /// Multiple-mount protection.
    Mmp = Incompatible, 8, "mmp";
    /// A group's bitmaps and inode table may lie in other groups.
    FlexBg = Incompatible, 9, "flex_bg";
    /// Large attribute values lie in inodes of their own.
    EaInode = Incompatible, 10, "ea_inode";
    /// Data in directory entries; not in mainline.
    Dirdata = Incompatible, 12, "dirdata";
    /// The seed of the checksums is in the superblock.
    MetadataCsumSeed = Incompatible, 13, "metadata_csum_seed";
    /// Directories may exceed 2 GiB or have a three-level hash tree.
    LargeDir = Incompatible, 14, "large_dir";
    /// Small files lie in their inode.
    InlineData = Incompatible, 15, "inline_data";
    /// Some file is encrypted.
    Encrypt = Incompatible, 16, "encrypt";
    /// Some directory ignores case.
    Casefold = Incompatible, 17, "casefold";
}

/// The incompatible features that can be read. If a feature cannot be read in some inodes, these
/// inodes are refused when they are used.
const READABLE: &[Feature] = &[
    Feature::Filetype,
    Feature::NeedsRecovery,
    Feature::MetaBg,
    Feature::Extent,
    Feature::SixtyFourBit,
    Feature::Mmp,
    Feature::FlexBg,
    Feature::EaInode,
    Feature::MetadataCsumSeed,
    Feature::LargeDir,
    Feature::InlineData,
    Feature::Encrypt,
    Feature::Casefold,
];

/// The incompatible and read-only-compatible features of volumes that can be written.
const WRITABLE: &[Feature] = &[
    Feature::Filetype,
    Feature::NeedsRecovery,
    Feature::MetaBg,
    Feature::Extent,
    Feature::SixtyFourBit,
    Feature::Mmp,
    Feature::FlexBg,
    Feature::EaInode,
    Feature::MetadataCsumSeed,
    Feature::LargeDir,
    Feature::InlineData,
    Feature::SparseSuper,
    Feature::LargeFile,
    Feature::HugeFile,
    Feature::UninitBg,
    Feature::DirNlink,
    Feature::ExtraIsize,
    Feature::Bigalloc,
    Feature::MetadataCsum,
    Feature::OrphanPresent,
];

/// The features of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// The bits of the compatible set.
    pub compatible: u32,
    /// The bits of the incompatible set.
    pub incompatible: u32,
    /// The bits of the read-only-compatible set.
    pub read_only_compatible: u32,
}

impl Features {
    /// Returns whether the volume has `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        let (set, bit) = feature.position();
        self.bits(set) >> bit & 1 == 1
    }

    /// Returns the names of all features, known and unknown, in the order and form of `dumpe2fs`.
    pub fn names(&self) -> Vec<String> {
        [FeatureSet::Compatible, FeatureSet::Incompatible, FeatureSet::ReadOnlyCompatible]
            .into_iter()
            .flat_map(|set| names_in(set, self.bits(set)))
            .collect()
    }

    /// Returns an error that names the features that cannot be written, if there are any.
    pub fn check_writable(&self) -> Result<()> {
        let refused: Vec<String> = [FeatureSet::Incompatible, FeatureSet::ReadOnlyCompatible]
            .into_iter()
            .flat_map(|set| {
                let in_set = WRITABLE.iter().map(|feature| feature.position());
                let writable: u32 =
                    in_set.filter(|(of, _)| *of == set).map(|(_, bit)| 1 << bit).sum();
                names_in(set, self.bits(set) & !writable)
            })
            .collect();
        if refused.is_empty() {
            Ok(())
        } else {
            Err(Unsupported::Features { names: refused }.into())
        }
    }

    /// Returns an error that names the features that have no name, if there are any.
    pub fn check_known(&self) -> Result<()> {
        let sets =
            [FeatureSet::Compatible, FeatureSet::Incompatible, FeatureSet::ReadOnlyCompatible];
        let unknown = |set| {
            let in_set = Feature::ALL.iter().map(|feature| feature.position());
            let known: u32 = in_set.filter(|(of, _)| *of == set).map(|(_, bit)| 1 << bit).sum();
            names_in(set, self.bits(set) & !known)
        };
        let names: Vec<String> = sets.into_iter().flat_map(unknown).collect();
        if names.is_empty() { Ok(()) } else { Err(Unsupported::Features { names }.into()) }
    }

    /// Returns an error that names the incompatible features that cannot be read, if there are any.
    pub fn check_readable(&self) -> Result<()> {
        let readable: u32 = READABLE.iter().map(|feature| 1 << feature.position().1).sum();
        let refused = self.incompatible & !readable;
        if refused == 0 {
            return Ok(());
        }
        let names = names_in(FeatureSet::Incompatible, refused).collect();
        Err(Unsupported::Features { names }.into())
    }

    /// Returns the format's name: the oldest of "ext2", "ext3" and "ext4" that has all of the
    /// features.
    pub fn format_name(&self) -> &'static str {
        // The features of Linux's ext3: sparse_super, large_file and bit 2 (B-tree directories);
        // filetype, needs_recovery and meta_bg.
        const EXT3_READ_ONLY_COMPATIBLE: u32 = 0b111;
        const EXT3_INCOMPATIBLE: u32 = 1 << 1 | 1 << 2 | 1 << 4;
        if self.read_only_compatible & !EXT3_READ_ONLY_COMPATIBLE != 0
            || self.incompatible & !EXT3_INCOMPATIBLE != 0
        {
            "ext4"
        } else if self.has(Feature::HasJournal) {
            "ext3"
        } else {
            "ext2"
        }
    }

    fn bits(&self, set: FeatureSet) -> u32 {
        match set {
            FeatureSet::Compatible => self.compatible,
            FeatureSet::Incompatible => self.incompatible,
            FeatureSet::ReadOnlyCompatible => self.read_only_compatible,
        }
    }
}

fn names_in(set: FeatureSet, bits: u32) -> impl Iterator<Item = String> {
    (0..u32::BITS).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| {
        match Feature::ALL.iter().find(|feature| feature.position() == (set, bit)) {
            Some(feature) => feature.name().to_owned(),
            None => {
                let letter = match set {
                    FeatureSet::Compatible => 'C',
                    FeatureSet::Incompatible => 'I',
                    FeatureSet::ReadOnlyCompatible => 'R',
                };
                format!("FEATURE_{letter}{bit}")
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Error;

    #[test]
    fn every_feature_has_its_own_bit() {
        for (index, feature) in Feature::ALL.iter().enumerate() {
            for other in &Feature::ALL[index + 1..] {
                assert_ne!(feature.position(), other.position(), "{feature:?} {other:?}");
            }
        }
    }

    #[test]
    fn unreadable_features_are_refused_by_name_and_unknown_ones_by_bit() {
        let features = Features {
            incompatible: 1 | 1 << 3 | 1 << 12 | 1 << 18 | 1 << 6,
            ..Default::default()
        };
        let Err(Error::Unsupported(Unsupported::Features { names })) = features.check_readable()
        else {
            panic!("must be refused");
        };
        assert_eq!(names, ["compression", "journal_dev", "dirdata", "FEATURE_I18"]);
    }

    #[test]
    fn unknown_read_only_compatible_features_allow_reading() {
        let features = Features { read_only_compatible: u32::MAX, ..Default::default() };
        features.check_readable().unwrap();
        assert!(features.names().contains(&"FEATURE_R31".to_owned()));
    }

    #[test]
    fn the_format_is_named_by_its_features() {
        let with = |compatible, incompatible, read_only_compatible| {
            Features { compatible, incompatible, read_only_compatible }.format_name()
        };
        assert_eq!(with(0x38, 0x2, 0x3), "ext2");
        assert_eq!(with(0x3c, 0x2, 0x3), "ext3");
        assert_eq!(with(0x3c, 0x2, 0x8), "ext4");
        assert_eq!(with(0x38, 0x42, 0x3), "ext4");
    }
}
