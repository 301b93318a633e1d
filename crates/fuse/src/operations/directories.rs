//! OPENDIR, READDIR and READDIRPLUS.

use std::ops::ControlFlow;

use base::attributes::{DirCursor, DirEntry, FileType};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::names::ignores_case;
use crate::node_table::KnownNode;
use crate::protocol::{
    DirentHeader, EntryOut, FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, InHeader, InitFlags, OpenIn,
    OpenOut, ReadIn, align,
};
use crate::reply::{Answer, Outcome, Reply};
use crate::server::Server;

impl Server {
    /// OPENDIR. The server keeps no state for open directories. So the answer is ENOSYS, if the
    /// kernel supports that: it then sends no more OPENDIR and RELEASEDIR, and opens directories as
    /// with the flags below.
    pub(crate) fn open_dir(
        &self,
        header: &InHeader,
        operation: &OpenIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let directory = self.known(header.node)?;
        if directory.node.kind() != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        // After ENOSYS, the server does not see when cached listings are read. This is no loss if
        // access times need to be right only to a day.
        if self.agreed_on(InitFlags::NO_OPENDIR_SUPPORT) && !self.volume().notes_every_listing() {
            return Err(Errno::NOSYS.into());
        }
        if directory.is_cached() {
            self.record_open(header.node, &directory, OFlags::from_bits_retain(operation.flags));
        }
        let flags = FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE;
        reply.push(&OpenOut { handle: 0, flags, backing: 0 })?;
        Ok(Answer::Payload)
    }

    /// READDIR.
    pub(crate) fn read_dir(
        &self,
        header: &InHeader,
        operation: &ReadIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        reply.limit(operation.size as usize);
        let directory = self.known(header.node)?;
        self.record_listing(&directory, operation);
        let end = directory.node.read_dir(DirCursor(operation.offset), &mut |entry| {
            if reply.room() < align(size_of::<DirentHeader>() + entry.name.len()) {
                return ControlFlow::Break(());
            }
            match push_entry(reply, &entry, entry.kind) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        finish(end, reply)
    }

    /// READDIRPLUS: entries, each with the answer to its LOOKUP.
    pub(crate) fn read_dir_plus(
        &self,
        header: &InHeader,
        operation: &ReadIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        reply.limit(operation.size as usize);
        let directory = self.known(header.node)?;
        self.record_listing(&directory, operation);
        // First the names, then the inodes, since the directory is locked during `read_dir`.
        let mut names = Vec::new();
        let mut entries = Vec::new();
        let mut room = reply.room();
        let end = directory.node.read_dir(DirCursor(operation.offset), &mut |entry| {
            let record = size_of::<EntryOut>() + size_of::<DirentHeader>();
            let Some(left) = room.checked_sub(align(record + entry.name.len())) else {
                return ControlFlow::Break(());
            };
            room = left;
            let start = names.len();
            names.extend_from_slice(entry.name);
            entries.push((start..names.len(), entry.inode, entry.kind, entry.next));
            ControlFlow::Continue(())
        });
        let is_lasting = !ignores_case(&directory.node);
        for (name, inode, kind, next) in entries {
            let entry = DirEntry { name: &names[name], inode, kind, next };
            self.push_entry_plus(reply, &directory.node, &entry, is_lasting)?;
        }
        finish(end, reply)
    }

    /// Records that the kernel reads a listing, which it may cache.
    fn record_listing(&self, directory: &KnownNode, operation: &ReadIn) {
        directory.mark_cached();
        self.record_read(directory, operation.flags);
    }

    /// Adds an entry of READDIRPLUS.
    fn push_entry_plus(
        &self,
        reply: &mut Reply<'_>,
        directory: &vfs::Node,
        entry: &DirEntry<'_>,
        is_lasting: bool,
    ) -> Result<(), Errno> {
        // No lookup of "." and "..", which the kernel ignores. An entry whose inode cannot be
        // loaded is listed without it; a later LOOKUP reports the error.
        let node = match entry.name {
            b"." | b".." => None,
            // The name may have been removed, or may lead to another inode, since it was listed.
            _ if self.volume().is_writable() => self.volume().lookup(directory, entry.name).ok(),
            _ => self.volume().node(entry.inode).ok(),
        };
        let kind = node.as_ref().map(|node| node.kind()).or(entry.kind);
        match node {
            Some(node) => reply.push(&self.counted_entry(&node, is_lasting))?,
            None => reply.push_bytes(&[0; size_of::<EntryOut>()])?,
        }
        push_entry(reply, entry, kind)
    }
}

/// Adds an entry of READDIR.
fn push_entry(
    reply: &mut Reply<'_>,
    entry: &DirEntry<'_>,
    kind: Option<FileType>,
) -> Result<(), Errno> {
    reply.push(&DirentHeader {
        inode: entry.inode.0,
        next: entry.next.0,
        name_length: entry.name.len() as u32,
        // DT_UNKNOWN is zero.
        kind: kind.map_or(0, |kind| kind.mode_bits() >> 12),
    })?;
    reply.push_bytes(entry.name)?;
    reply.pad();
    Ok(())
}

/// Returns the answer to a listing. If there are entries, an error is left to the next request.
fn finish(end: base::Result<()>, reply: &Reply<'_>) -> Outcome {
    match end {
        Err(error) if reply.is_empty() => Err(error.into()),
        _ => Ok(Answer::Payload),
    }
}
