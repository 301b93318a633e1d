//! ioctls for a whole volume: discarding free space (FITRIM), and the label.

mod mounting;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use mounting::side_by_side::{Notes, side_by_side_on};
use mounting::{Fixture, NOBODY, as_user};
use rustix::io::Errno;
use testkit::check_by_e2fsck;
use testkit::command::{output, run};

const FITRIM: libc::c_ulong = 0xc018_5879;
const GETFSLABEL: libc::c_ulong = 0x8100_9431;
const SETFSLABEL: libc::c_ulong = 0x4100_9432;

fn ioctl<T>(path: &Path, command: libc::c_ulong, argument: &mut T) -> Result<(), Errno> {
    let file = File::open(path).unwrap();
    // SAFETY: callers pass an argument of the type that the command reads or writes.
    match unsafe { libc::ioctl(file.as_raw_fd(), command, &raw mut *argument) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

fn trim(path: &Path, start: u64, length: u64, length_min: u64) -> Result<u64, Errno> {
    let mut range = [start, length, length_min];
    ioctl(path, FITRIM, &mut range).map(|()| range[1])
}

fn label(path: &Path) -> Result<String, Errno> {
    let mut label = [0_u8; 256];
    ioctl(path, GETFSLABEL, &mut label)?;
    let length = label.iter().position(|&byte| byte == 0).unwrap();
    Ok(String::from_utf8(label[..length].to_vec()).unwrap())
}

fn set_label(path: &Path, wanted: &str) -> Result<(), Errno> {
    let mut label = [0_u8; 256];
    label[..wanted.len()].copy_from_slice(wanted.as_bytes());
    ioctl(path, SETFSLABEL, &mut label)
}

#[test]
fn fitrim_behaves_as_in_the_kernel() {
    side_by_side_on(
        |_| (),
        |mount, notes: &mut Notes| {
            let whole = u64::MAX;
            for (name, start, length, length_min) in [
                ("too short", 0, 4095, 0),
                ("after the end", 64 << 20, 4096, 0),
                ("past the end", 60 << 20, 1 << 40, 0),
                ("runs of a group", 0, whole, 128 << 20),
                ("runs longer than a group", 0, whole, (128 << 20) + 4096),
                // Only whole free ranges: for parts, the kernel continues to the end of the range.
                // This case is last, because the kernel does not discard a group twice.
                ("all", 0, whole, 0),
            ] {
                notes.note(name, trim(mount, start, length, length_min));
            }
        },
    );
}

#[test]
fn fitrim_makes_an_image_sparse() {
    testkit::private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw,allow_other"]);
    let kept = fs::read(mount.path().join("big")).unwrap();
    let data = testkit::tree::contents(2, 20_000_000);
    fs::write(mount.path().join("goes"), &data).unwrap();
    fs::write(mount.path().join("stays"), &data).unwrap();
    let sync = || File::open(mount.path().join("stays")).unwrap().sync_all().unwrap();
    File::open(mount.path().join("goes")).unwrap().sync_all().unwrap();
    sync();
    fs::remove_file(mount.path().join("goes")).unwrap();
    File::open(mount.path()).unwrap().sync_all().unwrap();
    let refused = output(as_user(NOBODY, "fstrim").arg(mount.path()));
    assert!(!refused.status.success() && refused.text().contains("not permitted"));
    assert_eq!(trim(mount.path(), 60 << 20, 8192, 0), Ok(8192), "more than requested");
    let before = fs::metadata(&fixture.image).unwrap().blocks() * 512;
    // The inode is freed when the kernel evicts it.
    testkit::wait_until("the discard of a removed file", || {
        run(Command::new("fstrim").arg(mount.path()));
        let after = fs::metadata(&fixture.image).unwrap().blocks() * 512;
        after + 19_000_000 < before
    });
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
    let mount = fixture.mount(&["-o", "ro"]);
    assert!(fs::read(mount.path().join("big")).unwrap() == kept);
    assert!(fs::read(mount.path().join("stays")).unwrap() == data);
    assert_eq!(trim(mount.path(), 0, u64::MAX, 0), Err(Errno::ROFS));
}

#[test]
fn labels_are_read_and_set_as_in_the_kernel() {
    side_by_side_on(
        |image| drop(run(Command::new("e2label").arg(image).arg("first"))),
        |mount, notes: &mut Notes| {
            notes.note("read", label(mount));
            for wanted in ["second", "", "sixteen bytes...", "seventeen bytes..", "last"] {
                notes.note(format!("set {wanted:?}"), set_label(mount, wanted));
                notes.note(format!("read after {wanted:?}"), label(mount));
            }
        },
    );
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    set_label(mount.path(), "kept").unwrap();
    // Programs that look for labels do not replay the journal.
    assert_eq!(run(Command::new("e2label").arg(&fixture.image)), b"kept\n");
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
    assert_eq!(run(Command::new("e2label").arg(&fixture.image)), b"kept\n");
}
