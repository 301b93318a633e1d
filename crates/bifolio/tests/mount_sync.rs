//! Contents of an image after a sync of its mount, read by the kernel's ext4 from a copy, or for
//! f2fs by another mount; and the loop devices for which the kernel forwards syncs.
#![allow(clippy::print_stdout, reason = "prints missing features of the host")]

mod mounting;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use mounting::{FORMATS, Fixture, LoopDevice, Mount, NOBODY, as_user, bifolio, mount_entry};
use rustix::process::Signal;
use testkit::command::{output, run};
use testkit::{Format, LoopMount, check_by_e2fsck, private_mounts, wait_until};

fn fixture() -> Fixture {
    Fixture::with_volume(Format::Ext4(4096))
}

/// Returns whether the kernel forwards syncs to servers of block devices.
fn kernel_forwards_syncs() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= (6, 18)
}

/// Returns the loop devices of an image.
fn loop_devices(image: &Path) -> Vec<PathBuf> {
    let output = run(Command::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(image));
    let text = String::from_utf8(output).unwrap();
    text.lines()
        .map(|line| PathBuf::from(line.trim()))
        .filter(|line| line != Path::new(""))
        .collect()
}

/// Makes changes of several kinds without syncs.
fn change(root: &Path, turn: &str) {
    let directory = root.join(format!("directory {turn}"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), turn.repeat(100_000)).unwrap();
    fs::write(directory.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    fs::rename(directory.join("empty"), directory.join("renamed")).unwrap();
}

/// Mounts a copy of the image after a simulated power cut, and calls `read` with the mount point:
/// by the kernel's ext4, or for other formats, by bifolio. Checks the copy.
fn with_copy<T>(fixture: &Fixture, read: impl FnOnce(&Path) -> T) -> T {
    let copy = Fixture { format: fixture.format, ..Fixture::new() };
    run(Command::new("cp").arg("--sparse=always").arg(&fixture.image).arg(&copy.image));
    let found = if matches!(copy.format, Format::Ext4(_)) {
        let mount = LoopMount::new(&copy.image, "ext4", "rw");
        let found = read(mount.path());
        mount.unmount();
        found
    } else {
        let mount = copy.mount(&["-o", "rw,noloop"]);
        let found = read(mount.path());
        copy.umount();
        mount.assert_gone();
        found
    };
    copy.check();
    found
}

/// Returns whether these changes are in a copy of the image.
fn has_changes(fixture: &Fixture, turn: &str) -> bool {
    with_copy(fixture, |root| {
        let directory = root.join(format!("directory {turn}"));
        fs::read(directory.join("file")).is_ok_and(|data| data == turn.repeat(100_000).as_bytes())
            && fs::read_link(directory.join("link")).is_ok_and(|target| target == Path::new("file"))
            && directory.join("renamed").exists()
            && !directory.join("empty").exists()
    })
}

/// Name of a way to sync, and its function.
type SyncMethod<'a> = (&'a str, &'a dyn Fn(&Path));

fn syncfs(path: &Path) {
    rustix::fs::syncfs(File::open(path).unwrap()).unwrap();
}

fn bifolio_sync(path: &Path) {
    run(bifolio("sync").arg(path));
}

fn remount_read_only(path: &Path) {
    // -i calls no helper, only the system call.
    run(Command::new("mount").args(["-i", "-o", "remount,ro"]).arg(path));
}

#[test]
fn every_way_to_sync_makes_all_data_durable() {
    if !kernel_forwards_syncs() {
        println!("NOTE: this kernel does not forward sync(2) to FUSE servers");
        return;
    }
    private_mounts();
    let cases = FORMATS.map(|format| ["rw", "rw,writeback"].map(|options| (format, options)));
    for (format, options) in cases.into_iter().flatten() {
        let fixture = Fixture::with_volume(format);
        // With a long commit interval, only syncs make data durable.
        let mount = fixture.mount(&["-o", &format!("{options},commit=3600")]);
        let methods: [SyncMethod<'_>; 4] = [
            ("sync", &|_| drop(run(&mut Command::new("sync")))),
            ("syncfs", &syncfs),
            ("bifolio sync", &bifolio_sync),
            ("remount", &remount_read_only),
        ];
        for (name, sync) in methods {
            change(mount.path(), name);
            assert!(!has_changes(&fixture, name), "{format:?}: {name}: durable without a sync");
            sync(mount.path());
            assert!(has_changes(&fixture, name), "{format:?}: {name}, {options}");
        }
        let refused = fs::write(mount.path().join("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        fixture.umount();
        mount.assert_gone();
        assert_eq!(loop_devices(&fixture.image), Vec::<PathBuf>::new());
        fixture.check();
    }
}

#[test]
fn synced_files_survive_a_killed_server() {
    if !kernel_forwards_syncs() {
        println!("NOTE: this kernel does not forward sync(2) to FUSE servers");
        return;
    }
    private_mounts();
    for format in FORMATS {
        let fixture = Fixture::with_volume(format);
        let mount = fixture.mount(&["-o", "rw,commit=3600"]);
        fs::create_dir(mount.path().join("d")).unwrap();
        fs::write(mount.path().join("d/f"), "x\n").unwrap();
        run(&mut Command::new("sync"));
        mount.signal_server(Signal::KILL);
        mount.unmount_dead();
        let found = with_copy(&fixture, |root| fs::read(root.join("d/f")));
        assert_eq!(found.unwrap(), b"x\n", "{format:?}");
    }
}

#[test]
fn mounts_without_a_device_are_synced_by_command_and_at_intervals() {
    private_mounts();
    FORMATS.into_iter().for_each(check_mounts_without_a_device);
}

fn check_mounts_without_a_device(format: Format) {
    let fixture = Fixture::with_volume(format);
    let mount = fixture.mount(&["-o", "rw,noloop,commit=3600"]);
    assert!(mount_entry(mount.path()).unwrap().contains(" fuse.bifolio "));
    change(mount.path(), "command");
    assert!(!has_changes(&fixture, "command"));
    bifolio_sync(mount.path());
    assert!(has_changes(&fixture, "command"));
    fixture.umount();
    mount.assert_gone();

    let mount = fixture.mount(&["-o", "rw,noloop,commit=1"]);
    change(mount.path(), "time");
    wait_until("durable changes", || has_changes(&fixture, "time"));
    drop(mount);

    fixture.allow_nobody();
    std::os::unix::fs::chown(&fixture.image, Some(NOBODY), Some(NOBODY)).unwrap();
    let mount = fixture.mount_as(NOBODY, &["-o", "rw,commit=3600,owner=mapped"]);
    let script = "mkdir \"$0/users\" && echo text >\"$0/users/file\"";
    run(as_user(NOBODY, "sh").args(["-c", script]).arg(mount.path()));
    let mut sync = as_user(NOBODY, env!("CARGO_BIN_EXE_bifolio"));
    run(sync.arg("sync").arg(mount.path()));
    let found = with_copy(&fixture, |root| fs::read(root.join("users/file")));
    assert_eq!(found.unwrap(), b"text\n", "{format:?}");
    fixture.umount_as(NOBODY);
    mount.assert_gone();

    let refused = output(bifolio("sync").arg(fixture.folder.path()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.text().contains("is not a bifolio mount"), "{}", refused.text());
}

#[test]
fn all_data_is_on_the_image_when_umount_returns() {
    private_mounts();
    for format in FORMATS {
        for (turn, lazy) in [(0, false), (1, true), (2, false)] {
            let fixture = Fixture::with_volume(format);
            let mount = fixture.mount(&["-o", "rw"]);
            change(mount.path(), "last");
            let mut umount = Command::new("umount");
            run(umount.args(lazy.then_some("-l")).arg(mount.path()));
            assert!(has_changes(&fixture, "last"), "{format:?}, turn {turn}");
            mount.assert_gone();
            fixture.check();
        }
    }
}

#[test]
fn the_loop_device_is_detached_when_the_mount_ends() {
    private_mounts();
    let end = |end: &dyn Fn(&Mount<'_>, &Fixture)| {
        let fixture = fixture();
        let mount = fixture.mount(&["-o", "rw"]);
        let [device] = &*loop_devices(&fixture.image) else { panic!("no loop device") };
        let entry = mount_entry(mount.path()).unwrap();
        assert!(entry.contains(&format!(" fuseblk.bifolio {} ", device.display())), "{entry}");
        change(mount.path(), "kept");
        bifolio_sync(mount.path());
        end(&mount, &fixture);
        mount.assert_gone();
        assert_eq!(loop_devices(&fixture.image), Vec::<PathBuf>::new());
        assert!(has_changes(&fixture, "kept"));
    };
    end(&|_, fixture| fixture.umount());
    // umount of the host also accepts the image.
    end(&|_, fixture| drop(run(Command::new("umount").arg(&fixture.image))));
    end(&|mount, _| mount.signal_guard(Signal::TERM));
    end(&|mount, _| {
        mount.signal_server(Signal::KILL);
        mount.unmount_dead();
    });
    end(&|mount, fixture| {
        mount.signal_guard(Signal::KILL);
        wait_until("the guard's end", || !mount.has_guard());
        fixture.umount();
    });
    end(&|mount, fixture| {
        mount.signal_guard(Signal::KILL);
        wait_until("the guard's end", || !mount.has_guard());
        mount.signal_server(Signal::KILL);
        fixture.umount();
    });
}

#[test]
fn an_image_is_mounted_without_a_loop_device_if_none_is_available_or_requested() {
    private_mounts();
    let fixture = fixture();
    let check = |options: &str| {
        let mount = fixture.mount(&["-o", options]);
        let entry = mount_entry(mount.path()).unwrap();
        assert!(entry.contains(" fuse.bifolio "), "{options}: {entry}");
        assert_eq!(loop_devices(&fixture.image), Vec::<PathBuf>::new());
        assert_eq!(
            fs::write(mount.path().join("file"), options).is_ok(),
            options.starts_with("rw")
        );
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
    };
    check("rw,noloop");
    check("rw,fsname=mine");
    check("ro");
    run(Command::new("mount").args(["--bind", "/dev/null", "/dev/loop-control"]));
    check("rw");
}

#[test]
fn a_write_protected_free_loop_device_is_used_for_writing() {
    private_mounts();
    let fixture = fixture();
    let device = LoopDevice::new(&fixture.image);
    let node = device.path().to_owned();
    run(Command::new("blockdev").arg("--setro").arg(&node));
    drop(device);
    // The lowest free device is used, which is probably this one.
    let mount = fixture.mount(&["-o", "rw"]);
    fs::write(mount.path().join("file"), "data").unwrap();
    fixture.umount();
    mount.assert_gone();
    run(Command::new("blockdev").arg("--setrw").arg(&node));
}

#[test]
fn synchronous_mounts_need_no_sync() {
    private_mounts();
    let options = [("sync", false), ("sync,noloop", false), ("dirsync,noloop", true)];
    let cases = FORMATS.map(|format| options.map(|(options, names)| (format, options, names)));
    for (format, options, names_only) in cases.into_iter().flatten() {
        let fixture = Fixture::with_volume(format);
        let mount = fixture.mount(&["-o", &format!("rw,commit=3600,{options}")]);
        if names_only {
            fs::create_dir(mount.path().join("one")).unwrap();
            fs::rename(mount.path().join("one"), mount.path().join("two")).unwrap();
            let found = with_copy(&fixture, |root| ["one", "two"].map(|it| root.join(it).exists()));
            assert_eq!(found, [false, true], "{format:?}");
        } else {
            change(mount.path(), "at once");
            assert!(has_changes(&fixture, "at once"), "{format:?}, {options}");
        }
        fixture.umount();
        mount.assert_gone();
        fixture.check();
    }
}
