//! Tests of recovery in memory on volumes with features that cannot be written: quota, encryption,
//! verity, directories that ignore case. Opening such a volume for writing fails. Opening it
//! read-only shows the changes in the journal.

use crate::common;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::fast_commits::{DIRECTORY, FastCommits, REGULAR, free, image_of};
use crate::common::{Image, contents, inode_of, run};
use base::attributes::DirCursor;
use base::{Error, GroupNumber, InodeNumber};
use device::{FaultDevice, FaultPlan};
use ext4::fast_commit::ondisk::{TAG_CREATE, TAG_LINK, TAG_UNLINK};
use ext4::{Feature, Inode, InodeFlags, ROOT_INODE, Volume};

const BLOCK: usize = 1024;
const GENERATION: u32 = 77;

const FEATURES: &str = "quota,project,encrypt,verity,casefold,fast_commit";

/// Makes a volume with directories of all kinds: `plain` and `folded` are hashed, `folded` ignores
/// case, and `hidden` is encrypted.
fn make(options: &str) -> Image {
    let options = format!(
        "-t ext4 -b {BLOCK} -I 256 -N 512 -J size=16 -E encoding=utf8 -O {FEATURES} {options}"
    );
    let image = Image::filled(48, &options, |folder| {
        for directory in ["plain", "folded", "hidden"] {
            std::fs::create_dir(folder.join(directory)).unwrap();
            for number in 0..60 {
                std::fs::write(folder.join(directory).join(old_name(number)), b"").unwrap();
            }
        }
        std::fs::write(folder.join("data"), vec![1; 20 * BLOCK]).unwrap();
        std::fs::write(folder.join("first"), vec![2; 30 * BLOCK]).unwrap();
        striped(&folder.join("second"));
        std::fs::write(folder.join("other"), vec![4; 9 * BLOCK]).unwrap();
    });
    let _ = testkit::command::output(Command::new("e2fsck").arg("-fyD").arg(&image.path));
    for (name, flag) in [("folded", InodeFlags::CASEFOLD), ("hidden", InodeFlags::ENCRYPTED)] {
        add_flag(&image, name, flag);
    }
    add_flag(&image, "other", InodeFlags::VERITY);
    image
}

/// Writes every other block of a file, so that its map does not fit into the inode.
fn striped(path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    for index in 0..20 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[3; BLOCK], index * 2 * BLOCK as u64)
            .unwrap();
    }
}

fn old_name(number: u32) -> String {
    format!("{number:03}-{}", "o".repeat(60))
}

fn new_name(number: u32) -> String {
    format!("{number:03}-{}", "n".repeat(60))
}

fn add_flag(image: &Image, name: &str, flag: InodeFlags) {
    let text = image.debugfs(&format!("stat /{name}"));
    let flags = text.split_once("Flags: 0x").unwrap().1.split_whitespace().next().unwrap();
    let flags = u32::from_str_radix(flags, 16).unwrap() | flag.0;
    image.debugfs_write(&format!("sif /{name} flags {flags:#x}\n"));
}

/// Opens an image with recovery in memory. Checks that opening for writing is refused, and that the
/// image is unchanged.
fn recover(image: &Image) -> Arc<Volume> {
    let before = image.bytes();
    let refused = common::open_device_for_writing(image.device(false)).unwrap_err().to_string();
    assert!(refused.contains("quota") && refused.contains("casefold"), "{refused}");
    let volume = image.open();
    for feature in [Feature::Quota, Feature::Encrypt, Feature::Verity, Feature::Casefold] {
        assert!(volume.superblock().has(feature), "{feature:?}");
    }
    assert!(!volume.is_writable());
    assert_eq!(volume.errors().count, 0);
    assert!(before == image.bytes(), "the image was changed");
    volume
}

fn is_in_use(volume: &Volume, number: InodeNumber) -> bool {
    let (group, index) = volume.geometry().inode_position(number).unwrap();
    let group = volume.group(group).unwrap();
    volume.inode_bitmap(&group).unwrap().is_set(index)
}

fn node(volume: &Arc<Volume>, path: &str) -> Inode {
    let mut inode = volume.inode(ROOT_INODE).unwrap();
    for name in path.split('/') {
        let number = inode.lookup(name.as_bytes());
        inode = volume.inode(number.unwrap_or_else(|error| panic!("{path}: {error}"))).unwrap();
    }
    inode
}

/// Returns the names in a directory. Checks that all can be looked up.
fn names(volume: &Arc<Volume>, path: &str) -> BTreeMap<String, InodeNumber> {
    let directory = node(volume, path);
    let mut names = BTreeMap::new();
    directory
        .read_dir(DirCursor::default(), &mut |entry| {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            assert_eq!(names.insert(name, entry.inode), None, "a name twice in {path}");
            ControlFlow::Continue(())
        })
        .unwrap();
    for (name, number) in names.iter().filter(|(name, _)| !name.starts_with('.')) {
        assert_eq!(directory.lookup(name.as_bytes()), Ok(*number), "{path}/{name}");
    }
    names.retain(|name, _| !name.starts_with('.'));
    names
}

/// Returns the findings of the check. Returns what a check finds, except that `hidden` and what was
/// created there have no encryption contexts: debugfs sets flags, but cannot add contexts.
fn findings(volume: &Arc<Volume>) -> Vec<String> {
    let mut findings = Vec::new();
    volume.check(&mut |error: Error| {
        findings.push(error.to_string());
        ControlFlow::Continue(())
    });
    let all = findings.len();
    findings.retain(|finding| {
        ![
            "encryption context is missing",
            "the directory's encryption policy in the inode is missing",
        ]
        .iter()
        .any(|expected| finding.ends_with(expected))
    });
    assert!(findings.len() < all, "the check does not find the missing context of `hidden`");
    findings
}

/// Puts a file to delete and a file to truncate into the orphan list.
fn leave_orphans(image: &Image) -> [InodeNumber; 2] {
    let [first, second] = ["first", "second"].map(|name| inode_of(image, name));
    image.debugfs_write(&format!(
        "unlink /first\nsif <{first}> links_count 0\nsif <{first}> dtime {second}\n\
         sif <{second}> size 2500\nssv last_orphan {first}\nfeature needs_recovery\n"
    ));
    [first, second]
}

#[test]
fn orphans_are_deleted_and_truncated() {
    for options in ["", "-O ^metadata_csum", "-O orphan_file"] {
        let image = make(options);
        let before = image.open().statfs();
        let [first, second] = leave_orphans(&image);
        let volume = recover(&image);
        let report = &volume.recovery().unwrap().orphans;
        assert_eq!((report.deleted, report.truncated), (1, 1), "{options}: {report:?}");
        assert!(report.failure.is_none(), "{options}: {report:?}");
        assert!(!is_in_use(&volume, first) && is_in_use(&volume, second));
        // Freed: the blocks of the first file, all but two blocks of the second file, and the block
        // of its map.
        let after = volume.statfs();
        assert_eq!(after.blocks_free - before.blocks_free, 30 + 18 + 1, "{options}");
        assert_eq!(after.inodes_free - before.inodes_free, 1);
        let second = node(&volume, "second");
        assert_eq!(common::runs(&volume, &second).len(), 2, "{options}");
        assert_eq!(second.attributes().blocks, 4);
        assert_eq!(contents(&volume, &node(&volume, "data")), vec![1; 20 * BLOCK]);
        assert_eq!(findings(&volume), Vec::<String>::new(), "{options}");
    }
}

#[test]
fn a_corrupt_orphan_leaves_the_volume_readable() {
    let image = make("-O ^metadata_csum");
    let [first, _] = leave_orphans(&image);
    image.debugfs_write(&format!("sif <{first}> block[5] 1\n"));
    let volume = recover(&image);
    let report = &volume.recovery().unwrap().orphans;
    assert!(report.failure.is_some() && report.deleted + report.truncated == 0, "{report:?}");
    assert!(is_in_use(&volume, first));
    assert_eq!(contents(&volume, &node(&volume, "data")), vec![1; 20 * BLOCK]);
}

#[test]
fn unreadable_bitmaps_leave_the_volume_readable() {
    let image = make("");
    let [first, _] = leave_orphans(&image);
    let volume = image.open();
    let bitmaps: Vec<u64> = (0..volume.geometry().group_count)
        .map(|group| volume.group(GroupNumber(group)).unwrap().block_bitmap.0)
        .collect();
    drop(volume);
    let device = FaultDevice::new(image.device(true), FaultPlan::default());
    for at in bitmaps.iter().map(|block| block * BLOCK as u64) {
        device.fail_reads_in(at..at + BLOCK as u64);
    }
    let volume = common::open_device(Arc::new(device)).unwrap();
    let report = &volume.recovery().unwrap().orphans;
    assert!(matches!(report.failure, Some(Error::Io(_))), "{report:?}");
    assert_eq!(report.deleted + report.truncated, 0);
    assert!(is_in_use(&volume, first));
    assert_eq!(contents(&volume, &node(&volume, "data")), vec![1; 20 * BLOCK]);
}

#[test]
fn fast_commits_are_replayed() {
    for options in ["", "-O ^metadata_csum", "-O ^dir_index"] {
        let image = make(options);
        let inode = |name: &str| inode_of(&image, name).0;
        let [root, plain, folded, hidden] = [2, inode("plain"), inode("folded"), inode("hidden")];
        let [data, second] = ["data", "second"].map(inode);
        let generation =
            |number| image.open().inode_record(InodeNumber(number)).unwrap().generation;
        let blocks = free(&image, "ffb 12");
        let first_inode = free(&image, "ffi")[0];
        let mut commits = FastCommits::new(BLOCK);
        // Enough names to fill leaves.
        for number in 0..40 {
            let made = first_inode + u64::from(number);
            for parent in [plain, folded] {
                let kind = if parent == plain { TAG_CREATE } else { TAG_LINK };
                commits.name(kind, parent, made, &new_name(number));
            }
            commits.inode(made, &image_of(REGULAR, 5, GENERATION, 0));
            if number % 8 == 0 {
                commits.commit();
            }
        }
        commits.add_range(first_inode, 0, blocks[0], 1);
        for parent in [plain, folded] {
            for number in 0..10 {
                let removed = image.debugfs(&format!(
                    "stat /{}/{}",
                    if parent == plain { "plain" } else { "folded" },
                    old_name(number)
                ));
                let removed = common::number_after(&removed, "Inode:").unwrap();
                commits.name(TAG_UNLINK, parent, removed, &old_name(number));
            }
        }
        commits.commit();
        // A directory with a file in it, whose blocks are not adjacent.
        let [directory, file] = [first_inode + 50, first_inode + 51];
        commits.name(TAG_CREATE, root, directory, "made");
        commits.inode(directory, &image_of(DIRECTORY, BLOCK as u64, GENERATION, 0));
        commits.name(TAG_CREATE, directory, file, "file");
        commits.inode(file, &image_of(REGULAR, 12 * BLOCK as u64, GENERATION, 0));
        for (at, &block) in (0..6).zip(&blocks[1..7]) {
            commits.add_range(file, at * 2, block, 1);
        }
        commits.name(TAG_CREATE, hidden, first_inode + 52, "an encrypted name");
        commits.inode(first_inode + 52, &image_of(REGULAR, 0, GENERATION, 0x800));
        commits.commit();
        // Existing files: `data` grows, and `second` is truncated.
        commits.inode(data, &image_of(REGULAR, 21 * BLOCK as u64, generation(data), 0));
        commits.add_range(data, 20, blocks[7], 1);
        commits.inode(second, &image_of(REGULAR, 2 * BLOCK as u64, generation(second), 0));
        commits.delete_range(second, 2, 1000);
        commits.commit();
        commits.leave_in(&image);

        let volume = recover(&image);
        let report = volume.recovery().unwrap();
        assert_eq!(report.fast_commits, 8, "{options}: {report:?}");
        let expected = |first| -> Vec<String> {
            let mut names: Vec<String> = (first..60).map(old_name).collect();
            names.extend((0..40).map(new_name));
            names.sort();
            names
        };
        for path in ["plain", "folded"] {
            let names: Vec<String> = names(&volume, path).into_keys().collect();
            assert_eq!(names, expected(10), "{options}: {path}");
        }
        let made = node(&volume, &format!("folded/{}", new_name(0)));
        assert_eq!((made.number().0, made.attributes().links), (first_inode, 2));
        assert_eq!((made.attributes().uid, made.size()), (1234, 5));
        assert_eq!(common::runs(&volume, &made), [(0, blocks[0], 1, false)]);
        let directory = node(&volume, "made");
        assert_eq!(directory.attributes().links, 2);
        assert_eq!(directory.lookup(b"..").unwrap(), ROOT_INODE);
        let file = node(&volume, "made/file");
        let runs: Vec<_> =
            (0..6).zip(&blocks[1..7]).map(|(at, &b)| (at * 2, b, 1, false)).collect();
        assert_eq!(common::runs(&volume, &file), runs);
        assert_eq!(file.attributes().blocks, 2 * 7, "its data, and the block of its map");
        let data = node(&volume, "data");
        assert_eq!((data.size(), data.attributes().blocks), (21 * BLOCK as u64, 42));
        assert_eq!(contents(&volume, &data)[..20 * BLOCK], vec![1; 20 * BLOCK]);
        let second = node(&volume, "second");
        assert_eq!((second.size(), second.attributes().blocks), (2 * BLOCK as u64, 2));
        assert_eq!(findings(&volume), Vec::<String>::new(), "{options}");
    }
}

#[test]
fn fast_commits_and_orphans_are_recovered_together() {
    let image = make("");
    let [first, second] = leave_orphans(&image);
    let made = free(&image, "ffi")[0];
    let block = free(&image, "ffb")[0];
    let generation = image.open().inode_record(second).unwrap().generation;
    let mut commits = FastCommits::new(BLOCK);
    commits.name(TAG_CREATE, 2, made, "made");
    commits.inode(made, &image_of(REGULAR, 9, GENERATION, 0));
    commits.add_range(made, 0, block, 1);
    // The second orphan, with a size past the truncation.
    commits.inode(second.0, &image_of(REGULAR, 2500, generation, 0));
    commits.commit();
    commits.leave_in(&image);
    let volume = recover(&image);
    let report = volume.recovery().unwrap();
    assert_eq!(report.fast_commits, 1);
    assert_eq!((report.orphans.deleted, report.orphans.truncated), (1, 1), "{report:?}");
    assert!(!is_in_use(&volume, first) && is_in_use(&volume, InodeNumber(made)));
    assert_eq!(common::runs(&volume, &node(&volume, "second")).len(), 2);
    assert_eq!(common::runs(&volume, &node(&volume, "made")), [(0, block, 1, false)]);
    assert_eq!(findings(&volume), Vec::<String>::new());
}

/// The kernel writes the log, orphans and fast commits. The volume gets the features afterwards.
#[test]
fn a_journal_written_by_the_kernel_is_recovered() {
    testkit::private_mounts();
    let options = ["-t", "ext4", "-b", "1024", "-J", "size=2", "-O", "^metadata_csum,fast_commit"];
    let image = Image::make(24, &options);
    let mount = testkit::LoopMount::new(&image.path, "ext4", "commit=600");
    let path = |name: String| mount.path().join(name);
    for number in 0..100 {
        std::fs::write(path(format!("file{number}")), vec![number; 3000]).unwrap();
    }
    run(Command::new("sync").arg("-f").arg(mount.path()));
    let held: Vec<std::fs::File> = (0..5)
        .map(|number| {
            let path = path(format!("file{number}"));
            let file = std::fs::File::open(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            file
        })
        .collect();
    run(Command::new("sync").arg("-f").arg(mount.path()));
    let mut file = std::fs::File::create(path("fast".into())).unwrap();
    std::io::Write::write_all(&mut file, &[9; 5000]).unwrap();
    file.sync_all().unwrap();
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mount.path()));
    let bytes = std::fs::read(&image.path).unwrap();
    drop((held, file));
    mount.unmount();
    std::fs::write(&image.path, bytes).unwrap();
    let volume = image.open();
    let report = volume.recovery().unwrap().clone();
    assert!(report.log.transactions > 0 && report.orphans.deleted == 5, "{report:?}");
    let free = volume.statfs().blocks_free;
    drop(volume);

    // The features are set in the superblock only now, since the kernel does not support them.
    let mut bytes = image.bytes();
    for (at, bits) in [(0x60, 1 << 16 | 1 << 17), (0x64, 1 << 8 | 1 << 13 | 1 << 15)] {
        let field = &mut bytes[1024 + at..1024 + at + 4];
        let now = u32::from_le_bytes(field.try_into().unwrap()) | bits;
        field.copy_from_slice(&now.to_le_bytes());
    }
    std::fs::write(&image.path, bytes).unwrap();
    let volume = image.open();
    let found = volume.recovery().unwrap();
    assert_eq!(found.log.transactions, report.log.transactions);
    assert_eq!(found.fast_commits, report.fast_commits);
    assert_eq!(found.orphans.deleted, 5);
    assert_eq!(volume.statfs().blocks_free, free);
    assert_eq!(contents(&volume, &node(&volume, "fast")), vec![9; 5000]);
    for number in 5..100 {
        let file = node(&volume, &format!("file{number}"));
        assert_eq!(contents(&volume, &file), vec![number; 3000], "{number}");
    }
}

#[test]
fn volumes_of_later_revisions_are_only_read() {
    let image = Image::make(8, &["-t", "ext4"]);
    image.debugfs_write("ssv rev_level 0x40000001\n");
    let before = image.bytes();
    let refused = common::open_device_for_writing(image.device(false)).unwrap_err();
    let expected = Error::Unsupported(base::Unsupported::Revision { found: 0x4000_0001, known: 1 });
    assert_eq!(refused, expected);
    assert!(!image.open().is_writable());
    assert!(before == image.bytes());
}
