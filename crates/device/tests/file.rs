//! Tests of devices over files of the host: opening, locking, read-only use.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{DeviceOffset, Error};
use device::{Backend, BlockDevice, FileDevice, OpenDevice, Part, open};
use tempfile::{NamedTempFile, TempDir};

const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EOPNOTSUPP: i32 = 95;
const EISDIR: i32 = 21;
const ENOENT: i32 = 2;
const ENOTBLK: i32 = 15;
const EROFS: i32 = 30;

fn image(bytes: usize) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; bytes]).unwrap();
    file
}

fn open_errno(path: &Path, read_only: bool) -> i32 {
    match FileDevice::open(path, read_only) {
        Err(Error::Open { errno, path: named }) if named == path => errno,
        other => panic!("{other:?}"),
    }
}

fn io_errno(result: base::Result<()>) -> i32 {
    match result {
        Err(Error::Io(error)) => error.errno,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_read_only_device_refuses_every_change() {
    let file = image(10_000);
    let device: &dyn BlockDevice = &FileDevice::open(file.path(), true).unwrap();
    assert!(device.is_read_only());
    assert_eq!(io_errno(device.write_at(DeviceOffset(0), b"x")), EROFS);
    assert_eq!(io_errno(device.discard(DeviceOffset(0), 1)), EROFS);
    assert_eq!(io_errno(device.write_zeroes(DeviceOffset(0), 1)), EROFS);
    device.flush().unwrap();
    assert!(std::fs::read(file.path()).unwrap() == [7; 10_000]);
}

#[test]
fn a_file_without_write_permission_opens_read_only() {
    let file = image(512);
    let mut permissions = file.as_file().metadata().unwrap().permissions();
    permissions.set_readonly(true);
    file.as_file().set_permissions(permissions).unwrap();
    FileDevice::open(file.path(), true).unwrap();
}

#[test]
fn readers_share_an_image_and_a_writer_locks_it_alone() {
    let file = image(512);
    let first = FileDevice::open(file.path(), true).unwrap();
    let second = FileDevice::open(file.path(), true).unwrap();
    assert_eq!(open_errno(file.path(), false), EBUSY);
    drop((first, second));
    let writer = FileDevice::open(file.path(), false).unwrap();
    assert_eq!(open_errno(file.path(), true), EBUSY);
    assert_eq!(open_errno(file.path(), false), EBUSY);
    drop(writer);
    FileDevice::open(file.path(), true).unwrap();
}

#[test]
fn the_lock_of_a_dropped_device_ends_while_other_threads_start_programs() {
    let file = image(512);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // With a working directory, the standard library uses fork rather than
                    // posix_spawn.
                    let mut program = std::process::Command::new("true");
                    assert!(program.current_dir("/").status().unwrap().success());
                }
            });
        }
        let opened: Vec<_> =
            (0..2000).map(|_| FileDevice::open(file.path(), false).map(drop)).collect();
        done.store(true, Ordering::Relaxed);
        for one in opened {
            one.unwrap();
        }
    });
}

#[test]
fn paths_without_an_image_are_refused_with_an_errno() {
    let directory = TempDir::new().unwrap();
    assert_eq!(open_errno(directory.path(), true), EISDIR);
    assert_eq!(open_errno(&directory.path().join("missing"), true), ENOENT);
    assert_eq!(open_errno(Path::new("/dev/null"), true), ENOTBLK);
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert_eq!(open_errno(&pipe, true), ENOTBLK);
}

#[test]
fn reads_past_the_end_of_a_truncated_file_end_with_eio() {
    let file = image(10_000);
    let device: &dyn BlockDevice = &FileDevice::open(file.path(), true).unwrap();
    rustix::fs::ftruncate(file.as_file().as_fd(), 5000).unwrap();
    let mut bytes = [0; 2000];
    assert_eq!(io_errno(device.read_at(DeviceOffset(4000), &mut bytes)), EIO);
    device.read_at(DeviceOffset(3000), &mut bytes).unwrap();
}

#[test]
fn a_file_that_is_cut_is_not_written_any_more() {
    let file = image(10_000);
    for how in [Backend::Threads, Backend::Uring, Backend::Submitter] {
        rustix::fs::ftruncate(file.as_file().as_fd(), 10_000).unwrap();
        let options = OpenDevice { read_only: false, backend: how, ..Default::default() };
        let device = open(file.path(), options).unwrap();
        device.write_at(DeviceOffset(9000), b"x").unwrap();
        device.flush().unwrap();
        rustix::fs::ftruncate(file.as_file().as_fd(), 5000).unwrap();
        // Such a write would make the file as large as before.
        assert_eq!(io_errno(device.write_at(DeviceOffset(9999), b"x")), EIO);
        assert_eq!(io_errno(device.flush()), EIO);
        rustix::fs::ftruncate(file.as_file().as_fd(), 10_000).unwrap();
        for changed in [
            device.write_at(DeviceOffset(0), b"x"),
            device.flush(),
            device.discard(DeviceOffset(0), 1),
            device.write_zeroes(DeviceOffset(0), 1),
        ] {
            assert_eq!(io_errno(changed), EIO);
        }
        let mut byte = [1];
        device.read_at(DeviceOffset(9000), &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }
}

#[test]
fn bios_may_have_more_segments_than_one_system_call() {
    let file = image(5000);
    let contents: Vec<u8> = (0..5000).map(|at| (at % 251) as u8).collect();
    std::fs::write(file.path(), &contents).unwrap();
    let device = FileDevice::open(file.path(), true).unwrap();
    let mut bytes = vec![0u8; 5000];
    let (sender, receiver) = std::sync::mpsc::channel();
    let segments = bytes.iter_mut().map(|byte| {
        // SAFETY: `bytes` outlives the wait below and is not accessed before.
        unsafe { device::Segment::new(std::ptr::NonNull::from(byte), 1) }
    });
    let bio = device::Bio::new(device::BioOperation::Read, DeviceOffset(0), segments, move |end| {
        sender.send(end).unwrap();
    });
    device.submit(vec![bio]);
    receiver.recv().unwrap().unwrap();
    assert!(bytes == contents);
}

#[test]
fn an_offset_opens_the_rest_of_the_image() {
    let file = image(3000);
    let from = |start| OpenDevice { part: Part::From(DeviceOffset(start)), ..Default::default() };
    assert_eq!(open(file.path(), from(1024)).unwrap().size(), 1976);
    assert_eq!(open(file.path(), from(3000)).unwrap().size(), 0);
    assert!(matches!(open(file.path(), from(3001)), Err(Error::InvalidArgument(_))));
}

/// Creates a loop device for an image.
fn loop_device(image: &Path) -> String {
    let output = std::process::Command::new("losetup")
        .args(["--find", "--show"])
        .arg(image)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .unwrap();
    assert!(output.status.success(), "losetup, which needs root: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Detaches a loop device as soon as it is not open any more.
fn detach(path: &str) {
    let mut losetup = std::process::Command::new("losetup");
    losetup.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    assert!(losetup.args(["--detach", path]).status().unwrap().success());
}

#[test]
fn a_writer_of_a_block_device_has_it_alone_and_can_read_write_and_zero_it() {
    let file = image(1 << 20);
    let path = loop_device(file.path());
    let opened = FileDevice::open(Path::new(&path), false);
    let other = FileDevice::open(Path::new(&path), false);
    detach(&path);
    assert!(matches!(other, Err(Error::Open { errno: EBUSY, .. })), "{other:?}");
    let device: &dyn BlockDevice = &opened.unwrap();
    assert_eq!(device.size(), 1 << 20);
    device.write_at(DeviceOffset(4096), &[9; 8192]).unwrap();
    device.write_zeroes(DeviceOffset(8192), 4096).unwrap();
    match device.discard(DeviceOffset(65_536), 4096) {
        Ok(()) => {}
        // Not every loop device supports this.
        Err(Error::Io(error)) => assert_eq!(error.errno, EOPNOTSUPP),
        Err(error) => panic!("{error}"),
    }
    device.flush().unwrap();
    let mut bytes = [0; 16_384];
    device.read_at(DeviceOffset(0), &mut bytes).unwrap();
    assert!(bytes[..4096] == [7; 4096] && bytes[4096..8192] == [9; 4096]);
    assert!(bytes[8192..12_288] == [0; 4096] && bytes[12_288..] == [7; 4096]);
    // The flush has written it to the file.
    assert!(std::fs::read(file.path()).unwrap()[4096..8192] == [9; 4096]);
}

#[test]
fn a_refresh_shows_writes_of_other_programs_to_a_block_device() {
    let file = image(1 << 20);
    let path = loop_device(file.path());
    let opened = FileDevice::open(Path::new(&path), false);
    detach(&path);
    let device: &dyn BlockDevice = &opened.unwrap();
    let mut bytes = [0; 1024];
    // Less than a page, in the middle of one.
    device.read_at(DeviceOffset(5120), &mut bytes).unwrap();
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[9; 1024], 5120).unwrap();
    device.refresh(DeviceOffset(5120), 1024);
    device.read_at(DeviceOffset(5120), &mut bytes).unwrap();
    assert!(bytes == [9; 1024]);
}

#[test]
fn all_backends_read_the_same_data() {
    let file = image(0);
    let contents: Vec<u8> = (0..300_000).map(|at: u32| (at % 253) as u8).collect();
    std::fs::write(file.path(), &contents).unwrap();
    for backend in [Backend::Threads, Backend::Uring, Backend::Submitter] {
        let device = open(file.path(), OpenDevice { backend, ..Default::default() }).unwrap();
        let mut bytes = vec![0; contents.len()];
        device.read_at(DeviceOffset(0), &mut bytes).unwrap();
        assert!(bytes == contents, "{backend:?}");
    }
}
