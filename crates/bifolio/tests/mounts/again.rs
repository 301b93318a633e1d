//! Guards at the end of mounts, and successive mounts on one directory: guards and `umount` do not
//! confuse them, although the kernel reuses the ids of mounts and devices, and an image can be
//! mounted again as soon as it is unmounted.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::mounting::{Fixture, LoopDevice, Mount, NOBODY, bifolio, mount_entry, run_as};
use rustix::process::Signal;
use testkit::command::{output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts, wait_until};

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    fixture
}

/// Returns the device number of the current mount.
fn device(fixture: &Fixture) -> Option<String> {
    mount_entry(&fixture.directory)?.split(' ').nth(2).map(str::to_owned)
}

/// Returns an unmounted mount with a stopped guard, and a new mount with the same device number.
/// Retries, because other programs may get the number.
fn mount_with_reused_number<'a>(fixture: &'a Fixture, options: &str) -> (Mount<'a>, Mount<'a>) {
    for _ in 0..50 {
        let old = fixture.mount(&["-o", options]);
        let before = device(fixture);
        old.stop_guard();
        run(Command::new("umount").arg(old.path()));
        wait_until("the server's end", || !old.has_server());
        let new = fixture.mount(&["-o", options]);
        if device(fixture) == before {
            return (old, new);
        }
        fixture.umount();
        new.assert_gone();
        old.signal_guard(Signal::CONT);
        old.assert_gone();
    }
    panic!("the kernel does not reuse device numbers");
}

/// Tests that wait for a reused device number run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn the_guard_of_an_old_mount_does_not_unmount_a_new_one_with_its_number() {
    let _alone = ONE_AT_A_TIME.lock();
    private_mounts();
    let fixture = fixture();
    for options in ["rw,noloop", "rw"] {
        let (old, new) = mount_with_reused_number(&fixture, options);
        fs::write(new.path().join("file"), options).unwrap();
        old.signal_guard(Signal::CONT);
        wait_until("the old guard's end", || !old.has_guard());
        assert_eq!(fs::read_to_string(new.path().join("file")).unwrap(), options);
        fixture.umount();
        new.assert_gone();
    }
    check_by_e2fsck(&fixture.image);
}

#[test]
fn umount_waits_for_the_server_of_the_mount_that_it_unmounts() {
    let _alone = ONE_AT_A_TIME.lock();
    private_mounts();
    let fixture = fixture();
    let (old, new) = mount_with_reused_number(&fixture, "rw,noloop,commit=3600");
    fs::write(new.path().join("file"), "data").unwrap();
    // If umount confused the guards, it would wait for the old one, which is stopped.
    let done = output(bifolio("umount").arg(new.path()));
    assert!(done.status.success(), "{}", done.text());
    assert!(!new.has_server());
    old.signal_guard(Signal::CONT);
    wait_until("the old guard's end", || !old.has_guard());
    check_by_e2fsck(&fixture.image);
}

/// Returns the bound names of the sockets that a process has open.
fn socket_names(process: i32) -> Vec<String> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let open: Vec<PathBuf> =
        open.map(|file| fs::read_link(file.unwrap().path()).unwrap()).collect();
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let is_open = |inode: &str| open.contains(&format!("socket:[{inode}]").into());
    let sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let named = sockets.filter(|fields| fields.get(6).is_some_and(|inode| is_open(inode)));
    named.filter_map(|fields| Some((*fields.get(7)?).to_owned())).collect()
}

#[test]
fn umount_needs_no_name_that_another_user_can_take() {
    private_mounts();
    let fixture = fixture();
    fixture.allow_nobody();
    for user in [0, NOBODY] {
        std::os::unix::fs::chown(&fixture.image, Some(user), Some(user)).unwrap();
        let mount = fixture.mount_as(user, &["-o", "rw,noloop"]);
        assert_eq!(socket_names(mount.guard()), [""; 0]);
        // The mark of the guard, as another user could make it.
        let open = fs::read_dir(format!("/proc/{}/fd", mount.guard())).unwrap();
        let links = open.map(|file| fs::read_link(file.unwrap().path()).unwrap());
        let mut marks = links.filter_map(|link| {
            let name = link.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
            Some(name.to_owned())
        });
        let name = marks.next().expect("the guard has a mark");
        let taken = run_as(NOBODY - 1, NOBODY - 1, || {
            rustix::fs::memfd_create(&*name, rustix::fs::MemfdFlags::CLOEXEC).unwrap()
        });
        rustix::io::write(&taken, b"-from a stranger").unwrap();
        fs::write(mount.path().join(format!("file of {user}")), "data").unwrap_or_default();
        fixture.umount_as(user);
        mount.assert_gone();
    }
    check_by_e2fsck(&fixture.image);
}

#[test]
fn a_mount_whose_server_has_died_stays_until_a_new_one_replaces_it() {
    private_mounts();
    for (user, options) in [(0, "rw"), (0, "rw,noloop"), (NOBODY, "rw,owner=mapped")] {
        let fixture = fixture();
        fixture.allow_nobody();
        std::os::unix::fs::chown(&fixture.image, Some(user), Some(user)).unwrap();
        let mount = fixture.mount_as(user, &["-o", options]);
        let (synced, lost) = (mount.path().join("synced"), mount.path().join("lost"));
        let write = |path: &Path| run_as(user, user, || fs::write(path, "data"));
        write(&synced).unwrap();
        // A program that keeps a file open keeps the dead mount, and its loop device, in use.
        let used = run_as(user, user, || File::open(&synced).unwrap());
        run_as(user, user, || File::open(&synced).unwrap().sync_all().unwrap());
        mount.signal_server(Signal::KILL);
        wait_until("the guard's end", || !mount.has_guard());
        let refused = write(&lost).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotConnected, "{refused}");
        let new = fixture.mount_as(user, &["-o", options]);
        run_as(user, user, || {
            assert_eq!(fs::read_to_string(&synced).unwrap(), "data");
            assert!(!lost.exists());
        });
        drop(used);
        fixture.umount_as(user);
        new.assert_gone();
        assert_eq!(fs::read_dir(&fixture.directory).unwrap().count(), 0);
        check_by_e2fsck(&fixture.image);
    }
}

/// Binds the socket of the system log, in a /dev of the test's own.
fn system_log(fixture: &Fixture) -> UnixDatagram {
    let devices = fixture.folder.path().join("dev");
    fs::create_dir(&devices).unwrap();
    let script = "mount -t tmpfs -o mode=755 none $PWD && cd $PWD && cp -a /dev/null /dev/fuse /dev/urandom . \
                  && mount --bind . /dev";
    run(Command::new("sh").args(["-c", script]).current_dir(&devices));
    let log = UnixDatagram::bind("/dev/log").unwrap();
    log.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    log
}

#[test]
fn background_mounts_send_their_messages_to_the_system_log() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let damage = "set_inode_field /small block[0] 0xdead";
    run(Command::new("debugfs").args(["-w", "-R", damage]).arg(&fixture.image));
    let log = system_log(&fixture);
    let next = || {
        let mut bytes = [0; 8192];
        let length = log.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let wait_for = |part: &str| {
        loop {
            let line = next();
            assert!(line.starts_with("<27>") || line.starts_with("<28>"), "{line}");
            assert!(line.contains(" bifolio["), "{line}");
            if line.contains(part) {
                break;
            }
        }
    };
    let mount = fixture.mount(&["-o", "rw,noloop,errors=remount-ro"]);
    assert!(fs::read(mount.path().join("small")).is_err());
    wait_for("accepts no more writes");
    mount.signal_server(Signal::KILL);
    wait_for("the server has died");
    wait_for("killed by signal 9");
    mount.unmount_dead();
    drop(mount);
    // Nobody reads the log, and nothing waits for it.
    let mount = fixture.mount(&["-o", "rw,noloop"]);
    for _ in 0..1000 {
        assert!(fs::read(mount.path().join("small")).is_err());
    }
    fixture.umount();
    mount.assert_gone();
}

#[test]
fn no_signal_ends_a_mount_before_its_data_is_written() {
    private_mounts();
    let fixture = fixture();
    let ignored = [10, 12, 13, 14, 16, 25, 26, 27, 29, 34, 50, 64];
    for ending in [3, 24, 30] {
        let mount = fixture.mount(&["-o", "rw,noloop,commit=3600"]);
        for process in [mount.server(), mount.guard()] {
            for signal in ignored {
                send(process, signal);
            }
        }
        let name = mount.path().join(format!("file {ending}"));
        fs::write(&name, "data").unwrap();
        send(if ending == 3 { mount.server() } else { mount.guard() }, ending);
        mount.assert_gone();
        let written =
            output(bifolio("cat").arg(format!("{}:/file {ending}", fixture.image.display())));
        assert_eq!(written.text(), "data", "signal {ending}");
    }
    check_by_e2fsck(&fixture.image);
}

/// Sends a signal by its number, also one without a name.
fn send(process: i32, signal: i32) {
    run(Command::new("kill").arg(format!("-{signal}")).arg(process.to_string()));
}

#[test]
fn a_volume_that_is_mounted_gets_a_second_mount_and_no_second_server() {
    private_mounts();
    let fixture = fixture();
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let device = LoopDevice::new(&fixture.image);
    let again = |options: &str| {
        output(bifolio("mount").args(["-o", options]).arg(device.path()).arg(&other))
    };
    let umount = |path: &Path| run(bifolio("umount").arg(path));
    let mount = |options: &str| {
        run(bifolio("mount").args(["-o", options]).arg(device.path()).arg(&fixture.directory));
        fixture.mounted()
    };
    for second_ends_first in [true, false] {
        let first = mount("rw");
        let mounted = again("rw,noexec");
        assert!(mounted.status.success(), "{}", mounted.text());
        fs::write(other.join("file"), "by the second").unwrap();
        assert_eq!(fs::read_to_string(first.path().join("file")).unwrap(), "by the second");
        let attributes = mount_entry(&other).unwrap();
        assert!(attributes.contains("rw,nosuid,nodev,noexec"), "{attributes}");
        assert!(!mount_entry(first.path()).unwrap().contains("noexec"));
        let occupied = again("rw");
        assert!(occupied.text().contains("is mounted on it already"), "{}", occupied.text());
        let (ends_first, ends_last) =
            if second_ends_first { (&*other, first.path()) } else { (first.path(), &*other) };
        umount(ends_first);
        assert_eq!(mount_entry(ends_first), None);
        assert!(first.has_server());
        fs::write(ends_last.join("file"), "by the last").unwrap();
        umount(ends_last);
        first.assert_gone();
        check_by_e2fsck(&fixture.image);
    }

    // The second mount of a writable volume can be read-only, and that of a read-only one cannot be
    // writable.
    let first = mount("rw");
    assert!(again("ro").status.success());
    let refused = fs::write(other.join("file"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    fs::write(first.path().join("file"), "by the first").unwrap();
    umount(&other);
    umount(first.path());
    first.assert_gone();
    let first = mount("ro");
    let refused = again("rw");
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text());
    assert!(refused.text().contains("it is mounted read-only on"), "{}", refused.text());
    assert!(again("ro").status.success());
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "by the first");
    umount(first.path());
    umount(&other);
    first.assert_gone();
}

#[test]
fn a_volume_with_several_dead_mounts_is_mounted_again_on_any_directory() {
    private_mounts();
    let fixture = fixture();
    let [other, third] = ["other", "third"].map(|name| fixture.folder.path().join(name));
    [&other, &third].iter().for_each(|path| fs::create_dir(path).unwrap());
    let again = |path: &Path| {
        let mounted = output(bifolio("mount").args(["-o", "rw"]).arg(&fixture.image).arg(path));
        assert!(mounted.status.success(), "{}", mounted.text());
    };
    for replaced in [&other, &third] {
        let first = fixture.mount(&["-o", "rw"]);
        again(&other);
        fs::write(other.join("synced"), replaced.as_os_str().as_encoded_bytes()).unwrap();
        File::open(other.join("synced")).unwrap().sync_all().unwrap();
        // From then on, the kernel opens the root directory without a request.
        fs::read_dir(first.path()).unwrap().count();
        first.signal_server(Signal::KILL);
        wait_until("the guard's end", || !first.has_guard());
        again(replaced);
        let found = fs::read(replaced.join("synced")).unwrap();
        assert_eq!(found, replaced.as_os_str().as_encoded_bytes());
        let dead = fs::read(first.path().join("synced")).unwrap_err();
        assert_eq!(dead.kind(), ErrorKind::NotConnected, "{dead}");
        let all = [first.path(), &*other, replaced];
        for path in all.iter().filter(|path| mount_entry(path).is_some()) {
            output(bifolio("umount").arg(path));
        }
        assert!(all.iter().all(|path| mount_entry(path).is_none()));
        check_by_e2fsck(&fixture.image);
    }
}

#[test]
fn a_dead_mount_with_a_mount_below_it_is_not_replaced() {
    private_mounts();
    let fixture = fixture();
    let mount = fixture.mount(&["-o", "rw"]);
    let below = mount.path().join("below");
    fs::create_dir(&below).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&below));
    fs::write(below.join("file"), "data").unwrap();
    mount.signal_server(Signal::KILL);
    wait_until("the guard's end", || !mount.has_guard());
    let mounted = || output(bifolio("mount").arg(&fixture.image).arg(mount.path()));
    let refused = mounted();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text());
    let expected = format!("{} has a mount, which would end with it", below.display());
    assert!(refused.text().contains(&expected), "{}", refused.text());
    // A program that has a file open there still reads it.
    assert!(mount_entry(&below).is_some());
    rustix::mount::unmount(&below, rustix::mount::UnmountFlags::DETACH).unwrap_or_else(|_| {
        // The path leads through the dead mount, which only its parent ends.
        rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    });
    assert_eq!(mount_entry(&below), None);
    let replaced = mounted();
    assert!(replaced.status.success(), "{}", replaced.text());
    assert!(fs::read_dir(mount.path()).unwrap().count() > 0, "the root of the volume is shown");
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

/// The path of a covered mount leads to the mount that covers it.
#[test]
fn what_covers_a_mount_is_not_mounted_instead_of_its_volume() {
    private_mounts();
    let fixture = fixture();
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let first = fixture.mount(&["-o", "rw"]);
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(first.path()));
    let refused = output(bifolio("mount").args(["-o", "rw"]).arg(&fixture.image).arg(&other));
    assert_eq!(mount_entry(&other), None);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text());
    assert!(refused.text().contains("is in use"), "{}", refused.text());
    run(Command::new("umount").arg(first.path()));
    fixture.umount();
    first.assert_gone();
}

/// Returns the number of writes of a process so far. A server that logs nothing writes only
/// answers.
fn answers(process: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}

#[test]
fn a_mount_asks_no_server_of_another_volume() {
    private_mounts();
    let (fixture, unrelated) = (fixture(), fixture());
    let device = LoopDevice::new(&unrelated.image);
    let mut mount = bifolio("mount");
    mount.args(["-o", "ro,io_uring=off"]).arg(device.path()).arg(&unrelated.directory);
    run(&mut mount);
    let asked = unrelated.mounted();
    let before = answers(asked.server());
    rustix::fs::statfs(asked.path()).unwrap();
    wait_until("the count of the answer", || answers(asked.server()) > before);
    let before = answers(asked.server());
    for options in ["ro", "rw", "rw,noloop"] {
        let mount = fixture.mount(&["-o", options]);
        fixture.umount();
        mount.assert_gone();
        assert_eq!(answers(asked.server()), before, "{options}");
    }
    unrelated.umount();
    asked.assert_gone();
}

/// As one whose device hangs.
#[test]
fn a_second_mount_does_not_wait_forever_for_a_server_that_does_not_answer() {
    private_mounts();
    let fixture = fixture();
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let first = fixture.mount(&["-o", "rw"]);
    first.stop_server();
    let refused = output(bifolio("mount").arg(&fixture.image).arg(&other));
    first.signal_server(Signal::CONT);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.text());
    let expected = format!("it is mounted on {}, whose server", fixture.directory.display());
    assert!(refused.text().contains(&expected), "{}", refused.text());
    assert_eq!(mount_entry(&other), None);
    run(bifolio("mount").arg(&fixture.image).arg(&other));
    run(bifolio("umount").args([&other, &fixture.directory]));
    first.assert_gone();
}

#[test]
fn a_signal_writes_the_data_of_all_mounts_of_a_volume_before_it_ends_them() {
    private_mounts();
    let fixture = fixture();
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let device = LoopDevice::new(&fixture.image);
    for has_first in [true, false] {
        let mount = |directory: &Path| {
            let mut mount = bifolio("mount");
            run(mount.args(["-o", "rw,writeback"]).arg(device.path()).arg(directory));
        };
        mount(&fixture.directory);
        let first = fixture.mounted();
        mount(&other);
        if !has_first {
            run(bifolio("umount").arg(first.path()));
        }
        // The kernel collects the data.
        fs::write(other.join("late"), vec![u8::from(has_first) + 1; 1 << 20]).unwrap();
        first.signal_guard(Signal::TERM);
        first.assert_gone();
        assert_eq!(mount_entry(&other), None, "{has_first}");
        let late = format!("{}:/late", fixture.image.display());
        let read = output(bifolio("cat").arg(&late)).stdout;
        assert!(read == vec![u8::from(has_first) + 1; 1 << 20], "{has_first}: {}", read.len());
        check_by_e2fsck(&fixture.image);
    }
}

#[test]
fn an_image_can_be_mounted_again_at_once_beside_other_mounts() {
    let _alone = ONE_AT_A_TIME.lock();
    private_mounts();
    let fixture = fixture();
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    for turn in 0..24 {
        let options = ["rw", "rw,noloop"][turn % 2];
        let mut mount = bifolio("mount");
        run(mount.args(["-o", options]).arg(&fixture.image).arg(&fixture.directory));
        assert_eq!(fs::read_dir(&fixture.directory).unwrap().count(), turn + 1, "turn {turn}");
        fs::write(fixture.directory.join(format!("file {turn}")), "data").unwrap();
        if turn % 3 == 0 {
            run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&other));
        } else if turn % 3 == 1 {
            run(Command::new("umount").arg(&other));
        }
        // umount of the host does not wait for the server of a mount without a device.
        run(Command::new("umount").arg(&fixture.directory));
    }
    let left = output(Command::new("umount").arg(&other));
    assert!(!left.status.success(), "every third turn unmounts it");
    let mount = fixture.mount(&[]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 25);
}
