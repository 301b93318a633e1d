//! Mounting by mount(8), fstab and remount, through the command under the name of a helper.

mod mounting;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use mounting::{Location, NOBODY, as_user, mount_entry};
use testkit::command::{Output, output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

/// A place for a thread with mounts of its own, in which mount(8) finds our helpers and no others.
fn place() -> (Location, Helpers) {
    private_mounts();
    let place = Location::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&place.image, None);
    let folder = fs::canonicalize("/sbin").unwrap();
    let bind = place.folder.path().join("helpers");
    fs::create_dir(&bind).unwrap();
    for name in ["mount.bifolio", "mount.fuse.bifolio", "mount.fuseblk.bifolio"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bifolio"), bind.join(name)).unwrap();
    }
    run(Command::new("mount").arg("--bind").arg(&bind).arg(&folder));
    (place, Helpers(folder))
}

/// While this is there, /sbin has nothing but helpers.
struct Helpers(PathBuf);

impl Drop for Helpers {
    fn drop(&mut self) {
        output(Command::new("umount").arg(&self.0));
    }
}

fn mount(arguments: &[&str], place: &Location) -> Output {
    let mut command = Command::new("mount");
    output(command.args(arguments).arg(&place.image).arg(&place.directory))
}

#[test]
fn mount_and_umount_do_what_they_do_for_other_types() {
    let (place, helpers) = place();
    let options =
        "nofail,_netdev,x-systemd.automount,user,data=ordered,barrier=1,commit=3,errors=remount-ro";
    let mounted = mount(&["-t", "bifolio", "-o", options], &place);
    assert!(mounted.status.success(), "{}", mounted.text());
    let mounted = place.mounted();
    let entry = mount_entry(mounted.path()).unwrap();
    assert!(entry.contains("rw,nosuid,nodev") && entry.contains("allow_other"), "{entry}");
    fs::write(mounted.path().join("file"), "data").unwrap();
    // As with other types, all users may look.
    let found = run(as_user(NOBODY, "cat").arg(mounted.path().join("file")));
    assert_eq!(found, b"data");
    let again = mount(&["-t", "bifolio"], &place);
    assert_eq!(again.status.code(), Some(32), "{}", again.text());
    run(Command::new("umount").arg(mounted.path()));
    mounted.assert_gone();
    drop(helpers);
    check_by_e2fsck(&place.image);
}

#[test]
fn fstab_is_obeyed() {
    let (place, helpers) = place();
    let table = place.folder.path().join("fstab");
    let directory = place.directory.display().to_string().replace(' ', "\\040");
    let image = place.image.display();
    fs::write(&table, format!("{image} {directory} bifolio noatime,nofail,ro 0 0\n")).unwrap();
    let mut all = Command::new("mount");
    let done = output(all.arg("-a").env("LIBMOUNT_FSTAB", &table));
    assert!(done.status.success(), "{}", done.text());
    let mounted = place.mounted();
    let entry = mount_entry(mounted.path()).unwrap();
    assert!(entry.contains("ro,nosuid,nodev,noatime"), "{entry}");
    run(Command::new("umount").arg(mounted.path()));
    mounted.assert_gone();
    drop(helpers);
}

#[test]
fn remounts_change_what_they_name_and_leave_nothing_that_is_not_durable() {
    let (place, helpers) = place();
    for options in ["rw,commit=3600", "rw,commit=3600,noloop"] {
        let mounted = mount(&["-t", "bifolio", "-o", options], &place);
        assert!(mounted.status.success(), "{}", mounted.text());
        let mounted = place.mounted();
        let name = mounted.path().join(options);
        fs::write(&name, options).unwrap();
        let remount = |options: &str| {
            let mut command = Command::new("mount");
            output(command.args(["-o", &format!("remount,{options}")]).arg(mounted.path()))
        };
        let done = remount("ro,noexec");
        assert!(done.status.success(), "{}", done.text());
        let entry = mount_entry(mounted.path()).unwrap();
        assert!(entry.contains("ro,nosuid,nodev,noexec"), "{entry}");
        let error = fs::write(&name, "other").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
        let copy = place.folder.path().join("copy");
        fs::copy(&place.image, &copy).unwrap();
        let cat = run(mounting::bifolio("cat").arg(format!("{}:/{options}", copy.display())));
        assert_eq!(cat, options.as_bytes());

        let done = remount("rw,exec");
        assert!(done.status.success(), "{}", done.text());
        fs::write(&name, "other").unwrap();
        run(Command::new("umount").arg(mounted.path()));
        mounted.assert_gone();
    }
    // What was never open for writing cannot become so.
    let done = mount(&["-t", "bifolio", "-o", "ro"], &place);
    assert!(done.status.success(), "{}", done.text());
    let mounted = place.mounted();
    let refused = output(Command::new("mount").args(["-o", "remount,rw"]).arg(mounted.path()));
    assert_eq!(refused.status.code(), Some(32), "{}", refused.text());
    assert!(refused.text().contains("mounted read-only"), "{}", refused.text());
    run(Command::new("umount").arg(mounted.path()));
    mounted.assert_gone();
    drop(helpers);
    check_by_e2fsck(&place.image);
}

#[test]
fn what_a_helper_cannot_do_is_refused_with_a_reason() {
    let (place, helpers) = place();
    for (options, complaint) in [
        ("data=journal", "the journal gets no file data"),
        ("nobarrier", "flushes of the device cache cannot be disabled"),
        ("frobnicate", "unknown mount option `frobnicate`"),
    ] {
        let refused = mount(&["-t", "bifolio", "-o", options], &place);
        assert_eq!(refused.status.code(), Some(1), "{options}: {}", refused.text());
        assert!(refused.text().contains(complaint), "{options}: {}", refused.text());
        assert_eq!(mount_entry(&place.directory), None);
    }
    let sloppy = mount(&["-t", "bifolio", "-s", "-f", "-o", "frobnicate"], &place);
    assert!(sloppy.status.success(), "{}", sloppy.text());
    assert_eq!(mount_entry(&place.directory), None);
    drop(helpers);
}
