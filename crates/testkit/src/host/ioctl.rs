//! Ioctls of files for which no library has safe functions: FIEMAP, FSGETXATTR, FSSETXATTR,
//! GETVERSION, EXT4_IOC_MOVE_EXT, F2FS_IOC_SET_PIN_FILE, F2FS_IOC_GARBAGE_COLLECT_RANGE,
//! FS_IOC_ENABLE_VERITY, F2FS_IOC_RELEASE_COMPRESS_BLOCKS, and those for encryption.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Setter, Updater, ioctl, opcode};

/// `struct fiemap_extent` of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FiemapExtent {
    /// The offset in the file, in bytes.
    pub logical: u64,
    /// The offset on the device, in bytes.
    pub physical: u64,
    /// The length in bytes.
    pub length: u64,
    reserved64: [u64; 2],
    /// `FIEMAP_EXTENT_*`.
    pub flags: u32,
    reserved32: [u32; 3],
}

impl FiemapExtent {
    pub const LAST: u32 = 0x0001;
    pub const INLINE: u32 = 0x0200;
    pub const UNWRITTEN: u32 = 0x0800;
}

const EXTENTS_AT_ONCE: usize = 512;

/// `struct fiemap` without its array.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

#[repr(C)]
struct Fiemap {
    header: FiemapHeader,
    extents: [FiemapExtent; EXTENTS_AT_ONCE],
}

/// Returns all extents of a file, split as the kernel reports them.
pub(crate) fn fiemap(file: impl AsFd) -> Result<Vec<FiemapExtent>> {
    const OPCODE: rustix::ioctl::Opcode = opcode::read_write::<FiemapHeader>(b'f', 11);
    let mut extents: Vec<FiemapExtent> = Vec::new();
    loop {
        let start = extents.last().map_or(0, |last| last.logical + last.length);
        let mut request = Box::new(Fiemap {
            header: FiemapHeader {
                start,
                length: u64::MAX - start,
                extent_count: EXTENTS_AT_ONCE as u32,
                ..FiemapHeader::default()
            },
            extents: [FiemapExtent::default(); EXTENTS_AT_ONCE],
        });
        // SAFETY: FIEMAP takes a `struct fiemap` followed by the `extent_count` extents that it
        // may fill, which is what `Fiemap` lays out.
        unsafe { ioctl(file.as_fd(), Updater::<OPCODE, Fiemap>::new(&mut request))? };
        let found = &request.extents[..request.header.mapped_extents as usize];
        extents.extend_from_slice(found);
        if found.last().is_none_or(|last| last.flags & FiemapExtent::LAST != 0) {
            return Ok(extents);
        }
        // Damaged maps may have no end.
        if found.last().is_some_and(|last| last.logical + last.length <= start && start > 0) {
            return Err(rustix::io::Errno::LOOP);
        }
    }
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Fsxattr {
    xflags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

fn get_fsxattr(file: impl AsFd) -> Result<Fsxattr> {
    const OPCODE: rustix::ioctl::Opcode = opcode::read::<Fsxattr>(b'X', 31);
    // SAFETY: FS_IOC_FSGETXATTR fills a whole `struct fsxattr`, any bytes of which are valid.
    unsafe { ioctl(file, Getter::<OPCODE, Fsxattr>::new()) }
}

/// Returns the file's project id.
pub(crate) fn project(file: impl AsFd) -> Result<u32> {
    Ok(get_fsxattr(file)?.project)
}

/// Sets the file's project id.
pub(crate) fn set_project(file: impl AsFd, project: u32) -> Result<()> {
    let wanted = Fsxattr { project, ..get_fsxattr(&file)? };
    set_fsxattr(file, wanted)
}

/// Sets the project id of a directory, which new inodes in it take over.
pub(crate) fn set_inherited_project(file: impl AsFd, project: u32) -> Result<()> {
    /// FS_XFLAG_PROJINHERIT.
    const INHERIT: u32 = 0x200;
    let now = get_fsxattr(&file)?;
    set_fsxattr(file, Fsxattr { project, xflags: now.xflags | INHERIT, ..now })
}

fn set_fsxattr(file: impl AsFd, wanted: Fsxattr) -> Result<()> {
    const OPCODE: rustix::ioctl::Opcode = opcode::write::<Fsxattr>(b'X', 32);
    // SAFETY: FS_IOC_FSSETXATTR reads a `struct fsxattr`.
    unsafe { ioctl(file, Setter::<OPCODE, Fsxattr>::new(wanted)) }
}

/// Pins a file of f2fs.
pub(crate) fn pin(file: impl AsFd) -> Result<()> {
    const OPCODE: rustix::ioctl::Opcode = opcode::write::<u32>(0xf5, 13);
    // SAFETY: F2FS_IOC_SET_PIN_FILE reads a `u32`.
    unsafe { ioctl(file, Setter::<OPCODE, u32>::new(1)) }
}

/// Cleans all sections of the volume of a file of f2fs that are not those of logs.
pub(crate) fn clean(file: impl AsFd) -> Result<()> {
    /// `struct f2fs_gc_range`.
    #[repr(C)]
    struct Part {
        waits: u32,
        start: u64,
        length: u64,
    }
    const OPCODE: rustix::ioctl::Opcode = opcode::write::<Part>(0xf5, 11);
    const SEGMENT_BLOCKS: usize = 512;
    let mut is_main_area = false;
    for start in (0..1 << 22).step_by(SEGMENT_BLOCKS) {
        let part = Part { waits: 1, start, length: 1 };
        // SAFETY: F2FS_IOC_GARBAGE_COLLECT_RANGE reads a `struct f2fs_gc_range`.
        match unsafe { ioctl(&file, Setter::<OPCODE, Part>::new(part)) } {
            // Before the main area, and after it.
            Err(Errno::INVAL) if is_main_area => break,
            Err(Errno::INVAL) => {}
            Ok(()) | Err(Errno::AGAIN | Errno::NODATA) => is_main_area = true,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the inode's generation.
pub(crate) fn generation(file: impl AsFd) -> Result<u32> {
    const OPCODE: rustix::ioctl::Opcode = opcode::read::<u64>(b'v', 1);
    // Declared as a long, but the kernel writes an int and does not change the other half.
    let mut value = [0_u32; 2];
    // SAFETY: FS_IOC_GETVERSION writes at most the eight bytes of its declared argument.
    unsafe { ioctl(file, Updater::<OPCODE, [u32; 2]>::new(&mut value))? };
    Ok(value[0])
}

/// `struct move_extent` of the kernel's ext4.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MoveExtent {
    reserved: u32,
    donor: u32,
    at: u64,
    donor_at: u64,
    count: u64,
    moved: u64,
}

/// Exchanges `count` blocks of a file from block `at` on with those of `donor` from block
/// `donor_at` on. Returns the number of blocks that the kernel has processed.
pub fn move_extents(
    file: impl AsFd,
    at: u64,
    donor: impl AsFd,
    donor_at: u64,
    count: u64,
) -> Result<u64> {
    const OPCODE: rustix::ioctl::Opcode = opcode::read_write::<MoveExtent>(b'f', 15);
    let donor = donor.as_fd().as_raw_fd() as u32;
    let mut request = MoveExtent { donor, at, donor_at, count, ..MoveExtent::default() };
    // SAFETY: EXT4_IOC_MOVE_EXT reads and fills one `struct move_extent`.
    unsafe { ioctl(file.as_fd(), Updater::<OPCODE, MoveExtent>::new(&mut request))? };
    Ok(request.moved)
}

/// `struct fsverity_enable_arg` of linux/fsverity.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct VerityEnable {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved: u32,
    signature: u64,
    reserved_words: [u64; 11],
}

/// Makes a file read-only with a hash tree of SHA-256. `file` is open for reading only, and no one
/// has it open for writing.
pub(crate) fn enable_verity(file: impl AsFd, block_size: u32) -> Result<()> {
    const OPCODE: rustix::ioctl::Opcode = opcode::write::<VerityEnable>(b'f', 133);
    let request = VerityEnable {
        version: 1,
        hash_algorithm: 1,
        block_size,
        salt_size: 0,
        salt: 0,
        signature_size: 0,
        reserved: 0,
        signature: 0,
        reserved_words: [0; 11],
    };
    // SAFETY: FS_IOC_ENABLE_VERITY takes a `struct fsverity_enable_arg`, whose pointers are for
    // zero bytes here.
    unsafe { ioctl(file.as_fd(), Setter::<OPCODE, VerityEnable>::new(request)) }
}

/// Frees the space that compression saves in a file, which can then only be read. Returns the
/// number of blocks.
pub(crate) fn release_compressed(file: impl AsFd) -> Result<u64> {
    const OPCODE: rustix::ioctl::Opcode = opcode::read::<u64>(0xF5, 18);
    // SAFETY: F2FS_IOC_RELEASE_COMPRESS_BLOCKS writes a u64.
    unsafe { ioctl(file.as_fd(), Getter::<OPCODE, u64>::new()) }
}
