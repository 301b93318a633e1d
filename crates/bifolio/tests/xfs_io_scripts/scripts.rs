//! xfs_io scripts in parts. Not here: running them.

/// Name of a file, and the parts of its script.
pub type Script = (&'static str, &'static [Part]);

/// Part of a script. The file system is unmounted after each part.
pub enum Part {
    /// Commands of one xfs_io call.
    Cached(&'static [&'static str]),
    /// Commands of one xfs_io call that opens the file for direct I/O.
    Direct(&'static [&'static str]),
    /// Collapses a range, given as offset and length.
    Collapse(u64, u64),
    /// Inserts a range, given as offset and length.
    Insert(u64, u64),
    /// Commands that fail.
    Refused(&'static [&'static str]),
}

use Part::{Cached, Collapse, Direct, Insert, Refused};

pub const SCRIPTS: [Script; 15] = [
    (
        "holes in data",
        &[
            Cached(&[
                "pwrite -S 0x41 0 100000",
                "fsync",
                "fpunch 4k 8k",
                "pread -v 4090 12",
                "fsync",
            ]),
            Cached(&["fpunch 30000 700", "fpunch 40000 9000", "fpunch 65530 20", "seek -a -r 0"]),
            Cached(&["fpunch 99000 50000", "fpunch 200000 4096", "pread -v 98995 16", "fsync"]),
        ],
    ),
    (
        "holes before writeback",
        &[
            Cached(&[
                "pwrite -S 0x11 0 64k",
                "fpunch 8k 16k",
                "pwrite -S 0x12 12k 1000",
                "fpunch 50k 1",
            ]),
            Cached(&[
                "pread -v 12280 24",
                "pwrite -S 0x13 9000 10",
                "fpunch 0 5000",
                "fsync",
                "seek -a -r 0",
            ]),
        ],
    ),
    (
        "preallocated and punched",
        &[
            Cached(&["falloc 0 256k", "fpunch 64k 64k", "fpunch 130k 3000", "fsync"]),
            Cached(&["pwrite -S 0x21 32k 16k", "pwrite -S 0x22 60k 40k", "fsync", "fpunch 40k 4k"]),
            Cached(&["falloc 60k 80k", "pread -v 65530 12", "pread -v 40956 8"]),
        ],
    ),
    (
        "preallocated after the end",
        &[
            Cached(&["pwrite -S 0x31 0 5000", "falloc -k 0 128k", "fsync"]),
            Cached(&["pwrite -S 0x32 70000 100", "fsync", "truncate 80000", "pread -v 69990 16"]),
            Cached(&[
                "falloc -k 200k 64k",
                "truncate 10000",
                "truncate 20000",
                "pread -v 9996 8",
                "fsync",
            ]),
            Cached(&["falloc 150000 10", "fsync"]),
        ],
    ),
    (
        "zeroes over everything",
        &[
            Cached(&["pwrite -S 0x51 0 64k", "falloc 128k 64k", "truncate 256k", "fsync"]),
            Cached(&["fzero 4k 8k", "fzero 20001 100", "fzero 31000 40000", "fzero 120k 40k"]),
            Cached(&["pread -v 20000 4", "pread -v 30996 8", "fzero -k 250k 64k", "fsync"]),
            Cached(&[
                "fzero 260k 10001",
                "fzero -k 400k 8k",
                "pwrite -S 0x52 262144 3000",
                "fsync",
            ]),
        ],
    ),
    (
        "truncated and extended inside blocks",
        &[
            Cached(&[
                "pwrite -S 0x61 0 50000",
                "truncate 33333",
                "truncate 60000",
                "pread -v 33328 10",
            ]),
            Cached(&[
                "fsync",
                "truncate 20001",
                "pwrite -S 0x62 45001 99",
                "pread -v 19999 4",
                "fsync",
            ]),
            Cached(&[
                "truncate 45010",
                "truncate 1m",
                "pread -v 45008 4",
                "pwrite -S 0x63 1048575 1",
            ]),
            Cached(&["truncate 5", "truncate 4096", "pread -v 0 16", "falloc 0 9000", "fsync"]),
        ],
    ),
    (
        "collapsed",
        &[
            Cached(&["pwrite -S 0x71 0 32k", "pwrite -S 0x72 64k 32k", "falloc 96k 32k", "fsync"]),
            Collapse(16 << 10, 16 << 10),
            Cached(&["pwrite -S 0x73 14k 4k", "pread -v 16380 8", "fsync", "fpunch 60k 4k"]),
            Collapse(28 << 10, 40 << 10),
            Cached(&["pread -v 28668 8", "seek -a -r 0"]),
            Collapse(0, 4 << 10),
        ],
    ),
    (
        "inserted",
        &[
            Cached(&["pwrite -S 0x81 0 40001", "falloc -k 48k 32k", "fsync"]),
            Insert(8 << 10, 12 << 10),
            Cached(&["pread -v 8188 8", "pread -v 20476 8", "pwrite -S 0x82 10k 2k", "fsync"]),
            Insert(0, 64 << 10),
            Cached(&["fpunch 70000 9000", "falloc 4k 8k", "fsync"]),
            Insert(72 << 10, 4 << 10),
        ],
    ),
    (
        "collapsed and inserted",
        &[
            Direct(&["falloc 0 128k", "pwrite -S 0x91 0 16k", "pwrite -S 0x92 48k 16k"]),
            Insert(52 << 10, 8 << 10),
            Direct(&["pwrite -S 0x93 52k 4k", "pread -v 52k 512", "fzero 4k 4k"]),
            Collapse(12 << 10, 44 << 10),
            Cached(&["pwrite -S 0x94 11k 3k", "truncate 50001", "pread -v 12280 16"]),
            Insert(20 << 10, 4 << 10),
        ],
    ),
    (
        "mapped",
        &[
            Cached(&[
                "truncate 300k",
                "falloc 64k 64k",
                "pwrite -S 0xa1 128k 64k",
                "mmap -rw 0 300k",
                "mwrite -S 0xa2 5000 3000",
                "mwrite -S 0xa3 70000 3000",
                "mwrite -S 0xa4 140000 3000",
                "mread -v 69998 4",
                "msync -s 0 300k",
                "pread -v 72998 4",
                "fsync",
            ]),
            Cached(&[
                "mmap -rw 0 300k",
                "mread -v 139998 4",
                "mwrite -S 0xa5 200k 20k",
                "fpunch 210k 4k",
                "mread -v 215036 8",
                "fzero 69k 2k",
                "mread -v 70655 4",
                "mwrite -S 0xa6 70000 10",
                "msync -a 0 300k",
                "munmap",
                "truncate 215000",
                "pread -v 214990 20",
                "fsync",
            ]),
        ],
    ),
    (
        "direct",
        &[
            Direct(&[
                "pwrite -S 0xb1 0 64k",
                "falloc 64k 64k",
                "pwrite -S 0xb2 80k 4k",
                "pread -v 81408 1024",
            ]),
            Direct(&[
                "pwrite -S 0xb3 200k 8k",
                "fpunch 4k 4k",
                "pwrite -S 0xb4 8k 4k",
                "fsync",
                "seek -a -r 0",
            ]),
            Direct(&[
                "truncate 206000",
                "pread -v 205824 512",
                "pwrite -S 0xb5 203k 1k",
                "fzero 1k 2k",
            ]),
        ],
    ),
    (
        "direct, cached and mapped",
        &[
            Cached(&["pwrite -S 0xc1 0 64k", "falloc -k 64k 64k", "pwrite -S 0xc2 10k 2k"]),
            Direct(&[
                "pread -v 9728 1024",
                "pwrite -S 0xc3 8k 4k",
                "mmap -rw 0 64k",
                "mread -v 8190 4",
            ]),
            Direct(&[
                "mmap -rw 0 64k",
                "mwrite -S 0xc4 9000 100",
                "pread -v 8k 1k",
                "msync -s 0 64k",
            ]),
            Cached(&["pread -v 8996 8", "pwrite -S 0xc5 60k 20k", "sync_range -w 0 80k", "fsync"]),
        ],
    ),
    (
        "copied",
        &[
            Cached(&["pwrite -S 0xd1 0 30001", "falloc 64k 32k", "pwrite -S 0xd2 72k 4k", "fsync"]),
            Cached(&["copy_range -s 0 -d 128k -l 30001 copied", "pread -v 131070 4", "fsync"]),
            Cached(&["copy_range -s 70k -d 20001 -l 9000 copied", "pread -v 19999 4", "fsync"]),
        ],
    ),
    (
        "written far apart",
        &[
            Cached(&[
                "pwrite -S 0xe1 3m 1",
                "pwrite -S 0xe2 1m 70000",
                "pwrite -S 0xe3 12345 1",
                "fsync",
            ]),
            Cached(&[
                "seek -a -r 0",
                "seek -d 20000",
                "seek -h 1m",
                "fpunch 1050000 9000",
                "falloc 2m 1",
            ]),
            Cached(&["pwrite -S 0xe4 2m 4k", "pwrite -b 700 -S 0xe5 1030000 50000", "fdatasync"]),
        ],
    ),
    (
        "refused",
        &[
            Cached(&["pwrite -S 0xf1 0 20000", "fsync"]),
            Refused(&["funshare 0 4096"]),
            Refused(&["falloc 0 0"]),
            Refused(&["fpunch 0 0"]),
            Refused(&["pwrite 9223372036854775807 1"]),
            Refused(&["falloc 17592186044416 4096"]),
            Refused(&["truncate -1"]),
        ],
    ),
];
