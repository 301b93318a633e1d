//! Confinement of the server: its user, capabilities, system call filter and open files.

mod mounting;

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;

use mounting::{Fixture, Mount, bifolio};
use testkit::{private_mounts, wait_until};

#[test]
fn the_server_is_confined_by_default() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let facts = |mount: &Mount<'_>| {
        let status = fs::read_to_string(format!("/proc/{}/status", mount.server())).unwrap();
        let fact = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        ["Uid:", "CapEff:", "CapPrm:", "NoNewPrivs:", "Seccomp:"].map(fact)
    };
    let mount = fixture.mount(&[]);
    assert_eq!(facts(&mount), ["65534", "0000000000000000", "0000000000000000", "1", "2"]);
    drop(mount);
    let mount = fixture.mount(&["--no-confine"]);
    assert_eq!(facts(&mount)[0], "0");
    assert_eq!(facts(&mount)[4], "0");
    assert!(mount.path().join("small").exists());
}

#[test]
fn the_server_cannot_read_the_callers_terminal() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let (mut ours, mut theirs) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the call stores two descriptors.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, none, none.cast(), none.cast()) };
    assert_eq!(opened, 0);
    // SAFETY: the descriptors have no other owner.
    let [ours, theirs] = [ours, theirs].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    for side in [&ours, &theirs] {
        rustix::io::fcntl_setfd(side, rustix::io::FdFlags::CLOEXEC).unwrap();
    }
    let mut command = bifolio("mount");
    command.arg("-f").arg(&fixture.image).arg(&fixture.directory);
    command.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    drop(command);
    wait_until("the mount", || {
        assert_eq!(child.try_wait().unwrap(), None);
        fixture.directory.join("small").exists()
    });
    let mount = fixture.mounted();
    let process = PathBuf::from(format!("/proc/{}", mount.server()));
    let mut terminals = 0;
    for file in fs::read_dir(process.join("fd")).unwrap() {
        let file = file.unwrap();
        if fs::read_link(file.path()).unwrap().starts_with("/dev/pts") {
            let facts = fs::read_to_string(process.join("fdinfo").join(file.file_name())).unwrap();
            let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
            assert_eq!(flags & libc::O_ACCMODE, libc::O_WRONLY, "{:?}: {facts}", file.path());
            terminals += 1;
        }
    }
    assert_eq!(terminals, 1, "for messages");
    fixture.umount();
    assert!(child.wait().unwrap().success());
}
