//! e2fsck as a second judge.

use std::collections::BTreeSet;

use base::DeviceOffset;
use device::SharedDevice;
use testkit::crash::{complaint_of_e2fsck, complaint_of_e2fsck_once_replayed};
use testkit::hostile::written;

/// The offset of the superblock's incompatible features, and the one that says that the log has
/// changes.
const FEATURES: DeviceOffset = DeviceOffset(1024 + 0x60);
const NEEDS_RECOVERY: u8 = 4;
/// The maximum length of words that are not names.
const WORD_MAX: usize = 40;
/// The last pass of e2fsck. It does not get there if the volume cannot be read as a whole.
const LAST_PASS: &str = "Pass 5";
/// The parts of lines that are not complaints.
const FRAME: [&str; 6] =
    ["e2fsck ", "Pass ", "Restarting e2fsck", "still has errors", " files (", "FILE SYSTEM WAS"];
/// The part of lines that name a file with a block of another file, after a line that counts them.
/// They have dates.
const SHARER: &str = "mod time";

/// The kinds of complaints that say nothing about changes, if there was another one before them.
pub const HIDDEN: &[(&str, &[&str])] = &[
    // What a damaged structure does not give back stays in use. Orphans of a volume that has
    // recorded errors are left to e2fsck.
    (
        "",
        &["bitmap marked used", "Deleted inode has zero dtime", "part of the orphaned inode list"],
    ),
    ("", &["part of a corrupted orphan linked list", "rphan file"]),
    ("bitmap", &["Directories count wrong for group"]),
    ("wrong for group", &["Directories count wrong for group"]),
    // Groups whose counts or bitmaps are wrong are not used, and are not in the counts of the
    // superblock.
    ("bitmap", SUPERBLOCK_COUNTS),
    ("wrong for group", SUPERBLOCK_COUNTS),
    // The blocks of a truncated file that are in such a group cannot be freed.
    ("bitmap", &["Inode i size is should be"]),
    ("wrong for group", &["Inode i size is should be"]),
    // An inode that has more links than names stays without a name, and one that has more names is
    // freed before the last one.
    ("ref count is should be", &["Unattached", "Connect to", "has deleted unused inode"]),
    // The contents of a block of another file, which are taken for pointers, change with that file.
    // At first, they need not look like pointers.
    ("llegal block", POINTERS),
    ("Inode i blocks is should be", POINTERS),
    // A block of two files, or one that is in use and can be allocated, has the contents that the
    // last write gave it.
    ("ultiply claimed", SHARED),
    ("ultiply claimed", &["Inode ref count is should be", "Unattached", "Connect to"]),
    // Such a block is freed with one of the owners.
    ("ultiply claimed", &["Block bitmap marked free"]),
    ("multiply claimed block map", &["Block bitmap marked free"]),
    ("Block bitmap marked free", SHARED),
    // A new name takes the place of the missing entry, as in Linux.
    ("Missing dot dot in directory", &["Second entry inode in directory inode should be dot dot"]),
    // For an inode with such an attribute, e2fsck adds a number that it has not set to the expected
    // blocks.
    ("illegal extended attribute value inode", &["Inode i blocks is should be"]),
    // e2fsck does not look at attributes on a volume without their feature, which the first new
    // attribute adds.
    ("i file acl for inode is should be zero", &["Extended attribute in inode"]),
];

const SUPERBLOCK_COUNTS: &[&str] =
    &["Free blocks count wrong counted", "Free inodes count wrong counted"];
const POINTERS: &[&str] = &["llegal block", "Clear inode", "Suppress messages"];
/// What follows of a block with two owners.
const SHARED: &[&str] = &[
    "ultiply claimed",
    "resolve blocks claimed",
    "Entry",
    "dot dot in",
    "irectory inode",
    "xtended attribute",
];

/// What e2fsck says about a volume.
#[derive(Debug)]
pub struct Verdict {
    /// The kinds of complaints. `None` if e2fsck does not get to its end.
    pub kinds: Option<BTreeSet<String>>,
    /// Its output, unless it finds nothing.
    pub text: String,
}

impl Verdict {
    /// Returns the verdict on a volume, once e2fsck has replayed the log if it has changes.
    pub fn of(device: &SharedDevice) -> Self {
        if !has_log(device) {
            return Self::new(complaint_of_e2fsck(device));
        }
        match complaint_of_e2fsck_once_replayed(device) {
            Ok(complaint) => Self::new(complaint),
            Err(text) => Self { kinds: None, text },
        }
    }

    fn new(complaint: Option<String>) -> Self {
        let text = complaint.unwrap_or_default();
        let is_whole = text.is_empty() || text.contains(LAST_PASS);
        Self { kinds: is_whole.then(|| kinds(&text)), text }
    }

    /// Returns whether e2fsck finds nothing.
    pub fn is_clean(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the kinds of complaints of `after` that this verdict, of a time before, does not
    /// have.
    pub fn new_kinds(&self, after: &Self) -> Vec<String> {
        let Some(before) = &self.kinds else { return Vec::new() };
        let Some(after) = &after.kinds else {
            return vec!["e2fsck does not get to its end".to_owned()];
        };
        written::new_kinds(before, after, HIDDEN).into_iter().cloned().collect()
    }
}

/// Returns whether the log of the volume has changes, by the superblock.
pub fn has_log(device: &SharedDevice) -> bool {
    let mut features = [0];
    device.read_at(FEATURES, &mut features).expect("a superblock");
    features[0] & NEEDS_RECOVERY != 0
}

/// Returns the kinds of complaints in the output of e2fsck: its lines without names and numbers.
fn kinds(text: &str) -> BTreeSet<String> {
    let is_complaint = |line: &&str| !FRAME.iter().any(|part| line.contains(part));
    let lines: Vec<String> = text
        .lines()
        .filter(is_complaint)
        .filter(|line| !line.contains(SHARER))
        .flat_map(parts)
        .collect();
    let mut kinds = written::kinds(lines.iter().map(String::as_str));
    kinds.remove("");
    kinds
}

/// Returns a line without its question and its names. Bits that are wrongly set are another kind
/// than those that are wrongly clear.
fn parts(line: &str) -> Vec<String> {
    if let Some((bitmap, list)) = line.split_once(" differences: ") {
        let is_sign = |word: &&str| word.starts_with(['+', '-']);
        let has = |sign: char| list.split_whitespace().any(|word| word.starts_with(sign));
        let signs = [('+', "marked free"), ('-', "marked used")];
        let found = signs.into_iter().filter(|(sign, _)| has(*sign));
        let mut parts: Vec<_> = found.map(|(_, what)| format!("{bitmap} {what}")).collect();
        // Another message may follow in the line.
        let rest = list.split_whitespace().filter(|word| !is_sign(word)).collect::<Vec<_>>();
        parts.push(rest.join(" "));
        return parts;
    }
    let statement = match line.strip_suffix("? no") {
        Some(rest) => rest.rsplit_once("  ").map_or("", |(statement, _)| statement),
        None => line,
    };
    vec![without_names(statement)]
}

/// Returns the words of `line` that are not names or paths. The entries "." and ".." are kept, as
/// words, but not the names of entries.
fn without_names(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let end = match word.as_bytes() {
            [b'\'', b'.', b'\'', ..] if !line.starts_with("Entry") => {
                kept.push("dot");
                continue;
            }
            [b'\'', b'.', b'.', b'\'', ..] if !line.starts_with("Entry") => {
                kept.push("dot-dot");
                continue;
            }
            // Names may have spaces.
            [b'\'', ..] => '\'',
            [b'(', b'/' | b'?', ..] => ')',
            [b'/' | b'?' | b'<', ..] => continue,
            // The rest of a name with a quotation mark.
            _ if word.len() > WORD_MAX => continue,
            _ => {
                // A message may follow a number without a space.
                kept.push(word.trim_start_matches(|sign: char| "+-0123456789".contains(sign)));
                continue;
            }
        };
        if !word[1..].contains(end) {
            words.by_ref().find(|word| word.contains(end));
        }
    }
    kept.join(" ")
}

#[test]
fn complaints_of_one_kind_are_equal_whatever_they_are_about() {
    let of_one = |numbers: [u32; 2], name: &str| {
        format!(
            "e2fsck 1.47.0 (5-Feb-2023)\nPass 2: Checking directory structure\n\
             Entry '{name}' in /many (12) has deleted/unused inode {}.  Clear? no\n\n\
             Pass 5: Checking group summary information\n\
             Block bitmap differences:  +({}--90) -1000\nFix? no\n\n\
             /proc/1/fd/3: ********** WARNING: Filesystem still has errors **********\n",
            numbers[0], numbers[1]
        )
    };
    let verdict = Verdict::new(Some(of_one([40, 50], "name")));
    assert_eq!(verdict.new_kinds(&Verdict::new(Some(of_one([7, 8], "01 nnn")))), [""; 0]);
    let expected = [
        "Block bitmap marked free",
        "Block bitmap marked used",
        "Entry in has deleted unused inode",
    ];
    assert_eq!(verdict.kinds, Some(expected.map(str::to_owned).into()));
    let leaking = Verdict::new(Some("Block bitmap differences:  -7\nPass 5: ".to_owned()));
    assert_eq!(leaking.new_kinds(&verdict), [expected[0], expected[2]]);
    let clean = Verdict::new(None);
    assert_eq!(clean.new_kinds(&leaking), [expected[1]]);
    assert_eq!(clean.new_kinds(&Verdict::new(Some("Aborted.".to_owned()))).len(), 1);
}
