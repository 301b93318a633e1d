//! IOCTL: inode flags, generation and project for lsattr, chattr and xfs_io, and requests of
//! `bifolio` itself. Not here: standard requests for the whole volume (`volume_ioctl`), and those
//! of f2fs (`f2fs_ioctl`).

use std::sync::Arc;

use base::attributes::Attributes;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::protocol::{InHeader, IoctlIn, IoctlOut};
use crate::reply::{Answer, Failure, Outcome, Reply};
use crate::server::Server;

/// FS_IOC_GETFLAGS, and its number in 32-bit programs.
const GETFLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// FS_IOC_GETVERSION, and its number in 32-bit programs.
const GETVERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
/// FS_IOC_SETFLAGS. Its number in 32-bit programs is refused: since Linux 5.13, the kernel
/// translates it for them, but does not check permissions if a 64-bit program sends it.
const SETFLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR.
const FSGETXATTR: u32 = 0x801c_581f;
/// FS_IOC_FSSETXATTR.
const FSSETXATTR: u32 = 0x401c_5820;

/// `_IO(0xBF, 1)`, this server's own: makes the whole volume durable. The kernel passes syncfs(2)
/// on only to servers of block devices.
pub const SYNC_VOLUME: u32 = 0xBF01;

/// `_IOR(0xBF, 2, u32)`, this server's own: whether the volume is open for writing. After a
/// remount, the mount table does not show this.
pub const IS_WRITABLE: u32 = 0x8004_BF02;

/// `_IO(0xBF, 3)`, this server's own, for root: makes the whole volume durable, and marks it as
/// clean, since it has become read-only.
pub const MARK_CLEAN: u32 = 0xBF03;

/// `_IO(0xBF, 4)`, this server's own, for root: marks the volume as in use, since it has become
/// writable again.
pub const MARK_IN_USE: u32 = 0xBF04;

/// `_IOR(0xBF, 5, [u8; 4096])`, this server's own, for root: has a volume that is open for reading
/// opened for writing. The answer is why this failed, with zeroes after it, or nothing.
pub const BECOME_WRITABLE: u32 = 0x9000_BF05;

/// The maximum size of the answer to [`BECOME_WRITABLE`], in bytes.
pub const REASON_BYTES_MAX: usize = 4096;

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

/// FS_IMMUTABLE_FL and FS_APPEND_FL.
const PROTECTED: u32 = 0x30;

/// Pairs of FS_*_FL and FS_XFLAG_* bits with the same meaning.
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
        if let Some(answer) = self.f2fs_ioctl(header, operation, rest, reply)? {
            return Ok(answer);
        }
        let command = operation.command;
        if command == BECOME_WRITABLE {
            self.require_root(header)?;
            base::waiting::about_to_wait();
            let reason = self.become_writable(header.pid).err().unwrap_or_default();
            reply.push(&IoctlOut::default())?;
            // All of it, since the caller's buffer may have had other contents.
            let mut answer = vec![0; REASON_BYTES_MAX.min(operation.out_size as usize)];
            let length = reason.len().min(answer.len());
            answer[..length].copy_from_slice(&reason.as_bytes()[..length]);
            reply.push_bytes(&answer)?;
            return Ok(Answer::Payload);
        }
        let attributes = self.known(header.node)?.node.attributes();
        if command == SYNC_VOLUME {
            base::waiting::about_to_wait();
            self.volume().sync()?;
            reply.push(&IoctlOut::default())?;
            return Ok(Answer::Payload);
        }
        if [MARK_CLEAN, MARK_IN_USE].contains(&command) {
            self.require_root(header)?;
            base::waiting::about_to_wait();
            match command {
                MARK_CLEAN => self.volume().mark_clean()?,
                _ => self.volume().mark_in_use()?,
            }
            reply.push(&IoctlOut::default())?;
            return Ok(Answer::Payload);
        }
        if let Some(wanted) = wanted_by(command, rest, &attributes)? {
            self.set_flags(header, &wanted)?;
            reply.push(&IoctlOut::default())?;
            return Ok(Answer::Payload);
        }
        let number;
        let record;
        let is_writable;
        // The first two are declared with `long`, but transfer an `int`.
        let data = if GETFLAGS.contains(&command) {
            number = attributes.flags;
            number.as_bytes()
        } else if GETVERSION.contains(&command) {
            number = attributes.generation;
            number.as_bytes()
        } else if command == IS_WRITABLE {
            is_writable = u32::from(self.volume().is_writable());
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

    /// Sets an inode's flags and project on behalf of the caller.
    fn set_flags(&self, header: &InHeader, wanted: &Wanted) -> Result<(), Failure> {
        // Since Linux 5.13, the kernel checks the permission, too.
        let by = self.options.owners.checked(header);
        let node = Arc::clone(&self.known(header.node)?.node);
        if (wanted.flags ^ node.attributes().flags) & PROTECTED != 0 {
            // What programs have written before may reach the file. What they write later may not.
            base::waiting::about_to_wait();
            self.receive_kernel_data(header.node, &node)?;
        }
        node.set_flags(wanted.flags, &by)?;
        // The flags stay changed if this fails, as in Linux.
        let project = wanted.project.map_or(Ok(()), |project| node.set_project(project, &by));
        // The time of change has changed as well.
        self.invalidate_attributes(header.node);
        Ok(project?)
    }
}

/// The new flags of an inode, and its new project.
struct Wanted {
    flags: u32,
    project: Option<u32>,
}

/// Returns the changes of an inode with `attributes`. Returns `None` for commands that do not set
/// flags.
fn wanted_by(
    command: u32,
    argument: &[u8],
    attributes: &Attributes,
) -> Result<Option<Wanted>, Errno> {
    if command == SETFLAGS {
        let (flags, _) = u32::read_from_prefix(argument).map_err(|_| Errno::INVAL)?;
        return Ok(Some(Wanted { flags, project: None }));
    }
    if command != FSSETXATTR {
        return Ok(None);
    }
    let (wanted, _) = FsXattr::read_from_prefix(argument).map_err(|_| Errno::INVAL)?;
    let is_other = wanted.project != attributes.project.unwrap_or(0);
    let project = is_other.then_some(wanted.project);
    // Flags that ext4 does not have are ignored, as by the kernel's ext4.
    let is_set = |pair: &&(u32, u32)| wanted.flags & pair.1 != 0;
    let set = FLAG_PAIRS.iter().filter(is_set).fold(0, |flags, (flag, _)| flags | flag);
    let others = FLAG_PAIRS.iter().fold(attributes.flags, |flags, (flag, _)| flags & !flag);
    Ok(Some(Wanted { flags: others | set, project }))
}

/// Returns the answer to FS_IOC_FSGETXATTR.
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
