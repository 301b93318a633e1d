//! File handles on mounts, as NFS servers use them (name_to_handle_at, open_by_handle_at). They
//! stay valid when the kernel and the server evict inodes from memory.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::mounting::Fixture;
use testkit::{check_by_e2fsck, private_mounts};

/// `struct file_handle` with the maximum size.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

fn handle(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount = 0_i32;
    // SAFETY: the handle has the given size, and all pointers are valid during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(mount: &Path, handle: &Handle) -> io::Result<File> {
    let root = File::open(mount).unwrap();
    let mut handle = *handle;
    // SAFETY: the handle has the given size, and the returned descriptor has no other owner.
    unsafe {
        let opened = libc::syscall(
            libc::SYS_open_by_handle_at,
            root.as_raw_fd(),
            &raw mut handle,
            libc::O_RDONLY,
        );
        match i32::try_from(opened) {
            Ok(opened) if opened >= 0 => Ok(File::from_raw_fd(opened)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn is_stale(mount: &Path, handle: &Handle) -> bool {
    open(mount, handle).is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
}

#[test]
fn handles_stay_valid_after_a_remount() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let path = |name: &str| mount.path().join(name);
    fs::create_dir_all(path("outer/inner")).unwrap();
    fs::write(path("outer/inner/file"), "found").unwrap();
    fs::write(path("goes"), "").unwrap();
    let [file, inner, goes, root] =
        ["outer/inner/file", "outer/inner", "goes", ""].map(|name| handle(&path(name)));
    let number = fs::metadata(path("goes")).unwrap().ino();
    fixture.umount();
    mount.assert_gone();
    for options in ["rw", "ro"] {
        let mount = fixture.mount(&["-o", options]);
        let mut text = String::new();
        open(mount.path(), &file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "found");
        let opened = open(mount.path(), &inner).unwrap();
        // The kernel looked up the parents up to the root directory.
        let shown = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
        assert_eq!(shown, mount.path().join("outer/inner"));
        let opened = open(mount.path(), &root).unwrap();
        assert_eq!(opened.metadata().unwrap().ino(), 2);
        assert_eq!(open(mount.path(), &goes).unwrap().metadata().unwrap().ino(), number);
    }
    let mount = fixture.mount(&["-o", "rw"]);
    let path = |name: &str| mount.path().join(name);
    fs::remove_file(path("goes")).unwrap();
    assert!(is_stale(mount.path(), &goes), "a removed file");
    // Reuses the inode number.
    let again = (0..100).any(|at| {
        fs::write(path(&format!("new {at}")), "").unwrap();
        fs::metadata(path(&format!("new {at}"))).unwrap().ino() == number
    });
    assert!(again && is_stale(mount.path(), &goes), "another file with its number");
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn handles_with_invalid_inode_numbers_fail_without_a_recorded_error() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let file = handle(&mount.path().join("small"));
    let number = fs::metadata(mount.path().join("small")).unwrap().ino();
    for other in [0, 3, 7, 8, 10, 1_000, 1_000_000_000, u64::MAX, 1 << 32] {
        let mut handle = file;
        // A FUSE handle is the upper and the lower half of the node id, and the generation.
        assert_eq!(handle.data[4..8], (number as u32).to_ne_bytes());
        handle.data[..4].copy_from_slice(&((other >> 32) as u32).to_ne_bytes());
        handle.data[4..8].copy_from_slice(&(other as u32).to_ne_bytes());
        let found = open(mount.path(), &handle);
        assert!(found.is_err(), "{other}");
    }
    assert!(open(mount.path(), &file).is_ok());
    fixture.umount();
    mount.assert_gone();
    // No error was recorded in the superblock.
    check_by_e2fsck(&fixture.image);
    let dumped =
        testkit::command::run(std::process::Command::new("dumpe2fs").arg("-h").arg(&fixture.image));
    assert!(!String::from_utf8(dumped).unwrap().contains("FS Error count"));
}
