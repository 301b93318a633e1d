//! Mounts whose image fails below them. The image lies on a tmpfs that is full: what is written to its
//! holes fails, and everything else goes on.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use mounting::Location;
use rustix::fs::FallocateFlags;
use testkit::command::{output, run};
use testkit::{check_by_e2fsck, private_mounts};

const BLOCK_BYTES: u64 = 4096;
const IMAGE_BYTES: u64 = 64 << 20;

/// A place whose image cannot be written where `inode` has its blocks, in debugfs's words.
fn place_without(inode: &str) -> Location {
    private_mounts();
    let place = Location::with_tree();
    let image = fs::read(&place.image).unwrap();
    let folder = place.image.parent().unwrap();
    let backing = folder.join("backing");
    fs::create_dir(&backing).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=66M", "none"]).arg(&backing));
    let moved = backing.join("image");
    fs::write(&moved, image).unwrap();
    let file = OpenOptions::new().write(true).open(&moved).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, IMAGE_BYTES).unwrap();
    let blocks = run(Command::new("debugfs").args(["-R", &format!("blocks {inode}")]).arg(&moved));
    let blocks = String::from_utf8(blocks).unwrap();
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    assert!(blocks.len() > 100, "{blocks:?}");
    // The log begins with what says that it is one.
    for block in &blocks[1..] {
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
    Location { image: moved, ..place }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn is_io(result: io::Result<()>) {
    let error = result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
}

#[test]
fn data_that_cannot_be_written_is_told_once_to_every_open_file_and_nothing_follows() {
    for options in ["rw,nowriteback", "rw,writeback"] {
        let place = place_without("/big");
        let mount = place.mount(&["-o", options]);
        let big = mount.path().join("big");
        let [first, second] = [&big, &big].map(|path| open(path));
        first.write_all_at(&[7; 100_000], 1 << 20).unwrap();
        for file in [&first, &second] {
            is_io(file.sync_all());
            file.sync_all().unwrap();
        }
        let new = mount.path().join("new");
        fs::write(&new, "still").unwrap();
        open(&new).sync_all().unwrap();
        drop((first, second));
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
        let mount = place.mount(&["-o", "ro"]);
        assert_eq!(fs::read(mount.path().join("new")).unwrap(), b"still");
    }
}

#[test]
fn a_log_that_cannot_be_written_makes_the_mount_read_only() {
    for options in ["rw,nowriteback", "rw,writeback"] {
        let place = place_without("<8>");
        let log = place.folder.path().join("log");
        let mount = place.mount(&["-o", options, "--log", log.to_str().unwrap()]);
        let path = mount.path().join("new");
        let outcome = fs::write(&path, "lost").and_then(|()| open(&path).sync_all());
        is_io(outcome);
        for error in [
            fs::create_dir(mount.path().join("directory")).unwrap_err(),
            fs::remove_file(mount.path().join("small")).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
        }
        let source = fs::read(place.source().join("big")).unwrap();
        assert!(fs::read(mount.path().join("big")).unwrap() == source);
        place.umount();
        mount.assert_gone();
        // In the background nobody sees what the server says.
        let said = fs::read_to_string(&log).unwrap();
        let closing = format!("{}: closing the volume: ", mount.path().display());
        for part in ["the volume accepts no more writes", &closing] {
            assert!(said.lines().any(|line| line.contains(part)), "{said}");
        }
        // What the log promises is not there, and nothing else has changed.
        check_by_e2fsck(&place.image);
        fs::remove_file(place.image.with_file_name("full")).unwrap();
        let repaired = output(Command::new("e2fsck").arg("-fp").arg(&place.image));
        assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", repaired.text());
        let mount = place.mount(&["-o", "rw"]);
        assert!(fs::read(mount.path().join("big")).unwrap() == source);
        fs::write(mount.path().join("new"), "written").unwrap();
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
    }
}

#[test]
fn corruption_met_under_a_mount_is_dealt_with_as_the_volume_says_or_the_mount() {
    private_mounts();
    let ways = [
        ("continue", "rw", "continue"),
        ("remount-ro", "rw", "remount-ro"),
        ("remount-ro", "rw,errors=continue", "continue"),
        ("continue", "rw,errors=panic", "remount-ro"),
    ];
    for (volume, options, policy) in ways {
        let place = Location::with_tree();
        run(Command::new("tune2fs").args(["-e", volume]).arg(&place.image));
        let damage = "set_inode_field /small block[0] 0xdead";
        run(Command::new("debugfs").args(["-w", "-R", damage]).arg(&place.image));
        let mount = place.mount(&["-o", options]);
        assert!(fs::read(mount.path().join("small")).is_err());
        let new = mount.path().join("new");
        let outcome = fs::write(&new, "still").and_then(|()| open(&new).sync_all());
        match policy {
            "continue" => outcome.unwrap(),
            _ => assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem),
        }
        let source = fs::read(place.source().join("big")).unwrap();
        assert!(fs::read(mount.path().join("big")).unwrap() == source);
        place.umount();
        mount.assert_gone();
        let header = run(Command::new("dumpe2fs").arg("-h").arg(&place.image));
        assert!(String::from_utf8_lossy(&header).contains("with errors"), "{policy}");
        // It finds the one file, takes it away, and has nothing more to say.
        let repaired = output(Command::new("e2fsck").arg("-fy").arg(&place.image));
        assert_eq!(repaired.status.code(), Some(1), "{}", repaired.text());
        check_by_e2fsck(&place.image);
        let mount = place.mount(&["-o", "ro"]);
        assert_eq!(mount.path().join("new").exists(), policy == "continue");
    }
}

#[test]
fn a_file_that_points_at_group_descriptors_is_refused_and_they_stay() {
    private_mounts();
    let place = Location::with_tree();
    let descriptors = |image: &Path| {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        File::open(image).unwrap().read_exact_at(&mut bytes, BLOCK_BYTES).unwrap();
        bytes
    };
    // The only extent of the file begins at block 1 then.
    let request = "set_inode_field /small block[5] 1";
    run(Command::new("debugfs").args(["-w", "-R", request]).arg(&place.image));
    let before = descriptors(&place.image);
    let mount = place.mount(&["-o", "rw"]);
    let small = mount.path().join("small");
    let refused = |error: io::Error| assert_eq!(error.raw_os_error(), Some(117), "{error}");
    refused(fs::write(&small, [0xEE; 4096]).unwrap_err());
    refused(fs::read(&small).unwrap_err());
    refused(fs::remove_file(&small).unwrap_err());
    fs::write(mount.path().join("new"), "others can be written").unwrap();
    place.umount();
    mount.assert_gone();
    // What is free has changed, and nothing else: the bitmaps and the table are where they were.
    assert_eq!(descriptors(&place.image)[..12], before[..12]);
    let said = output(Command::new("dumpe2fs").arg("-h").arg(&place.image)).text();
    assert!(said.contains("clean with errors"), "{said}");
}
