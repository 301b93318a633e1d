//! Block devices mounted for writing: whole devices, partitions and write-protected devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mounting::{Fixture, LoopDevice, bifolio, mount_entry};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use testkit::command::{Output, output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts, wait_until};

/// First sector of the second partition, in sectors of 512 bytes.
const START: u64 = 65_536;
/// Number of sectors of the second partition.
const SECTORS: u64 = 131_072;

/// Device node of a partition, removed on drop. Added by addpart, because some kernels do not read
/// partition tables.
struct Partition<'a> {
    disk: &'a Path,
    node: PathBuf,
}

impl<'a> Partition<'a> {
    fn new(disk: &'a Path) -> Self {
        let node = PathBuf::from(format!("{}p2", disk.display()));
        if !node.exists() {
            let range = [START, SECTORS].map(|number| number.to_string());
            run(Command::new("addpart").arg(disk).arg("2").args(range));
        }
        Self { disk, node }
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        output(Command::new("delpart").arg(self.disk).arg("2"));
    }
}

/// Creates a disk with an empty volume in its second partition.
fn disk(fixture: &Fixture) -> LoopDevice {
    let volume = fixture.folder.path().join("volume");
    Mke2fs { size: SECTORS * 512, ..Mke2fs::new("ext4", 1024) }.make(&volume, None);
    let mut bytes = vec![0; (START * 512) as usize];
    bytes.extend(fs::read(&volume).unwrap());
    bytes.resize(bytes.len() + (1 << 20), 0);
    fs::write(&fixture.image, bytes).unwrap();
    let table = format!("label: gpt\nstart=2048,size=4096\nstart={START},size={SECTORS}\n");
    let script = format!("printf '{table}' | sfdisk -q \"$0\"");
    run(Command::new("sh").arg("-c").arg(script).arg(&fixture.image));
    LoopDevice::with_partitions(&fixture.image)
}

fn mount(fixture: &Fixture, arguments: &[&str], device: &Path) -> Output {
    output(bifolio("mount").args(arguments).arg(device).arg(&fixture.directory))
}

fn open_exclusively(device: &Path) -> Result<(), Errno> {
    rustix::fs::open(device, OFlags::RDWR | OFlags::EXCL, Mode::empty()).map(drop)
}

#[test]
fn block_devices_and_partitions_are_mounted_for_writing_and_claimed() {
    private_mounts();
    let fixture = Fixture::new();
    let disk = disk(&fixture);
    let partition = Partition::new(disk.path());
    let offset = (START * 512).to_string();
    // What is mounted, and the device that the server has open.
    let ways: [(&[&str], &Path, &Path); 3] = [
        (&["-o", "rw"], &partition.node, &partition.node),
        (&["-o", "rw", "--partition", "2"], disk.path(), &partition.node),
        (&["-o", "rw", "--offset", &offset], disk.path(), disk.path()),
    ];
    let other = fixture.folder.path().join("other");
    fs::create_dir(&other).unwrap();
    for (turn, (arguments, device, opened)) in ways.into_iter().enumerate() {
        let mounted = mount(&fixture, arguments, device);
        assert!(mounted.status.success(), "{}", mounted.text());
        let mounted = fixture.mounted();
        let entry = mount_entry(mounted.path()).unwrap();
        assert!(entry.contains(&format!("fuseblk.bifolio {} rw", opened.display())), "{entry}");
        let files = fs::read_dir(format!("/proc/{}/fd", mounted.server())).unwrap();
        let files = files.map(|file| fs::read_link(file.unwrap().path()).unwrap());
        let disk = disk.path().to_string_lossy();
        let devices: Vec<PathBuf> =
            files.filter(|file| file.to_string_lossy().starts_with(&*disk)).collect();
        assert_eq!(devices, [opened]);
        fs::write(mounted.path().join(format!("file {turn}")), arguments.concat()).unwrap();

        assert_eq!(open_exclusively(device), Err(Errno::BUSY));
        let mut kernels = Command::new("mount");
        kernels.args(["-t", "ext4"]).arg(&partition.node).arg(&other);
        assert!(!output(&mut kernels).status.success());
        for options in ["rw", "ro"] {
            let again = ["-o", options, "--partition", "2"];
            let again = output(bifolio("mount").args(again).arg(&*disk).arg(&other));
            assert_eq!(again.status.code(), Some(1), "{}", again.text());
            assert!(again.text().contains("busy") || again.text().contains("in use"));
            assert_eq!(mount_entry(&other), None);
        }
        fixture.umount();
        mounted.assert_gone();
        assert_eq!(open_exclusively(device), Ok(()));
        check_by_e2fsck(&partition.node);
        run(Command::new("mount").args(["-t", "ext4"]).arg(&partition.node).arg(&other));
        let found = fs::read_to_string(other.join(format!("file {turn}"))).unwrap();
        run(Command::new("umount").arg(&other));
        assert_eq!(found, arguments.concat());
    }
}

#[test]
fn a_device_in_use_is_not_mounted_and_not_changed() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let device = LoopDevice::new(&fixture.image);
    let before = fs::read(&fixture.image).unwrap();
    let user = rustix::fs::open(device.path(), OFlags::RDONLY | OFlags::EXCL, Mode::empty());
    for options in ["rw", "ro"] {
        let refused = mount(&fixture, &["-o", options], device.path());
        assert_eq!(refused.status.code(), Some(1), "{}", refused.text());
        assert!(refused.text().contains("is in use"), "{}", refused.text());
        assert_eq!(mount_entry(&fixture.directory), None);
    }
    drop(user);
    assert!(fs::read(&fixture.image).unwrap() == before);
}

/// A write-protected device. Dropping it removes the protection, which would otherwise stay for the
/// next image.
struct WriteProtected<'a>(&'a Path);

impl<'a> WriteProtected<'a> {
    fn new(device: &'a Path) -> Self {
        run(Command::new("blockdev").arg("--setro").arg(device));
        Self(device)
    }
}

impl Drop for WriteProtected<'_> {
    fn drop(&mut self) {
        output(Command::new("blockdev").arg("--setrw").arg(self.0));
    }
}

#[test]
fn write_protected_devices_and_images_are_mounted_read_only_with_a_warning() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let device = LoopDevice::new(&fixture.image);
    let _protected = WriteProtected::new(device.path());
    // An image file on a read-only file system is write-protected, too.
    let host = fixture.folder.path().join("host");
    fs::create_dir(&host).unwrap();
    run(Command::new("mount").args(["--bind", "-o", "ro"]).arg(fixture.folder.path()).arg(&host));
    let image = host.join("volume.img");
    let before = fs::read(&fixture.image).unwrap();
    for path in [device.path(), &image] {
        let mounted = mount(&fixture, &["-o", "rw"], path);
        assert!(mounted.status.success(), "{}", mounted.text());
        assert!(mounted.text().contains("is write-protected; mounting it read-only"));
        let mounted = fixture.mounted();
        let error = fs::write(mounted.path().join("new"), "x").unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
        assert_eq!(fs::read(mounted.path().join("small")).unwrap(), b"a few bytes\n");
        fixture.umount();
        mounted.assert_gone();
        let refused = output(bifolio("mkdir").arg(format!("{}:/new", path.display())));
        assert_eq!(refused.status.code(), Some(1));
        assert!(refused.text().contains("is write-protected"), "{}", refused.text());
    }
    assert!(fs::read(&fixture.image).unwrap() == before);
}

/// Checks that `bifolio` neither changes a file or device that is mounted nor mounts it for
/// writing.
fn check_refused(fixture: &Fixture, paths: &[&Path]) {
    let other = fixture.folder.path().join("other");
    check_not_changed(paths);
    for path in paths {
        let refused = output(bifolio("mount").args(["-o", "rw"]).arg(path).arg(&other));
        let text = refused.text();
        assert_eq!(refused.status.code(), Some(1), "{}: {text}", path.display());
        assert!(text.contains("is in use"), "{}: {text}", path.display());
    }
}

/// Checks that `bifolio` does not change files or devices.
fn check_not_changed(paths: &[&Path]) {
    for path in paths {
        let refused = output(bifolio("mkdir").arg(format!("{}:/new", path.display())));
        let text = refused.text();
        assert_eq!(refused.status.code(), Some(1), "{}: {text}", path.display());
        assert!(text.contains("is in use"), "{}: {text}", path.display());
    }
}

#[test]
fn an_image_is_not_written_through_two_devices() {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&fixture.image, None);
    let path = |name: &str| fixture.folder.path().join(name);
    fs::create_dir(path("other")).unwrap();
    fs::hard_link(&fixture.image, path("link")).unwrap();
    fs::write(path("bound"), "").unwrap();
    run(Command::new("mount").arg("--bind").arg(&fixture.image).arg(path("bound")));
    let [link, bound] = [path("link"), path("bound")];
    let names: [&Path; 3] = [&fixture.image, &link, &bound];
    let (first, second) = (LoopDevice::new(&fixture.image), LoopDevice::new(&fixture.image));
    let check_mounted = |device: &Path, others: &[&Path]| {
        let done = mount(&fixture, &["-o", "rw"], device);
        assert!(done.status.success(), "{}", done.text());
        let mounted = fixture.mounted();
        check_refused(&fixture, others);
        check_not_changed(&names);
        let qemu = ["-f", "raw", "-c", "write 0 512"];
        let refused = output(Command::new("qemu-io").args(qemu).arg(&fixture.image));
        assert!(refused.text().contains("lock"), "{}", refused.text());
        fixture.umount();
        mounted.assert_gone();
    };
    check_mounted(first.path(), &[second.path()]);
    check_mounted(second.path(), &[first.path()]);
    // Nothing is in use.
    for (turn, path) in [first.path(), &fixture.image, second.path(), &link].iter().enumerate() {
        run(bifolio("mkdir").arg(format!("{}:/dir{turn}", path.display())));
    }
    // From now on, the host keeps blocks of the first device in its cache, so it is not written any
    // more after the others.
    let above = LoopDevice::new(first.path());
    let devices = [first.path(), second.path(), above.path()];
    check_mounted(above.path(), &devices[..2]);
    check_by_e2fsck(&fixture.image);

    let mounted = fixture.mount(&["-o", "rw,noloop"]);
    check_refused(&fixture, &[&names[1..], &devices].concat());
    fixture.umount();
    mounted.assert_gone();
    run(Command::new("mount").args(["-t", "ext4"]).arg(second.path()).arg(&fixture.directory));
    check_not_changed(&[&names[..], &devices].concat());
    run(Command::new("umount").arg(&fixture.directory));
    run(Command::new("umount").arg(&bound));
    check_by_e2fsck(&fixture.image);
}

/// The server goes on writing then, until the mount is unmounted.
#[test]
fn a_server_without_a_guard_keeps_the_locks_of_what_backs_its_device() {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs { size: 16 << 20, ..Mke2fs::new("ext4", 1024) }.make(&fixture.image, None);
    let shifted = fixture.folder.path().join("shifted");
    fs::write(&shifted, [vec![0; 1 << 20], fs::read(&fixture.image).unwrap()].concat()).unwrap();
    let whole = LoopDevice::new(&fixture.image);
    // A whole device, and a part of an image, which the server has through a loop device.
    let ways: [(&[&str], &Path, &Path); 2] =
        [(&[], whole.path(), &fixture.image), (&["--offset", "1M"], &shifted, &shifted)];
    for (arguments, device, image) in ways {
        let done = mount(&fixture, &[&["-o", "rw"], arguments].concat(), device);
        assert!(done.status.success(), "{}", done.text());
        let mounted = fixture.mounted();
        mounted.signal_guard(Signal::KILL);
        wait_until("the end of the guard", || !mounted.has_guard());
        let qemu = ["-f", "raw", "-c", "write 0 512"];
        let refused = output(Command::new("qemu-io").args(qemu).arg(image));
        assert!(refused.text().contains("lock"), "{}: {}", device.display(), refused.text());
        let mkdir = |name: &str| {
            let path = format!("{}:/{name}", image.display());
            output(bifolio("mkdir").args(arguments).arg(path))
        };
        let refused = mkdir("new");
        assert!(refused.text().contains("is in use"), "{}: {}", device.display(), refused.text());
        let files = fs::read_dir(format!("/proc/{}/fd", mounted.server())).unwrap();
        let mut files = files.map(|file| fs::read_link(file.unwrap().path()).unwrap());
        assert!(files.all(|file| file != image), "the server has the whole image open");
        run(Command::new("umount").arg(&fixture.directory));
        wait_until("the end of the server", || !mounted.has_server());
        let done = mkdir("new");
        assert!(done.status.success(), "{}: {}", device.display(), done.text());
    }
    check_by_e2fsck(&fixture.image);
}

#[test]
fn qemu_does_not_write_an_image_that_is_mounted() {
    private_mounts();
    let fixture = Fixture::with_volume(testkit::Format::Ext4(4096));
    for options in ["rw", "rw,noloop", "ro"] {
        let mounted = fixture.mount(&["-o", options]);
        let qemu = |arguments: &[&str]| {
            output(Command::new("qemu-io").args(["-f", "raw"]).args(arguments).arg(&fixture.image))
        };
        let refused = qemu(&["-c", "write 0 512"]);
        assert!(refused.text().contains("Failed to get \"write\" lock"), "{}", refused.text());
        let read = qemu(&["-r", "-U", "-c", "read 0 512"]);
        assert!(read.status.success(), "{}", read.text());
        fixture.umount();
        mounted.assert_gone();
    }
    check_by_e2fsck(&fixture.image);
}
