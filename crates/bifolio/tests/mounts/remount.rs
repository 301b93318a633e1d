//! Remounts: of one of several mounts of a volume, and those that make a mount read-only: the image
//! is clean for programs that do not replay a journal, until the mount becomes writable again.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::mounting::{Fixture, bifolio, mount_entry};
use rustix::io::Errno;
use rustix::mount::FsPickFlags;
use rustix::process::Signal;
use testkit::command::{Output, output, run};
use testkit::f2fs::Tools;
use testkit::{check_by_e2fsck, private_mounts};

/// A link by which bifolio is the helper of mount(8).
fn helper(folder: &Path) -> PathBuf {
    let link = folder.join("mount.bifolio");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_bifolio"), &link).unwrap();
    }
    link
}

/// Changes the options of a mount by the helper.
fn remount(fixture: &Fixture, options: &str) {
    let done = try_remount(fixture, &fixture.directory, options);
    assert!(done.status.success(), "{options}: {}", done.text());
}

/// Calls the helper to change the options of the mount on `directory`.
fn try_remount(fixture: &Fixture, directory: &Path, options: &str) -> Output {
    let mut helper = Command::new(helper(fixture.folder.path()));
    let options = format!("remount,{options}");
    output(helper.arg(&fixture.image).arg(directory).args(["-o", &options]))
}

/// Changes the options of a mount without the helper: only the kernel informs the server.
fn remount_directly(fixture: &Fixture, options: &str) {
    let mut mount = Command::new("mount");
    run(mount.args(["-i", "-o", &format!("remount,{options}")]).arg(&fixture.directory));
}

fn needs_recovery(image: &Path) -> bool {
    let header = run(Command::new("dumpe2fs").arg("-h").arg(image));
    String::from_utf8_lossy(&header).contains("needs_recovery")
}

/// Returns a file's contents as a program shows them that does not replay the journal.
fn shown_by_debugfs(image: &Path, name: &str) -> String {
    let shown = output(Command::new("debugfs").args(["-R", &format!("cat /{name}")]).arg(image));
    String::from_utf8(shown.stdout).unwrap()
}

/// The first block of the journal on `device` is its superblock, and says whether the log is empty:
/// `s_start` is zero.
fn log_is_empty(device: &Path, offset: usize) -> bool {
    let bytes = fs::read(device).unwrap();
    bytes[offset + 0x1C..offset + 0x20] == [0; 4]
}

/// Remounts a volume of ext4 by `change`.
fn check_ext4(fixture: &Fixture, mount_options: &[&str], change: &dyn Fn(&Fixture, &str)) {
    let image = &fixture.image;
    let mount = fixture.mount(mount_options);
    let in_mount = |name: &str| mount.path().join(name);
    fs::write(in_mount("first"), "first\n").unwrap();
    File::open(in_mount("first")).unwrap().sync_all().unwrap();
    assert!(needs_recovery(image), "a writable mount is marked");
    fs::write(in_mount("second"), "second\n").unwrap();

    change(fixture, "ro");
    let clean = |when: &str| {
        assert!(!needs_recovery(image), "{when}: the journal needs recovery: {mount_options:?}");
    };
    clean("read-only");
    assert_eq!(shown_by_debugfs(image, "first"), "first\n");
    assert_eq!(shown_by_debugfs(image, "second"), "second\n");
    assert!(fs::write(in_mount("third"), "").is_err());
    // The access times of these accesses are not kept.
    let accessed = fs::metadata(in_mount("first")).unwrap().atime_nsec();
    assert_eq!(fs::read(in_mount("first")).unwrap(), b"first\n");
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 3);
    run(bifolio("sync").arg(mount.path()));
    clean("after reads and a sync");
    assert_eq!(fs::metadata(in_mount("first")).unwrap().atime_nsec(), accessed);
    change(fixture, "ro,noexec");
    clean("after another remount");

    change(fixture, "rw");
    fs::write(in_mount("third"), "third\n").unwrap();
    File::open(in_mount("third")).unwrap().sync_all().unwrap();
    assert!(needs_recovery(image), "after a change, the journal needs recovery");
    // A copy is what a power cut leaves.
    let cut_off = fixture.folder.path().join("cut-off");
    fs::copy(image, &cut_off).unwrap();
    let repaired = output(Command::new("e2fsck").arg("-fy").arg(&cut_off));
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{}", repaired.text());
    for name in ["first", "second", "third"] {
        assert_eq!(shown_by_debugfs(&cut_off, name), format!("{name}\n"));
    }
    change(fixture, "ro");
    clean("read-only again");
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(image);
    assert_eq!(shown_by_debugfs(image, "third"), "third\n");
}

/// Creates a volume of 64 MiB.
fn ext4(options: &[&str]) -> Fixture {
    let fixture = Fixture::new();
    File::create(&fixture.image).unwrap().set_len(64 << 20).unwrap();
    run(Command::new("mke2fs").args(["-qF", "-t", "ext4"]).args(options).arg(&fixture.image));
    fixture
}

#[test]
fn a_read_only_remount_leaves_a_clean_ext4_image() {
    private_mounts();
    for options in [
        &["-b", "4096"][..],
        &["-b", "1024", "-O", "^metadata_csum"],
        &["-O", "^extent,^64bit,^metadata_csum"],
    ] {
        for mount in ["rw,relatime", "rw,strictatime,noloop"] {
            let fixture = ext4(options);
            check_ext4(&fixture, &["-o", mount], &remount);
        }
    }
}

#[test]
fn a_read_only_remount_empties_an_external_journal() {
    private_mounts();
    let fixture = Fixture::new();
    let journal = fixture.folder.path().join("journal");
    File::create(&journal).unwrap().set_len(8 << 20).unwrap();
    run(Command::new("mke2fs").args(["-qF", "-O", "journal_dev", "-b", "4096"]).arg(&journal));
    let device = run(Command::new("losetup").args(["-f", "--show"]).arg(&journal));
    let device = String::from_utf8(device).unwrap().trim().to_owned();
    File::create(&fixture.image).unwrap().set_len(64 << 20).unwrap();
    let place = format!("device={device}");
    let made = output(
        Command::new("mke2fs")
            .args(["-qF", "-t", "ext4", "-b", "4096", "-J", &place])
            .arg(&fixture.image),
    );
    run(Command::new("losetup").args(["-d", &device]));
    assert!(made.status.success(), "{}", made.text());
    let path = journal.to_str().unwrap();
    let mount = ["-o", "rw", "--journal", path];
    let image = &fixture.image;
    let mounted = fixture.mount(&mount);
    fs::write(mounted.path().join("first"), "first\n").unwrap();
    remount(&fixture, "ro");
    // The superblock of the journal is in the block after that of the device.
    assert!(log_is_empty(&journal, 4096) && !needs_recovery(image));
    assert_eq!(shown_by_debugfs(image, "first"), "first\n");
    remount(&fixture, "rw");
    fs::write(mounted.path().join("second"), "second\n").unwrap();
    File::open(mounted.path().join("second")).unwrap().sync_all().unwrap();
    assert!(!log_is_empty(&journal, 4096) && needs_recovery(image));
    fixture.umount();
    mounted.assert_gone();
    assert!(log_is_empty(&journal, 4096) && !needs_recovery(image));
}

#[test]
fn a_remount_without_the_helper_has_the_same_effect_on_block_devices() {
    private_mounts();
    let fixture = ext4(&["-b", "4096"]);
    let mount = fixture.mount(&["-o", "rw"]);
    let has_device = mount_entry(mount.path()).unwrap().contains("fuseblk");
    fixture.umount();
    mount.assert_gone();
    assert!(has_device, "the host has no loop devices");
    check_ext4(&fixture, &["-o", "rw,relatime"], &remount_directly);
}

#[test]
fn a_change_of_options_leaves_a_volume_in_use_that_stays_writable() {
    private_mounts();
    let fixture = ext4(&["-b", "4096"]);
    let mount = fixture.mount(&["-o", "rw"]);
    assert!(mount_entry(mount.path()).unwrap().contains("fuseblk"), "the host has no loop devices");
    let reconfigure = |flag: Option<&str>| {
        let context = rustix::mount::fspick(rustix::fs::CWD, mount.path(), FsPickFlags::empty())?;
        flag.map_or(Ok(()), |flag| rustix::mount::fsconfig_set_flag(&context, flag))?;
        rustix::mount::fsconfig_reconfigure(&context)
    };
    let file = File::create(mount.path().join("file")).unwrap();
    file.sync_all().unwrap();
    reconfigure(None).unwrap();
    assert!(needs_recovery(&fixture.image), "it was marked as clean");
    assert_eq!(reconfigure(Some("ro")), Err(Errno::BUSY));
    drop(file);
    reconfigure(Some("ro")).unwrap();
    assert!(!needs_recovery(&fixture.image));
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn a_remount_of_one_mount_changes_the_others_only_from_read_only_to_writable_and_back() {
    private_mounts();
    let fixture = ext4(&["-b", "4096"]);
    let first = fixture.mount(&["-o", "rw"]);
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let mut again = bifolio("mount");
    run(again.args(["-o", "ro"]).arg(&fixture.image).arg(&other));
    let change = |directory: &Path, options: &str| {
        let done = try_remount(&fixture, directory, options);
        assert!(done.status.success(), "{options}: {}", done.text());
    };
    let options = |directory: &Path| {
        let entry = mount_entry(directory).unwrap();
        entry.split(' ').nth(5).unwrap().to_owned()
    };
    let can_write = |directory: &Path| fs::write(directory.join("file"), "x").is_ok();

    // The options that mount(8) passes when only `exec` of this mount is to change: those of the
    // mount, too.
    change(&other, "bind,ro,nosuid,nodev,relatime,noexec");
    assert_eq!(options(&other), "ro,nosuid,nodev,noexec,relatime");
    change(&other, "suid");
    assert_eq!(options(&other), "ro,nodev,noexec,relatime");
    assert_eq!(options(first.path()), "rw,nosuid,nodev,relatime");
    assert!(can_write(first.path()) && !can_write(&other));
    change(&other, "rw,nosuid");
    assert!(can_write(first.path()) && can_write(&other));
    change(&other, "bind,ro");
    assert!(can_write(first.path()) && !can_write(&other));
    assert!(needs_recovery(&fixture.image));
    change(&other, "bind,rw");

    // Without `bind`, all mounts become read-only, unless a file is open for writing.
    let open = File::create(first.path().join("open")).unwrap();
    let refused = try_remount(&fixture, &other, "ro");
    assert!(refused.text().contains("a file is open for writing"), "{}", refused.text());
    assert!(can_write(first.path()) && can_write(&other));
    drop(open);
    change(&other, "ro");
    assert!(!can_write(first.path()) && !can_write(&other));
    assert!(!needs_recovery(&fixture.image));
    change(first.path(), "noexec,ro");
    assert_eq!(options(first.path()), "rw,nosuid,nodev,noexec,relatime");
    change(first.path(), "rw");
    assert!(can_write(first.path()) && !can_write(&other));
    // The other one is read-only by itself now. As in Linux, that is no reason to leave the volume
    // writable.
    assert!(needs_recovery(&fixture.image));
    change(&other, "ro");
    assert!(!can_write(first.path()) && !needs_recovery(&fixture.image));
    change(first.path(), "rw");
    run(bifolio("umount").arg(&other));
    fixture.umount();
    first.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn a_removed_file_that_was_just_closed_does_not_keep_a_mount_writable() {
    private_mounts();
    let fixture = Fixture::with_volume(testkit::Format::Ext4(4096));
    let mount = fixture.mount(&["-o", "rw"]);
    let path = mount.path().join("removed");
    fs::write(&path, "x").unwrap();
    let opened = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let refused = try_remount(&fixture, mount.path(), "ro");
    assert!(refused.text().contains("or a removed file is open"), "{}", refused.text());
    // The server gets the RELEASE of the file, and answers it once it runs again.
    mount.signal_server(Signal::STOP);
    drop(opened);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            mount.signal_server(Signal::CONT);
        });
        remount(&fixture, "ro");
    });
    assert!(fs::write(&path, "x").is_err());
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn a_volume_without_a_journal_becomes_valid() {
    private_mounts();
    let fixture = ext4(&["-O", "^has_journal"]);
    let state = || {
        let header = run(Command::new("dumpe2fs").arg("-h").arg(&fixture.image));
        String::from_utf8_lossy(&header).contains("Filesystem state:         clean")
    };
    let mount = fixture.mount(&["-o", "rw"]);
    fs::write(mount.path().join("first"), "first\n").unwrap();
    File::open(mount.path().join("first")).unwrap().sync_all().unwrap();
    assert!(!state());
    remount(&fixture, "ro");
    assert!(state());
    assert_eq!(shown_by_debugfs(&fixture.image, "first"), "first\n");
    remount(&fixture, "rw");
    assert!(!state());
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn another_host_may_have_a_volume_that_is_read_only_here() {
    private_mounts();
    let fixture = ext4(&["-O", "mmp", "-E", "mmp_update_interval=1"]);
    let mount = fixture.mount(&["-o", "rw,noloop"]);
    fs::write(mount.path().join("first"), "first\n").unwrap();
    let sequence = || {
        let dump = output(Command::new("debugfs").args(["-R", "dump_mmp"]).arg(&fixture.image));
        dump.text().lines().find(|line| line.starts_with("sequence:")).unwrap().to_owned()
    };
    assert!(!sequence().contains("ff4d4d50"), "{}", sequence());
    remount(&fixture, "ro");
    assert!(sequence().contains("ff4d4d50"), "released: {}", sequence());
    run(Command::new("tune2fs").args(["-L", "other"]).arg(&fixture.image));
    let mut helper = Command::new(helper(fixture.folder.path()));
    let refused =
        output(helper.arg(&fixture.image).arg(&fixture.directory).args(["-o", "remount,rw"]));
    assert!(!refused.status.success(), "{}", refused.text());
    assert!(fs::write(mount.path().join("second"), "").is_err());
    // The server cannot close a volume that it has lost.
    output(Command::new("umount").arg(mount.path()));
    mount.assert_gone();
    assert_eq!(run(Command::new("e2label").arg(&fixture.image)), b"other\n");
    check_by_e2fsck(&fixture.image);
}

#[test]
fn a_read_only_remount_leaves_an_unmounted_f2fs_image() {
    private_mounts();
    for (options, change) in [
        ("rw,relatime", &remount as &dyn Fn(&Fixture, &str)),
        ("rw,noloop", &remount),
        ("rw", &remount_directly),
    ] {
        let fixture = Fixture::with_volume(testkit::Format::F2fs);
        let is_unmounted = || {
            // fsck.f2fs refuses an image with a loop device that is mounted.
            let judged = fixture.folder.path().join("judged");
            fs::copy(&fixture.image, &judged).unwrap();
            let shown =
                output(Tools::V1_16.command("fsck.f2fs").arg("--dry-run").arg(&judged)).text();
            let state = shown.lines().find(|line| line.contains("checkpoint state"));
            state.unwrap_or_else(|| panic!("{shown}")).contains(" unmount")
        };
        let mount = fixture.mount(&["-o", options]);
        fs::write(mount.path().join("first"), "first\n").unwrap();
        run(bifolio("sync").arg(mount.path()));
        assert!(!is_unmounted(), "{options}");
        change(&fixture, "ro");
        assert!(is_unmounted(), "{options}");
        assert_eq!(fs::read(mount.path().join("first")).unwrap(), b"first\n");
        run(bifolio("sync").arg(mount.path()));
        assert!(is_unmounted(), "{options}: after a sync");
        change(&fixture, "rw");
        fs::write(mount.path().join("second"), "second\n").unwrap();
        File::open(mount.path().join("second")).unwrap().sync_all().unwrap();
        let cut_off = fixture.folder.path().join("cut-off");
        fs::copy(&fixture.image, &cut_off).unwrap();
        let shown = run(bifolio("cat").arg(format!("{}:/second", cut_off.display())));
        assert_eq!(shown, b"second\n");
        run(bifolio("sync").arg(mount.path()));
        assert!(!is_unmounted(), "{options}: after a change");
        fixture.umount();
        mount.assert_gone();
        fixture.check();
    }
}
