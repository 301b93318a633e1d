//! Options of Linux's f2fs, but for those that ext4 has, too.

use super::table::Disposition::{Accepted, Honoured, Refused};
use super::table::Formats::F2fs;
use super::table::Row;

const fn row(options: &'static [&'static str], disposition: super::table::Disposition) -> Row {
    Row { options, formats: F2fs, disposition }
}

/// The rows of these options.
pub const ROWS: &[Row] = &[
    row(&["mode=adaptive|lfs", "background_gc=on|off|sync", "disable_roll_forward"], Honoured),
    row(&["compress_algorithm=VALUE", "compress_log_size=N", "compress_chksum"], Honoured),
    row(&["compress_extension=VALUE", "nocompress_extension=VALUE"], Honoured),
    row(&["compress_mode=fs"], Accepted("files are compressed when their data is written back")),
    row(&["fsync_mode=posix"], Accepted("as Linux does by default")),
    row(&["checkpoint=enable"], Accepted("checkpoints are always written")),
    row(&["alloc_mode=default|reuse"], Accepted("the mode of allocation is that of mode=")),
    row(&["active_logs=6"], Accepted("six logs are always used")),
    row(&["discard_unit=block"], Accepted("blocks are discarded one by one")),
    row(&["memory=normal"], Accepted("--cache-size and cache_size= limit the memory")),
    row(
        &["inline_data", "inline_dentry", "inline_xattr"],
        Accepted(
            "small files, directories and attributes are stored in inodes, as the volume allows",
        ),
    ),
    row(
        &[
            "flush_merge",
            "noflush_merge",
            "checkpoint_merge",
            "nocheckpoint_merge",
            "gc_merge",
            "nogc_merge",
            "atgc",
            "extent_cache",
            "noextent_cache",
            "age_extent_cache",
            "compress_cache",
            "fastboot",
            "nat_bits",
            "lookup_mode=perf|compat|auto",
        ],
        Accepted("tunes what only Linux does; nothing that is written means anything else"),
    ),
    row(
        &["heap", "no_heap", "whint_mode=off|user-based|fs-based"],
        Accepted("Linux ignores it, or has removed it"),
    ),
    row(
        &["prjjquota=", "offprjjquota"],
        Accepted("quota files that are not those of the feature quota are not used"),
    ),
    row(
        &["checkpoint=disable|disable:VALUE"],
        Refused(
            "without checkpoints, all changes would be lost at the end of the mount; copy the image, or mount it read-only",
        ),
    ),
    row(
        &["fsync_mode=strict"],
        Refused("fsync is as in the mode posix; sync the directory, too, or use -o dirsync"),
    ),
    row(
        &["fsync_mode=nobarrier"],
        Refused(
            "flushes of the device cache cannot be disabled, since a power cut would lose synced data",
        ),
    ),
    row(
        &["mode=fragment:segment", "mode=fragment:block"],
        Refused("for tests of Linux, which fragment the volume"),
    ),
    row(
        &["compress_mode=user"],
        Refused("files that are to be compressed are compressed when they are written"),
    ),
    row(&["active_logs=2|4"], Refused("six logs are always used")),
    row(&["discard_unit=segment|section"], Refused("blocks are discarded one by one")),
    row(&["memory=low"], Refused("--cache-size and cache_size= limit the memory")),
    row(
        &["noinline_data", "noinline_dentry", "noinline_xattr", "inline_xattr_size=N"],
        Refused("what is stored in inodes depends on the volume only"),
    ),
    row(
        &["disable_ext_identify"],
        Refused("the volume's list of extensions always says which files are cold"),
    ),
    row(
        &["data_flush"],
        Refused("checkpoints write no data of files; a sync does, and -o commit after a time"),
    ),
    row(
        &["reserve_root=N", "reserve_node=N"],
        Refused("f2fs volumes reserve no blocks for root here"),
    ),
    row(
        &["prjjquota=VALUE"],
        Refused("quota files that are not those of the feature quota would become wrong"),
    ),
    row(
        &["fault_injection=N", "fault_type=N"],
        Refused("for tests of Linux, by errors that it makes itself"),
    ),
    row(&["io_bits=N"], Refused("Linux has removed it")),
];
