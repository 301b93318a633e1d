//! IOCTL: inode flags, generation and project for lsattr, chattr and xfs_io; and the sync of the volume for
//! `bifolio sync`.

use base::attributes::Attributes;
use rustix::io::Errno;
use vfs::Credentials;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::owners::NO_ID;
use crate::protocol::{InHeader, IoctlIn, IoctlOut};
use crate::reply::{Answer, Failure, Outcome, Reply};
use crate::server::Server;

/// FS_IOC_GETFLAGS, and as 32-bit programs send it.
const GETFLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// FS_IOC_GETVERSION, and as 32-bit programs send it.
const GETVERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
/// FS_IOC_SETFLAGS. Its number for 32-bit programs is refused: since Linux 5.13 the kernel translates it for them, but
/// passes it on without any check if a 64-bit program sends it.
const SETFLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR.
const FSGETXATTR: u32 = 0x801c_581f;
/// FS_IOC_FSSETXATTR.
const FSSETXATTR: u32 = 0x401c_5820;

/// `_IO(0xBF, 1)`: makes the whole volume durable. A request of this server's own, since the kernel passes
/// syncfs(2) only to servers of block devices.
pub const SYNC_VOLUME: u32 = 0xBF01;

/// `_IOR(0xBF, 2, u32)`: whether the volume is open for writing, which the mount table does not show after a remount.
pub const IS_WRITABLE: u32 = 0x8004_BF02;

/// `struct fsxattr`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28);

/// FS_*_FL bits and the FS_XFLAG_* bits that say the same.
const FLAG_PAIRS: [(u32, u32); 7] = [
    (0x8, 0x20),           // sync
    (0x10, 0x8),           // immutable
    (0x20, 0x10),          // append only
    (0x40, 0x80),          // no dump
    (0x80, 0x40),          // no access time
    (0x0200_0000, 0x8000), // DAX
    (0x2000_0000, 0x200),  // children inherit the project
];

impl Server {
    /// IOCTL.
    pub(crate) fn ioctl(
        &self,
        header: &InHeader,
        operation: &IoctlIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        if let Some(answer) = self.volume_ioctl(header, operation, rest, reply)? {
            return Ok(answer);
        }
        let attributes = self.known(header.node)?.node.attributes();
        let command = operation.command;
        if command == SYNC_VOLUME {
            base::waiting::about_to_wait();
            self.volume.sync()?;
            reply.push(&IoctlOut::default())?;
            return Ok(Answer::Payload);
        }
        if let Some(flags) = flags_to_set(command, rest, &attributes)? {
            self.set_flags(header, flags)?;
            reply.push(&IoctlOut::default())?;
            return Ok(Answer::Payload);
        }
        let number;
        let record;
        let is_writable;
        // The first two are declared as `long` but have always moved an `int`.
        let data = if GETFLAGS.contains(&command) {
            number = attributes.flags;
            number.as_bytes()
        } else if GETVERSION.contains(&command) {
            number = attributes.generation;
            number.as_bytes()
        } else if command == IS_WRITABLE {
            is_writable = u32::from(self.volume.is_writable());
            is_writable.as_bytes()
        } else if command == FSGETXATTR {
            record = fs_xattr(&attributes);
            record.as_bytes()
        } else {
            return Err(Errno::NOTTY.into());
        };
        if data.len() > operation.out_size as usize {
            return Err(Errno::INVAL.into());
        }
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(data)?;
        Ok(Answer::Payload)
    }

    fn set_flags(&self, header: &InHeader, flags: u32) -> Result<(), Failure> {
        // Since Linux 5.13 the kernel has checked this, too.
        let owners = &self.options.owners;
        let by = match header.uid {
            // Only the kernel knows the caller.
            0 | NO_ID => Credentials::ROOT,
            _ => Credentials { privileged: owners.caller_is_root, ..owners.credentials(header) },
        };
        self.known(header.node)?.node.set_flags(flags, &by)?;
        // The time of change is another one, too.
        self.note_stale(header.node);
        Ok(())
    }
}

/// Returns the flags that an inode, which has `attributes`, is to get; `None` for other commands.
fn flags_to_set(
    command: u32,
    argument: &[u8],
    attributes: &Attributes,
) -> Result<Option<u32>, Errno> {
    if command == SETFLAGS {
        let (flags, _) = u32::read_from_prefix(argument).map_err(|_| Errno::INVAL)?;
        return Ok(Some(flags));
    }
    if command != FSSETXATTR {
        return Ok(None);
    }
    let (wanted, _) = FsXattr::read_from_prefix(argument).map_err(|_| Errno::INVAL)?;
    // As on the kernel's ext4, flags of other file systems have no effect.
    if wanted.project != attributes.project.unwrap_or(0) {
        return Err(Errno::OPNOTSUPP);
    }
    let set = |pair: &&(u32, u32)| wanted.flags & pair.1 != 0;
    let set = FLAG_PAIRS.iter().filter(set).fold(0, |flags, (flag, _)| flags | flag);
    let others = FLAG_PAIRS.iter().fold(attributes.flags, |flags, (flag, _)| flags & !flag);
    Ok(Some(others | set))
}

fn fs_xattr(attributes: &Attributes) -> FsXattr {
    let set = FLAG_PAIRS.iter().filter(|(flag, _)| attributes.flags & flag != 0);
    FsXattr {
        flags: set.fold(0, |flags, (_, xflag)| flags | xflag),
        extent_size: 0,
        extents: 0,
        project: attributes.project.unwrap_or(0),
        copy_extent_size: 0,
        padding: [0; 8],
    }
}
