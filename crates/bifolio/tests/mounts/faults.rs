//! Mounts of a failing image. The image is a sparse file on a full tmpfs, so writes to its holes
//! fail.

use crate::mounting;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::mounting::{Fixture, Mount, bifolio};
use rustix::fs::FallocateFlags;
use testkit::command::{output, run};
use testkit::{Format, check_by_e2fsck, private_mounts};

const BLOCK_BYTES: u64 = 4096;
const IMAGE_BYTES: u64 = 64 << 20;

/// Creates an image of ext4 that cannot be written at the blocks of `inode`, in the syntax of
/// debugfs.
fn fixture_with_unwritable(inode: &str) -> Fixture {
    private_mounts();
    let fixture = Fixture::with_tree();
    let image = &fixture.image;
    let blocks = run(Command::new("debugfs").args(["-R", &format!("blocks {inode}")]).arg(image));
    let blocks = String::from_utf8(blocks).unwrap();
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    assert!(blocks.len() > 100, "{blocks:?}");
    // The first block of the journal is its superblock, which stays writable.
    with_holes(fixture, &blocks[1..])
}

/// Moves the image to a full tmpfs, so that it cannot be written at `blocks`, which lose their
/// contents.
fn with_holes(fixture: Fixture, blocks: &[u64]) -> Fixture {
    let image = fs::read(&fixture.image).unwrap();
    let folder = fixture.image.parent().unwrap();
    let backing = folder.join("backing");
    fs::create_dir(&backing).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=66M", "none"]).arg(&backing));
    let moved = backing.join("image");
    fs::write(&moved, image).unwrap();
    let file = OpenOptions::new().write(true).open(&moved).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, IMAGE_BYTES).unwrap();
    for block in blocks {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, block * BLOCK_BYTES, BLOCK_BYTES).unwrap();
    }
    let full = File::create(backing.join("full")).unwrap();
    for step in [1 << 20, BLOCK_BYTES] {
        let mut at = full.metadata().unwrap().len();
        while full.write_all_at(&vec![1; step as usize], at).is_ok() {
            at += step;
        }
    }
    Fixture { image: moved, ..fixture }
}

/// The number of blocks in a segment of f2fs.
const SEGMENT_BLOCKS: u64 = 512;

/// The superblock and the last checkpoint of an image of f2fs with blocks of 4 KiB. Source: kernel
/// documentation, `filesystems/f2fs.rst`, and `f2fs_fs.h` of f2fs-tools for the offsets.
struct F2fs {
    superblock: Vec<u8>,
    /// The number of the last checkpoint's pack: 0 or 1.
    pack: u64,
    checkpoint: Vec<u8>,
}

impl F2fs {
    fn of(image: &Path) -> Self {
        let file = File::open(image).unwrap();
        let block = |number: u64| {
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            file.read_exact_at(&mut bytes, number * BLOCK_BYTES).unwrap();
            bytes
        };
        let superblock = block(0).split_off(1024);
        let packs = [0, 1].map(|pack| block(word(&superblock, 76) + pack * SEGMENT_BLOCKS));
        let version = |pack: &[u8]| u64::from_le_bytes(*pack.first_chunk().unwrap());
        let pack = u64::from(version(&packs[1]) > version(&packs[0]));
        let checkpoint = packs[pack as usize].clone();
        Self { superblock, pack, checkpoint }
    }

    /// Returns the blocks that the next checkpoint is written to.
    fn next_pack(&self) -> Vec<u64> {
        let start = word(&self.superblock, 76) + (1 - self.pack) * SEGMENT_BLOCKS;
        (start..start + SEGMENT_BLOCKS).collect()
    }

    /// Returns the blocks of the segment that new files get blocks in, if the end of their name is
    /// that of cold data.
    fn cold_data(&self) -> Vec<u64> {
        let segment = word(&self.checkpoint, 84 + 4 * 2);
        let start = word(&self.superblock, 92) + segment * SEGMENT_BLOCKS;
        (start..start + SEGMENT_BLOCKS).collect()
    }

    /// Returns whether the last checkpoint says that the volume needs fsck.f2fs.
    fn needs_fsck(&self) -> bool {
        word(&self.checkpoint, 132) & 0x10 != 0
    }
}

/// Creates an empty image of f2fs.
fn f2fs() -> Fixture {
    let fixture = Fixture { format: Format::F2fs, ..Fixture::new() };
    fixture.format.make(&fixture.image, IMAGE_BYTES >> 20);
    fixture
}

/// Returns four bytes at `at`.
fn word(bytes: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()).into()
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn create(path: &Path) -> File {
    OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap()
}

fn is_io(result: io::Result<()>) {
    let error = result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
}

#[test]
fn a_data_write_error_is_reported_once_to_every_open_file() {
    for options in ["rw,nowriteback", "rw,writeback"] {
        check_data_write_error(&fixture_with_unwritable("/big"), "big", options);
    }
}

#[test]
fn a_data_write_error_on_f2fs_is_reported_once_to_every_open_file() {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let fixture = f2fs();
        let cold = F2fs::of(&fixture.image).cold_data();
        check_data_write_error(&with_holes(fixture, &cold), "film.mp4", options);
    }
}

/// Writes to a file whose data cannot be written.
fn check_data_write_error(fixture: &Fixture, name: &str, options: &str) {
    let mount = fixture.mount(&["-o", options]);
    let path = mount.path().join(name);
    let [first, second] = [&path, &path].map(|path| create(path));
    first.write_all_at(&[7; 100_000], 1 << 20).unwrap();
    for file in [&first, &second] {
        is_io(file.sync_all());
        file.sync_all().unwrap();
    }
    let new = mount.path().join("new");
    fs::write(&new, "still").unwrap();
    open(&new).sync_all().unwrap();
    drop((first, second));
    // The second one succeeds. Of sync(2), no program gets the error of the first one.
    let syncs = [(); 2].map(|()| output(bifolio("sync").arg(mount.path())).status.success());
    assert_eq!(syncs, [false, true]);
    let said = fails_to_umount(fixture, "some data could not be written earlier; ");
    // With `writeback`, the kernel writes whole pages.
    let of_bytes = |bytes: u32| said.contains(&format!("/{name} ({bytes} bytes)"));
    assert!(of_bytes(100_000) || of_bytes(102_400), "{said}");
    mount.assert_gone();
    fixture.check();
    let mount = fixture.mount(&["-o", "ro"]);
    assert_eq!(fs::read(mount.path().join("new")).unwrap(), b"still");
}

/// Unmounts. Returns the error, which says that the volume could not be closed.
fn fails_to_close(fixture: &Fixture) -> String {
    fails_to_umount(fixture, "closing the volume: ")
}

/// Unmounts. Returns the error, which has this reason.
fn fails_to_umount(fixture: &Fixture, reason: &str) -> String {
    let output = fixture.try_umount();
    let said = output.text();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("unmounted, but {reason}")), "{said}");
    assert_eq!(mounting::mount_entry(&fixture.directory), None);
    said
}

/// The programs that write see no error, since the host's disk is full only when the data is
/// written back.
#[test]
fn unmounting_says_which_files_lose_data_on_a_full_host() {
    private_mounts();
    for format in [Format::Ext4(4096), Format::F2fs] {
        for options in ["rw", "rw,noloop"] {
            let fixture = Fixture { format, ..Fixture::new() };
            let host = fixture.folder.path().join("host");
            fs::create_dir(&host).unwrap();
            run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=60M", "none"]).arg(&host));
            let fixture = Fixture { image: host.join("image"), ..fixture };
            format.make(&fixture.image, 128);
            let mount = fixture.mount(&["-o", &format!("{options},commit=3600")]);
            fs::create_dir(mount.path().join("d")).unwrap();
            fs::write(mount.path().join("d/large"), vec![7; 20 << 20]).unwrap();
            assert!(fs::write(host.join("other"), vec![1; 60 << 20]).is_err());
            let said = fails_to_close(&fixture);
            assert!(said.contains("/d/large (20971520 bytes)"), "{said}");
            mount.assert_gone();
        }
    }
}

#[test]
fn a_journal_write_error_makes_the_mount_read_only() {
    for options in ["rw,nowriteback", "rw,writeback"] {
        let fixture = fixture_with_unwritable("<8>");
        let log = fixture.folder.path().join("log");
        let mount = fixture.mount(&["-o", options, "--log", log.to_str().unwrap()]);
        let path = mount.path().join("new");
        let outcome = fs::write(&path, "lost").and_then(|()| open(&path).sync_all());
        is_io(outcome);
        for error in [
            fs::create_dir(mount.path().join("directory")).unwrap_err(),
            fs::remove_file(mount.path().join("small")).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
        }
        let source = fs::read(fixture.source().join("big")).unwrap();
        assert!(fs::read(mount.path().join("big")).unwrap() == source);
        let lost = fails_to_close(&fixture);
        assert!(lost.contains("/new (4 bytes)"), "{lost}");
        mount.assert_gone();
        // The server is in the background, so its messages are only in the log.
        let said = fs::read_to_string(&log).unwrap();
        let closing = format!("{}: closing the volume: ", mount.path().display());
        for part in ["the volume accepts no more writes", &closing] {
            assert!(said.lines().any(|line| line.contains(part)), "{said}");
        }
        // The transaction is not in the journal, and the image is unchanged.
        check_by_e2fsck(&fixture.image);
        fs::remove_file(fixture.image.with_file_name("full")).unwrap();
        let repaired = output(Command::new("e2fsck").arg("-fp").arg(&fixture.image));
        assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", repaired.text());
        let mount = fixture.mount(&["-o", "rw"]);
        assert!(fs::read(mount.path().join("big")).unwrap() == source);
        fs::write(mount.path().join("new"), "written").unwrap();
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
    }
}

#[test]
fn a_checkpoint_write_error_makes_the_mount_read_only() {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let fixture = f2fs();
        let mount = fixture.mount(&["-o", options]);
        let kept = mount.path().join("kept");
        fs::write(&kept, "durable").unwrap();
        fixture.umount();
        mount.assert_gone();
        drop(mount);
        let next = F2fs::of(&fixture.image).next_pack();
        let fixture = with_holes(fixture, &next);
        let log = fixture.folder.path().join("log");
        let mount = fixture.mount(&["-o", options, "--log", log.to_str().unwrap()]);
        let lost = mount.path().join("lost");
        // The first change of a mount, or the first sync, writes a checkpoint.
        is_io(fs::write(&lost, "lost").and_then(|()| open(&lost).sync_all()));
        is_io(File::open(mount.path()).unwrap().sync_all());
        for error in [
            fs::create_dir(mount.path().join("directory")).unwrap_err(),
            fs::remove_file(&kept).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
        }
        assert_eq!(fs::read(&kept).unwrap(), b"durable");
        fails_to_close(&fixture);
        mount.assert_gone();
        // The server is in the background, so its messages are only in the log.
        let said = fs::read_to_string(&log).unwrap();
        let closing = format!("{}: closing the volume: ", mount.path().display());
        for part in ["the volume is shut down", &closing] {
            assert!(said.lines().any(|line| line.contains(part)), "{said}");
        }
        fs::remove_file(fixture.image.with_file_name("full")).unwrap();
        fixture.format.recover(&fixture.image);
        let mount = fixture.mount(&["-o", "rw"]);
        assert_eq!(fs::read(mount.path().join("kept")).unwrap(), b"durable");
        assert!(!mount.path().join("lost").exists());
        fs::write(mount.path().join("new"), "written").unwrap();
        fixture.umount();
        mount.assert_gone();
        fixture.check();
    }
}

#[test]
fn the_error_policy_of_a_mount_of_f2fs_is_to_go_on_unless_an_option_says_otherwise() {
    private_mounts();
    for (options, goes_on) in [
        ("rw", true),
        ("rw,errors=continue", true),
        ("rw,errors=remount-ro", false),
        ("rw,errors=panic", false),
    ] {
        let fixture = f2fs();
        let mount = fixture.mount(&["-o", "rw"]);
        for name in ["damaged file", "sound file"] {
            fs::write(mount.path().join(name), [7; 10_000]).unwrap();
        }
        fixture.umount();
        mount.assert_gone();
        damage_inode(&fixture.image, "damaged file");
        let mount = fixture.mount(&["-o", options]);
        let refused = fs::read(mount.path().join("damaged file")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(117), "{refused}");
        let new = mount.path().join("new");
        let outcome = fs::write(&new, "still").and_then(|()| open(&new).sync_all());
        if goes_on {
            outcome.unwrap();
        } else {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        }
        assert_eq!(fs::read(mount.path().join("sound file")).unwrap(), [7; 10_000]);
        if goes_on {
            fixture.umount();
        } else {
            fails_to_close(&fixture);
        }
        mount.assert_gone();
        // A volume that is shut down writes no checkpoint.
        assert_eq!(F2fs::of(&fixture.image).needs_fsck(), goes_on, "{options}");
        let (mount, said) = mount_with_messages(&fixture, &["-o", "ro"]);
        assert_eq!(said.contains("repair it with fsck.f2fs"), goes_on, "{said}");
        assert_eq!(mount.path().join("new").exists(), goes_on, "{options}");
    }
}

/// Mounts, and returns what the command prints.
fn mount_with_messages<'a>(fixture: &'a Fixture, arguments: &[&str]) -> (Mount<'a>, String) {
    let mut command = bifolio("mount");
    let output = output(command.args(arguments).arg(&fixture.image).arg(&fixture.directory));
    assert!(output.status.success(), "{}", output.text());
    (fixture.mounted(), output.text())
}

/// Changes the number in the footer of the inode that was created with the name.
fn damage_inode(image: &Path, name: &str) {
    let mut bytes = fs::read(image).unwrap();
    let has_name = |block: &&mut [u8]| block[92..].starts_with(name.as_bytes());
    let blocks = bytes.chunks_exact_mut(BLOCK_BYTES as usize);
    let mut inodes: Vec<_> = blocks.filter(has_name).collect();
    // An older version of the node may have remained.
    assert!(!inodes.is_empty());
    for inode in &mut inodes {
        inode[BLOCK_BYTES as usize - 24] ^= 0x55;
    }
    fs::write(image, bytes).unwrap();
}

#[test]
fn the_error_policy_of_the_mount_overrides_that_of_the_volume() {
    private_mounts();
    let ways = [
        ("continue", "rw", "continue"),
        ("remount-ro", "rw", "remount-ro"),
        ("remount-ro", "rw,errors=continue", "continue"),
        ("continue", "rw,errors=panic", "remount-ro"),
    ];
    for (volume, options, policy) in ways {
        let fixture = Fixture::with_tree();
        run(Command::new("tune2fs").args(["-e", volume]).arg(&fixture.image));
        let damage = "set_inode_field /small block[0] 0xdead";
        run(Command::new("debugfs").args(["-w", "-R", damage]).arg(&fixture.image));
        let mount = fixture.mount(&["-o", options]);
        assert!(fs::read(mount.path().join("small")).is_err());
        let new = mount.path().join("new");
        let outcome = fs::write(&new, "still").and_then(|()| open(&new).sync_all());
        match policy {
            "continue" => outcome.unwrap(),
            _ => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem),
        }
        let source = fs::read(fixture.source().join("big")).unwrap();
        assert!(fs::read(mount.path().join("big")).unwrap() == source);
        match policy {
            "continue" => fixture.umount(),
            _ => drop(fails_to_close(&fixture)),
        }
        mount.assert_gone();
        let header = run(Command::new("dumpe2fs").arg("-h").arg(&fixture.image));
        assert!(String::from_utf8_lossy(&header).contains("with errors"), "{policy}");
        let (mount, said) = mount_with_messages(&fixture, &["-o", "rw"]);
        assert!(said.contains("repair it with e2fsck"), "{said}");
        fixture.umount();
        mount.assert_gone();
        // The first run removes the damaged file, and the second one finds no errors.
        let repaired = output(Command::new("e2fsck").arg("-fy").arg(&fixture.image));
        assert_eq!(repaired.status.code(), Some(1), "{}", repaired.text());
        check_by_e2fsck(&fixture.image);
        let (mount, said) = mount_with_messages(&fixture, &["-o", "ro"]);
        assert_eq!(said, "");
        assert_eq!(mount.path().join("new").exists(), policy == "continue");
    }
}

#[test]
fn a_file_with_the_blocks_of_group_descriptors_is_refused() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let descriptors = |image: &Path| {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        File::open(image).unwrap().read_exact_at(&mut bytes, BLOCK_BYTES).unwrap();
        bytes
    };
    // Makes the only extent of the file start at block 1.
    let request = "set_inode_field /small block[5] 1";
    run(Command::new("debugfs").args(["-w", "-R", request]).arg(&fixture.image));
    let before = descriptors(&fixture.image);
    let mount = fixture.mount(&["-o", "rw"]);
    let small = mount.path().join("small");
    let refused = |error: io::Error| assert_eq!(error.raw_os_error(), Some(117), "{error}");
    refused(fs::write(&small, [0xEE; 4096]).unwrap_err());
    refused(fs::read(&small).unwrap_err());
    refused(fs::remove_file(&small).unwrap_err());
    fs::write(mount.path().join("new"), "others can be written").unwrap();
    fixture.umount();
    mount.assert_gone();
    // The locations of the bitmaps and the inode table are unchanged.
    assert_eq!(descriptors(&fixture.image)[..12], before[..12]);
    let said = output(Command::new("dumpe2fs").arg("-h").arg(&fixture.image)).text();
    assert!(said.contains("clean with errors"), "{said}");
}
