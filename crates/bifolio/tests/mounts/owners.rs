//! Mounts with mapped owners: the owners and access rights on the mount, and the owners on a mount
//! of the kernel afterwards.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::mounting::{Fixture, NOBODY, as_user};
use testkit::command::{output, run};
use testkit::{LoopMount, check_by_e2fsck, private_mounts, wait_until};

/// User of the image.
const WWW: u32 = 33;
/// User of the host.
const HOST_USER: u32 = 100_007;

/// Unmounts, checks the image with e2fsck, and mounts it with the kernel.
fn kernels(fixture: &Fixture) -> LoopMount {
    fixture.umount();
    wait_until("the server's end", || check_is_free(&fixture.image));
    check_by_e2fsck(&fixture.image);
    LoopMount::new(&fixture.image, "ext4", "ro")
}

fn check_is_free(image: &Path) -> bool {
    let file = File::open(image).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

/// Returns a call of a script as a user, in a directory that other users may not be able to enter.
fn script(user: u32, directory: &Path, script: &str) -> Command {
    let mut command = as_user(user, "sh");
    command.args(["-ec", &format!("cd \"$0\"; {script}")]).arg(directory);
    command
}

/// Runs a script as a user. The script must succeed.
fn shell(user: u32, directory: &Path, text: &str) {
    run(&mut script(user, directory, text));
}

fn named_in_acl(path: &Path) -> Vec<String> {
    let list = run(Command::new("getfacl").args(["-nEp"]).arg(path));
    let list = String::from_utf8(list).unwrap();
    let named = |line: &&str| line.starts_with("user:") || line.starts_with("group:");
    let named = list.lines().filter(named).filter(|line| !line.contains("::"));
    named.map(str::to_owned).collect()
}

#[test]
fn the_mounting_user_is_root_of_the_image_with_mapped_owners() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.allow_nobody();
    chown(&fixture.image, Some(NOBODY), Some(NOBODY)).unwrap();
    let mount = fixture.mount_as(NOBODY, &["-o", "rw,owner=mapped"]);
    shell(
        NOBODY,
        mount.path(),
        "test $(stat -c %u:%g small) = 65534:65534
         test $(stat -c %u:%g .) = 65534:65534
         cat secret; echo more >>small; rm big
         mkdir -p etc/below; echo text >etc/below/file; ln -s file etc/below/link
         echo his >his; chown 33:33 his; chmod 600 his; echo more >>his; cat his
         echo given >given; chown 0:0 given; test $(stat -c %u:%g given) = 0:0
         setfacl -m u:33:rw,u:65534:r,g:44:r etc/below/file
         getfacl -np etc/below/file | grep -q ^user:65534:r",
    );
    assert!(
        !output(as_user(1, "ls").arg(mount.path())).status.success(),
        "another user has access"
    );
    let kernels = kernels(&fixture);
    let path = |name: &str| kernels.path().join(name);
    for name in ["small", "etc", "etc/below/file", "etc/below/link"] {
        assert_eq!(owner(&path(name)), (0, 0), "{name}");
    }
    assert_eq!(owner(&path("his")), (WWW, WWW));
    assert_eq!(owner(&path("given")), (NOBODY, NOBODY));
    assert_eq!(fs::read(path("his")).unwrap(), b"his\nmore\n");
    assert_eq!(fs::read(path("small")).unwrap(), b"a few bytes\nmore\n");
    assert_eq!(
        named_in_acl(&path("etc/below/file")),
        ["user:0:r--", "user:33:rw-", "group:44:r--"]
    );
    assert!(!path("big").exists());
}

/// Returns the commands of the README after the line with `heading`, up to the next empty line.
fn commands_of_readme(heading: &str) -> String {
    let lines = include_str!("../../../../README.md").lines();
    let commands = lines.skip_while(|line| !line.contains(heading)).skip(1);
    commands.take_while(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_archive_of_the_readme_has_the_owners_of_the_image() {
    private_mounts();
    let fixture = Fixture::with_tree();
    fixture.allow_nobody();
    chown(&fixture.image, Some(NOBODY), Some(NOBODY)).unwrap();
    let owners = [(0, 0), (NOBODY, NOBODY), (0, NOBODY), (NOBODY, 0), (WWW, 44)];
    {
        let mount = LoopMount::new(&fixture.image, "ext4", "rw");
        for (uid, gid) in owners {
            let file = mount.path().join(format!("of-{uid}-{gid}"));
            fs::write(&file, "x").unwrap();
            chown(&file, Some(uid), Some(gid)).unwrap();
        }
    }
    let mount = fixture.mount_as(NOBODY, &["-o", "owner=mapped"]);
    let commands = commands_of_readme("an archive with all owners");
    let (_, archive) = commands.split_once("tar -C ~/mnt ").expect("a tar command");
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    run(as_user(NOBODY, "bash")
        .args(["-ec", &format!("cd \"$1\"; tar -C \"$0\" {archive}")])
        .args([mount.path(), folder.path()]));
    let listed = run(Command::new("tar")
        .args(["--numeric-owner", "-tvf"])
        .arg(folder.path().join("disk.tar")));
    let listed = String::from_utf8(listed).unwrap();
    for (uid, gid) in owners {
        let name = format!("./of-{uid}-{gid}");
        let line = listed.lines().find(|line| line.ends_with(&name)).expect(&name);
        assert_eq!(line.split_whitespace().nth(1), Some(&*format!("{uid}/{gid}")), "{line}");
    }
}

#[test]
fn ids_are_mapped_in_both_directions() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let map = "0:100000:1000";
    let mount = fixture.mount(&[
        "-o",
        &format!("rw,allow_other,uidmap={map}"),
        "-o",
        &format!("gidmap={map}"),
    ]);
    let root = mount.path();
    assert_eq!(owner(root), (100_000, 100_000));
    shell(100_000, root, "mkdir open; chmod 777 open; echo text >open/roots; cat secret");
    shell(
        HOST_USER,
        &root.join("open"),
        "echo text >users; setfacl -m u:100033:r,g:100044:r users",
    );
    assert_eq!(owner(&root.join("open/users")), (HOST_USER, HOST_USER));
    let is_refused = |user: u32, text: &str, complaint: &str| {
        let output = output(&mut script(user, root, text));
        assert!(!output.status.success() && output.text().contains(complaint), "{}", output.text());
    };
    // Ids of the host without an id in the image.
    is_refused(7, "echo text >open/new", "too large");
    is_refused(0, "mkdir open/new", "too large");
    is_refused(0, "chown 0 open/users", "too large");
    is_refused(0, "chgrp 101000 open/users", "too large");
    is_refused(0, "setfacl -m u:5:r open/users", "too large");
    is_refused(HOST_USER, "echo text >small", "denied");
    // Has no id on the host with the second map below.
    chown(root.join("open/roots"), Some(100_999), None).unwrap();
    // The ACL contains an id of the image that has no id on the host.
    assert_eq!(named_in_acl(&root.join("secret-but-for-nobody")), Vec::<String>::new());
    is_refused(100_000, "setfacl -m u:100001:r secret-but-for-nobody", "too large");
    let kernels_mount = kernels(&fixture);
    let path = |name: &str| kernels_mount.path().join(name);
    assert_eq!(owner(&path("open/users")), (7, 7));
    assert_eq!(named_in_acl(&path("open/users")), ["user:33:r--", "group:44:r--"]);
    assert_eq!(owner(&path("open/roots")), (999, 0));
    assert_eq!(named_in_acl(&path("secret-but-for-nobody")), ["user:65534:r--"]);
    drop(kernels_mount);

    let mount = fixture.mount(&["-o", "rw,allow_other,uidmap=0:100000:10"]);
    let roots = mount.path().join("open/roots");
    assert_eq!(owner(&roots), (NOBODY, 0));
    fs::set_permissions(mount.path().join("open/users"), PermissionsExt::from_mode(0o666)).unwrap();
    // Files of unmapped owners are shown as 65534, and cannot be changed, regardless of their mode.
    let output = output(&mut script(NOBODY, mount.path(), "echo >>open/roots"));
    assert!(!output.status.success(), "{}", output.text());
}

/// Creates a user namespace with the map `map`, such as "0 1000 1".
fn user_namespace(map: &str) -> File {
    let mut sleeper = Command::new("unshare");
    let mut sleeper = sleeper.args(["--user", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    let folder = format!("/proc/{}", sleeper.id());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    wait_until("the namespace", || {
        fs::read_link(format!("{folder}/ns/user")).is_ok_and(|other| other != own)
    });
    fs::write(format!("{folder}/uid_map"), map).unwrap();
    fs::write(format!("{folder}/gid_map"), map).unwrap();
    let namespace = File::open(format!("{folder}/ns/user")).unwrap();
    drop(sleeper.stdin.take());
    sleeper.wait().unwrap();
    namespace
}

/// Creates an idmapped mount of `from` on `to` with the maps of the namespace.
#[allow(unsafe_code, reason = "no dependency has these system calls")]
fn mount_idmapped(from: &Path, to: &Path, namespace: &File) -> std::io::Result<()> {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let (from, to) = (path(from), path(to));
    let clone = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the string outlives the call.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, from.as_ptr(), clone) };
    if tree < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let tree = unsafe { OwnedFd::from_raw_fd(tree as i32) };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: namespace.as_raw_fd() as u64,
    };
    // SAFETY: the strings and the structure outlive the calls, and the size is that of the
    // structure.
    let failed = unsafe {
        let empty = c"".as_ptr();
        let (tree, size) = (tree.as_raw_fd(), size_of_val(&attributes));
        libc::syscall(libc::SYS_mount_setattr, tree, empty, libc::AT_EMPTY_PATH, &attributes, size)
            < 0
            || libc::syscall(
                libc::SYS_move_mount,
                tree,
                empty,
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::MOVE_MOUNT_F_EMPTY_PATH,
            ) < 0
    };
    if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn idmapped_mounts_need_the_option_idmap() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let second = fixture.folder.path().join("mapped");
    fs::create_dir(&second).unwrap();
    let namespace = user_namespace("0 100000 1000");
    let mount = fixture.mount(&["-o", "rw,allow_other"]);
    assert!(mount_idmapped(mount.path(), &second, &namespace).is_err(), "without `idmap`");
    fixture.umount();
    mount.assert_gone();

    let mount = fixture.mount(&["-o", "rw,allow_other,idmap"]);
    mount_idmapped(mount.path(), &second, &namespace).unwrap();
    assert_eq!((owner(mount.path()), owner(&second)), ((0, 0), (100_000, 100_000)));
    shell(
        100_000,
        &second,
        "mkdir open; chmod 1777 open; echo text >open/roots; cat secret; truncate -s 3 small
         fallocate -l 100000 open/roots; setfattr -n user.note -v text small; chattr +d small",
    );
    shell(
        100_007,
        &second,
        "echo text >open/users; mv open/users open/moved; ln open/moved open/link",
    );
    // The directory is sticky.
    assert!(
        !output(as_user(100_008, "rm").args(["-f"]).arg(second.join("open/moved")))
            .status
            .success()
    );
    shell(100_007, &second, "rm open/moved");
    run(Command::new("setfattr")
        .args(["-n", "trusted.note", "-v", "text"])
        .arg(mount.path().join("small")));
    let names = run(Command::new("getfattr").args(["-dm", "-"]).arg(mount.path().join("small")));
    assert!(String::from_utf8(names).unwrap().contains("trusted.note"));
    run(Command::new("umount").arg(&second));
    let kernels = kernels(&fixture);
    let path = |name: &str| kernels.path().join(name);
    assert_eq!(owner(&path("open")), (0, 0));
    assert_eq!(owner(&path("open/link")), (7, 7));
    assert!(!path("open/moved").exists());
    assert_eq!(fs::metadata(path("open/roots")).unwrap().len(), 100_000);
}

#[test]
fn new_files_have_the_group_that_the_volume_and_the_options_say() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let options = "bsdgroups,acl,nobarrier";
    run(Command::new("tune2fs").args(["-o", options]).arg(&fixture.image));
    let group = |mount: &Path, name: &str| {
        let directory = mount.join("of-group");
        fs::create_dir(directory.join(name)).unwrap();
        File::create(directory.join(name).join("file")).unwrap();
        let groups = [owner(&directory.join(name)).1, owner(&directory.join(name).join("file")).1];
        assert_eq!(groups[0], groups[1]);
        groups[0]
    };
    let mount = fixture.mount(&["-o", "rw"]);
    fs::create_dir(mount.path().join("of-group")).unwrap();
    chown(mount.path().join("of-group"), None, Some(WWW)).unwrap();
    assert_eq!(group(mount.path(), "by-default"), WWW);
    drop(mount);
    let mount = fixture.mount(&["-o", "rw,sysvgroups"]);
    assert_eq!(group(mount.path(), "by-option"), 0);
    drop(mount);
    // A command creates files in the same way, and names what has no effect.
    let inside = format!("{}:/of-group/by-command", fixture.image.display());
    let made = output(crate::mounting::bifolio("mkdir").arg(&inside));
    assert!(made.status.success() && made.text().contains("option `nobarrier` of the volume"));
    assert!(!made.text().contains("acl"), "{}", made.text());
    run(Command::new("tune2fs").args(["-o", "^bsdgroups,^nobarrier"]).arg(&fixture.image));
    let mount = fixture.mount(&["-o", "rw,grpid"]);
    assert_eq!(group(mount.path(), "by-grpid"), WWW);
    let kernels = kernels(&fixture);
    assert_eq!(owner(&kernels.path().join("of-group/by-command")).1, WWW);
}
