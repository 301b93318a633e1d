//! Mounts that begin read-only and become writable by a remount, as the root file system does when
//! a host starts.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::mounting::{Fixture, LoopDevice, Mount, NOBODY, bifolio, mount_entry};
use rustix::ioctl::{Opcode, Updater};
use rustix::process::Signal;
use testkit::command::{Output, output, run};
use testkit::{Format, Mke2fs, check_by_e2fsck, private_mounts, wait_until};

/// The request by which the helper has a server open its volume for writing.
const BECOME_WRITABLE: Opcode = 0x9000_BF05;

/// Calls the helper of mount(8) to change the options of a mount.
fn remount(mount: &Mount<'_>, options: &str) -> Output {
    let folder = mount.path().parent().unwrap();
    let link = folder.join("mount.bifolio");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bifolio"), &link).unwrap();
    }
    let options = format!("remount,{options}");
    output(Command::new(link).arg("source").arg(mount.path()).args(["-o", &options]))
}

#[track_caller]
fn remounts(mount: &Mount<'_>, options: &str) {
    let done = remount(mount, options);
    assert!(done.status.success(), "{options}: {}", done.text());
}

/// Checks that a remount fails with `reason`, and leaves the mount as it is.
#[track_caller]
fn stays_read_only(mount: &Mount<'_>, reason: &str) {
    let refused = remount(mount, "rw");
    assert_eq!(refused.status.code(), Some(32), "{}", refused.text());
    assert!(refused.text().contains(reason), "{}", refused.text());
    assert!(mount_entry(mount.path()).unwrap().contains(" ro,"));
    let error = fs::write(mount.path().join("new"), "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(mount.path().join("kept")).unwrap(), b"kept\n");
}

/// Leaves the image as after a power cut, with a file `kept` and a directory with the file
/// `inside`.
fn leave_unclean(fixture: &Fixture) {
    let mount = fixture.mount(&["-o", "rw,noloop"]);
    fs::create_dir(mount.path().join("directory")).unwrap();
    fs::write(mount.path().join("directory/inside"), "inside\n").unwrap();
    fs::write(mount.path().join("kept"), "kept\n").unwrap();
    run(bifolio("sync").arg(mount.path()));
    let cut_off = fixture.folder.path().join("cut-off");
    fs::copy(&fixture.image, &cut_off).unwrap();
    fixture.umount();
    mount.assert_gone();
    fs::rename(&cut_off, &fixture.image).unwrap();
}

/// Checks what a power cut leaves of the image, which has the file `name`.
#[track_caller]
fn survives_a_cut(fixture: &Fixture, name: &str, contents: &str) {
    let image = fixture.folder.path().join("judged");
    fs::copy(&fixture.image, &image).unwrap();
    let shown = run(bifolio("cat").arg(format!("{}:/{name}", image.display())));
    assert_eq!(String::from_utf8_lossy(&shown), contents);
    if matches!(fixture.format, Format::Ext4(_)) {
        let repaired = output(Command::new("e2fsck").arg("-fy").arg(&image));
        assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", repaired.text());
    } else {
        fixture.format.check(&image);
    }
}

/// Mounts the volume on `source` read-only, and makes it writable while programs use it.
fn check(fixture: &Fixture, source: &Path, options: &str) {
    run(bifolio("mount").args(["-o", options]).arg(source).arg(&fixture.directory));
    let mount = fixture.mounted();
    let at = |name: &str| mount.path().join(name);
    let read = |file: &mut File| {
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    };
    let before = fs::read(&fixture.image).unwrap();
    let mut opened = File::open(at("directory/inside")).unwrap();
    let mut unread = File::open(at("kept")).unwrap();
    let number = opened.metadata().unwrap().ino();
    assert_eq!(read(&mut opened), "inside\n");
    assert!(!at("absent").exists());
    let mut listed = fs::read_dir(at("directory")).unwrap();
    assert!(fs::write(at("absent"), "").is_err());
    assert!(before == fs::read(&fixture.image).unwrap(), "the image was written");

    remounts(&mount, "rw");
    assert_eq!(listed.next().unwrap().unwrap().file_name(), "inside");
    fs::write(at("absent"), "present\n").unwrap();
    fs::write(at("directory/inside"), "longer than before\n").unwrap();
    assert_eq!(read(&mut opened), "longer than before\n");
    assert_eq!(fs::metadata(at("directory/inside")).unwrap().ino(), number);
    let copy = File::create(at("copy")).unwrap();
    let copied = rustix::fs::copy_file_range(&opened, Some(&mut 0), &copy, None, 100);
    assert_eq!(copied, Ok("longer than before\n".len()));
    drop(copy);
    fs::remove_file(at("kept")).unwrap();
    assert_eq!(read(&mut unread), "kept\n");
    File::open(at("absent")).unwrap().sync_all().unwrap();
    survives_a_cut(fixture, "absent", "present\n");
    drop((opened, unread, listed));

    remounts(&mount, "ro");
    assert!(fs::write(at("later"), "").is_err());
    remounts(&mount, "rw");
    fs::write(at("later"), "later\n").unwrap();
    File::open(at("later")).unwrap().sync_all().unwrap();
    mount.signal_server(Signal::KILL);
    wait_until("the server's end", || !mount.has_server());
    survives_a_cut(fixture, "later", "later\n");
    fixture.umount();
    mount.assert_gone();

    // The locks have ended, and the next mount recovers the image.
    let mount = fixture.mount(&["-o", "ro,noloop"]);
    remounts(&mount, "rw");
    fs::remove_file(mount.path().join("later")).unwrap();
    fixture.umount();
    mount.assert_gone();
    fixture.check();
}

#[test]
fn an_unclean_volume_becomes_writable_while_programs_use_it() {
    private_mounts();
    for (format, options) in [
        (Format::Ext4(4096), "ro"),
        (Format::Ext4(1024), "ro,writeback,strictatime"),
        (Format::F2fs, "ro"),
    ] {
        let fixture = Fixture::with_volume(format);
        leave_unclean(&fixture);
        check(&fixture, &fixture.image, options);
    }
}

#[test]
fn block_devices_and_all_mounts_of_them_become_writable() {
    private_mounts();
    let fixture = Fixture::with_volume(Format::Ext4(4096));
    leave_unclean(&fixture);
    let device = LoopDevice::new(&fixture.image);
    check(&fixture, device.path(), "ro");
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    run(bifolio("mount").args(["-o", "ro"]).arg(device.path()).arg(&fixture.directory));
    let mount = fixture.mounted();
    run(bifolio("mount").args(["-o", "ro"]).arg(device.path()).arg(&other));
    remounts(&mount, "rw");
    fs::write(mount.path().join("file"), "by the first").unwrap();
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "by the first");
    assert!(fs::write(other.join("file"), "").is_err(), "it was mounted read-only itself");
    remounts(&mount, "ro");
    let header = run(Command::new("dumpe2fs").arg("-h").arg(&fixture.image));
    assert!(!String::from_utf8_lossy(&header).contains("needs_recovery"));
    run(bifolio("umount").arg(&other));
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn an_image_that_others_use_stays_read_only_until_they_have_ended() {
    private_mounts();
    let fixture = Fixture::with_volume(Format::Ext4(4096));
    leave_unclean(&fixture);
    let mount = fixture.mount(&["-o", "ro"]);
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    run(bifolio("mount").args(["-o", "ro"]).arg(&fixture.image).arg(&other));
    stays_read_only(&mount, "is in use by bifolio (process");
    run(bifolio("umount").arg(&other));
    let device = LoopDevice::new(&fixture.image);
    run(bifolio("mount").args(["-o", "ro"]).arg(device.path()).arg(&other));
    stays_read_only(&mount, "is in use by the loop device");
    run(bifolio("umount").arg(&other));
    drop(device);
    // The lock is still one of a reader.
    let refused = output(bifolio("rm").arg(format!("{}:/kept", fixture.image.display())));
    assert!(refused.text().contains("is in use"), "{}", refused.text());
    remounts(&mount, "rw");
    let refused = output(bifolio("ls").arg(&fixture.image));
    assert!(refused.text().contains("is in use"), "{}", refused.text());
    fs::write(mount.path().join("new"), "new\n").unwrap();
    fixture.umount();
    mount.assert_gone();
    fixture.check();
}

#[test]
fn a_mount_that_cannot_become_writable_says_why_and_goes_on() {
    private_mounts();
    let fixture = Fixture::with_volume(Format::Ext4(4096));
    leave_unclean(&fixture);
    let image = fixture.image.as_path();
    let refuse = |options: &[&str], source: &Path, reason: &str| {
        run(bifolio("mount").args(options).arg(source).arg(&fixture.directory));
        let mount = fixture.mounted();
        stays_read_only(&mount, reason);
        fixture.umount();
        mount.assert_gone();
    };
    // The driver of loop devices has the write protection of the device for both.
    let protected = run(Command::new("losetup").args(["-rf", "--show"]).arg(image));
    let protected = String::from_utf8(protected).unwrap().trim().to_owned();
    refuse(&["-o", "ro"], Path::new(&protected), "is write-protected");
    run(Command::new("losetup").args(["-d", &protected]));
    refuse(&["-o", "ro", "--offset", "0"], image, "it is a part of an image");
    // A feature that this program does not write.
    output(Command::new("e2fsck").args(["-fy"]).arg(image));
    run(bifolio("mount").args(["-o", "ro,noload"]).arg(image).arg(&fixture.directory));
    let mount = fixture.mounted();
    let advice = "it was mounted without recovery: unmount it, and mount it without this option";
    stays_read_only(&mount, &format!("{advice}\n"));
    // Nothing of the caller's memory is part of the answer.
    let mut answer = [b'x'; 4096];
    let root = File::open(mount.path()).unwrap();
    // SAFETY: the request stores this number of bytes.
    unsafe { rustix::ioctl::ioctl(root, Updater::<BECOME_WRITABLE, _>::new(&mut answer)) }.unwrap();
    let (text, rest) = answer.split_at(advice.len());
    assert!(text == advice.as_bytes() && rest.iter().all(|&byte| byte == 0), "{answer:?}");
    fixture.umount();
    mount.assert_gone();
    let set = "set_super_value feature_ro_compat 0x80000000";
    run(Command::new("debugfs").args(["-wR", set]).arg(image));
    refuse(&["-o", "ro"], image, "cannot open for writing");

    fixture.allow_nobody();
    let mount = fixture.mount_as(NOBODY, &["-o", "ro"]);
    let refused = remount(&mount, "rw");
    assert!(!refused.status.success(), "{}", refused.text());
    fixture.umount_as(NOBODY);
    mount.assert_gone();
}

/// With the /proc of another PID namespace, a number of a thread leads to another thread.
#[test]
fn a_guard_that_does_not_see_the_program_says_so() {
    private_mounts();
    let fixture = Fixture::with_volume(Format::Ext4(4096));
    let helper = fixture.folder.path().join("mount.bifolio");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bifolio"), &helper).unwrap();
    // The shell is the first process of the namespace, which ends with it.
    let script =
        "\"$0\" mount -o ro \"$1\" \"$2\" && \"$3\" source \"$2\" -o remount,rw; echo status $?
                  \"$0\" umount \"$2\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "sh", "-c", script, env!("CARGO_BIN_EXE_bifolio")]);
    let ended = output(unshare.args([&fixture.image, &fixture.directory, &helper]));
    assert!(ended.status.success(), "{}", ended.text());
    assert!(ended.text().contains("or is of another PID namespace"), "{}", ended.text());
    assert!(ended.text().contains("status 32"), "{}", ended.text());
    assert_eq!(mount_entry(&fixture.directory), None);
}

#[test]
fn a_volume_that_cannot_be_opened_for_writing_has_the_locks_of_a_reader_again() {
    private_mounts();
    let fixture = Fixture::with_volume(Format::Ext4(4096));
    let set = "set_super_value feature_ro_compat 0x80000000";
    run(Command::new("debugfs").args(["-wR", set]).arg(&fixture.image));
    let device = LoopDevice::new(&fixture.image);
    run(bifolio("mount").args(["-o", "ro"]).arg(device.path()).arg(&fixture.directory));
    let mount = fixture.mounted();
    // Locks of what backs the device are another kind.
    for attempt in ["the first", "the second"] {
        let refused = remount(&mount, "rw");
        assert!(refused.text().contains("cannot open for writing"), "{}", refused.text());
        for image in [&*fixture.image, device.path()] {
            let listed = output(bifolio("ls").arg(image));
            assert!(listed.status.success(), "{attempt}: {}", listed.text());
            assert!(!listed.text().contains("warning"), "{attempt}: {}", listed.text());
        }
    }
    fixture.umount();
    mount.assert_gone();
}

#[test]
fn a_mount_stays_read_only_while_its_host_has_no_space_for_holes_of_the_image() {
    private_mounts();
    let fixture = Fixture::new();
    let host = fixture.folder.path().join("host");
    fs::create_dir(&host).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(&host));
    let (image, filler) = (host.join("image"), host.join("filler"));
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&image, None);
    let device = LoopDevice::new(&image);
    for source in [&*image, device.path()] {
        run(bifolio("mount").args(["-o", "ro"]).arg(source).arg(&fixture.directory));
        let mount = fixture.mounted();
        let full = fs::write(&filler, vec![1; 8 << 20]).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let refused = remount(&mount, "rw");
        assert!(refused.text().contains("the host has no space"), "{}", refused.text());
        assert!(mount_entry(mount.path()).unwrap().contains(" ro,"));
        // It is no other program's either.
        run(bifolio("ls").arg(source));
        fs::remove_file(&filler).unwrap();
        remounts(&mount, "rw");
        fs::write(mount.path().join("new"), "new\n").unwrap();
        fixture.umount();
        mount.assert_gone();
    }
    drop(device);
    check_by_e2fsck(&image);
    run(Command::new("umount").arg(&host));
}

#[test]
fn a_volume_with_an_external_journal_becomes_writable() {
    private_mounts();
    let fixture = Fixture::new();
    let journal = fixture.folder.path().join("journal");
    File::create(&journal).unwrap().set_len(8 << 20).unwrap();
    run(Command::new("mke2fs").args(["-qF", "-O", "journal_dev", "-b", "4096"]).arg(&journal));
    let device = LoopDevice::new(&journal);
    let arguments = format!("-J device={}", device.path().display());
    let image = Mke2fs { size: 64 << 20, arguments, ..Mke2fs::new("ext4", 4096) };
    image.make(&fixture.image, None);
    drop(device);
    let mount = fixture.mount(&["-o", "ro", "--journal", journal.to_str().unwrap()]);
    let needs_recovery = || {
        let header = run(Command::new("dumpe2fs").arg("-h").arg(&fixture.image));
        String::from_utf8_lossy(&header).contains("needs_recovery")
    };
    assert!(!needs_recovery());
    remounts(&mount, "rw");
    fs::write(mount.path().join("new"), "new\n").unwrap();
    File::open(mount.path().join("new")).unwrap().sync_all().unwrap();
    assert!(needs_recovery());
    remounts(&mount, "ro");
    assert!(!needs_recovery());
    fixture.umount();
    mount.assert_gone();
}
