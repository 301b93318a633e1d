//! Loop devices for mounts of image files, through which no I/O goes, and for mounts of a part of
//! an image: the server then has nothing but this device; and the files of existing loop devices.
//! Not here: the search for them (`bifolio`).
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// LOOP_CTL_GET_FREE: finds a free loop device (linux/loop.h).
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
/// LOOP_CONFIGURE: attaches a loop device to a file (linux/loop.h).
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
/// LOOP_GET_STATUS64: describes an attached loop device (linux/loop.h).
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
/// BLKROSET: sets or clears a block device's read-only flag (linux/fs.h).
const BLKROSET: libc::Ioctl = 0x125D;
/// LO_FLAGS_AUTOCLEAR: the device detaches from its file when its last user closes it.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// The maximum number of attempts, since another program may attach the free device first.
const ATTEMPTS: usize = 16;

/// `struct loop_config`, including its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    real_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<LoopInfo>() == 232);

impl LoopInfo {
    /// Returns the description of a loop device with these bytes of its file.
    fn new(offset: u64, size_limit: u64, flags: u32) -> Self {
        Self {
            device: 0,
            inode: 0,
            real_device: 0,
            offset,
            size_limit,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// A loop device attached to a file. Dropping this value detaches it, unless another user has it
/// open.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _device: OwnedFd,
}

impl LoopDevice {
    /// Attaches a free loop device to the bytes `range` of `image`. Its size is rounded down to 512
    /// bytes.
    pub fn attach(image: &Path, range: Range<u64>, writable: bool) -> Result<Self, Errno> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let open = |path: &Path| rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty());
        let control = open(Path::new("/dev/loop-control"))?;
        let image = open(image)?;
        for _ in 0..ATTEMPTS {
            let path = PathBuf::from(format!("/dev/loop{}", find_free(&control)?));
            let device = open(&path)?;
            match configure(&device, &image, &range, writable) {
                Ok(()) => return Ok(Self { path, _device: device }),
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::BUSY)
    }

    /// Returns the path of the device node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns the number of a free loop device.
fn find_free(control: &OwnedFd) -> Result<i32, Errno> {
    // SAFETY: the request takes no argument and touches no memory of this process.
    done(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) })
}

/// Attaches a loop device to a range of a file, and makes it writable or read-only.
fn configure(
    device: &OwnedFd,
    image: &OwnedFd,
    range: &Range<u64>,
    writable: bool,
) -> Result<(), Errno> {
    if range.is_empty() {
        return Err(Errno::INVAL);
    }
    // Zero means no limit.
    let size_limit = if range.end == u64::MAX { 0 } else { range.end - range.start };
    let config = LoopConfig {
        file: image.as_raw_fd() as u32,
        block_size: 0,
        info: LoopInfo::new(range.start, size_limit, LO_FLAGS_AUTOCLEAR),
        reserved: [0; 8],
    };
    // SAFETY: the request reads one `struct loop_config`, which lives until the call returns.
    done(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) })?;
    if !writable {
        // It is, since it is open for reading only.
        return Ok(());
    }
    // The read-only flag (`blockdev --setro`) may be left from an earlier use of the device.
    let read_only: libc::c_int = 0;
    // SAFETY: the request reads one `int`, which lives until the call returns.
    done(unsafe { libc::ioctl(device.as_raw_fd(), BLKROSET, &raw const read_only) })?;
    Ok(())
}

/// Returns the result of a system call, or its error.
fn done(result: libc::c_int) -> Result<libc::c_int, Errno> {
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    if result < 0 { Err(failed()) } else { Ok(result) }
}

/// Returns the kernel's path of the file that a loop device is attached to. `folder` is the
/// device's directory in /sys.
pub fn backing_file(folder: &Path) -> Option<PathBuf> {
    let file = std::fs::read(folder.join("loop/backing_file")).ok()?;
    let file = file.strip_suffix(b"\n").unwrap_or(&file);
    Some(OsStr::from_bytes(file).into())
}

/// The file of a loop device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopBacking {
    /// The device of the file system that has it, as in stat(2).
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// The device that the file is, or zero.
    pub real_device: u64,
    /// The position in the file at which the loop device starts, in bytes.
    pub offset: u64,
}

/// Returns the file that the loop device at `node` is attached to. `None` if this user may not open
/// the loop device, or it is not attached.
pub fn loop_backing(node: &Path) -> Option<LoopBacking> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open(node, flags, Mode::empty()).ok()?;
    let mut info = LoopInfo::new(0, 0, 0);
    // SAFETY: the request stores one `struct loop_info64`, which lives until the call returns.
    done(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) }).ok()?;
    let LoopInfo { device, inode, real_device, offset, .. } = info;
    Some(LoopBacking { device, inode, real_device, offset })
}
