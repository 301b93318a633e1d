//! MKNOD, MKDIR, SYMLINK, LINK, CREATE and TMPFILE.

use std::sync::Arc;

use base::Error;
use base::attributes::{DeviceNumber, FileType};
use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::{Creation, Credentials, Node};

use crate::protocol::{
    CreateIn, EntryOut, InHeader, LinkIn, MkDirIn, MkNodIn, OpenOut, decode_device,
};
use crate::reply::{Answer, Failure, Outcome, Reply};
use crate::request;
use crate::server::Server;

impl Server {
    /// MKNOD: anything but directories and symbolic links.
    pub(crate) fn make_node(
        &self,
        header: &InHeader,
        operation: &MkNodIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        let kind = match FileType::from_mode(operation.mode) {
            None if operation.mode & 0o170000 == 0 => FileType::Regular,
            None | Some(FileType::Directory | FileType::Symlink) => return Err(Errno::INVAL.into()),
            Some(kind) => kind,
        };
        let (major, minor) = decode_device(operation.device);
        let what = Creation {
            device: DeviceNumber { major, minor },
            ..creation(kind, operation.mode, operation.umask)
        };
        self.make(header, name, &what, reply)
    }

    /// MKDIR.
    pub(crate) fn make_directory(
        &self,
        header: &InHeader,
        operation: &MkDirIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        let what = creation(FileType::Directory, operation.mode, operation.umask);
        self.make(header, name, &what, reply)
    }

    /// SYMLINK: the name and the target follow.
    pub(crate) fn make_symlink(
        &self,
        header: &InHeader,
        (): &(),
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let (name, target) = request::two_names(rest)?;
        self.make(header, name, &Creation::symlink(target), reply)
    }

    /// LINK.
    pub(crate) fn link(
        &self,
        header: &InHeader,
        operation: &LinkIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        need_room::<EntryOut>(reply)?;
        let file = self.known(operation.node)?;
        let directory = self.known(header.node)?;
        self.volume.link(&directory.node, name, &file.node)?;
        reply.push(&self.tell(&file.node))?;
        Ok(Answer::Payload)
    }

    /// CREATE: makes a regular file and opens it; opens the one that is there, unless the caller
    /// wants its own.
    pub(crate) fn create(
        &self,
        header: &InHeader,
        operation: &CreateIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let name = request::name(rest)?;
        need_room::<(EntryOut, OpenOut)>(reply)?;
        let directory = self.known(header.node)?;
        let flags = OFlags::from_bits_retain(operation.flags);
        let what = creation(FileType::Regular, operation.mode, operation.umask);
        let made = self.volume.create(&directory.node, name, &what, &credentials(header));
        let (node, truncates) = match made {
            Err(Error::Exists) if !flags.contains(OFlags::EXCL) => {
                (self.volume.lookup(&directory.node, name)?, true)
            }
            made => (made?, false),
        };
        let flags = if truncates { flags } else { flags - OFlags::TRUNC };
        self.answer_created(&node, flags, operation.open_flags, reply)
    }

    /// TMPFILE: makes a regular file without a name and opens it.
    pub(crate) fn create_unnamed(
        &self,
        header: &InHeader,
        operation: &CreateIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        need_room::<(EntryOut, OpenOut)>(reply)?;
        let directory = self.known(header.node)?;
        let what = creation(FileType::Regular, operation.mode, operation.umask);
        let node = self.volume.create_unnamed(&directory.node, &what, &credentials(header))?;
        let flags = OFlags::from_bits_retain(operation.flags) - OFlags::TRUNC;
        self.answer_created(&node, flags, operation.open_flags, reply)
    }

    fn make(
        &self,
        header: &InHeader,
        name: &[u8],
        what: &Creation<'_>,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        need_room::<EntryOut>(reply)?;
        let directory = self.known(header.node)?;
        let node = self.volume.create(&directory.node, name, what, &credentials(header))?;
        reply.push(&self.tell(&node))?;
        Ok(Answer::Payload)
    }

    fn answer_created(
        &self,
        node: &Arc<Node>,
        flags: OFlags,
        open_flags: u32,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let opened = self.open_node(node, flags, open_flags)?;
        reply.push(&self.tell(node))?;
        reply.push(&opened)?;
        Ok(Answer::Payload)
    }
}

/// Who makes something. The kernel has checked what there is to check.
pub(crate) fn credentials(header: &InHeader) -> Credentials {
    Credentials { uid: header.uid, gid: header.gid, ..Credentials::ROOT }
}

fn creation(kind: FileType, mode: u32, umask: u32) -> Creation<'static> {
    let bits = |mode: u32| (mode & 0o7777) as u16;
    Creation { umask: bits(umask), ..Creation::of(kind, bits(mode)) }
}

/// Fails before anything is made when the answer has no room.
fn need_room<T>(reply: &Reply<'_>) -> Result<(), Failure> {
    if reply.room() < size_of::<T>() { Err(Errno::RANGE.into()) } else { Ok(()) }
}
