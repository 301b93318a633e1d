//! Damage to single fields of ext4 images: the library's check finds something if e2fsck does, and
//! the other way round, but for a list of differences.

#[path = "../common/mod.rs"]
mod common;
mod specimen;

use std::process::{Command, Stdio};

use testkit::Random;
use testkit::hostile::fields::{Field, Structure};
use testkit::hostile::{Place, other_value};

use self::common::findings;
use self::specimen::Specimen;

/// The kinds of images.
const KINDS: &[&str] = &[
    "-t ext4 -O ^metadata_csum,^uninit_bg,^resize_inode,mmp,quota,orphan_file -J size=1",
    "-t ext3 -I 128 -J size=1",
    "-t ext4 -O metadata_csum,64bit,inline_data,quota,orphan_file,mmp -J size=1",
    "-t ext4 -O ^metadata_csum,uninit_bg,bigalloc,^has_journal,ea_inode -C 4096",
];
/// The number of damaged images of each kind.
const SEEDS: u64 = 125;

/// The checker that finds the damage, if only one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Only {
    Ours,
    Theirs,
}

/// Damage that only one checker finds, by structure and field, and the reason. e2fsck is that of
/// e2fsprogs 1.47.0.
const DIFFERENCES: &[(Structure, &str, Only, &str)] = &[
    (
        Structure::Superblock,
        "last orphan",
        Only::Ours,
        "an orphan that is a reserved inode: with -n, e2fsck does not follow the list of orphans",
    ),
    (Structure::Superblock, "free blocks", Only::Ours, COUNTS),
    (
        Structure::Superblock,
        "journal device",
        Only::Ours,
        "beside an internal journal: Linux does not mount the volume, and e2fsck ignores the number",
    ),
    (Structure::Descriptor, "flags", Only::Ours, CHECKSUM),
    (Structure::Descriptor, "block bitmap checksum", Only::Ours, CHECKSUM),
    (Structure::Descriptor, "inode bitmap checksum", Only::Ours, CHECKSUM),
    (Structure::Descriptor, "unused inodes", Only::Ours, CHECKSUM),
    (
        Structure::Inode,
        "high half of blocks",
        Only::Ours,
        "of the journal's inode: e2fsck looks at this field of inodes with names only",
    ),
    (
        Structure::Extents,
        "depth",
        Only::Ours,
        "of a node below the root: Linux refuses a node whose depth is not that of its parent less one",
    ),
    (
        Structure::Attributes,
        "value size",
        Only::Ours,
        "a byte less, which then pads the value and is not zero: Linux pads values with zeroes",
    ),
    (
        Structure::JournalSuperblock,
        "blocks",
        Only::Ours,
        "no blocks: Linux does not mount a volume with this journal, but e2fsck does not read a log that is empty",
    ),
    (Structure::JournalSuperblock, "first", Only::Ours, "as for the number of blocks"),
    (
        Structure::JournalSuperblock,
        "start",
        Only::Ours,
        "past the end: e2fsck does not read the log, since needs_recovery is not set, but Linux would",
    ),
    (
        Structure::JournalSuperblock,
        "error",
        Only::Theirs,
        "an error that stopped an earlier mount, and no inconsistency: on ext3, e2fsck fails since -n forbids to clear it",
    ),
    (
        Structure::Mmp,
        "interval",
        Only::Ours,
        "longer than any that mke2fs sets: e2fsck does not look, and the next mount may wait for hours",
    ),
    (
        Structure::QuotaFile,
        "magic",
        Only::Ours,
        "e2fsck takes a file without the magic number for none, but Linux does not mount with this quota",
    ),
];

const COUNTS: &str =
    "the superblock's counts of what is free: with -n, e2fsck names them and exits with 0";
const CHECKSUM: &str = "the checksum of a descriptor: e2fsck names it and exits with 0, but Linux does not mount the volume";

/// Returns the output of `e2fsck -fn`, or `None` if it finds nothing.
fn e2fsck(specimen: &Specimen, bytes: &[u8]) -> Option<String> {
    std::fs::write(&specimen.image.path, bytes).unwrap();
    let mut command = Command::new("e2fsck");
    let output =
        command.arg("-fn").arg(&specimen.image.path).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (!output.status.success()).then_some(text)
}

struct Damage<'a> {
    place: &'a Place,
    field: Field,
    bytes: Vec<u8>,
}

fn damage(specimen: &Specimen, seed: u64) -> Damage<'_> {
    let mut random = Random(seed);
    // Each structure is as likely as the others, whatever the number of its instances is.
    let mut structures: Vec<Structure> = Vec::new();
    for place in &specimen.places {
        if !structures.contains(&place.structure) {
            structures.push(place.structure);
        }
    }
    let structure = *random.pick(&structures).unwrap();
    let places: Vec<&Place> =
        specimen.places.iter().filter(|place| place.structure == structure).collect();
    let place = *random.pick(&places).unwrap();
    let field = *random.pick(structure.fields()).unwrap();
    let (_, offset, length) = field;
    let mut bytes = specimen.bytes.clone();
    let at = place.at + offset;
    let new = other_value(&bytes[at..at + length], &mut random);
    bytes[at..at + length].copy_from_slice(&new);
    specimen.shape.mend(&mut bytes, &specimen.bytes, place);
    Damage { place, field, bytes }
}

/// The results of all damages to images of one kind.
#[derive(Default)]
struct Outcome {
    damaged: u64,
    equal: u64,
    /// The structure, the field and the checker of each difference, and a description.
    differences: Vec<(Structure, &'static str, Only, String)>,
}

fn judge_kind(options: &'static str, kind: u64) -> Outcome {
    let specimen = Specimen::make(options);
    assert_eq!(findings(specimen.bytes.clone()), Vec::<String>::new(), "{options}");
    let mut outcome = Outcome::default();
    for seed in kind * 1000..kind * 1000 + SEEDS {
        let Damage { place, field: (field, at, length), bytes } = damage(&specimen, seed);
        let (theirs, ours) = (e2fsck(&specimen, &bytes), findings(bytes.clone()));
        outcome.damaged += 1;
        let only = match (&theirs, ours.is_empty()) {
            (Some(_), true) => Only::Theirs,
            (None, false) => Only::Ours,
            _ => {
                outcome.equal += 1;
                continue;
            }
        };
        let value = |bytes: &[u8]| format!("{:02x?}", &bytes[place.at + at..][..length]);
        let description = format!(
            "{options}, seed {seed}: {:?} {} {field}: {} was {}: only {only:?}\n{}{ours:#?}",
            place.structure,
            place.name,
            value(&bytes),
            value(&specimen.bytes),
            theirs.unwrap_or_default(),
        );
        outcome.differences.push((place.structure, field, only, description));
    }
    outcome
}

#[test]
#[expect(clippy::print_stdout, reason = "shown when the test fails")]
fn the_check_finds_a_damaged_field_if_e2fsck_does() {
    // e2fsck sleeps if the block of multiple-mount protection is damaged, so the kinds run at the
    // same time.
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let kinds = KINDS.iter().zip(0..);
        let threads: Vec<_> =
            kinds.map(|(options, kind)| scope.spawn(move || judge_kind(options, kind))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let damaged: u64 = outcomes.iter().map(|outcome| outcome.damaged).sum();
    let equal: u64 = outcomes.iter().map(|outcome| outcome.equal).sum();
    let mut unused: Vec<_> = DIFFERENCES.iter().collect();
    let mut unlisted = 0;
    for (structure, field, only, description) in outcomes.iter().flat_map(|all| &all.differences) {
        let is_it = |known: &(Structure, &str, Only, &str)| {
            (known.0, known.1, known.2) == (*structure, *field, *only)
        };
        unused.retain(|known| !is_it(known));
        if !DIFFERENCES.iter().any(is_it) {
            unlisted += 1;
            println!("{description}");
        }
    }
    println!("{equal} of {damaged} verdicts are equal");
    assert_eq!(damaged, 500);
    assert!(equal * 100 >= damaged * 94, "{equal} of {damaged}");
    assert_eq!(unlisted, 0);
    assert!(unused.is_empty(), "differences that do not occur: {unused:?}");
}
