//! Contents of an image after a sync of its mount: the kernel's ext4 opens copies of it. Also the loop
//! devices for which the kernel passes syncs on.
#![allow(clippy::print_stdout, reason = "what a host does not do is said")]

mod mounting;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use mounting::{Location, LoopDevice, Mount, NOBODY, as_user, bifolio, mount_entry};
use rustix::process::Signal;
use testkit::command::{output, run};
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts, wait_until};

fn place() -> Location {
    let place = Location::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&place.image, None);
    place
}

/// Whether the kernel passes syncs on to servers of block devices.
fn passes_syncs_on() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= (6, 18)
}

/// The loop devices that lie over an image.
fn loop_devices(image: &Path) -> Vec<PathBuf> {
    let output = run(Command::new("losetup").args(["-n", "-O", "NAME", "-j"]).arg(image));
    let text = String::from_utf8(output).unwrap();
    text.lines()
        .map(|line| PathBuf::from(line.trim()))
        .filter(|line| line != Path::new(""))
        .collect()
}

/// Changes of every kind, none of which is synced by itself.
fn change(root: &Path, turn: &str) {
    let directory = root.join(format!("directory {turn}"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), turn.repeat(100_000)).unwrap();
    fs::write(directory.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    fs::rename(directory.join("empty"), directory.join("renamed")).unwrap();
}

/// Whether a copy of the image, as it is now, has those changes, by the kernel's ext4.
fn has_changes(place: &Location, turn: &str) -> bool {
    let copy = place.folder.path().join("copy");
    fs::copy(&place.image, &copy).unwrap();
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

/// A way to sync, and its name.
type Way<'a> = (&'a str, &'a dyn Fn(&Path));

fn syncfs(path: &Path) {
    rustix::fs::syncfs(File::open(path).unwrap()).unwrap();
}

fn bifolio_sync(path: &Path) {
    run(bifolio("sync").arg(path));
}

fn remount_read_only(path: &Path) {
    // Without helpers: the system call alone.
    run(Command::new("mount").args(["-i", "-o", "remount,ro"]).arg(path));
}

#[test]
fn whoever_syncs_a_mount_in_whatever_way_finds_all_of_it_on_the_image() {
    if !passes_syncs_on() {
        println!("NOTE: this kernel passes sync(2) on to no FUSE server");
        return;
    }
    private_mounts();
    for options in ["rw", "rw,writeback"] {
        let place = place();
        // So long that nothing is durable by itself.
        let mount = place.mount(&["-o", &format!("{options},commit=3600")]);
        let ways: [Way<'_>; 4] = [
            ("sync", &|_| drop(run(&mut Command::new("sync")))),
            ("syncfs", &syncfs),
            ("bifolio sync", &bifolio_sync),
            ("remount", &remount_read_only),
        ];
        for (way, sync) in ways {
            change(mount.path(), way);
            assert!(!has_changes(&place, way), "{way}: durable without it");
            sync(mount.path());
            assert!(has_changes(&place, way), "{way}, {options}");
        }
        let refused = fs::write(mount.path().join("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        place.umount();
        mount.assert_gone();
        assert_eq!(loop_devices(&place.image), Vec::<PathBuf>::new());
        check_by_e2fsck(&place.image);
    }
}

#[test]
fn what_was_synced_outlives_a_server_that_is_killed() {
    if !passes_syncs_on() {
        println!("NOTE: this kernel passes sync(2) on to no FUSE server");
        return;
    }
    private_mounts();
    let place = place();
    let mount = place.mount(&["-o", "rw"]);
    fs::create_dir(mount.path().join("d")).unwrap();
    fs::write(mount.path().join("d/f"), "x\n").unwrap();
    run(&mut Command::new("sync"));
    mount.signal_server(Signal::KILL);
    mount.assert_gone();
    let found = LoopMount::new(&place.image, "ext4", "rw");
    assert_eq!(fs::read(found.path().join("d/f")).unwrap(), b"x\n");
}

#[test]
fn mounts_without_a_device_are_synced_by_command_and_by_themselves() {
    private_mounts();
    let place = place();
    let mount = place.mount(&["-o", "rw,noloop,commit=3600"]);
    assert!(mount_entry(mount.path()).unwrap().contains(" fuse.bifolio "));
    change(mount.path(), "command");
    assert!(!has_changes(&place, "command"));
    bifolio_sync(mount.path());
    assert!(has_changes(&place, "command"));
    place.umount();
    mount.assert_gone();

    let mount = place.mount(&["-o", "rw,noloop,commit=1"]);
    change(mount.path(), "time");
    wait_until("what was written is durable", || has_changes(&place, "time"));
    drop(mount);

    place.give_to_nobody();
    std::os::unix::fs::chown(&place.image, Some(NOBODY), Some(NOBODY)).unwrap();
    let mount = place.mount_as(NOBODY, &["-o", "rw,commit=3600,owner=mapped"]);
    let script = "mkdir \"$0/users\" && echo text >\"$0/users/file\"";
    run(as_user(NOBODY, "sh").args(["-c", script]).arg(mount.path()));
    let mut sync = as_user(NOBODY, env!("CARGO_BIN_EXE_bifolio"));
    run(sync.arg("sync").arg(mount.path()));
    let copy = place.folder.path().join("users copy");
    fs::copy(&place.image, &copy).unwrap();
    let found = LoopMount::new(&copy, "ext4", "rw");
    assert_eq!(fs::read(found.path().join("users/file")).unwrap(), b"text\n");
    place.umount_as(NOBODY);
    mount.assert_gone();

    let refused = output(bifolio("sync").arg(place.folder.path()));
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.text().contains("no bifolio mount"), "{}", refused.text());
}

#[test]
fn what_is_on_the_image_when_umount_returns_is_all_of_it() {
    private_mounts();
    for (turn, lazy) in [(0, false), (1, true), (2, false)] {
        let place = place();
        let mount = place.mount(&["-o", "rw"]);
        change(mount.path(), "last");
        let mut umount = Command::new("umount");
        run(umount.args(lazy.then_some("-l")).arg(mount.path()));
        assert!(has_changes(&place, "last"), "turn {turn}");
        mount.assert_gone();
        check_by_e2fsck(&place.image);
    }
}

#[test]
fn the_loop_device_goes_with_the_mount_however_that_ends() {
    private_mounts();
    let end = |end: &dyn Fn(&Mount<'_>, &Location)| {
        let place = place();
        let mount = place.mount(&["-o", "rw"]);
        let [device] = &*loop_devices(&place.image) else { panic!("no loop device") };
        let entry = mount_entry(mount.path()).unwrap();
        assert!(entry.contains(&format!(" fuseblk.bifolio {} ", device.display())), "{entry}");
        change(mount.path(), "kept");
        bifolio_sync(mount.path());
        end(&mount, &place);
        mount.assert_gone();
        assert_eq!(loop_devices(&place.image), Vec::<PathBuf>::new());
        assert!(has_changes(&place, "kept"));
    };
    end(&|_, place| place.umount());
    // The host's own umount finds it by the image, too.
    end(&|_, place| drop(run(Command::new("umount").arg(&place.image))));
    end(&|mount, _| mount.signal_guard(Signal::TERM));
    end(&|mount, _| mount.signal_server(Signal::KILL));
    end(&|mount, place| {
        mount.signal_guard(Signal::KILL);
        wait_until("the guard's end", || !mount.has_guard());
        place.umount();
    });
    end(&|mount, place| {
        mount.signal_guard(Signal::KILL);
        wait_until("the guard's end", || !mount.has_guard());
        mount.signal_server(Signal::KILL);
        place.umount();
    });
}

#[test]
fn an_image_is_mounted_without_a_loop_device_where_there_is_none_or_none_is_wanted() {
    private_mounts();
    let place = place();
    let check = |options: &str| {
        let mount = place.mount(&["-o", options]);
        let entry = mount_entry(mount.path()).unwrap();
        assert!(entry.contains(" fuse.bifolio "), "{options}: {entry}");
        assert_eq!(loop_devices(&place.image), Vec::<PathBuf>::new());
        assert_eq!(
            fs::write(mount.path().join("file"), options).is_ok(),
            options.starts_with("rw")
        );
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
    };
    check("rw,noloop");
    check("rw,fsname=mine");
    check("ro");
    run(Command::new("mount").args(["--bind", "/dev/null", "/dev/loop-control"]));
    check("rw");
}

#[test]
fn a_device_that_refused_writes_before_is_none_the_less_mounted_for_writing() {
    private_mounts();
    let place = place();
    let device = LoopDevice::new(&place.image);
    let node = device.path().to_owned();
    run(Command::new("blockdev").arg("--setro").arg(&node));
    drop(device);
    // Free devices are taken from the lowest on, so that this one is likely to be it.
    let mount = place.mount(&["-o", "rw"]);
    fs::write(mount.path().join("file"), "data").unwrap();
    place.umount();
    mount.assert_gone();
    run(Command::new("blockdev").arg("--setrw").arg(&node));
}

#[test]
fn synchronous_mounts_need_no_sync() {
    private_mounts();
    for (options, names_only) in [("sync", false), ("sync,noloop", false), ("dirsync,noloop", true)]
    {
        let place = place();
        let mount = place.mount(&["-o", &format!("rw,commit=3600,{options}")]);
        if names_only {
            fs::create_dir(mount.path().join("one")).unwrap();
            fs::rename(mount.path().join("one"), mount.path().join("two")).unwrap();
            let copy = place.folder.path().join("copy");
            fs::copy(&place.image, &copy).unwrap();
            let found = LoopMount::new(&copy, "ext4", "rw");
            assert!(found.path().join("two").exists() && !found.path().join("one").exists());
        } else {
            change(mount.path(), "at once");
            assert!(has_changes(&place, "at once"), "{options}");
        }
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
    }
}
