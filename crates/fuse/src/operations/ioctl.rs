//! IOCTL: inode flags, generation and project, as lsattr and xfs_io read them.

use base::attributes::Attributes;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::protocol::{InHeader, IoctlIn, IoctlOut};
use crate::reply::{Answer, Outcome, Reply};
use crate::server::Server;

/// FS_IOC_GETFLAGS, and as 32-bit programs send it.
const GETFLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// FS_IOC_GETVERSION, and as 32-bit programs send it.
const GETVERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
/// FS_IOC_FSGETXATTR.
const FSGETXATTR: u32 = 0x801c_581f;

/// `struct fsxattr`.
#[derive(zerocopy::IntoBytes, zerocopy::Immutable)]
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
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let attributes = self.known(header.node)?.node.attributes();
        let command = operation.command;
        let number;
        let record;
        // The first two are declared as `long` but have always moved an `int`.
        let data = if GETFLAGS.contains(&command) {
            number = attributes.flags;
            number.as_bytes()
        } else if GETVERSION.contains(&command) {
            number = attributes.generation;
            number.as_bytes()
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
