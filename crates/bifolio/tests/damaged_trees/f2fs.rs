//! f2fs: the images, and the kinds of differences from Linux that are not defects of the library.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::InodeNumber;
use device::MemoryDevice;
use testkit::answers::{Answers, Difference, digest};
use testkit::f2fs::hostile::{
    StoredInode, StoredTime, Valid, cut_chain, read_images, stored_inodes, stored_orphans,
};
use testkit::guest::reading::Reading;
use testkit::hostile::Subject;
use vfs::{Volume, VolumeOptions};

use super::{Explained, Half, NANOSECONDS, Seen, is_count, parse_flags, read};

/// The half of the test for f2fs.
pub const HALF: Half = Half {
    format: "f2fs",
    recovers: "",
    recovers_not: "norecovery",
    seeds: 12,
    explained: EXPLAINED,
    may_refuse: Some(may_refuse),
};

/// What Linux says of an address whose block is free in the table of segments, which the library
/// reads only to write.
const IS_FREE: &str = "sit bitmap:0";

fn may_refuse(question: &str, error: &str, reading: &Reading) -> bool {
    match question {
        "mount" | "inode" | "names" => true,
        // User-mode Linux has neither fs-verity nor encryption. If a hint (`i_advise`) says so,
        // Linux removes blocks behind the size of a file when it is opened, which a read-only mount
        // refuses.
        "open" => matches!(error, "Operation not supported" | "Read-only file system"),
        // Linux looks for the end of data only up to an address that no block can have.
        "data" => error == "No such device or address",
        "contents" | "extents" => reading.has_message(IS_FREE),
        _ => false,
    }
}

/// Returns the images.
pub fn subjects() -> Vec<Subject<Valid>> {
    read_images().map(Subject::new).collect()
}

/// Where Linux ends to read files: the number of bytes below all direct nodes, without those of the
/// inode.
const SIZE_MAX: u64 = (2 * 1018 + 2 * 1018 * 1018 + 1018 * 1018 * 1018) * 4096;
/// The flag of inodes with data or entries of their own.
const INLINE: u32 = 0x1000_0000;
/// That of pinned files.
const PINNED: u32 = 0x80_0000;
/// The time in which a run of the test ends.
const RUN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The kinds of differences that are not defects of the library.
const EXPLAINED: &[Explained] = &[
    Explained {
        reason: "both are right: Linux sets the times of a directory to which a recovery adds names of synced files, and the \
                 library takes the time of the last change of such a file",
        applies: |difference, seen| {
            let [ours, theirs] = &difference.values;
            let number = seen.number(&difference.name);
            let inodes = stored_inodes(seen.valid, &seen.image);
            let mut named = inodes.iter().filter(|inode| inode.recovered_in == number);
            matches!(&*difference.fact, "changed" | "modified")
                && named.any(|inode| *ours == shown_by_library(inode.changed))
                && is_now(theirs)
        },
    },
    Explained {
        reason: "neither is right: a damaged time has a second or more of nanoseconds. The library shows the most that are \
                 possible. Linux adds seconds to the time of a change, and shows the others as they are",
        applies: |difference, seen| {
            let number = seen.number(&difference.name);
            let inodes = stored_inodes(seen.valid, &seen.image);
            let own = inodes.iter().filter(|inode| Some(inode.number) == number);
            own.filter_map(|inode| stored_time(inode, &difference.fact)).any(|time| {
                let expected = [shown_by_library(time), shown_by_linux(time, &difference.fact)];
                time.nanoseconds >= NANOSECONDS && difference.values == expected
            })
        },
    },
    Explained {
        reason: "the library is cautious: the chain of synced nodes ends before an inode without the checksum that it should \
                 have, as before one that a power cut has torn; Linux compares no checksums there",
        applies: |_, seen| {
            let inodes = stored_inodes(seen.valid, &seen.image);
            inodes.iter().any(|inode| inode.is_synced && inode.lacks_checksum)
        },
    },
    Explained {
        reason: "the library shows more: Linux mounts a volume although its recovery has failed, without any of the synced \
                 files",
        applies: |difference, seen| {
            seen.reading.has_message("Cannot recover all fsync data")
                && is_without_chain(difference, seen)
        },
    },
    Explained {
        reason: "both are right: with `norecovery`, Linux deletes inodes without a name, and the library changes nothing",
        applies: |difference, seen| {
            seen.case.no_recovery && is_count(difference) && is_without_chain(difference, seen)
        },
    },
    Explained {
        reason: "the library is cautious: an inode in the list of those without a name is damaged, or has links; Linux deletes \
                 it, and the library counts its block as used",
        applies: |difference, seen| {
            let gained = difference.numbers().and_then(|[ours, theirs]| theirs.checked_sub(ours));
            is_count(difference)
                && gained.is_some_and(|gained| (1..=kept_orphans(seen)).contains(&gained))
        },
    },
    Explained {
        reason: "Linux is right: an inode without a name has addresses that its count of blocks does not have; the library \
                 counts their blocks as free",
        applies: |difference, seen| {
            let orphans = stored_orphans(seen.valid, &seen.image);
            let inodes = stored_inodes(seen.valid, &seen.image);
            let own = inodes.iter().filter(|inode| orphans.contains(&inode.number));
            let most: u64 = own.map(|inode| inode.not_counted).sum();
            let lost = difference.numbers().and_then(|[ours, theirs]| ours.checked_sub(theirs));
            is_count(difference) && lost.is_some_and(|lost| (1..=most).contains(&lost))
        },
    },
    Explained {
        reason: "the library is right: only regular files can be pinned; Linux shows a damaged bit of a directory",
        applies: |difference, Seen { case, .. }| {
            let is_directory =
                case.fact(&difference.name, "mode").is_some_and(|mode| mode.starts_with("04"));
            let [ours, theirs] = difference.values.each_ref().map(|flags| parse_flags(flags));
            difference.fact == "flags" && is_directory && theirs == ours | PINNED
        },
    },
    Explained {
        reason: "both are right: reserved blocks in the middle of data are a hole for the library, and data for Linux",
        applies: |difference, Seen { case, .. }| {
            let [ours, theirs] = difference.values.each_ref().map(|text| parse_ranges(text));
            let reserved = reserved_ranges(case.fact(&difference.name, "extents").unwrap_or(""));
            let either: Vec<_> = ours.iter().chain(&reserved).cloned().collect();
            difference.fact == "data"
                && ours.iter().all(|range| covers(&theirs, range))
                && theirs.iter().all(|range| covers(&either, range))
        },
    },
    Explained {
        reason: "the library shows more: Linux looks for data only up to the address of a block that is free",
        applies: |difference, seen| {
            let [ours, theirs] = difference.values.each_ref().map(|text| parse_ranges(text));
            difference.fact == "data"
                && seen.reading.has_message(IS_FREE)
                && theirs.len() < ours.len()
                && theirs.iter().all(|range| covers(&ours, range))
        },
    },
    Explained {
        reason: "the library is right: Linux deletes an inode that has a name, since its number of links is zero",
        applies: |difference, seen| {
            is_count(difference)
                && seen.reading.has_message("has zero i_nlink")
                && matches!(difference.numbers(), Some([ours, theirs]) if ours < theirs)
        },
    },
    Explained {
        reason: "neither is right: the size is larger than that of any file; Linux reads nothing behind the largest one, \
                 and the library zeroes",
        applies: |difference, _| {
            let at = difference.fact.strip_prefix("contents at ");
            let at = at.and_then(|at| at.parse().ok()).unwrap_or(0_u64);
            at >= SIZE_MAX
                && difference.values[0].ends_with(&digest(&[0; 4096]))
                && difference.values[1].starts_with("0 bytes")
        },
    },
    Explained {
        reason: "the library is right: an inode whose data or entries are in it counts at most a block for them; Linux \
                 counts its damaged size",
        applies: |difference, Seen { case, .. }| {
            let size = case.fact(&difference.name, "size").and_then(|size| size.parse().ok());
            let size: u64 = size.unwrap_or(0);
            let added = size.div_ceil(512).checked_sub(size.min(4096).div_ceil(512));
            let flags = case.flags(&difference.name);
            difference.fact == "blocks"
                && flags & INLINE != 0
                && difference
                    .numbers()
                    .is_some_and(|[ours, theirs]| theirs.checked_sub(ours) == added)
        },
    },
];

impl Seen<'_> {
    /// Returns the number of the inode with a name.
    fn number(&self, name: &str) -> Option<u64> {
        self.case.fact(name, "inode")?.parse().ok()
    }
}

/// Returns the ranges in a list of them.
fn parse_ranges(text: &str) -> Vec<Range<u64>> {
    let parse = |part: &str| {
        let (start, end) = part.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    text.split(", ").filter_map(parse).collect()
}

/// Returns the ranges of the reserved blocks in a list of extents.
fn reserved_ranges(text: &str) -> Vec<Range<u64>> {
    let parse = |part: &str| {
        let (start, rest) = part.strip_suffix(" unwritten")?.split_once('+')?;
        let (start, length): (u64, u64) =
            (start.parse().ok()?, rest.split_once('@')?.0.parse().ok()?);
        Some(start..start + length)
    };
    text.split(", ").filter_map(parse).collect()
}

/// Returns whether `ranges` together have all of `wanted`.
fn covers(ranges: &[Range<u64>], wanted: &Range<u64>) -> bool {
    let mut at = wanted.start;
    while at < wanted.end {
        match ranges.iter().find(|range| range.contains(&at)) {
            Some(range) => at = range.end,
            None => return false,
        }
    }
    true
}

/// Returns whether the value of Linux is that of the library for the image as if nothing was synced
/// since the checkpoint.
fn is_without_chain(difference: &Difference, seen: &Seen<'_>) -> bool {
    let others = seen.others.get_or_init(|| {
        let mut image = seen.image.clone();
        cut_chain(seen.valid, &mut image);
        read(&Arc::new(image), false)
    });
    let of =
        |answers: &Answers| answers.fact(&difference.name, &difference.fact).map(str::to_owned);
    let [ours, theirs] =
        [others, &seen.reading.answers].map(|answers| answers.as_ref().ok().and_then(of));
    ours.is_some() && ours == theirs
}

/// Returns the number of inodes without a name that the library does not delete: it cannot read
/// them, or they have links.
fn kept_orphans(seen: &Seen<'_>) -> u64 {
    let options = VolumeOptions { no_recovery: true, ..VolumeOptions::default() };
    let device = Arc::new(MemoryDevice::new(seen.image.clone()));
    let Ok(volume) = Volume::open_device(device, &options) else { return 0 };
    let orphans = stored_orphans(seen.valid, &seen.image).into_iter().map(InodeNumber);
    let is_kept = |number: &InodeNumber| {
        volume.node(*number).map_or(true, |node| node.attributes().links > 0)
    };
    orphans.filter(is_kept).count() as u64
}

fn stored_time(inode: &StoredInode, fact: &str) -> Option<StoredTime> {
    Some(match fact {
        "accessed" => inode.accessed,
        "changed" => inode.changed,
        "modified" => inode.modified,
        "created" => inode.created,
        _ => return None,
    })
}

fn shown_by_library(StoredTime { seconds, nanoseconds }: StoredTime) -> String {
    format!("{seconds} s + {} ns", nanoseconds.min(NANOSECONDS - 1))
}

fn shown_by_linux(StoredTime { seconds, nanoseconds }: StoredTime, fact: &str) -> String {
    match fact {
        "changed" => {
            let carried = seconds.wrapping_add((nanoseconds / NANOSECONDS).into());
            format!("{carried} s + {} ns", nanoseconds % NANOSECONDS)
        }
        _ => format!("{seconds} s + {nanoseconds} ns"),
    }
}

/// Returns whether a time is within the run of the test.
fn is_now(time: &str) -> bool {
    let seconds = time.split_once(" s").and_then(|(seconds, _)| seconds.parse().ok());
    let shown = seconds.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let now = SystemTime::now();
    shown.is_some_and(|shown| shown < now + Duration::from_secs(60) && now - RUN_MAX < shown)
}
