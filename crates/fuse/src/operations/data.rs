//! OPEN, READ, FALLOCATE and COPY_FILE_RANGE of regular files. Not here: WRITE (`write`).

use std::sync::Arc;
use std::time::Duration;

use base::{FileOffset, OnDrop};
use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::{Fallocate, Node, OpenMode, Privileges, WriteSync};

use crate::open_files::OpenFile;
use crate::protocol::{
    CopyFileRangeIn, CopyFileRangeOut, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH,
    FOPEN_PARALLEL_DIRECT_WRITES, FallocateIn, InHeader, InitFlags, OPEN_KILL_SUIDGID, OpenIn,
    OpenOut, READ_LOCK_OWNER, ReadIn, WriteOut,
};
use crate::reply::{Answer, Contents, Failure, Outcome, Reply};
use crate::server::Server;

/// The bits of `OFlags` with the access mode of an open file.
const ACCESS_MODE: OFlags = OFlags::ACCMODE;

/// The setuid and setgid bits.
const SET_IDS: u16 = 0o6000;

/// The maximum number of bytes to copy for one request. The kernel sends another request for the
/// rest.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// The time for which a handler waits until the kernel has written or dropped its data.
pub(super) const KERNEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the part of a write that must be durable when the write returns, by the O_* flags of the
/// open file and of the call.
pub(super) fn requested_sync(flags: OFlags) -> WriteSync {
    // rustix gives both constants the value of O_SYNC, which contains the bit of O_DSYNC.
    const DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC as u32);
    if flags.contains(OFlags::SYNC) {
        WriteSync::All
    } else if flags.contains(DSYNC) {
        WriteSync::Data
    } else {
        WriteSync::None
    }
}

impl Server {
    /// OPEN.
    pub(crate) fn open(
        &self,
        header: &InHeader,
        operation: &OpenIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let flags = OFlags::from_bits_retain(operation.flags);
        let known = self.known(header.node)?;
        let opened = if self.volume().is_writable() {
            self.record_open(header.node, &known, flags);
            let kill = operation.open_flags & OPEN_KILL_SUIDGID != 0;
            let opened = self.open_node(&known.node, flags, self.privileges(header, kill))?;
            if opened.flags & FOPEN_DIRECT_IO == 0 && flags & ACCESS_MODE != OFlags::RDONLY {
                known.mark_cached();
            }
            if self.kernel_may_hold_data(flags) && known.node.attributes().blocks == 0 {
                // The kernel must request the attributes again, which now report a block.
                self.invalidate_attributes(header.node);
            }
            opened
        } else {
            if flags & ACCESS_MODE != OFlags::RDONLY || flags.contains(OFlags::TRUNC) {
                return Err(Errno::ROFS.into());
            }
            known.file()?;
            // No handle is needed: the kernel keeps the node while the file is open.
            OpenOut { handle: 0, flags: self.open_flags(flags, false), backing: 0 }
        };
        reply.push(&opened)?;
        Ok(Answer::Payload)
    }

    /// Opens a file of a writable volume.
    pub(crate) fn open_node(
        &self,
        node: &Arc<Node>,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<OpenOut, Failure> {
        let mode = OpenMode {
            write: flags & ACCESS_MODE != OFlags::RDONLY,
            append: flags.contains(OFlags::APPEND),
        };
        let file = node.open_for(mode)?;
        let file = if flags.contains(OFlags::NOATIME) { file.without_access_time() } else { file };
        if flags.contains(OFlags::TRUNC) {
            node.set_size(0, privileges)?;
        }
        let only_appends = mode.write && node.is_append_only();
        let open_flags = self.open_flags(flags, only_appends);
        let is_direct = open_flags & FOPEN_DIRECT_IO != 0;
        let collects = self.agreed_on(InitFlags::WRITEBACK_CACHE) && !is_direct;
        let opened = OpenFile {
            file,
            sync: requested_sync(flags),
            is_direct,
            is_opened_direct: flags.contains(OFlags::DIRECT),
            kernel_may_hold_data: self.kernel_may_hold_data(flags),
            may_overwrite: mode.write && (!only_appends || collects),
        };
        Ok(OpenOut { handle: self.files.add(opened), flags: open_flags, backing: 0 })
    }

    /// Returns whether the kernel may hold data that programs write through a file opened with
    /// `flags`: collected writes, or stores to shared mappings. A shared mapping needs a file that
    /// is open for reading, too. The kernel writes all of this data before it releases the file.
    fn kernel_may_hold_data(&self, flags: OFlags) -> bool {
        match flags & ACCESS_MODE {
            OFlags::RDONLY => false,
            OFlags::WRONLY => self.agreed_on(InitFlags::WRITEBACK_CACHE),
            _ => true,
        }
    }

    /// Returns the kernel's flags (FOPEN_*) for a file that is opened with `flags`. Files that are
    /// open for writing only bypass the kernel's cache. This saves a copy, and the kernel's search
    /// for privileges that a write removes, which the server does. There are two exceptions. A
    /// kernel that collects writes would have to flush closed files, and would not notice that
    /// direct writes change a file's times; it supports O_DIRECT itself. Kernels before Linux 6.6
    /// would not drop cached data that is overwritten.
    ///
    /// Of a file that is open to append only, a kernel should not collect writes either, since it
    /// lets a program drop O_APPEND and overwrite what is in its cache. Those before Linux 6.6 do,
    /// for the reason above.
    fn open_flags(&self, flags: OFlags, only_appends: bool) -> u32 {
        if self.agreed_on(InitFlags::WRITEBACK_CACHE) {
            let is_direct = only_appends && self.agreed_on(InitFlags::DIRECT_IO_ALLOW_MMAP);
            return FOPEN_KEEP_CACHE | if is_direct { FOPEN_DIRECT_IO } else { 0 };
        }
        let direct = if !self.agreed_on(InitFlags::DIRECT_IO_ALLOW_MMAP) {
            0
        } else if flags.contains(OFlags::DIRECT) || self.options.uncached {
            // The server serialises requests as far as programs expect.
            FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES
        } else if flags & ACCESS_MODE == OFlags::WRONLY {
            FOPEN_DIRECT_IO
        } else {
            0
        };
        FOPEN_KEEP_CACHE | FOPEN_NOFLUSH | direct
    }

    /// READ. The transport fetches the bytes (see [`Contents`]).
    pub(crate) fn read(
        &self,
        header: &InHeader,
        operation: &ReadIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let known = self.known(header.node)?;
        let file = known.file()?;
        // A read for a mapping fills the kernel's cache, even if the file was opened with O_DIRECT.
        // Only such a read names no lock owner.
        let is_direct = OFlags::from_bits_retain(operation.flags).contains(OFlags::DIRECT)
            && operation.read_flags & READ_LOCK_OWNER != 0;
        if !is_direct {
            known.mark_cached();
            let end = operation.offset.saturating_add(operation.size.into());
            known.kernel_cache.begin_read(operation.offset..end);
        }
        self.record_read(&known, operation.flags);
        let length = reply.room().min(operation.size as usize);
        let offset = FileOffset(operation.offset);
        Ok(Answer::Contents(Contents { file, offset, length, is_direct }))
    }

    /// Makes the kernel write the data of a file that it holds. Fails with EAGAIN if it takes too
    /// long.
    pub(super) fn receive_kernel_data(&self, id: u64, node: &Node) -> Result<(), Failure> {
        let may_hold = self.files.kernel_may_hold_data(node.number());
        if may_hold && !self.write_and_invalidate(id, FileOffset(0), KERNEL_TIMEOUT) {
            tracing::warn!("the kernel took too long to write its data of inode {}", node.number());
            return Err(Errno::AGAIN.into());
        }
        Ok(())
    }

    /// Makes the kernel request a file's mode again when the result is dropped, if the operation
    /// may clear setuid and setgid. Otherwise the kernel would still run the file with these
    /// privileges.
    pub(super) fn invalidating_mode(
        &self,
        node: u64,
        opened: &OpenFile,
        privileges: Privileges,
    ) -> Option<impl Drop + use<'_>> {
        let may_change = privileges != Privileges::Keep
            && opened.file.node().attributes().permissions & SET_IDS != 0;
        may_change.then(|| OnDrop(move || self.invalidate_attributes(node)))
    }

    /// FALLOCATE.
    pub(crate) fn fallocate(
        &self,
        header: &InHeader,
        operation: &FallocateIn,
        _rest: &[u8],
        _reply: &mut Reply<'_>,
    ) -> Outcome {
        let opened = self.files.get(operation.handle).ok_or(Errno::BADF)?;
        let mode = Fallocate::from_flags(operation.mode).ok_or(Errno::OPNOTSUPP)?;
        let end = operation.offset.checked_add(operation.length).ok_or(Errno::FBIG)?;
        let range = FileOffset(operation.offset)..FileOffset(end);
        // The kernel does not say whether the caller may keep setuid and setgid.
        let privileges = self.privileges(header, header.uid != 0);
        let _invalidating = self.invalidating_mode(header.node, &opened, privileges);
        opened.file.fallocate(mode, range.clone(), privileges)?;
        // The kernel does not sync after a fallocate.
        opened.file.make_durable(range.start.0..range.end.0, opened.sync)?;
        Ok(Answer::Payload)
    }

    /// COPY_FILE_RANGE.
    pub(crate) fn copy_file_range(
        &self,
        header: &InHeader,
        operation: &CopyFileRangeIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        // At most COPY_BYTES_MAX.
        let size = self.copy(header, operation)? as u32;
        reply.push(&WriteOut { size, padding: 0 })?;
        Ok(Answer::Payload)
    }

    /// COPY_FILE_RANGE_64.
    pub(crate) fn copy_file_range_64(
        &self,
        header: &InHeader,
        operation: &CopyFileRangeIn,
        _rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        reply.push(&CopyFileRangeOut { length: self.copy(header, operation)? })?;
        Ok(Answer::Payload)
    }

    /// Copies a range. Returns the number of bytes copied.
    fn copy(&self, header: &InHeader, operation: &CopyFileRangeIn) -> Result<u64, Failure> {
        if operation.flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let source = self.files.get(operation.handle);
        // A file that was opened before the volume became writable has no handle.
        let opened_before = match &source {
            None if operation.handle == 0 => Some(self.known(header.node)?.file()?),
            _ => None,
        };
        let source = source.as_ref().map(|opened| &opened.file).or(opened_before.as_deref());
        let source = source.ok_or(Errno::BADF)?;
        let target = self.files.get(operation.to_handle).ok_or(Errno::BADF)?;
        let from = FileOffset(operation.offset);
        let to = FileOffset(operation.to_offset);
        let length = operation.length.min(COPY_BYTES_MAX);
        // The kernel does not say whether the caller may keep setuid and setgid.
        let privileges = self.privileges(header, header.uid != 0);
        let _invalidating = self.invalidating_mode(operation.to_node, &target, privileges);
        let copied = source.copy_to(from, &target.file, to, length, privileges)?;
        // The kernel does not sync after a copy.
        target.file.make_durable(to.0..to.0.saturating_add(copied), target.sync)?;
        Ok(copied)
    }
}
