//! Contents of an image after a sync of its mount, read by the kernel's ext4 from a copy; and the loop devices for
//! which the kernel forwards syncs.
#![allow(clippy::print_stdout, reason = "prints missing features of the host")]

mod mounting;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use mounting::{Fixture, LoopDevice, Mount, NOBODY, as_user, bifolio, mount_entry};
use rustix::process::Signal;
use testkit::command::{output, run};
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts, wait_until};

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    fixture
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

/// Returns whether the kernel's ext4 finds these changes in a copy of the image.
fn has_changes(fixture: &Fixture, turn: &str) -> bool {
    let copy = fixture.folder.path().join("copy");
    fs::copy(&fixture.image, &copy).unwrap();
    let mount = LoopMount::new(&copy, "ext4", "rw");
    let directory = mount.path().join(format!("directory {turn}"));
    let has = fs::read(directory.join("file"))
        .is_ok_and(|data| data == turn.repeat(100_000).as_bytes())
        && fs::read_link(directory.join("link")).is_ok_and(|target| target == Path::new("file"))
        && directory.join("renamed").exists()
        && !directory.join("empty").exists();
    mount.unmount();
    check_by_e2fsck(&copy);
    has
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
    for options in ["rw", "rw,writeback"] {
        let fixture = fixture();
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
            assert!(!has_changes(&fixture, name), "{name}: durable without a sync");
            sync(mount.path());
            assert!(has_changes(&fixture, name), "{name}, {options}");
        }
        let refused = fs::write(mount.path().join("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        fixture.umount();
        mount.assert_gone();
        assert_eq!(loop_devices(&fixture.image), Vec::<PathBuf>::new());
        check_by_e2fsck(&fixture.image);
    }
}

#[test]
fn synced_files_survive_a_killed_server() {
    if !kernel_forwards_syncs() {
        println!("NOTE: this kernel does not forward sync(2) to FUSE servers");
        return;
    }
    private_mounts();
    let fixture = fixture();
    let mount = fixture.mount(&["-o", "rw"]);
    fs::create_dir(mount.path().join("d")).unwrap();
    fs::write(mount.path().join("d/f"), "x\n").unwrap();
    run(&mut Command::new("sync"));
    mount.signal_server(Signal::KILL);
    mount.assert_gone();
    let found = LoopMount::new(&fixture.image, "ext4", "rw");
    assert_eq!(fs::read(found.path().join("d/f")).unwrap(), b"x\n");
}

#[test]
fn mounts_without_a_device_are_synced_by_command_and_at_intervals() {
    private_mounts();
    let fixture = fixture();
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
    let copy = fixture.folder.path().join("users copy");
    fs::copy(&fixture.image, &copy).unwrap();
    let found = LoopMount::new(&copy, "ext4", "rw");
    assert_eq!(fs::read(found.path().join("users/file")).unwrap(), b"text\n");
    fixture.umount_as(NOBODY);
    mount.assert_gone();

    let refused = output(bifolio("sync").arg(fixture.folder.path()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.text().contains("no bifolio mount"), "{}", refused.text());
}

#[test]
fn all_data_is_on_the_image_when_umount_returns() {
    private_mounts();
    for (turn, lazy) in [(0, false), (1, true), (2, false)] {
        let fixture = fixture();
        let mount = fixture.mount(&["-o", "rw"]);
        change(mount.path(), "last");
        let mut umount = Command::new("umount");
        run(umount.args(lazy.then_some("-l")).arg(mount.path()));
        assert!(has_changes(&fixture, "last"), "turn {turn}");
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
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
    end(&|mount, _| mount.signal_server(Signal::KILL));
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
    for (options, names_only) in [("sync", false), ("sync,noloop", false), ("dirsync,noloop", true)]
    {
        let fixture = fixture();
        let mount = fixture.mount(&["-o", &format!("rw,commit=3600,{options}")]);
        if names_only {
            fs::create_dir(mount.path().join("one")).unwrap();
            fs::rename(mount.path().join("one"), mount.path().join("two")).unwrap();
            let copy = fixture.folder.path().join("copy");
            fs::copy(&fixture.image, &copy).unwrap();
            let found = LoopMount::new(&copy, "ext4", "rw");
            assert!(found.path().join("two").exists() && !found.path().join("one").exists());
        } else {
            change(mount.path(), "at once");
            assert!(has_changes(&fixture, "at once"), "{options}");
        }
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
    }
}
