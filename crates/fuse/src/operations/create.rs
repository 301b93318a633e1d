//! MKNOD, MKDIR, SYMLINK, LINK, CREATE and TMPFILE.

use std::sync::Arc;

use base::Error;
use base::attributes::{DeviceNumber, FileType};
use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::{Creation, Node, Privileges};

use crate::protocol::{
    CreateIn, EntryOut, FOPEN_DIRECT_IO, InHeader, InitFlags, LinkIn, MkDirIn, MkNodIn,
    OPEN_KILL_SUIDGID, OpenOut, decode_device,
};
use crate::reply::{Answer, Failure, Outcome, Reply};
use crate::request;
use crate::server::Server;

impl Server {
    /// MKNOD, of all types but directories and symbolic links.
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
        let attributes = Creation {
            device: DeviceNumber { major, minor },
            ..creation(kind, operation.mode, operation.umask)
        };
        self.make(header, name, &attributes, reply)
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
        let attributes = creation(FileType::Directory, operation.mode, operation.umask);
        self.make(header, name, &attributes, reply)
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
        self.volume().link(&directory.node, name, &file.node)?;
        reply.push(&self.entry_out(&directory.node, &file.node))?;
        Ok(Answer::Payload)
    }

    /// CREATE: creates a regular file and opens it. The kernel sends it for names that it believes
    /// missing, and does not check the permissions of the file. So an existing file is not opened:
    /// with ESTALE, the kernel looks the name up again, and opens the file if the caller may do so.
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
        let attributes = self.file_creation(operation);
        let by = self.options.owners.creator(header)?;
        let made = self.volume().create_in(&directory.node, name, &attributes, &by);
        let node = match made {
            Err(Error::Exists) if !flags.contains(OFlags::EXCL) => return Err(Errno::STALE.into()),
            made => made?,
        };
        let flags = flags - OFlags::TRUNC;
        let kill = operation.open_flags & OPEN_KILL_SUIDGID != 0;
        self.answer_created(&directory.node, &node, flags, self.privileges(header, kill), reply)
    }

    /// TMPFILE: creates a regular file without a name and opens it.
    pub(crate) fn create_unnamed(
        &self,
        header: &InHeader,
        operation: &CreateIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        need_room::<(EntryOut, OpenOut)>(reply)?;
        let directory = self.known(header.node)?;
        let attributes = self.file_creation(operation);
        let by = self.options.owners.creator(header)?;
        let node = self.volume().create_unnamed(&directory.node, &attributes, &by)?;
        let flags = OFlags::from_bits_retain(operation.flags) - OFlags::TRUNC;
        self.answer_created(&directory.node, &node, flags, Privileges::Keep, reply)
    }

    /// Returns the attributes of a new regular file. A kernel that collects writes sets times to
    /// the time of its last tick. The time of creation must not be later than these.
    fn file_creation(&self, operation: &CreateIn) -> Creation<'static> {
        let attributes = creation(FileType::Regular, operation.mode, operation.umask);
        let keeps_times = self.agreed_on(InitFlags::WRITEBACK_CACHE);
        Creation { created: keeps_times.then(vfs::tick), ..attributes }
    }

    /// Creates a file, and answers with its entry.
    fn make(
        &self,
        header: &InHeader,
        name: &[u8],
        attributes: &Creation<'_>,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        need_room::<EntryOut>(reply)?;
        let directory = self.known(header.node)?;
        let by = self.options.owners.creator(header)?;
        let node = self.volume().create_in(&directory.node, name, attributes, &by)?;
        reply.push(&self.entry_out(&directory.node, &node))?;
        Ok(Answer::Payload)
    }

    /// Opens a file for CREATE or TMPFILE, and answers with its entry and handle.
    fn answer_created(
        &self,
        directory: &Node,
        node: &Arc<Node>,
        flags: OFlags,
        privileges: Privileges,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let opened = self.open_node(node, flags, privileges)?;
        let entry = self.entry_out(directory, node);
        let is_cached = opened.flags & FOPEN_DIRECT_IO == 0;
        if let Some(known) = self.nodes.get(entry.node).filter(|_| is_cached) {
            known.mark_cached();
        }
        reply.push(&entry)?;
        reply.push(&opened)?;
        Ok(Answer::Payload)
    }
}

/// Returns the attributes of a new file.
fn creation(kind: FileType, mode: u32, umask: u32) -> Creation<'static> {
    let bits = |mode: u32| (mode & 0o7777) as u16;
    Creation { umask: bits(umask), ..Creation::of(kind, bits(mode)) }
}

/// Fails if the reply has no room for a `T`. Called before a change, which could not be reported
/// otherwise.
fn need_room<T>(reply: &Reply<'_>) -> Result<(), Failure> {
    if reply.room() < size_of::<T>() { Err(Errno::RANGE.into()) } else { Ok(()) }
}
