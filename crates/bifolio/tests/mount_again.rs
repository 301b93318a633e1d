//! Successive mounts on one directory: guards and `umount` do not confuse them, although the kernel reuses the ids of
//! mounts and devices, and an image can be mounted again as soon as it is unmounted.

mod mounting;

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use mounting::{Fixture, Mount, NOBODY, bifolio, mount_entry};
use rustix::process::{Signal, Uid};
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

/// Returns an unmounted mount with a stopped guard, and a new mount with the same device number. Retries, because
/// other programs may get the number.
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

#[test]
fn umount_does_not_wait_for_another_user_with_the_socket_name_of_a_guard() {
    private_mounts();
    let fixture = fixture();
    let mount = fixture.mount(&["-o", "rw"]);
    let names = mount.guard_socket_names();
    let [name] = &*names else { panic!("{names:?}") };
    mount.signal_guard(Signal::KILL);
    wait_until("the guard's end", || !mount.has_guard());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let binding = std::thread::spawn(move || {
        // Changes the user of this thread only.
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        // Threads of the guard can still hold the name.
        let mut bound = None;
        wait_until("the release of the name", || {
            bound = UnixListener::bind_addr(&address).ok();
            bound.is_some()
        });
        bound.unwrap()
    });
    let taken = binding.join().unwrap();
    // The other user does not close the socket.
    let mut umount = bifolio("umount").arg(mount.path()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the end of umount", || umount.try_wait().unwrap().is_some());
    let done = umount.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("another user has bound the name"), "{said}");
    mount.assert_gone();
    drop(taken);
    check_by_e2fsck(&fixture.image);
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
