//! The fields of the structures of f2fs that are damaged, and the sizes of their entries.

/// The fields of the superblock, by offset and size.
pub(super) const SUPERBLOCK_FIELDS: &[(usize, usize)] = &[
    (0, 4),
    (4, 2),
    (6, 2),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 8),
    (44, 4),
    (48, 4),
    (52, 4),
    (56, 4),
    (60, 4),
    (64, 4),
    (68, 4),
    (72, 4),
    (76, 4),
    (80, 4),
    (84, 4),
    (88, 4),
    (92, 4),
    (96, 4),
    (100, 4),
    (104, 4),
    (1148, 4),
    (1664, 4),
    (2180, 4),
    (2184, 1),
    (2201, 1),
    (2745, 4),
    (2749, 4),
    (2753, 4),
    (2757, 1),
    (2758, 2),
    (2760, 2),
];
/// The fields of the head of a checkpoint, by offset and size.
pub(super) const CHECKPOINT_FIELDS: &[(usize, usize)] = &[
    (0, 8),
    (8, 8),
    (16, 8),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 4),
    (40, 4),
    (44, 4),
    (68, 2),
    (70, 2),
    (72, 2),
    (84, 4),
    (88, 4),
    (92, 4),
    (116, 2),
    (118, 2),
    (120, 2),
    (132, 4),
    (136, 4),
    (140, 4),
    (144, 4),
    (148, 4),
    (152, 4),
    (156, 4),
    (160, 4),
    (164, 4),
    (168, 8),
    (176, 1),
    (179, 1),
    (192, 4),
    (200, 4),
];
/// The fields of an inode before its addresses, and of its extra attributes, by offset and size.
pub(super) const INODE_FIELDS: &[(usize, usize)] = &[
    (0, 2),
    (2, 1),
    (3, 1),
    (4, 4),
    (12, 4),
    (16, 8),
    (24, 8),
    (32, 8),
    (56, 4),
    (72, 4),
    (76, 4),
    (80, 4),
    (84, 4),
    (88, 4),
    (347, 1),
    (348, 4),
    (352, 4),
    (356, 4),
    (360, 2),
    (362, 2),
    (364, 4),
    (372, 8),
    (384, 8),
    (392, 1),
    (393, 1),
    (394, 2),
];
/// The numbers of an inode that programs see, by offset and size: owners, links, size, blocks,
/// times, generation.
pub(super) const NUMBERS: &[(usize, usize)] = &[
    (4, 4),
    (8, 4),
    (12, 4),
    (16, 8),
    (24, 8),
    (32, 8),
    (40, 8),
    (48, 8),
    (56, 4),
    (60, 4),
    (64, 4),
    (68, 4),
];

/// The fields of the header of a quota file, and of its first entry, by offset and size: the
/// version and the number of blocks; the id, the number of inodes, and the space.
pub(super) const QUOTA_FIELDS: &[(usize, usize)] =
    &[(4, 4), (20, 4), (QUOTA_ENTRY, 4), (QUOTA_ENTRY + 24, 8), (QUOTA_ENTRY + 48, 8)];
/// The offset of the first entry of a quota file as mkfs.f2fs makes it: in its sixth block of 1
/// KiB.
pub(super) const QUOTA_ENTRY: usize = 5 * 1024 + 16;

/// The sizes of entries in bytes.
pub(super) const SEGMENT_ENTRY: usize = 74;
pub(super) const SUMMARY_ENTRY: usize = 7;
/// The size of the footer of a summary.
pub(super) const SUMMARY_FOOTER: usize = 5;
