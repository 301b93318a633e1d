//! Requests about a whole mounted volume: discarding free space (FITRIM), and its label.

mod mounting;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use mounting::side_by_side::{Notes, side_by_side_on};
use mounting::{Location, NOBODY, as_user};
use rustix::io::Errno;
use testkit::check_by_e2fsck;
use testkit::command::{output, run};

const FITRIM: libc::c_ulong = 0xc018_5879;
const GETFSLABEL: libc::c_ulong = 0x8100_9431;
const SETFSLABEL: libc::c_ulong = 0x4100_9432;

fn ioctl<T>(path: &Path, command: libc::c_ulong, argument: &mut T) -> Result<(), Errno> {
    let file = File::open(path).unwrap();
    // SAFETY: each command reads or writes an argument of the type that its caller gives.
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
fn free_space_is_discarded_as_by_the_kernel() {
    side_by_side_on(
        |_| (),
        |mount, notes: &mut Notes| {
            let whole = u64::MAX;
            for (what, start, length, length_min) in [
                ("too short", 0, 4095, 0),
                ("behind the end", 64 << 20, 4096, 0),
                ("past the end", 60 << 20, 1 << 40, 0),
                ("runs of a group", 0, whole, 128 << 20),
                ("runs longer than a group", 0, whole, (128 << 20) + 4096),
                // No parts of what is free: the kernel goes on to its end. And this last: the kernel
                // remembers groups that it has discarded, and does not do it again.
                ("all", 0, whole, 0),
            ] {
                notes.note(what, trim(mount, start, length, length_min));
            }
        },
    );
}

#[test]
fn an_image_becomes_sparse_where_it_is_free() {
    testkit::private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "rw,allow_other"]);
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
    assert_eq!(trim(mount.path(), 60 << 20, 8192, 0), Ok(8192), "no more than is asked for");
    let before = fs::metadata(&place.image).unwrap().blocks() * 512;
    // Its inode goes when the kernel has forgotten it.
    testkit::wait_until("the space of a file to be given back", || {
        run(Command::new("fstrim").arg(mount.path()));
        let after = fs::metadata(&place.image).unwrap().blocks() * 512;
        after + 19_000_000 < before
    });
    place.umount();
    mount.assert_gone();
    check_by_e2fsck(&place.image);
    let mount = place.mount(&["-o", "ro"]);
    assert!(fs::read(mount.path().join("big")).unwrap() == kept);
    assert!(fs::read(mount.path().join("stays")).unwrap() == data);
    assert_eq!(trim(mount.path(), 0, u64::MAX, 0), Err(Errno::ROFS));
}

#[test]
fn labels_are_read_and_set_as_by_the_kernel() {
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
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "rw"]);
    set_label(mount.path(), "kept").unwrap();
    place.umount();
    mount.assert_gone();
    check_by_e2fsck(&place.image);
    assert_eq!(run(Command::new("e2label").arg(&place.image)), b"kept\n");
}
