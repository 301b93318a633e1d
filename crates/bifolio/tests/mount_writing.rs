//! Writable mounts: programs of the host change them, and e2fsck and a mount of the kernel check
//! the result.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use base::OnDrop;
use mounting::direct_and_mapped::Mapped;
use mounting::{FORMATS, Fixture, NOBODY};
use rustix::process::Signal;
use testkit::command::run;
use testkit::{Format, LoopMount, Mke2fs, Waiter, check_by_e2fsck, private_mounts, wait_until};

/// Mounts a new volume for writing, runs `work`, unmounts, and checks the image with e2fsck. Then
/// runs `check` on a mount of the kernel.
fn check(work: impl FnOnce(&Path), check: impl FnOnce(&Path)) {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    work(mount.path());
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
    let kernels = LoopMount::new(&fixture.image, "ext4", "ro");
    check(kernels.path());
}

#[test]
fn a_copied_tree_equals_its_source_on_a_mount_of_the_kernel() {
    let source = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let from = source.path();
    for directory in 0..5 {
        let folder = from.join(format!("directory {directory}/below"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..30 {
            fs::write(folder.join(format!("file {file}")), &data[..file * 9_000]).unwrap();
        }
        symlink("file 3", folder.join("link")).unwrap();
        symlink("t".repeat(200), folder.join("long link")).unwrap();
        fs::hard_link(folder.join("file 4"), folder.join("the same")).unwrap();
    }
    run(Command::new("setfattr")
        .args(["-n", "user.note", "-v", "text"])
        .arg(from.join("directory 1")));
    let same = |to: &Path| {
        let copy = to.join("copy");
        let output =
            run(Command::new("diff").args(["-r", "--no-dereference"]).arg(from).arg(&copy));
        assert!(output.is_empty());
        let inode = |name: &str| fs::metadata(copy.join("directory 2/below").join(name)).unwrap();
        assert_eq!(inode("file 4").ino(), inode("the same").ino());
        assert_eq!(inode("file 4").nlink(), 2);
        let note = run(Command::new("getfattr")
            .args(["-n", "user.note", "--only-values"])
            .arg(copy.join("directory 1")));
        assert_eq!(note, b"text");
    };
    check(
        |mount| {
            run(Command::new("cp").arg("-a").arg(from).arg(mount.join("copy")));
            same(mount);
        },
        same,
    );
}

#[test]
fn changes_of_programs_are_stored() {
    check(
        |mount| {
            let path = mount.join("changed");
            let mut file =
                OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
            file.write_all(&[b'a'; 10_000]).unwrap();
            file.write_all_at(b"hole after", 200_000).unwrap();
            file.sync_all().unwrap();
            file.set_len(150_000).unwrap();
            file.seek(SeekFrom::Start(9_990)).unwrap();
            let mut read = [0; 20];
            file.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"aaaaaaaaaa\0\0\0\0\0\0\0\0\0\0");
            OpenOptions::new().append(true).open(&path).unwrap().write_all(b"end").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 150_003);
            fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
            // An unlinked open file can still be written.
            let mut gone = File::create(mount.join("gone")).unwrap();
            fs::remove_file(mount.join("gone")).unwrap();
            gone.write_all(&[b'x'; 100_000]).unwrap();
            fs::create_dir(mount.join("one")).unwrap();
            fs::create_dir(mount.join("two")).unwrap();
            fs::write(mount.join("one/file"), "moved").unwrap();
            fs::rename(mount.join("one"), mount.join("two/one")).unwrap();
            assert!(fs::remove_dir(mount.join("two")).is_err());
            drop(gone);
        },
        |mount| {
            let data = fs::read(mount.join("changed")).unwrap();
            assert_eq!(data.len(), 150_003);
            assert!(data[..10_000].iter().all(|&byte| byte == b'a'));
            assert!(data[10_000..150_000].iter().all(|&byte| byte == 0));
            assert_eq!(&data[150_000..], b"end");
            assert_eq!(fs::metadata(mount.join("changed")).unwrap().mode() & 0o7777, 0o640);
            assert_eq!(fs::read(mount.join("two/one/file")).unwrap(), b"moved");
            assert!(!mount.join("gone").exists() && !mount.join("one").exists());
        },
    );
}

#[test]
fn all_files_can_be_removed() {
    check(
        |mount| {
            for entry in fs::read_dir(mount).unwrap() {
                run(Command::new("rm").arg("-rf").arg(entry.unwrap().path()));
            }
        },
        |mount| assert_eq!(fs::read_dir(mount).unwrap().count(), 0),
    );
}

/// Changes flags with chattr, for example by `+S`.
fn chattr(change: &str, path: &Path) {
    run(Command::new("chattr").arg(change).arg(path));
}

#[test]
fn a_change_of_flags_updates_the_change_time() {
    check(
        |mount| {
            for name in ["small", "lost+found"] {
                let path = mount.join(name);
                let before = fs::metadata(&path).unwrap();
                chattr("+A", &path);
                let after = fs::metadata(&path).unwrap();
                let time = |of: &fs::Metadata| (of.ctime(), of.ctime_nsec());
                assert!(time(&after) > time(&before), "{name}");
            }
        },
        |_| (),
    );
}

/// A change, and a check for it.
type Case = (fn(&Path), fn(&Path) -> bool);

#[test]
fn changes_of_files_with_the_sync_flag_survive_a_killed_server() {
    private_mounts();
    FORMATS.into_iter().for_each(check_sync_flags);
}

fn check_sync_flags(format: Format) {
    let fixture = Fixture::with_volume(format);
    let mount = fixture.mount(&["-o", "rw"]);
    let path = |name: &str| mount.path().join(name);
    fs::write(path("small"), "a few bytes").unwrap();
    for (directory, flag) in [("aside", "-S"), ("synced", "+S"), ("names", "+D")] {
        fs::create_dir(path(directory)).unwrap();
        fs::write(path(directory).join("old"), "old").unwrap();
        chattr(flag, &path(directory));
    }
    for name in ["file", "short"] {
        fs::write(path(name), [1; 10_000]).unwrap();
        chattr("+S", &path(name));
    }
    fixture.umount();
    mount.assert_gone();
    let cases: [Case; 6] = [
        (
            |mount| {
                let file = OpenOptions::new().write(true).open(mount.join("file")).unwrap();
                file.write_all_at(&[2; 50_000], 5_000).unwrap();
            },
            |mount| {
                let data = fs::read(mount.join("file")).unwrap();
                data.len() == 55_000 && data[5_000..].iter().all(|&byte| byte == 2)
            },
        ),
        (
            |mount| {
                let file = OpenOptions::new().write(true).open(mount.join("short")).unwrap();
                file.set_len(100).unwrap();
            },
            |mount| fs::metadata(mount.join("short")).unwrap().len() == 100,
        ),
        (
            |mount| drop(File::create(mount.join("synced/new")).unwrap()),
            |mount| mount.join("synced/new").exists(),
        ),
        (
            |mount| fs::hard_link(mount.join("small"), mount.join("names/link")).unwrap(),
            |mount| mount.join("names/link").exists(),
        ),
        (
            |mount| fs::remove_file(mount.join("names/old")).unwrap(),
            |mount| !mount.join("names/old").exists(),
        ),
        (
            |mount| fs::rename(mount.join("aside/old"), mount.join("names/moved")).unwrap(),
            |mount| mount.join("names/moved").exists() && !mount.join("aside/old").exists(),
        ),
    ];
    for (number, (change, is_there)) in cases.into_iter().enumerate() {
        let mount = fixture.mount(&["-o", "rw"]);
        change(mount.path());
        mount.signal_server(Signal::KILL);
        mount.unmount_dead();
        let mount = fixture.mount(&["-o", "ro"]);
        assert!(is_there(mount.path()), "{format:?}, case {number}");
        fixture.umount();
        mount.assert_gone();
    }
    // Recovers, because the server of the last writable mount was killed.
    let mount = fixture.mount(&["-o", "rw"]);
    fixture.umount();
    mount.assert_gone();
    fixture.check();
}

#[test]
fn a_failed_mount_leaves_a_clean_volume() {
    private_mounts();
    for options in ["-O mmp", "-O ^has_journal"] {
        let fixture = Fixture::new();
        fixture.share_device();
        Mke2fs::new("ext4", 4096).with(options).make(&fixture.image, None);
        std::os::unix::fs::chown(&fixture.image, Some(NOBODY), Some(NOBODY)).unwrap();
        let fails = |arguments: &[&str]| {
            let output = fixture.try_mount_as(NOBODY, arguments);
            assert_eq!(output.status.code(), Some(1), "{}", output.text());
            assert!(output.text().contains("fusermount3"), "{}", output.text());
            let header = run(Command::new("dumpe2fs").arg("-h").arg(&fixture.image));
            let header = String::from_utf8(header).unwrap();
            assert!(!header.contains("needs_recovery"), "{header}");
            let state = header.lines().find(|line| line.starts_with("Filesystem state:"));
            assert!(state.unwrap().ends_with(" clean"), "{header}");
            check_by_e2fsck(&fixture.image);
        };
        // The directory belongs to root, and allow_other needs a permission of root.
        fails(&["-o", "rw"]);
        fixture.allow_nobody();
        if Path::new("/etc/fuse.conf").exists() {
            run(Command::new("mount").args(["--bind", "/dev/null", "/etc/fuse.conf"]));
        }
        fails(&["-o", "rw,allow_other"]);
        let mount = fixture.mount_as(NOBODY, &["-o", "rw"]);
        fixture.umount_as(NOBODY);
        mount.assert_gone();
    }
}

#[test]
fn umount_reports_that_it_waits_for_the_server() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    fs::write(mount.path().join("new"), "data").unwrap();
    mount.stop_server();
    let mut command = mounting::bifolio("umount");
    let mut umount = command.arg(mount.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(umount.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    let has_ended = umount.try_wait().unwrap();
    // Before the assertions, because a stopped server would block other tests.
    mount.signal_server(Signal::CONT);
    assert!(first.contains("waiting for the server"), "{first}");
    assert_eq!(has_ended, None);
    assert!(umount.wait().unwrap().success());
    assert!(said.next().is_none());
    check_by_e2fsck(&fixture.image);
}

#[test]
fn removed_files_are_discarded_with_the_option() {
    private_mounts();
    for (options, discards) in [("rw,nodiscard", false), ("rw,discard", true)] {
        let fixture = Fixture::with_tree();
        let allocated = || fs::metadata(&fixture.image).unwrap().blocks() * 512;
        let before = allocated();
        let mount = fixture.mount(&["-o", options]);
        fs::remove_file(mount.path().join("big")).unwrap();
        fixture.umount();
        mount.assert_gone();
        // The file has about 5 MB, which is more than the journal grows.
        assert_eq!(allocated() + 3_000_000 < before, discards, "{options}");
        check_by_e2fsck(&fixture.image);
    }
}

#[test]
fn data_read_during_a_direct_write_is_not_cached() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let path = mount.path().join("two requests");
    fs::write(&path, vec![1; 2 << 20]).unwrap();
    let reader = File::open(&path).unwrap();
    let read = || {
        let mut found = [0; 4096];
        reader.read_exact_at(&mut found, 3 << 19).unwrap();
        found
    };
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    mount.stop_server();
    let (writing, reading) = (Waiter::default(), Waiter::default());
    std::thread::scope(|scope| {
        // The kernel sends the write in two halves. The read between them returns the old second
        // half.
        scope.spawn(|| writing.run(|| writer.write_all_at(&vec![2; 2 << 20], 0).unwrap()));
        let writes = writing.begins_to_wait();
        scope.spawn(|| reading.run(read));
        let reads = reading.begins_to_wait();
        mount.signal_server(Signal::CONT);
        assert!(writes && reads, "the race was not reached: {writes}, {reads}");
    });
    assert_eq!(read(), [2; 4096]);
    drop((reader, writer));
    fixture.umount();
    mount.assert_gone();
}

#[test]
fn writes_are_not_lost_beside_stores_to_a_mapping_of_their_page() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let path = mount.path().join("shared page");
    fs::write(&path, [0; 4096]).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let mapped = Mapped::new(&file, 4096);
            for number in 0_u64.. {
                mapped.store(2048, &number.to_le_bytes());
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        // Dropped also if an assertion fails.
        let _end = OnDrop(|| is_done.store(true, Ordering::Relaxed));
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        let reader = File::open(&path).unwrap();
        for number in 0..1500_u64 {
            writer.write_all_at(&number.to_le_bytes(), 0).unwrap();
            let mut found = [0; 8];
            reader.read_exact_at(&mut found, 0).unwrap();
            assert_eq!(u64::from_le_bytes(found), number);
        }
    });
    fixture.umount();
    mount.assert_gone();
}

#[test]
fn files_replaced_without_fsync_are_complete_after_a_crash() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let [renamed, rewritten, other] =
        ["renamed over", "rewritten", "other"].map(|name| mount.path().join(name));
    for path in [&renamed, &rewritten] {
        fs::write(path, "old").unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    }
    let contents = |byte: u8| vec![byte; 50_000];
    let new = mount.path().join("new");
    fs::write(&new, contents(b'n')).unwrap();
    fs::rename(&new, &renamed).unwrap();
    fs::write(&rewritten, contents(b'r')).unwrap();
    // The kernel informs the server of a close after close(2) has returned.
    let needle = [b'r'; 4096];
    wait_until("the closed file is written back", || {
        let image = fs::read(&fixture.image).unwrap();
        image.chunks_exact(needle.len()).any(|block| block == needle)
    });
    File::create(&other).unwrap().sync_all().unwrap();
    let copy = fixture.image.with_extension("copy");
    fs::copy(&fixture.image, &copy).unwrap();
    fixture.umount();
    mount.assert_gone();
    // The kernel replays the journal of the state after a simulated crash.
    let kernels = LoopMount::new(&copy, "ext4", "rw");
    assert!(fs::read(kernels.path().join("renamed over")).unwrap() == contents(b'n'));
    assert!(fs::read(kernels.path().join("rewritten")).unwrap() == contents(b'r'));
}

#[test]
fn the_error_for_an_image_in_use_names_its_mount_point() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let subject = format!("{}:/", fixture.image.display());
    let expected = format!("is in use: it is mounted on {}", mount.path().display());
    for (command, argument) in [("ls", &subject), ("mkdir", &format!("{subject}made"))] {
        let output = mounting::bifolio(command).arg(argument).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(&expected), "{text}");
    }
    fixture.umount();
    mount.assert_gone();
}
