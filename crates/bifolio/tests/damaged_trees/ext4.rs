//! ext4: the images, and the kinds of differences from Linux that are not defects of the library.

use testkit::hostile::{Specimen, Subject, tiny, tiny_kinds};

use super::{Explained, Half, NANOSECONDS, Seen, is_count};

/// The flag of indexed directories.
const INDEXED: u32 = 0x1000;

/// The half of the test for ext4.
pub const HALF: Half = Half {
    format: "ext4",
    // Otherwise an image can make the guest panic at its first error.
    recovers: "errors=continue",
    recovers_not: "errors=continue,noload",
    seeds: 8,
    explained: EXPLAINED,
    may_refuse: None,
};

/// Returns the images.
pub fn subjects() -> Vec<Subject<Specimen>> {
    (0..tiny_kinds()).map(|kind| Subject::new(tiny(kind))).collect()
}

/// The kinds of differences that are not defects of the library.
const EXPLAINED: &[Explained] = &[
    Explained {
        reason: "the library is right: where the journal's map has a hole, Linux reads another block, and does not replay \
                 the rest of the log; the library and e2fsck use the superblock's copy of the map",
        applies: |_, Seen { case, reading, .. }| {
            let is_map = case.what.contains("Inode journal") || case.what.contains("of inode 8 at");
            is_map && reading.has_message("journal bmap failed")
        },
    },
    Explained {
        reason: "the library shows more: Linux lists an indexed directory by its index, without names whose hashes are \
                 not those of their block, and names of a block twice if the index has it twice",
        applies: |difference, Seen { case, .. }| {
            let [_, theirs] = difference.values.each_ref().map(|names| dotless(names));
            let all = case.our_names(&difference.name);
            difference.fact == "names"
                && case.flags(&difference.name) & INDEXED != 0
                && theirs.iter().all(|name| all.contains(name))
        },
    },
    Explained {
        reason: "the library shows more: Linux lists a directory up to its size, which is not a multiple of the block size",
        applies: |difference, Seen { case, .. }| {
            let size =
                case.fact(&difference.name, "size").and_then(|size| size.parse::<u64>().ok());
            difference.fact == "names"
                && difference.values[1].is_empty()
                && size.is_some_and(|size| size % 1024 != 0)
        },
    },
    Explained {
        reason: "the library is right: the free blocks and inodes of a group are at most as many as it has",
        applies: |difference, Seen { case, .. }| {
            is_count(difference)
                && ["Descriptor", "Superblock"].iter().any(|part| case.what.contains(part))
                && matches!(difference.numbers(), Some([ours, theirs]) if ours < theirs)
        },
    },
    Explained {
        reason: "the library is cautious: it reads no descriptor with a wrong checksum, and takes the counts of the superblock \
                 then; Linux sums up what the descriptors say",
        applies: |difference, Seen { reading, .. }| {
            is_count(difference)
                && reading.has_message("ext4_check_descriptors: Checksum for group")
        },
    },
    Explained {
        reason: "the library is right: orphans are deleted, which Linux misses if the size of the orphan file, or the number \
                 of the first inode, is damaged",
        applies: |difference, Seen { case, .. }| {
            let damaged = ["Inode orphan file", "first inode", "word 84:"];
            is_count(difference) && damaged.iter().any(|part| case.what.contains(part))
        },
    },
    Explained {
        reason: "neither is right: the size of the journal's inode, by which its blocks are subtracted from the volume's, \
                 is damaged",
        applies: |difference, Seen { case, .. }| {
            let is_blocks = difference.name == "(volume)" && difference.fact == "blocks";
            is_blocks && case.what.contains("Inode journal") && difference.values[0] == "0"
        },
    },
    Explained {
        reason: "both are right: Linux sets the times of an orphan with a name, which it truncates to its size",
        applies: |difference, Seen { reading, .. }| {
            matches!(&*difference.fact, "changed" | "modified")
                && reading.has_message("truncate cleaned up")
        },
    },
    Explained {
        reason: "the library is right: an inode whose extra size is zero has no nanoseconds; Linux takes them from the \
                 unused space",
        applies: |difference, Seen { case, .. }| {
            matches!(&*difference.fact, "accessed" | "changed" | "modified")
                && difference.values[0].ends_with(" + 0 ns")
                && case.what.contains("word 128")
        },
    },
    Explained {
        reason: "neither is right: a damaged time has a second or more of nanoseconds. The library shows the most that are \
                 possible, and Linux shows them as they are",
        applies: |difference, Seen { case, .. }| {
            let [ours, theirs] = difference.values.each_ref().map(|time| parse_time(time));
            let (Some(ours), Some(theirs)) = (ours, theirs) else { return false };
            matches!(&*difference.fact, "accessed" | "changed" | "modified" | "created")
                && case.what.contains("Inode")
                && theirs.1 >= NANOSECONDS
                && ours == (theirs.0, NANOSECONDS - 1)
        },
    },
    Explained {
        reason: "the library is right: an attribute that begins with the name of an access control list is none; Linux \
                 lists it, and cannot read it",
        applies: |difference, _| {
            let [ours, theirs] = difference.values.each_ref().map(|names| dotless(names));
            let is_list = |name: &&str| name.starts_with("system.posix_acl_");
            let others: Vec<&str> = theirs.into_iter().filter(|name| !is_list(name)).collect();
            difference.fact == "attributes" && others == ours
        },
    },
    Explained {
        reason: "the library shows more: Linux lists no attribute of the namespace system but access control lists",
        applies: |difference, _| {
            let [ours, theirs] = difference.values.each_ref().map(|names| dotless(names));
            let is_hidden =
                |name: &&str| name.starts_with("system.") && !name.starts_with("system.posix_acl_");
            let others: Vec<&str> = ours.into_iter().filter(|name| !is_hidden(name)).collect();
            difference.fact == "attributes" && others == theirs
        },
    },
];

/// Returns the seconds and nanoseconds of a time.
fn parse_time(shown: &str) -> Option<(i64, u32)> {
    let (seconds, nanoseconds) = shown.split_once(" s + ")?;
    Some((seconds.parse().ok()?, nanoseconds.strip_suffix(" ns")?.parse().ok()?))
}

/// Returns the entries of a list, without "." and "..": where they have no inode, Linux lists those
/// of an indexed directory.
fn dotless(names: &str) -> Vec<&str> {
    let is_name =
        |entry: &&str| !entry.is_empty() && !entry.starts_with(". ") && !entry.starts_with(".. ");
    names.split(", ").filter(is_name).collect()
}
