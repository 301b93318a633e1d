//! Options of Linux's ext4, and of the older ext2 and ext3, and those that f2fs has, too.

use super::table::Disposition::{Accepted, Honoured, Refused};
use super::table::Formats::{Both, Ext4};
use super::table::Row;

const fn row(options: &'static [&'static str], disposition: super::table::Disposition) -> Row {
    Row { options, formats: Ext4, disposition }
}

const fn both(options: &'static [&'static str], disposition: super::table::Disposition) -> Row {
    Row { options, formats: Both, disposition }
}

/// The rows of these options.
pub const ROWS: &[Row] = &[
    both(&["barrier[=1]"], Accepted("caches of the device are always flushed")),
    both(&["user_xattr", "acl"], Accepted("always in effect")),
    both(&["inlinecrypt"], Accepted("the server encrypts, which leaves the same on the device")),
    both(
        &["noquota", "usrjquota=", "grpjquota=", "offusrjquota", "offgrpjquota"],
        Accepted("quota files that are not those of the feature quota are not used"),
    ),
    both(
        &["nobarrier", "barrier=0"],
        Refused(
            "flushes of the device cache cannot be disabled, since a power cut would lose synced data",
        ),
    ),
    both(&["noacl"], Refused("access control lists cannot be disabled")),
    both(&["nouser_xattr"], Refused("extended attributes cannot be disabled")),
    both(
        &["quota", "usrquota", "grpquota", "prjquota"],
        Refused(
            "limits of quotas are not enforced; usage is counted without the option, where the volume has the feature quota",
        ),
    ),
    both(
        &["usrjquota=VALUE", "grpjquota=VALUE", "jqfmt=vfsold|vfsv0|vfsv1"],
        Refused(
            "quota files that are not those of the feature quota would become wrong; see tune2fs -O quota",
        ),
    ),
    both(
        &["resuid=N", "resgid=N"],
        Refused(
            "the superblock says who may use reserved blocks (tune2fs -u and -g); f2fs reserves none",
        ),
    ),
    both(
        &["test_dummy_encryption[=v1|v2]"],
        Refused("for tests of Linux; --key gives the keys of encrypted files"),
    ),
    row(&["noload"], Honoured),
    row(
        &["data=ordered|writeback"],
        Accepted("data is always written before the metadata that refers to it"),
    ),
    row(
        &["data_err=ignore"],
        Accepted("the next fsync of the file reports an error of writing data"),
    ),
    row(&["bsddf"], Accepted("df does not count the blocks of the file system's own structures")),
    row(&["grpid", "bsdgroups", "nogrpid", "sysvgroups"], Honoured),
    row(&["delalloc"], Accepted("blocks are always allocated when data is written back")),
    row(
        &["block_validity", "noblock_validity"],
        Accepted(
            "the blocks of files are always compared with those of the file system's own structures",
        ),
    ),
    row(
        &["journal_checksum", "nojournal_checksum"],
        Accepted("the journal has checksums where the volume's features say so (metadata_csum)"),
    ),
    row(
        &["journal_async_commit"],
        Accepted("a commit always waits for its blocks, which is more than the option asks for"),
    ),
    row(&["dax=inode|never"], Accepted("files are never mapped from persistent memory")),
    row(
        &["init_itable[=N]", "noinit_itable"],
        Accepted("inode tables are initialized when they are used, and not in the background"),
    ),
    row(
        &[
            "stripe=N",
            "inode_readahead_blks=N",
            "journal_ioprio=0..7",
            "min_batch_time=N",
            "max_batch_time=N",
            "mb_optimize_scan=0..1",
            "dioread_nolock",
            "nodioread_nolock",
            "dioread_lock",
            "nombcache",
            "no_mbcache",
            "no_prefetch_block_bitmaps",
        ],
        Accepted("tunes what only Linux does; nothing that is written means anything else"),
    ),
    row(
        &[
            "prefetch_block_bitmaps",
            "mblk_io_submit",
            "nomblk_io_submit",
            "bh",
            "nobh",
            "orlov",
            "oldalloc",
            "reservation",
            "noreservation",
            "check=none",
            "nocheck",
        ],
        Accepted("Linux ignores it, too"),
    ),
    row(
        &["debug", "warn_on_error", "nowarn_on_error"],
        Accepted("for messages of the kernel; those of the server go to its log"),
    ),
    row(&["max_dir_size_kb=0"], Accepted("the size of directories is not limited")),
    row(&["data=journal"], Refused("journaling of file data is not supported")),
    row(
        &["data_err=abort"],
        Refused(
            "an error of writing data is reported by the next fsync, and does not end the journal",
        ),
    ),
    row(&["minixdf"], Refused("df does not count the blocks of the file system's own structures")),
    row(&["nodelalloc"], Refused("delayed allocation cannot be disabled; -o sync writes at once")),
    row(&["dax", "dax=always", "xip"], Refused("files cannot be mapped from persistent memory")),
    row(&["nouid32"], Refused("owners have 32 bits")),
    row(
        &["sb=N"],
        Refused(
            "a damaged superblock is replaced by a backup; `bifolio mount --superblock` names one",
        ),
    ),
    row(&["journal_dev=N"], Refused("name the device of the journal: journal_path=, or --journal")),
    row(&["debug_want_extra_isize=N"], Refused("the superblock says how large new inodes are")),
    row(&["max_dir_size_kb=N"], Refused("the size of directories cannot be limited")),
    row(
        &["abort", "fc_debug_force", "fc_debug_max_replay=N"],
        Refused("for tests of Linux, by errors that it makes itself"),
    ),
    row(
        &["emergency_ro", "shutdown"],
        Refused("Linux shows it for a volume that has failed; check the volume"),
    ),
];
