//! Tests of damaged orphan lists and orphan files, and of volumes with errors. Opening for writing,
//! recovery in memory and the running kernel leave the same inodes in use, and the volume can be
//! written.

use crate::common;
use std::fs::Permissions;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::fast_commits::{FastCommits, REGULAR, free, image_of};
use crate::common::{Image, number_after, open_device, run};
use base::attributes::AttributeChange;
use base::{Error, InodeNumber};
use device::{FaultDevice, FaultPlan, MemoryDevice};
use ext4::Volume;
use ext4::fast_commit::ondisk::TAG_CREATE;
use testkit::LoopMount;

/// The inodes and blocks that the cases use.
struct Files {
    first: u64,
    second: u64,
    /// The block of a leaf of the first file's map.
    leaf: u64,
    pipe: u64,
    orphan_file_block: u64,
}

/// The orphans of a volume, as commands of debugfs, and the expected state after recovery.
struct Case {
    name: &'static str,
    commands: fn(&Files) -> String,
    /// Whether the first and the second file are in use afterwards.
    in_use: [bool; 2],
    has_errors: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "a file to delete and a file to truncate",
        commands: |files| {
            let Files { first, second, .. } = files;
            format!(
                "{}sif <{first}> dtime {second}\nsif <{second}> size 0\n{}",
                deleted(*first),
                head(*first)
            )
        },
        in_use: [false, true],
        has_errors: false,
    },
    Case {
        name: "a corrupt root",
        commands: |files| {
            let Files { first, second, .. } = files;
            let both = deleted(*first) + &deleted(*second);
            format!(
                "{both}sif <{first}> dtime {second}\nsif <{first}> block[4] 1\n{}",
                head(*first)
            )
        },
        in_use: [true, true],
        has_errors: true,
    },
    Case {
        name: "a corrupt root behind a valid one",
        commands: |files| {
            let Files { first, second, .. } = files;
            let both = deleted(*first) + &deleted(*second);
            format!(
                "{both}sif <{first}> dtime {second}\nsif <{second}> block[5] 1\n{}",
                head(*first)
            )
        },
        in_use: [false, true],
        has_errors: true,
    },
    Case {
        name: "a corrupt leaf before a valid one",
        commands: |files| {
            let Files { first, second, leaf, .. } = files;
            let both = deleted(*first) + &deleted(*second);
            format!(
                "{both}sif <{first}> dtime {second}\nzap_block -p 0x77 {leaf}\n{}",
                head(*first)
            )
        },
        in_use: [true, true],
        has_errors: true,
    },
    Case {
        name: "a number out of range",
        commands: |_| head(99_999),
        in_use: [true, true],
        has_errors: true,
    },
    Case {
        name: "a number out of range that follows",
        commands: |files| format!("sif <{}> dtime 99999\n{}", files.first, head(files.first)),
        in_use: [true, true],
        has_errors: true,
    },
    Case { name: "the journal", commands: |_| head(8), in_use: [true, true], has_errors: true },
    Case {
        name: "an inode that is not in use",
        commands: |_| head(100),
        in_use: [true, true],
        has_errors: true,
    },
    Case {
        name: "a pipe with a name",
        commands: |files| head(files.pipe),
        in_use: [true, true],
        has_errors: true,
    },
    Case {
        name: "a cycle of files with names",
        commands: |files| {
            let Files { first, second, .. } = files;
            format!("sif <{first}> dtime {second}\nsif <{second}> dtime {first}\n{}", head(*first))
        },
        in_use: [true, true],
        has_errors: false,
    },
    Case {
        name: "a cycle of files without names",
        commands: |files| {
            let Files { first, second, .. } = files;
            let both = deleted(*first) + &deleted(*second);
            format!(
                "{both}sif <{first}> dtime {second}\nsif <{second}> dtime {first}\n{}",
                head(*first)
            )
        },
        in_use: [false, false],
        has_errors: true,
    },
    Case {
        name: "a volume with errors",
        commands: |files| format!("{}{}ssv state 2\n", deleted(files.first), head(files.first)),
        in_use: [true, true],
        has_errors: true,
    },
];

/// The cases of orphan files.
const FILE_CASES: &[Case] = &[
    Case {
        name: "two files to delete",
        commands: |files| in_file(files, &[files.first, files.second]),
        in_use: [false, false],
        has_errors: false,
    },
    Case {
        name: "a number out of range between them",
        commands: |files| in_file(files, &[files.first, 99_999, files.second]),
        in_use: [false, false],
        has_errors: true,
    },
    Case {
        name: "an inode that is not in use, and the journal",
        commands: |files| in_file(files, &[100, 8, files.second]),
        in_use: [true, false],
        has_errors: true,
    },
    Case {
        name: "a volume with errors",
        commands: |files| in_file(files, &[files.first]) + "ssv state 2\n",
        in_use: [true, true],
        has_errors: true,
    },
];

fn head(number: u64) -> String {
    format!("ssv last_orphan {number}\n")
}

fn deleted(number: u64) -> String {
    format!("sif <{number}> links_count 0\n")
}

/// Returns commands for orphans in the file. debugfs cannot change the orphan file, so its numbers
/// are comments, which [`make`] writes.
fn in_file(files: &Files, numbers: &[u64]) -> String {
    let mut commands = String::new();
    for number in numbers {
        if [files.first, files.second].contains(number) {
            commands += &deleted(*number);
        }
        commands += &format!("# {number}\n");
    }
    commands
}

fn make(options: &str, case: &Case) -> (Image, Files) {
    let image = Image::filled(16, options, |folder| {
        // Five extents, so that the map has a leaf.
        let first = std::fs::File::create(folder.join("first")).unwrap();
        (0..5).for_each(|index| first.write_all_at(&[1; 1024], index * 4096).unwrap());
        std::fs::write(folder.join("second"), vec![2; 30_000]).unwrap();
        run(Command::new("mkfifo").arg(folder.join("pipe")));
    });
    let inode = |name: &str| common::inode_of(&image, name).0;
    let leaf = image.debugfs("ex /first");
    let leaf = leaf.lines().nth(1).and_then(|line| line.split_whitespace().nth(7)).unwrap_or("0");
    let orphan_file = number_after(&image.dumpe2fs(&["-h"]), "Orphan file inode:");
    let block = orphan_file.map(|number| image.debugfs(&format!("bmap <{number}> 0")));
    let files = Files {
        first: inode("first"),
        second: inode("second"),
        pipe: inode("pipe"),
        leaf: leaf.parse().unwrap(),
        orphan_file_block: block.map_or(0, |block| block.trim().parse().unwrap()),
    };
    let commands = (case.commands)(&files);
    let names = "unlink /first\nunlink /second\n";
    let unlinks = commands.contains("links_count");
    let (names, needs) = (if unlinks { names } else { "" }, "feature needs_recovery\n");
    image.debugfs_write(&format!("{names}{commands}{needs}"));
    let numbers: Vec<u32> =
        commands.lines().filter_map(|line| line.strip_prefix("# ")?.parse().ok()).collect();
    if !numbers.is_empty() {
        image.debugfs_write("feature orphan_present\n");
        let file = std::fs::File::options().write(true).open(&image.path).unwrap();
        for (slot, number) in (0..).zip(&numbers) {
            let at = files.orphan_file_block * 1024 + slot * 4;
            file.write_all_at(&number.to_le_bytes(), at).unwrap();
        }
    }
    (image, files)
}

fn is_in_use(image: &Path, number: u64) -> bool {
    let request = format!("testi <{number}>");
    run(Command::new("debugfs").args(["-R", &request]).arg(image)).contains("marked in use")
}

/// The state of an image after a recovery.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Outcome {
    in_use: [bool; 2],
    last_orphan: Option<u64>,
    has_errors: bool,
}

fn outcome(image: &Path, files: &Files) -> Outcome {
    let superblock = run(Command::new("dumpe2fs").arg("-h").arg(image));
    Outcome {
        in_use: [files.first, files.second].map(|number| is_in_use(image, number)),
        last_orphan: number_after(&superblock, "First orphan inode:"),
        has_errors: superblock.contains("with errors"),
    }
}

fn in_use_in(volume: &Volume, number: u64) -> bool {
    let (group, index) = volume.geometry().inode_position(InodeNumber(number)).unwrap();
    let group = volume.group(group).unwrap();
    volume.inode_bitmap(&group).unwrap().is_set(index)
}

fn check(options: &str, case: &Case) {
    let context = format!("{options}: {}", case.name);
    let (image, files) = make(options, case);
    let expected = Outcome { in_use: case.in_use, last_orphan: None, has_errors: case.has_errors };
    // An inode with a corrupt leaf is deleted, too. The blocks of this leaf stay in use.
    let is_deleted = case.name == "a corrupt leaf before a valid one";
    let in_use = if is_deleted { [false, false] } else { case.in_use };

    // Recovery in memory.
    let volume = image.open();
    let recovery = volume.recovery().expect("the volume needs recovery");
    let with_errors = case.name == "a volume with errors";
    assert_eq!(recovery.orphans.failure.is_some(), case.has_errors && !with_errors, "{context}");
    assert_eq!([files.first, files.second].map(|n| in_use_in(&volume, n)), in_use, "{context}");
    drop(volume);

    // Recovery in place. The error policy makes no difference.
    for policy in [1, 2] {
        let ours = image.scratch.path("ours");
        std::fs::copy(&image.path, &ours).unwrap();
        run(Command::new("debugfs").args(["-w", "-R", &format!("ssv errors {policy}")]).arg(&ours));
        let device =
            device::open(&ours, device::OpenDevice { read_only: false, ..Default::default() });
        let volume = common::open_device_for_writing(device.unwrap());
        let volume = testkit::must(volume, &context);
        // A change. It is not a new file, which would get the inode of a deleted one.
        let root = volume.inode(ext4::ROOT_INODE).unwrap();
        std::sync::Arc::new(root).set_attributes(&AttributeChange::default()).unwrap();
        volume.sync().unwrap();
        volume.close().unwrap();
        drop(volume);
        let expected = Outcome { in_use, ..expected.clone() };
        assert_eq!(outcome(&ours, &files), expected, "{context}, policy {policy}");
        // e2fsck repairs the remaining damage.
        testkit::command::output(Command::new("e2fsck").arg("-fy").arg(&ours));
        testkit::check_by_e2fsck(&ours);
        open_device(device::open(&ours, device::OpenDevice::default()).unwrap()).unwrap();
    }

    let theirs = image.scratch.path("theirs");
    std::fs::copy(&image.path, &theirs).unwrap();
    let mount = LoopMount::new(&theirs, "ext4", "rw,errors=continue");
    std::fs::set_permissions(mount.path(), Permissions::from_mode(0o700)).unwrap();
    mount.unmount();
    assert_eq!(outcome(&theirs, &files), expected, "{context}, the kernel");
}

#[test]
fn damaged_lists_end_as_they_do_for_the_kernel() {
    testkit::private_mounts();
    for options in ["-t ext4 -b 1024 -J size=1 -O ^metadata_csum", "-t ext4 -b 1024 -J size=1"] {
        CASES.iter().for_each(|case| check(options, case));
    }
}

#[test]
fn valid_entries_of_damaged_orphan_files_are_processed_as_by_the_kernel() {
    testkit::private_mounts();
    let options = "-t ext4 -b 1024 -J size=1 -O orphan_file,^metadata_csum";
    FILE_CASES.iter().for_each(|case| check(options, case));
}

/// Returns an image with an orphan file, the file's inode number, its first block, and the number
/// of its blocks.
fn with_orphan_file() -> (Image, u64, u64, u64) {
    let features = "orphan_file,^metadata_csum";
    let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", features]);
    let number = number_after(&image.dumpe2fs(&["-h"]), "Orphan file inode:").unwrap();
    let block = image.debugfs(&format!("bmap <{number}> 0")).trim().parse().unwrap();
    let size = image.debugfs(&format!("stat <{number}>"));
    let size = number_after(&size, "Size:").unwrap();
    image.debugfs_write("feature orphan_present needs_recovery\n");
    (image, number, block, size / 1024)
}

#[test]
fn an_orphan_file_with_the_same_block_twice_is_corrupt() {
    let (image, number, block, _) = with_orphan_file();
    // Two extents of the same block, and a size of two blocks.
    let commands = [(0, "0x2f30a"), (3, "0"), (4, "1"), (6, "1"), (7, "1")];
    let commands = commands.map(|(word, value)| format!("sif <{number}> block[{word}] {value}\n"));
    let locations = [5, 8].map(|word| format!("sif <{number}> block[{word}] {block}\n"));
    image.debugfs_write(&format!(
        "{}{}sif <{number}> size 2048\n",
        commands.concat(),
        locations.concat()
    ));
    let failure = image.open().recovery().unwrap().orphans.failure.clone().unwrap().to_string();
    let refused = common::open_device_for_writing(image.device(false)).unwrap_err().to_string();
    for error in [failure, refused] {
        assert!(
            error.contains("orphan file block") && error.contains("used more than once"),
            "{error}"
        );
    }
}

#[test]
fn an_orphan_file_that_cannot_be_read_leaves_the_volume_readable() {
    for is_zeroed in [true, false] {
        let features = "orphan_file,fast_commit,^metadata_csum";
        let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-J", "size=4", "-O", features]);
        let number = number_after(&image.dumpe2fs(&["-h"]), "Orphan file inode:").unwrap();
        let block: u64 = image.debugfs(&format!("bmap <{number}> 0")).trim().parse().unwrap();
        // Fast commits are replayed all the same.
        let made = free(&image, "ffi")[0];
        let mut commits = FastCommits::new(1024);
        commits.name(TAG_CREATE, 2, made, "made");
        commits.inode(made, &image_of(REGULAR, 0, 1, 0));
        commits.commit();
        commits.leave_in(&image);
        image.debugfs_write("feature orphan_present\n");
        if is_zeroed {
            image.debugfs_write(&format!("clri <{number}>\n"));
        }
        let open_faulty = |read_only| {
            let device = FaultDevice::new(image.device(read_only), FaultPlan::default());
            if !is_zeroed {
                device.fail_reads_in(block * 1024..(block + 1) * 1024);
            }
            Arc::new(device)
        };
        let volume = common::open_device(open_faulty(true)).unwrap();
        let failure = volume.recovery().unwrap().orphans.failure.clone();
        let is_expected = match &failure {
            Some(Error::NotFound) => is_zeroed,
            Some(Error::Io(_)) => !is_zeroed,
            _ => false,
        };
        assert!(is_expected, "{failure:?}");
        assert_eq!(volume.inode(InodeNumber(made)).unwrap().record().links, 1);
        drop(volume);
        assert!(common::open_device_for_writing(open_faulty(false)).is_err());
    }
}

#[test]
fn a_log_that_changes_the_block_size_is_corrupt() {
    let options =
        ["-t", "ext4", "-b", "1024", "-J", "size=2", "-O", "^metadata_csum,^resize_inode"];
    let image = Image::make(8, &options);
    let mut superblock = image.bytes()[1024..2048].to_vec();
    // A volume of one group of 4 KiB blocks, with an orphan.
    let mut set = |at: usize, value: u32| {
        superblock[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    set(0x04, 2048);
    set(0x14, 0);
    set(0x18, 2);
    set(0x1c, 2);
    set(0xe8, 12);
    // debugfs sets the flag in the superblock on the disk.
    let incompatible = u32::from_le_bytes(image.bytes()[1120..1124].try_into().unwrap());
    set(0x60, incompatible | 4);
    let block = image.scratch.write("superblock", &superblock);
    image.debugfs_write(&format!("jo\njw -b 1 {}\njc\n", block.display()));
    let device = || -> device::SharedDevice { Arc::new(MemoryDevice::new(image.bytes())) };
    let read = common::open_device(device()).map(drop).unwrap_err().to_string();
    let written = common::open_device_for_writing(device()).map(drop).unwrap_err().to_string();
    for error in [read, written] {
        assert!(error.contains("block size after the replay is 4096"), "{error}");
    }
}

#[test]
fn only_the_first_errors_of_an_orphan_file_are_recorded() {
    let (image, _, block, blocks) = with_orphan_file();
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    // All numbers are out of range, and each is an error.
    let numbers: Vec<u8> = (100_000_u32..).take(254).flat_map(u32::to_le_bytes).collect();
    for block in block..block + blocks {
        file.write_all_at(&numbers, block * 1024).unwrap();
    }
    drop(file);
    let volume = common::open_for_writing(&image);
    assert!((1..100).contains(&volume.errors().count), "{}", volume.errors().count);
    volume.close().unwrap();
}
