//! f2fs: the images, and the kinds of differences from Linux that are not defects of the library.

use testkit::f2fs::hostile::{Valid, read_images};
use testkit::hostile::Subject;

use super::{Explained, Half};

/// The half of the test for f2fs.
pub const HALF: Half = Half {
    format: "f2fs",
    recovers: "",
    recovers_not: "norecovery",
    seeds: 12,
    explained: EXPLAINED,
};

/// Returns the images.
pub fn subjects() -> Vec<Subject<Valid>> {
    read_images().map(Subject::new).collect()
}

/// Where Linux ends to read files: the size of the largest one, whose inode has no extra attributes.
const SIZE_MAX: u64 = (923 + 2 * 1018 + 2 * 1018 * 1018 + 1018 * 1018 * 1018) * 4096;

/// The kinds of differences that are not defects of the library.
const EXPLAINED: &[Explained] = &[
    Explained {
        reason: "both are right: Linux sets the times of a directory to which a recovery adds names of synced files",
        applies: |difference, case, _| {
            let is_synced = |line: &&str| line.starts_with("new");
            matches!(&*difference.fact, "changed" | "modified")
                && difference.name == "small"
                && case.our_names("small").iter().any(is_synced)
        },
    },
    Explained {
        reason: "the library shows more: Linux mounts a volume although its recovery has failed, without the rest of the \
                 synced files",
        applies: |_, _, reading| reading.has_message("Cannot recover all fsync data"),
    },
    Explained {
        reason: "neither is right: the size is larger than that of any file; Linux reads nothing behind the largest one, \
                 and the library zeroes",
        applies: |difference, _, _| {
            let at = difference.fact.strip_prefix("contents at ");
            let is_behind = at.and_then(|at| at.parse().ok()).is_some_and(|at: u64| at >= SIZE_MAX);
            is_behind && difference.values[1].starts_with("0 bytes")
        },
    },
    Explained {
        reason: "neither is right: a damaged time has a second or more of nanoseconds, of which the library shows the most \
                 that are possible, and Linux adds seconds",
        applies: |difference, _, _| {
            matches!(&*difference.fact, "accessed" | "changed" | "modified" | "created")
                && difference.values[0].ends_with(" + 999999999 ns")
        },
    },
];
