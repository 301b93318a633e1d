//! `bifolio mount` and `umount`: contents of mounts, access rights, and the end of mounts. Each
//! test has its own mount namespace.

mod mounting;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use mounting::*;
use rustix::io::Errno;
use rustix::process::Signal;
use testkit::tree::{TreeOptions, populate};
use testkit::{LoopMount, Manifest, Mke2fs, check_by_e2fsck, private_mounts, wait_until};

/// Returns the facts for which `is_kept` is true.
fn only(manifest: Manifest, is_kept: impl Fn(&str) -> bool) -> Manifest {
    manifest.map(|_, _, fact, value| is_kept(fact).then(|| value.to_owned()))
}

/// Removes extents, because FUSE does not forward FIEMAP.
fn comparable(manifest: Manifest) -> Manifest {
    only(manifest, |fact| fact != "extents")
}

fn check_against_the_kernel(format: &'static str, block_size: u32) {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs::new(format, block_size).make(&fixture.image, None);
    let mut options = TreeOptions::new(block_size);
    if format != "ext4" {
        options.preallocate = false;
        options.flags = false;
        options.file_size_max = 1 << 30;
    }
    let kernel = LoopMount::new(&fixture.image, format, "");
    populate(kernel.path(), &options);
    kernel.unmount();
    let kernel = LoopMount::new(&fixture.image, format, "ro");
    let theirs = comparable(Manifest::of_host(kernel.path()));
    kernel.unmount();
    let mount = fixture.mount(&[]);
    let ours = comparable(Manifest::of_host(mount.path()));
    assert!(ours.len() > 1000);
    theirs.assert_equal("the kernel's mount", &ours, "ours");
}

#[test]
fn a_mount_equals_the_kernels_mount_with_blocks_of_1_kib() {
    check_against_the_kernel("ext4", 1024);
}

#[test]
fn a_mount_equals_the_kernels_mount_with_blocks_of_4_kib() {
    check_against_the_kernel("ext4", 4096);
}

#[test]
fn a_mount_equals_the_kernels_mount_of_ext2() {
    check_against_the_kernel("ext2", 2048);
}

#[test]
fn a_mount_with_blocks_of_64_kib_equals_the_source_of_the_image() {
    private_mounts();
    let fixture = Fixture::new();
    let source = fixture.folder.path().join("source");
    fs::create_dir(&source).unwrap();
    // Files that cannot be changed could not be removed afterwards, and mke2fs does not copy flags.
    let options = TreeOptions { xattr_bytes_max: 2048, flags: false, ..TreeOptions::new(4096) };
    populate(&source, &options);
    Mke2fs::new("ext4", 65_536).make(&fixture.image, Some(&source));
    let mount = fixture.mount(&[]);
    let volume = comparable(Manifest::of_image(&fixture.image));
    let whole = comparable(Manifest::of_host(mount.path()));
    volume.assert_equal("the library", &whole, "the mount");
    // Only the facts that mke2fs copies.
    let copied = |fact: &str| {
        ["mode", "owner", "device", "target", "contents"].contains(&fact)
            || fact.starts_with("xattr ")
    };
    let of = |path| only(Manifest::of_host(path), copied);
    let ours = of(mount.path()).without_tree("lost+found");
    of(&source).assert_equal("the source", &ours, "the mount");
}

#[test]
fn a_directory_of_50_000_names_is_listed_completely_and_again_from_the_cache() {
    private_mounts();
    let fixture = Fixture::new();
    let mut image = Mke2fs::new("ext4", 1024).with("-N 60000");
    image.size = 256 << 20;
    image.make(&fixture.image, None);
    let kernel = LoopMount::new(&fixture.image, "ext4", "");
    fs::create_dir(kernel.path().join("many")).unwrap();
    for number in 0..50_000 {
        File::create(kernel.path().join(format!("many/a name with a number {number}"))).unwrap();
    }
    kernel.unmount();
    let mount = fixture.mount(&[]);
    for _ in 0..3 {
        let mut seen = vec![false; 50_000];
        for entry in fs::read_dir(mount.path().join("many")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let number: usize = name.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(!std::mem::replace(&mut seen[number], true), "{name} twice");
        }
        assert!(seen.iter().all(|seen| *seen));
    }
    // With attributes, which uses READDIRPLUS.
    let listing = testkit::command::run(
        Command::new("ls").args(["-lU", "--"]).arg(mount.path().join("many")),
    );
    assert_eq!(listing.split(|&byte| byte == b'\n').count(), 50_000 + 2);
}

#[test]
fn direct_reads_and_mappings_see_the_same_data() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&[]);
    let expected = fs::read(fixture.source().join("big")).unwrap();
    let direct = fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(mount.path().join("big"))
        .unwrap();
    // Memory and lengths are whole sectors, even at the end of the file.
    let mut memory = vec![0; (expected.len() + 8192).next_multiple_of(512)];
    let (start, end) = (memory.as_ptr().align_offset(4096), memory.len() / 4096 * 4096 - 4096);
    let buffer = &mut memory[start..start + end];
    assert!(direct.read_at(&mut buffer[..1000], 0).is_err());
    let mut done = 0;
    loop {
        let length = direct.read_at(&mut buffer[done..], done as u64).unwrap();
        if length == 0 {
            break;
        }
        done += length;
    }
    assert!(buffer[..done] == expected);
    // dd reads with sizes that are not aligned.
    let output = testkit::command::run(
        Command::new("dd")
            .arg(format!("if={}", mount.path().join("big").display()))
            .args(["bs=12345", "status=none"]),
    );
    assert!(output == expected);
}

#[test]
fn concurrent_readers_read_the_right_data() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["--threads", "4"]);
    let expected = Arc::new(fs::read(fixture.source().join("big")).unwrap());
    let path = mount.path().join("big");
    let readers: Vec<_> = (0..8_usize)
        .map(|number| {
            // Opened on this thread, because other threads may not be in its mount namespace.
            let file = File::open(&path).unwrap();
            let expected = Arc::clone(&expected);
            std::thread::spawn(move || {
                for step in 0..500_usize {
                    let at = (number * 7919 + step * 104_729) % expected.len();
                    let length = (1 + step * 997 % 200_000).min(expected.len() - at);
                    let mut buffer = vec![0; length];
                    file.read_exact_at(&mut buffer, at as u64).unwrap();
                    assert!(buffer == expected[at..at + length], "{length} bytes at {at}");
                }
            })
        })
        .collect();
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn a_read_only_mount_refuses_changes() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&[]);
    let file = mount.path().join("small");
    let kinds = [
        fs::write(&file, b"x").unwrap_err(),
        File::create(mount.path().join("new")).unwrap_err(),
        fs::create_dir(mount.path().join("new")).unwrap_err(),
        fs::remove_file(&file).unwrap_err(),
        fs::rename(&file, mount.path().join("new")).unwrap_err(),
        fs::hard_link(&file, mount.path().join("new")).unwrap_err(),
        fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions()).unwrap_err(),
    ];
    for error in kinds {
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    }
}

#[test]
fn ordinary_users_mount_through_fusermount3() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.allow_nobody();
    let mount = fixture.mount_as(NOBODY, &[]);
    let entry = mount_entry(mount.path()).unwrap();
    assert!(entry.contains(" fuse.bifolio ") && entry.contains("user_id=65534"), "{entry}");
    assert!(entry.contains("nosuid,nodev"), "{entry}");
    let small = mount.path().join("small");
    let output = as_user(NOBODY, "cat").arg(&small).output().unwrap();
    assert_eq!(output.stdout, fs::read(fixture.source().join("small")).unwrap());
    // Without allow_other, even root has no access.
    assert_eq!(File::open(&small).unwrap_err().kind(), ErrorKind::PermissionDenied);
    fixture.umount_as(NOBODY);
    assert_eq!(mount_entry(mount.path()), None);
    mount.assert_gone();
}

#[test]
fn a_signal_unmounts_the_mount_of_an_ordinary_user() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.allow_nobody();
    let mount = fixture.mount_as(NOBODY, &[]);
    mount.signal_guard(Signal::TERM);
    mount.assert_gone();
}

#[test]
fn an_ordinary_user_needs_access_to_the_image_and_the_mount_point() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.share_device();
    // The directory belongs to root.
    let output = fixture.try_mount_as(NOBODY, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", output.text());
    assert!(output.text().contains("fusermount3"), "{}", output.text());
    assert_eq!(mount_entry(&fixture.directory), None);
    fixture.allow_nobody();
    testkit::command::run(Command::new("chmod").arg("600").arg(&fixture.image));
    let output = fixture.try_mount_as(NOBODY, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", output.text());
    assert!(output.text().contains("ermission denied"), "{}", output.text());
}

#[test]
fn with_allow_other_modes_and_acls_decide_on_access() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let read_as_nobody = |name: &str| {
        let path = fixture.directory.join(name);
        as_user(NOBODY, "cat").arg(path).output().unwrap().status.success()
    };
    let mount = fixture.mount(&[]);
    assert!(!read_as_nobody("small"));
    drop(mount);
    let _mount = fixture.mount(&["-o", "ro,allow_other"]);
    assert!(read_as_nobody("small"));
    assert!(!read_as_nobody("secret"));
    assert!(read_as_nobody("secret-but-for-nobody"));
}

#[test]
fn options_reach_the_mount() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let check = |arguments: &[&str], present: &[&str], absent: &[&str]| {
        let _mount = fixture.mount(arguments);
        let entry = mount_entry(&fixture.directory).unwrap();
        for wanted in present {
            assert!(entry.contains(wanted), "{wanted}: {entry}");
        }
        for unwanted in absent {
            assert!(!entry.contains(unwanted), "{unwanted}: {entry}");
        }
    };
    check(&[], &["ro,nosuid,nodev", "default_permissions"], &["noexec", "allow_other"]);
    check(&["-o", "suid,dev,noexec", "-o", "fsname=a b"], &["ro,noexec", "a\\040b"], &["nosuid"]);
    let image = fixture.image.canonicalize().unwrap();
    check(&[], &[image.to_str().unwrap()], &[]);
    fixture.mount_fails(&["-o", "ro,frobnicate=1"], 2, "`frobnicate=1`");
}

#[test]
fn failures_to_mount_are_reported_once_and_leave_no_mount() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let garbage = fixture.folder.path().join("garbage");
    fs::write(&garbage, vec![0x5a; 1 << 20]).unwrap();
    let absent = fixture.folder.path().join("absent");
    let small = fixture.source().join("small");
    let (image, directory) = (&fixture.image, &fixture.directory);
    for mode in [&["-f"][..], &[]] {
        for (image, directory, message) in [
            (&garbage, directory, "no known file system"),
            (&absent, directory, "absent: "),
            (image, &absent, "absent: "),
            (image, &small, "small: cannot mount here"),
        ] {
            let mut command = bifolio("mount");
            let output = testkit::command::output(command.args(mode).arg(image).arg(directory));
            assert_eq!(output.status.code(), Some(1), "{}", output.text());
            assert!(output.text().contains(message), "{}", output.text());
            assert_eq!(output.text().lines().count(), 1, "{}", output.text());
            assert_eq!(mount_entry(&fixture.directory), None);
        }
    }
}

#[test]
fn the_background_processes_close_the_callers_streams() {
    private_mounts();
    let fixture = Fixture::with_tree();
    // `output` waits until all copies of the pipes are closed.
    let mut command = bifolio("mount");
    let output = command.arg(&fixture.image).arg(&fixture.directory).output().unwrap();
    let mount = fixture.mounted();
    assert!(output.status.success());
    assert!(output.stdout.is_empty() && output.stderr.is_empty());
    assert!(mount.path().join("small").exists());
}

#[test]
fn a_signal_to_the_foreground_command_unmounts_and_succeeds() {
    private_mounts();
    let fixture = Fixture::with_tree();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut foreground = fixture.mount_in_foreground();
        assert!(fixture.directory.join("small").exists());
        foreground.signal(signal);
        assert_eq!(foreground.wait().code(), Some(0), "signal {signal:?}");
        assert_eq!(mount_entry(&fixture.directory), None);
    }
    // A signal to the server, as from `killall`.
    let mut foreground = fixture.mount_in_foreground();
    fixture.borrow_mount().signal_server(Signal::TERM);
    assert_eq!(foreground.wait().code(), Some(0));
    assert_eq!(mount_entry(&fixture.directory), None);
}

#[test]
fn a_signal_unmounts_a_mount_in_use() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mut foreground = fixture.mount_in_foreground();
    let used = File::open(fixture.directory.join("big")).unwrap();
    foreground.signal(Signal::TERM);
    assert_eq!(foreground.wait().code(), Some(0));
    assert_eq!(mount_entry(&fixture.directory), None);
    assert!(used.read_at(&mut [0; 4096], 1 << 20).is_err());
}

#[test]
fn umount_refuses_mounts_in_use_and_other_directories() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&[]);
    let used = File::open(mount.path().join("small")).unwrap();
    let output = fixture.try_umount();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.text().contains("busy"), "{}", output.text());
    drop(used);
    fixture.umount();
    mount.assert_gone();
    let output = fixture.try_umount();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.text().contains("is not a bifolio mount"), "{}", output.text());
}

#[test]
fn umount_of_the_host_ends_the_server() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&[]);
    retry_while_busy(|| testkit::command::output(Command::new("umount").arg(mount.path())));
    mount.assert_gone();
}

#[test]
fn a_killed_server_leaves_a_mount_that_fails_and_the_foreground_command_fails() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mut foreground = fixture.mount_in_foreground();
    fixture.borrow_mount().signal_server(Signal::KILL);
    let status = foreground.wait();
    assert_eq!(status.code(), Some(1));
    let refused = File::create(fixture.directory.join("new")).unwrap_err();
    // The kernel cancels requests that wait for an entry of a ring.
    let expected = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
    assert!(
        expected.map(|errno| Some(errno.raw_os_error())).contains(&refused.raw_os_error()),
        "{refused}"
    );
    let output = fixture.try_umount();
    assert!(output.status.success(), "{}", output.text());
    assert!(output.text().contains("its server had died"), "{}", output.text());
    assert_eq!(mount_entry(&fixture.directory), None);
}

#[test]
fn a_mount_with_a_killed_guard_works_and_can_be_unmounted() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&[]);
    mount.signal_guard(Signal::KILL);
    assert!(fs::read(mount.path().join("small")).is_ok());
    fixture.umount();
    mount.assert_gone();
}

/// The server may still have data to write, and only the guard tells when it ends.
#[test]
fn umount_does_not_say_that_a_mount_without_a_guard_is_written() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw,noloop"]);
    mount.signal_guard(Signal::KILL);
    wait_until("the end of the guard", || !mount.has_guard());
    let output = testkit::command::output(bifolio("umount").arg(&fixture.directory));
    assert!(!output.status.success(), "{}", output.text());
    assert!(
        output.text().contains("unmounted, but it is unknown when the server ends"),
        "{}",
        output.text()
    );
    wait_until("the end of the server", || !mount.has_server());
    check_by_e2fsck(&fixture.image);
}

#[test]
fn a_server_ends_after_the_namespace_of_its_mount() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", env!("CARGO_BIN_EXE_bifolio"), "mount"]);
    command.args(["-o", "rw,io_uring=off"]).arg(&fixture.image).arg(&fixture.directory);
    testkit::command::run(&mut command);
    let mount = fixture.borrow_mount();
    let mounts_of_server = format!("/proc/{}/mountinfo", mount.server());
    // Otherwise the kernel would wait forever for an answer of the server while the server ends.
    assert_eq!(fs::read_to_string(mounts_of_server).unwrap().lines().count(), 1);
    mount.signal_guard(Signal::KILL);
    wait_until("the end of the guard", || !mount.has_guard());
    wait_until("the end of the server, whose mount has gone", || !mount.has_server());
    let process = format!("/proc/{}", mount.server());
    wait_until("the end of the process", || !Path::new(&process).exists());
    check_by_e2fsck(&fixture.image);
}

#[test]
fn an_image_can_be_mounted_on_two_directories_but_not_twice_on_one() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let first = fixture.mount(&[]);
    fixture.mount_fails(&[], 1, "mounted on it already");
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let output = testkit::command::output(bifolio("mount").arg(&fixture.image).arg(&other));
    assert!(output.status.success(), "{}", output.text());
    let [one, two] = [first.path(), &other].map(|path| fs::read(path.join("small")).unwrap());
    assert_eq!(one, two);
    retry_while_busy(|| testkit::command::output(bifolio("umount").arg(&other)));
    fixture.umount();
    first.assert_gone();
}

#[test]
fn the_kernel_claims_a_block_device_while_it_is_mounted() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let device = LoopDevice::new(&fixture.image);
    let output =
        testkit::command::output(bifolio("mount").arg(device.path()).arg(&fixture.directory));
    assert!(output.status.success(), "{}", output.text());
    let mount = fixture.mounted();
    let entry = mount_entry(mount.path()).unwrap();
    assert!(entry.contains(" fuseblk.bifolio "), "{entry}");
    let expected = fs::read(fixture.source().join("big")).unwrap();
    assert!(fs::read(mount.path().join("big")).unwrap() == expected);
    assert_eq!(fs::metadata(mount.path()).unwrap().ino(), 2);
    // The kernel's ext4 cannot mount it, too.
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let output = testkit::command::output(
        Command::new("mount").args(["-t", "ext4"]).arg(device.path()).arg(&other),
    );
    assert!(!output.status.success());
    fixture.umount();
    mount.assert_gone();
}

#[test]
fn a_volume_within_an_image_is_mounted_from_its_offset() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let shifted = fixture.folder.path().join("shifted");
    let mut bytes = vec![0x77; 1 << 20];
    bytes.extend(fs::read(&fixture.image).unwrap());
    fs::write(&shifted, bytes).unwrap();
    let mut command = bifolio("mount");
    command.args(["--offset", "1M"]).arg(&shifted).arg(&fixture.directory);
    let output = testkit::command::output(&mut command);
    assert!(output.status.success(), "{}", output.text());
    let mount = fixture.mounted();
    let expected = fs::read(fixture.source().join("small")).unwrap();
    assert_eq!(fs::read(mount.path().join("small")).unwrap(), expected);
}
