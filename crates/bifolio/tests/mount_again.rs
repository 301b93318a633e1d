//! Mounts that follow each other at one place: guards and `umount` take none for another, though the kernel gives
//! numbers of mounts and devices out again, and an image can be mounted as soon as its mount has gone.

mod mounting;

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use mounting::{Location, Mount, NOBODY, bifolio, mount_entry};
use rustix::process::{Signal, Uid};
use testkit::command::{output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts, wait_until};

fn place() -> Location {
    let place = Location::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&place.image, None);
    place
}

/// The device number of what is mounted on the place's directory.
fn device(place: &Location) -> Option<String> {
    mount_entry(&place.directory)?.split(' ').nth(2).map(str::to_owned)
}

/// A mount that has gone and whose guard, stopped, has not heard of that; and one that has come after it and got
/// the same device number. These tests come one after the other, and others on this machine may take the number.
fn follow<'a>(place: &'a Location, options: &str) -> (Mount<'a>, Mount<'a>) {
    for _ in 0..50 {
        let old = place.mount(&["-o", options]);
        let before = device(place);
        old.signal_guard(Signal::STOP);
        run(Command::new("umount").arg(old.path()));
        wait_until("the server's end", || !old.has_server());
        let new = place.mount(&["-o", options]);
        if device(place) == before {
            return (old, new);
        }
        place.umount();
        new.assert_gone();
        old.signal_guard(Signal::CONT);
        old.assert_gone();
    }
    panic!("the kernel gives no device number out again");
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn the_guard_of_a_mount_that_has_gone_lets_one_with_the_same_number_be() {
    let _alone = ONE_AT_A_TIME.lock();
    private_mounts();
    let place = place();
    for options in ["rw,noloop", "rw"] {
        let (old, new) = follow(&place, options);
        fs::write(new.path().join("file"), options).unwrap();
        old.signal_guard(Signal::CONT);
        wait_until("the old guard's end", || !old.has_guard());
        assert_eq!(fs::read_to_string(new.path().join("file")).unwrap(), options);
        place.umount();
        new.assert_gone();
    }
    check_by_e2fsck(&place.image);
}

#[test]
fn umount_waits_for_the_server_of_the_mount_that_it_unmounts() {
    let _alone = ONE_AT_A_TIME.lock();
    private_mounts();
    let place = place();
    let (old, new) = follow(&place, "rw,noloop,commit=3600");
    fs::write(new.path().join("file"), "data").unwrap();
    // One that took the old guard for the new one would wait for that, which is stopped.
    let done = output(bifolio("umount").arg(new.path()));
    assert!(done.status.success(), "{}", done.text());
    assert!(!new.has_server());
    old.signal_guard(Signal::CONT);
    wait_until("the old guard's end", || !old.has_guard());
    check_by_e2fsck(&place.image);
}

#[test]
fn umount_does_not_wait_for_another_user_who_has_taken_the_name_of_a_guard() {
    private_mounts();
    let place = place();
    let mount = place.mount(&["-o", "rw"]);
    let names = mount.names_of_guard();
    let [name] = &*names else { panic!("{names:?}") };
    mount.signal_guard(Signal::KILL);
    wait_until("the guard's end", || !mount.has_guard());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let binding = std::thread::spawn(move || {
        // Of this thread only.
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        UnixListener::bind_addr(&address).unwrap()
    });
    let taken = binding.join().unwrap();
    // Nobody hangs up.
    let mut umount = bifolio("umount").arg(mount.path()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the end of umount", || umount.try_wait().unwrap().is_some());
    let done = umount.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("another user has taken the name"), "{said}");
    mount.assert_gone();
    drop(taken);
    check_by_e2fsck(&place.image);
}

#[test]
fn an_image_is_mounted_again_as_soon_as_it_was_unmounted_while_others_come_and_go() {
    let _alone = ONE_AT_A_TIME.lock();
    private_mounts();
    let place = place();
    let other = place.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    for turn in 0..24 {
        let options = ["rw", "rw,noloop"][turn % 2];
        let mut mount = bifolio("mount");
        run(mount.args(["-o", options]).arg(&place.image).arg(&place.directory));
        assert_eq!(fs::read_dir(&place.directory).unwrap().count(), turn + 1, "turn {turn}");
        fs::write(place.directory.join(format!("file {turn}")), "data").unwrap();
        if turn % 3 == 0 {
            run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&other));
        } else if turn % 3 == 1 {
            run(Command::new("umount").arg(&other));
        }
        // The host's own, which on a mount without a device waits for nothing.
        run(Command::new("umount").arg(&place.directory));
    }
    let left = output(Command::new("umount").arg(&other));
    assert!(!left.status.success(), "each third turn has unmounted it");
    let mount = place.mount(&[]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 25);
}
