//! Mounts through mount(8), fstab and remounts, which call bifolio as a mount helper.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use crate::mounting::{Fixture, NOBODY, as_user, mount_entry};
use testkit::command::{Output, output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

/// Creates a mount namespace in which mount(8) finds only the helpers of bifolio.
fn fixture() -> (Fixture, Helpers) {
    let program = env!("CARGO_BIN_EXE_bifolio");
    let names = ["mount.bifolio", "mount.fuse.bifolio", "mount.fuseblk.bifolio"];
    fixture_with(&names.map(|name| (name, program.into())))
}

/// Creates a mount namespace in which mount(8) finds only these helpers, by name and path.
fn fixture_with(helpers: &[(&str, PathBuf)]) -> (Fixture, Helpers) {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    let folder = fs::canonicalize("/sbin").unwrap();
    let bind = fixture.folder.path().join("helpers");
    fs::create_dir(&bind).unwrap();
    for (name, program) in helpers {
        // The folder hides programs that are in it.
        match program.starts_with(&folder) {
            true => drop(fs::copy(program, bind.join(name)).unwrap()),
            false => std::os::unix::fs::symlink(program, bind.join(name)).unwrap(),
        }
    }
    run(Command::new("mount").arg("--bind").arg(&bind).arg(&folder));
    (fixture, Helpers(folder))
}

/// Bind mount of the helpers on /sbin. Dropping it unmounts.
struct Helpers(PathBuf);

impl Drop for Helpers {
    fn drop(&mut self) {
        output(Command::new("umount").arg(&self.0));
    }
}

fn mount(arguments: &[&str], fixture: &Fixture) -> Output {
    let mut command = Command::new("mount");
    output(command.args(arguments).arg(&fixture.image).arg(&fixture.directory))
}

#[test]
fn mount_and_umount_work_as_for_other_types() {
    let (fixture, helpers) = fixture();
    let options =
        "nofail,_netdev,x-systemd.automount,user,data=ordered,barrier=1,commit=3,errors=remount-ro";
    let mounted = mount(&["-t", "bifolio", "-o", options], &fixture);
    assert!(mounted.status.success(), "{}", mounted.text());
    let mounted = fixture.mounted();
    let entry = mount_entry(mounted.path()).unwrap();
    assert!(entry.contains("rw,nosuid,nodev") && entry.contains("allow_other"), "{entry}");
    fs::write(mounted.path().join("file"), "data").unwrap();
    // As with other types, all users have access.
    let found = run(as_user(NOBODY, "cat").arg(mounted.path().join("file")));
    assert_eq!(found, b"data");
    let again = mount(&["-t", "bifolio"], &fixture);
    assert_eq!(again.status.code(), Some(32), "{}", again.text());
    run(Command::new("umount").arg(mounted.path()));
    mounted.assert_gone();
    drop(helpers);
    check_by_e2fsck(&fixture.image);
}

#[test]
fn options_of_linux_are_judged_alike_by_both_ways_to_mount() {
    let (fixture, helpers) = fixture();
    let direct = |options: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bifolio"));
        command.args(["mount", "-o", &format!("rw,{options}")]);
        output(command.arg(&fixture.image).arg(&fixture.directory))
    };
    let through_mount = |options: &str| mount(&["-t", "bifolio", "-o", options], &fixture);
    for (options, complaint) in [
        ("data=journal", "`data=journal`: journaling of file data is not supported"),
        ("data=sorted", "`data` must be `data=ordered|writeback` or `data=journal`"),
        ("journal_ioprio=8", "`journal_ioprio` must be `journal_ioprio=0..7`"),
        ("uid=0", "`uid=0`: files have the owners that are in the image"),
        ("checkpoint=disable", "`checkpoint=disable`: without checkpoints"),
        ("noload", "`noload` needs `ro`"),
        // Known only when the volume is open.
        ("mode=lfs", "`mode=lfs`: an option of f2fs; the volume is ext4"),
        ("flush_merge", "`flush_merge`: an option of f2fs; the volume is ext4"),
    ] {
        for refused in [direct(options), through_mount(options)] {
            assert!(!refused.status.success(), "{options}");
            assert!(refused.text().contains(complaint), "{options}: {}", refused.text());
            assert_eq!(mount_entry(&fixture.directory), None, "{options}");
        }
    }
    let accepted =
        "data=ordered,stripe=16,bsddf,user_xattr,journal_checksum,i_version,nofail,barrier";
    for options in [accepted, "ro,noload", "ro,norecovery"] {
        for mount in [&direct as &dyn Fn(&str) -> Output, &through_mount] {
            let mounted = mount(options);
            assert!(mounted.status.success(), "{options}: {}", mounted.text());
            let mounted = fixture.mounted();
            run(Command::new("umount").arg(mounted.path()));
            mounted.assert_gone();
        }
    }
    let warned = direct("ro,loop=/dev/loop77");
    assert!(warned.status.success(), "{}", warned.text());
    assert!(warned.text().contains("loop=/dev/loop77: is ignored"), "{}", warned.text());
    let mounted = fixture.mounted();
    run(Command::new("umount").arg(mounted.path()));
    mounted.assert_gone();
    drop(helpers);
    check_by_e2fsck(&fixture.image);
}

#[test]
fn options_in_fstab_are_applied() {
    let (fixture, helpers) = fixture();
    let table = fixture.folder.path().join("fstab");
    let directory = fixture.directory.display().to_string().replace(' ', "\\040");
    let image = fixture.image.display();
    fs::write(&table, format!("{image} {directory} bifolio noatime,nofail,ro 0 0\n")).unwrap();
    let mut all = Command::new("mount");
    let done = output(all.arg("-a").env("LIBMOUNT_FSTAB", &table));
    assert!(done.status.success(), "{}", done.text());
    let mounted = fixture.mounted();
    let entry = mount_entry(mounted.path()).unwrap();
    // As the kernel's own: mount(8) passes only `nosuid` and `nodev` on.
    assert!(entry.contains(" ro,noatime "), "{entry}");
    run(Command::new("umount").arg(mounted.path()));
    mounted.assert_gone();
    drop(helpers);
}

#[test]
fn a_read_only_remount_changes_options_and_makes_data_durable() {
    let (fixture, helpers) = fixture();
    for options in ["rw,nosuid,nodev,commit=3600", "rw,nosuid,nodev,commit=3600,noloop"] {
        let mounted = mount(&["-t", "bifolio", "-o", options], &fixture);
        assert!(mounted.status.success(), "{}", mounted.text());
        let mounted = fixture.mounted();
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
        let copy = fixture.folder.path().join("copy");
        fs::copy(&fixture.image, &copy).unwrap();
        let cat =
            run(crate::mounting::bifolio("cat").arg(format!("{}:/{options}", copy.display())));
        assert_eq!(cat, options.as_bytes());

        let done = remount("rw,exec");
        assert!(done.status.success(), "{}", done.text());
        let entry = mount_entry(mounted.path()).unwrap();
        assert!(entry.contains("rw,nosuid,nodev,relatime"), "{entry}");
        fs::write(&name, "other").unwrap();
        for (options, expected) in [("dev", "rw,nosuid,relatime"), ("suid,noexec", "rw,noexec")] {
            let done = remount(options);
            assert!(done.status.success(), "{}", done.text());
            let entry = mount_entry(mounted.path()).unwrap();
            assert!(entry.contains(expected), "{options}: {entry}");
        }
        run(Command::new("umount").arg(mounted.path()));
        mounted.assert_gone();
    }
    // A mount that began read-only can become writable, unless its image was not recovered.
    for options in ["ro", "ro,noload"] {
        let done = mount(&["-t", "bifolio", "-o", options], &fixture);
        assert!(done.status.success(), "{}", done.text());
        let mounted = fixture.mounted();
        let done = output(Command::new("mount").args(["-o", "remount,rw"]).arg(mounted.path()));
        if options == "ro" {
            assert!(done.status.success(), "{}", done.text());
            fs::write(mounted.path().join("after"), "the remount").unwrap();
        } else {
            assert_eq!(done.status.code(), Some(32), "{}", done.text());
            assert!(done.text().contains("mounted without recovery"), "{}", done.text());
        }
        run(Command::new("umount").arg(mounted.path()));
        mounted.assert_gone();
    }
    drop(helpers);
    check_by_e2fsck(&fixture.image);
}

#[test]
fn mount_fuse_calls_the_program_as_a_helper() {
    let fuse = fs::canonicalize("/sbin/mount.fuse3").expect("mount.fuse3 of the package fuse3");
    // mount.fuse3 starts the program by a shell without PATH, whose own one has /sbin.
    let helpers = [("mount.fuse", fuse), ("bifolio", env!("CARGO_BIN_EXE_bifolio").into())];
    let (fixture, helpers) = fixture_with(&helpers);
    let (image, directory) = (fixture.image.display(), fixture.directory.display());
    let table = fixture.folder.path().join("fstab");
    let escape = |path: String| path.replace(' ', "\\040");
    let line = [image.to_string(), directory.to_string()].map(escape).join(" ");
    fs::write(&table, format!("{line} fuse.bifolio noatime,nofail,ro,noloop 0 0\n")).unwrap();
    let program_and_image = format!("bifolio#{image}");
    let image = image.to_string();
    let calls: [&[&str]; 4] = [
        &["-t", "fuse.bifolio", "-o", "noloop", &image],
        &["-t", "fuse", "-o", "noloop,nosuid,nodev", &program_and_image],
        &["-t", "fuse.bifolio", "-o", "ro,nosuid", &image],
        &["-a"],
    ];
    for call in calls {
        let mut command = Command::new("mount");
        command.args(call).env("LIBMOUNT_FSTAB", &table);
        if call != ["-a"] {
            command.arg(&fixture.directory);
        }
        let done = output(&mut command);
        assert!(done.status.success(), "{call:?}: {}", done.text());
        let mounted = fixture.mounted();
        let entry = || mount_entry(mounted.path()).unwrap();
        assert!(entry().contains("fuse.bifolio"), "{call:?}: {}", entry());
        assert!(entry().contains("allow_other"), "{call:?}: {}", entry());
        assert_eq!(entry().contains("nosuid"), call.iter().any(|word| word.contains("nosuid")));
        let remount = |options: &str| {
            let mut command = Command::new("mount");
            command.args(["-o", &format!("remount,{options}")]).env("LIBMOUNT_FSTAB", "/dev/null");
            let done = output(command.arg(mounted.path()));
            assert!(done.status.success(), "{call:?}, {options}: {}", done.text());
        };
        // Also on the server's side: a mount that began read-only can be written.
        for round in 0..2 {
            remount("ro");
            let file = mounted.path().join(format!("file{round}"));
            let error = fs::write(&file, "data").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{call:?}");
            remount("rw");
            fs::write(&file, "data").unwrap();
        }
        assert_eq!(entry().contains("nosuid"), call.iter().any(|word| word.contains("nosuid")));
        run(Command::new("umount").arg(mounted.path()));
        mounted.assert_gone();
    }
    let mut refused = Command::new("mount");
    refused.args(["-t", "fuse.bifolio", "-o", "frobnicate", &image]).arg(&fixture.directory);
    let refused = output(&mut refused);
    assert!(refused.text().contains("unknown mount option `frobnicate`"), "{}", refused.text());
    assert!(!refused.status.success());
    drop(helpers);
    check_by_e2fsck(&fixture.image);
}

#[test]
fn unsupported_options_are_refused_with_a_reason() {
    let (fixture, helpers) = fixture();
    for (options, message) in [
        ("data=journal", "journaling of file data is not supported"),
        ("nobarrier", "flushes of the device cache cannot be disabled"),
        ("frobnicate", "unknown mount option `frobnicate`"),
    ] {
        let refused = mount(&["-t", "bifolio", "-o", options], &fixture);
        assert_eq!(refused.status.code(), Some(1), "{options}: {}", refused.text());
        assert!(refused.text().contains(message), "{options}: {}", refused.text());
        assert_eq!(mount_entry(&fixture.directory), None);
    }
    let sloppy = mount(&["-t", "bifolio", "-s", "-f", "-o", "frobnicate"], &fixture);
    assert!(sloppy.status.success(), "{}", sloppy.text());
    assert_eq!(mount_entry(&fixture.directory), None);
    drop(helpers);
}

#[test]
fn users_are_told_which_options_only_root_may_give() {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    fixture.allow_nobody();
    for (options, ignored) in [("ro,suid,dev", &["suid", "dev"][..]), ("ro,noexec", &[])] {
        let mounted = fixture.try_mount_as(NOBODY, &["-o", options]);
        assert!(mounted.status.success(), "{}", mounted.text());
        let expected = |option: &&str| mounted.text().contains(&format!("option {option} ignored"));
        assert!(ignored.iter().all(expected), "{}", mounted.text());
        assert_eq!(mounted.text().is_empty(), ignored.is_empty(), "{}", mounted.text());
        let mount = fixture.mounted();
        let entry = mount_entry(mount.path()).unwrap();
        assert!(entry.contains("ro,nosuid,nodev"), "{entry}");
        fixture.umount_as(NOBODY);
        mount.assert_gone();
    }
}
