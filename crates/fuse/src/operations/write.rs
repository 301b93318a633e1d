//! WRITE of regular files, through the kernel's cache and beside it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::FileOffset;
use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::{Credentials, Node, RwFlags, WriteAt, WriteSync};

use super::data::requested_sync;
use crate::deferred::Deferred;
use crate::kernel_cache::KernelCache;
use crate::node_table::KnownNode;
use crate::open_files::OpenFile;
use crate::protocol::{
    InHeader, InitFlags, WRITE_CACHE, WRITE_KILL_SUIDGID, WRITE_LOCK_OWNER, WriteIn, WriteOut,
};
use crate::reply::{Answer, Failure, Outcome, Reply};
use crate::server::Server;

/// Returns the part of a write to `opened` that the server makes durable. The kernel syncs writes
/// through its cache, but not direct writes.
fn sync_by_server(opened: &OpenFile, flags: u32) -> WriteSync {
    let flags = OFlags::from_bits_retain(flags);
    if opened.is_direct || flags.contains(OFlags::DIRECT) {
        requested_sync(flags)
    } else {
        WriteSync::None
    }
}

/// Returns the bytes of a file that a request writes.
fn range_of(operation: &WriteIn) -> Range<u64> {
    operation.offset..operation.offset.saturating_add(operation.size.into())
}

/// Answers a write of `written` bytes, of which there are at most as many as requested.
fn answer_written(written: usize, reply: &mut Reply<'_>) -> Outcome {
    reply.push(&WriteOut { size: written as u32, padding: 0 })?;
    Ok(Answer::Payload)
}

impl Server {
    /// WRITE: the data follows. The kernel sends the position for files that are open to append,
    /// too.
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
        // Data from the kernel's cache needs no invalidation, since the cache has the same data. An
        // invalidation would also wait for this request.
        let from_cache = operation.write_flags & WRITE_CACHE != 0;
        let bypasses_cache =
            !from_cache && (opened.is_direct || operation.write_flags & WRITE_LOCK_OWNER != 0);
        match known {
            Some(known) if bypasses_cache => {
                self.write_beside_cache(header, &opened, &known, operation, data, reply)
            }
            known => {
                if let Some(known) = known {
                    known.kernel_cache.begin_cached_write(range_of(operation));
                }
                let written = self.write_to(header, &opened, operation, data)?;
                answer_written(written, reply)
            }
        }
    }

    /// Makes a write that bypasses the kernel's cache. Waits for the kernel later if it has cached
    /// what is written.
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
        let range = range_of(operation);
        let write = match KernelCache::begin_write(Arc::clone(known), &range) {
            Some(write) => write,
            None => match self.defer_write(header, opened, known, operation, data) {
                Some(deferred) => return Ok(Answer::Deferred(deferred)),
                None => {
                    let invalidate = |range| self.invalidate_soon(node, range);
                    let known = Arc::clone(known);
                    KernelCache::invalidate_and_begin_write(known, &range, invalidate)
                }
            },
        };
        let written = self.write_to(header, opened, operation, data);
        let Some(stale) = write.end() else { return answer_written(written?, reply) };
        match (written, self.deferred_limit.admit(0)) {
            (Ok(written), Some(permit)) => {
                Ok(Answer::Deferred(Deferred::new(permit, move |server, timeout, reply| {
                    stale.invalidate(|range| server.invalidate_contents(node, range, timeout));
                    answer_written(written, reply)
                })))
            }
            // An error is answered at once.
            (written, _) => {
                stale.invalidate(|range| self.invalidate_soon(node, range));
                answer_written(written?, reply)
            }
        }
    }

    /// Defers a write that bypasses the kernel's cache, unless too many requests are deferred.
    fn defer_write(
        &self,
        header: &InHeader,
        opened: &Arc<OpenFile>,
        known: &Arc<KnownNode>,
        operation: &WriteIn,
        data: &[u8],
    ) -> Option<Deferred> {
        let permit = self.deferred_limit.admit(data.len())?;
        let (header, operation, data) = (*header, *operation, data.to_vec());
        let (opened, known) = (Arc::clone(opened), Arc::clone(known));
        Some(Deferred::new(permit, move |server, timeout, reply| {
            let data = (&operation, &data[..]);
            let write = || server.invalidate_and_write(&header, &opened, &known, data, timeout);
            let volume = server.volume();
            let written = volume.change_after_removals(write, Failure::is_lack_of_space)?;
            answer_written(written, reply)
        }))
    }

    /// Makes a write that bypasses the kernel's cache, which may have cached what is written.
    /// Returns the number of bytes written.
    fn invalidate_and_write(
        &self,
        header: &InHeader,
        opened: &OpenFile,
        known: &Arc<KnownNode>,
        (operation, data): (&WriteIn, &[u8]),
        timeout: Option<Duration>,
    ) -> Result<usize, Failure> {
        let range = range_of(operation);
        let invalidate = |range| self.invalidate_contents(header.node, range, timeout);
        let write = KernelCache::invalidate_and_begin_write(Arc::clone(known), &range, invalidate);
        let written = self.write_to(header, opened, operation, data);
        if let Some(stale) = write.end() {
            stale.invalidate(invalidate);
        }
        written
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
            // Until the kernel has dropped the data, it shows it to readers. The thread that has it
            // dropped waits for the answer to this request.
            self.write_and_invalidate(header.node, FileOffset(0), Duration::ZERO);
            return Err(Errno::PERM.into());
        }
        // A mapping of a file that was opened with O_DIRECT writes from the cache, too.
        let is_direct =
            OFlags::from_bits_retain(operation.flags).contains(OFlags::DIRECT) && !from_cache;
        // A kernel that collects writes sends the times of these writes itself.
        let keeps_times = self.agreed_on(InitFlags::WRITEBACK_CACHE);
        // The kernel has accepted data in its cache and cannot return it to the program, which may
        // have ended. So such writes may use the blocks reserved for root.
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
        // For data from its cache, the kernel ignores short writes: without an error, it takes all
        // of the data as written. So this writes the rest, or returns the error.
        while from_cache && written < data.len() {
            match write(written)? {
                0 => return Err(Errno::IO.into()),
                more => written += more,
            }
        }
        Ok(written)
    }

    /// Returns whether a file may be changed by data from the kernel's cache. The kernel has
    /// accepted the data without a look at the file's flags, while Linux refuses stores to a
    /// mapping of an immutable file, and writable mappings of a file that is open to append only.
    /// Files that were opened before they became append-only may be overwritten, as in Linux.
    fn admits_cached_data(&self, node: &Node) -> bool {
        !node.is_immutable() && (!node.is_append_only() || self.files.may_overwrite(node.number()))
    }

    /// Makes the kernel write and invalidate cached data of a file without a wait for it. Returns
    /// false.
    fn invalidate_soon(&self, node: u64, range: Range<u64>) -> bool {
        let range = FileOffset(range.start)..FileOffset(range.end);
        self.write_and_invalidate_range(node, range, Some(Duration::ZERO))
    }

    /// Makes the kernel write and invalidate cached data of a file. Returns whether it has done so
    /// in time.
    fn invalidate_contents(&self, node: u64, range: Range<u64>, timeout: Option<Duration>) -> bool {
        let range = FileOffset(range.start)..FileOffset(range.end);
        let is_done = self.write_and_invalidate_range(node, range, timeout);
        if !is_done {
            tracing::warn!(
                "the kernel has not invalidated cached data of inode {} yet, and may show older data until then",
                self.nodes.number(node)
            );
        }
        is_done
    }
}
