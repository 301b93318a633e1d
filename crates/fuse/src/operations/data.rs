//! OPEN, READ, WRITE, FALLOCATE and COPY_FILE_RANGE of regular files.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{FileOffset, OnDrop};
use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::{Credentials, Fallocate, Node, OpenMode, Privileges, RwFlags, WriteAt, WriteSync};

use crate::kernel_cache::KernelCache;
use crate::later::{Later, Patience};
use crate::node_table::KnownNode;
use crate::open_files::OpenFile;
use crate::protocol::{
    CopyFileRangeIn, CopyFileRangeOut, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH,
    FOPEN_PARALLEL_DIRECT_WRITES, FallocateIn, InHeader, InitFlags, OPEN_KILL_SUIDGID, OpenIn,
    OpenOut, READ_LOCK_OWNER, ReadIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WRITE_LOCK_OWNER, WriteIn,
    WriteOut,
};
use crate::reply::{Answer, Contents, Failure, Outcome, Reply};
use crate::server::Server;

/// The bits of `OFlags` with the access mode of an open file.
const ACCESS_MODE: OFlags = OFlags::ACCMODE;

/// The setuid and setgid bits.
const SET_IDS: u16 = 0o6000;

/// The maximum number of bytes to copy for one request. The kernel sends another request for the rest.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// The time for which a handler waits until the kernel has written or dropped its data.
pub(super) const KERNEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the part of a write that must be durable when the write returns, by the O_* flags of the open file and of
/// the call.
fn requested_sync(flags: OFlags) -> WriteSync {
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

/// Returns the part of a write to `opened` that the server makes durable. The kernel syncs writes through its cache,
/// but not direct writes.
fn sync_by_server(opened: &OpenFile, flags: u32) -> WriteSync {
    let flags = OFlags::from_bits_retain(flags);
    if opened.is_direct || flags.contains(OFlags::DIRECT) {
        requested_sync(flags)
    } else {
        WriteSync::None
    }
}

/// Answers a write of `written` bytes, of which there are at most as many as requested.
fn answer_written(written: usize, reply: &mut Reply<'_>) -> Outcome {
    reply.push(&WriteOut { size: written as u32, padding: 0 })?;
    Ok(Answer::Payload)
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

    /// Returns whether the kernel may hold data that programs write through a file opened with `flags`: collected
    /// writes, or stores to shared mappings. A shared mapping needs a file that is open for reading, too. The kernel
    /// writes all of this data before it releases the file.
    fn kernel_may_hold_data(&self, flags: OFlags) -> bool {
        match flags & ACCESS_MODE {
            OFlags::RDONLY => false,
            OFlags::WRONLY => self.agreed_on(InitFlags::WRITEBACK_CACHE),
            _ => true,
        }
    }

    /// Returns the kernel's flags (FOPEN_*) for a file that is opened with `flags`. Files that are open for writing
    /// only bypass the kernel's cache. This saves a copy, and the kernel's search for privileges that a write removes,
    /// which the server does. There are two exceptions. A kernel that collects writes would have to flush closed files,
    /// and would not notice that direct writes change a file's times; it supports O_DIRECT itself. Kernels before Linux
    /// 6.6 would not drop cached data that is overwritten.
    ///
    /// Of a file that is open to append only, a kernel should not collect writes either, since it lets a program drop
    /// O_APPEND and overwrite what is in its cache. Those before Linux 6.6 do, for the reason above.
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
        // A read for a mapping fills the kernel's cache, even if the file was opened with O_DIRECT. Only such a read
        // names no lock owner.
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

    /// WRITE: the data follows. The kernel sends the position for files that are open to append, too.
    pub(crate) fn write(
        &self,
        header: &InHeader,
        operation: &WriteIn,
        rest: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let data = rest.get(..operation.size as usize).ok_or(Errno::INVAL)?;
        let opened = self.files.get(operation.handle).ok_or(Errno::BADF)?;
        let known = self.nodes.get(header.node);
        let end = operation.offset.saturating_add(operation.size.into());
        let range = operation.offset..end;
        // Data from the kernel's cache needs no invalidation, since the cache has the same data. An invalidation would
        // also wait for this request.
        let from_cache = operation.write_flags & WRITE_CACHE != 0;
        let bypasses_cache =
            !from_cache && (opened.is_direct || operation.write_flags & WRITE_LOCK_OWNER != 0);
        match known {
            Some(known) if bypasses_cache => {
                self.write_beside_cache(header, &opened, &known, operation, data, reply)
            }
            known => {
                if let Some(known) = known {
                    known.kernel_cache.begin_cached_write(range);
                }
                let written = self.write_to(header, &opened, operation, data)?;
                answer_written(written, reply)
            }
        }
    }

    /// Makes a write that bypasses the kernel's cache. Waits for the kernel later if it has cached what is written.
    fn write_beside_cache(
        &self,
        header: &InHeader,
        opened: &Arc<OpenFile>,
        known: &Arc<KnownNode>,
        operation: &WriteIn,
        data: &[u8],
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let node = header.node;
        let range = operation.offset..operation.offset.saturating_add(data.len() as u64);
        let write = match KernelCache::begin_write(Arc::clone(known), &range) {
            Some(write) => write,
            None => match self.waiting_room.enter(data.len()) {
                Some(place) => {
                    let (header, operation, data) = (*header, *operation, data.to_vec());
                    let (opened, known) = (Arc::clone(opened), Arc::clone(known));
                    return Ok(Answer::Later(Later::new(place, move |server, patience, reply| {
                        let write = KernelCache::invalidate_and_begin_write(
                            Arc::clone(&known),
                            &range,
                            |range| server.invalidate_contents(node, range, patience),
                        );
                        let written = server.write_to(&header, &opened, &operation, &data);
                        if let Some(stale) = write.end() {
                            stale.invalidate(|range| {
                                server.invalidate_contents(node, range, patience)
                            });
                        }
                        answer_written(written?, reply)
                    })));
                }
                None => {
                    let known = Arc::clone(known);
                    KernelCache::invalidate_and_begin_write(known, &range, |range| {
                        self.invalidate_soon(node, range)
                    })
                }
            },
        };
        let written = self.write_to(header, opened, operation, data);
        let Some(stale) = write.end() else { return answer_written(written?, reply) };
        match (written, self.waiting_room.enter(0)) {
            (Ok(written), Some(place)) => {
                let mut stale = Some(stale);
                Ok(Answer::Later(Later::new(place, move |server, patience, reply| {
                    if let Some(stale) = stale.take() {
                        stale.invalidate(|range| server.invalidate_contents(node, range, patience));
                    }
                    answer_written(written, reply)
                })))
            }
            (written, _) => {
                stale.invalidate(|range| self.invalidate_soon(node, range));
                answer_written(written?, reply)
            }
        }
    }

    /// Writes `data` to an open file. Returns the number of bytes written.
    fn write_to(
        &self,
        header: &InHeader,
        opened: &OpenFile,
        operation: &WriteIn,
        data: &[u8],
    ) -> Result<usize, Failure> {
        let sync = sync_by_server(opened, operation.flags);
        let flags = RwFlags { sync, ..RwFlags::default() };
        let privileges = self.privileges(header, operation.write_flags & WRITE_KILL_SUIDGID != 0);
        let from_cache = operation.write_flags & WRITE_CACHE != 0;
        if from_cache && !self.admits_cached_data(opened.file.node()) {
            // Until the kernel has dropped the data, it shows it to readers. The thread that has it dropped waits for the
            // answer to this request.
            self.write_and_invalidate(header.node, FileOffset(0), Duration::ZERO);
            return Err(Errno::PERM.into());
        }
        // A mapping of a file that was opened with O_DIRECT writes from the cache, too.
        let is_direct =
            OFlags::from_bits_retain(operation.flags).contains(OFlags::DIRECT) && !from_cache;
        // A kernel that collects writes sends the times of these writes itself.
        let keeps_times = self.agreed_on(InitFlags::WRITEBACK_CACHE);
        // The kernel has accepted data in its cache and cannot return it to the program, which may have ended. So such
        // writes may use the blocks reserved for root.
        let _privilege_guard = from_cache.then(|| self.volume().act_for(&Credentials::ROOT));
        let write = |done: usize| {
            let at = FileOffset(operation.offset + done as u64);
            let at = if from_cache {
                WriteAt::FromCache { at, keeps_times }
            } else {
                WriteAt::Offset(at)
            };
            if is_direct {
                return opened.file.write_direct(at, &data[done..], privileges, sync);
            }
            opened.file.write_with(at, &data[done..], privileges, flags)
        };
        let _invalidating = self.invalidating_mode(header.node, opened, privileges);
        let mut written = write(0)?;
        // For data from its cache, the kernel ignores short writes: without an error, it takes all of the data as
        // written. So this writes the rest, or returns the error.
        while from_cache && written < data.len() {
            match write(written)? {
                0 => return Err(Errno::IO.into()),
                more => written += more,
            }
        }
        Ok(written)
    }

    /// Returns whether a file may be changed by data from the kernel's cache. The kernel has accepted the data without a
    /// look at the file's flags, while Linux refuses stores to a mapping of an immutable file, and writable mappings of a
    /// file that is open to append only. Files that were opened before they became append-only may be overwritten, as in
    /// Linux.
    fn admits_cached_data(&self, node: &Node) -> bool {
        !node.is_immutable() && (!node.is_append_only() || self.files.may_overwrite(node.number()))
    }

    /// Makes the kernel write the data of a file that it holds. Fails with EAGAIN if it takes too long.
    pub(super) fn receive_kernel_data(&self, id: u64, node: &Node) -> Result<(), Failure> {
        let may_hold = self.files.kernel_may_hold_data(node.number());
        if may_hold && !self.write_and_invalidate(id, FileOffset(0), KERNEL_TIMEOUT) {
            tracing::warn!("the kernel took too long to write its data of node {id}");
            return Err(Errno::AGAIN.into());
        }
        Ok(())
    }

    /// Makes the kernel request a file's mode again when the result is dropped, if the operation may clear setuid and
    /// setgid. Otherwise the kernel would still run the file with these privileges.
    fn invalidating_mode(
        &self,
        node: u64,
        opened: &OpenFile,
        privileges: Privileges,
    ) -> Option<impl Drop + use<'_>> {
        let may_change = privileges != Privileges::Keep
            && opened.file.node().attributes().permissions & SET_IDS != 0;
        may_change.then(|| OnDrop(move || self.invalidate_attributes(node)))
    }

    /// Makes the kernel write and invalidate cached data of a file without a wait for it. Returns false.
    fn invalidate_soon(&self, node: u64, range: Range<u64>) -> bool {
        let range = FileOffset(range.start)..FileOffset(range.end);
        self.write_and_invalidate_range(node, range, Some(Duration::ZERO))
    }

    /// Makes the kernel write and invalidate cached data of a file. Returns whether it has done so in time.
    fn invalidate_contents(&self, node: u64, range: Range<u64>, patience: Patience) -> bool {
        let range = FileOffset(range.start)..FileOffset(range.end);
        let is_done = self.write_and_invalidate_range(node, range, patience);
        if !is_done {
            tracing::warn!(
                "the kernel has not invalidated cached data of node {node} yet, and may show older data until then"
            );
        }
        is_done
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
