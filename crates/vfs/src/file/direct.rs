//! Direct reads and writes: locks, permissions, and fallbacks to the cache.
//! Not here: the I/O (`iomap`).

use std::sync::Arc;

use base::locks::RankedReadGuard;
use base::{Error, FileOffset, Result};
use iomap::{Caching, DIRECT_ALIGNMENT, DirectBatch, DirectRequest, Refused, WritableFile};

use crate::file::rw_flags::{RwFlags, WriteAt, WriteSync};
use crate::file::{File, copied_if_mapped};
use crate::node::rights::Privileges;
use crate::node::{Life, Node, NodeState};
use crate::volume::clock::last_tick;

/// A direct read or write that is submitted without waiting for it.
#[derive(Debug)]
pub struct DirectIo {
    is_write: bool,
    request: DirectRequest,
}

impl DirectIo {
    /// Returns a read of all of `buffer` from byte `at`. `done` gets the buffer and the number of
    /// bytes read, which is less than the buffer's length only at the end of the file. `done` is
    /// called once, on any thread. Other requests need that thread: do long work, and I/O that may
    /// wait (not [`at_once`](File::submit_direct)), on another thread.
    pub fn read(
        at: FileOffset,
        buffer: Vec<u8>,
        done: impl FnOnce(Vec<u8>, Result<usize>) + Send + 'static,
    ) -> Self {
        Self { is_write: false, request: DirectRequest::owning(at, buffer, done) }
    }

    /// Returns a write of all of `data` to byte `at`. `done` is called as for reads. After an
    /// error, a part of the data may be written.
    pub fn write(
        at: FileOffset,
        data: Vec<u8>,
        done: impl FnOnce(Vec<u8>, Result<usize>) + Send + 'static,
    ) -> Self {
        Self { is_write: true, request: DirectRequest::owning(at, data, done) }
    }
}

impl File {
    /// [`read_at`](Self::read_at) without the cache, after dirty data in the range is written back.
    /// Data that is stored inline is read from the cache. Errors: `InvalidArgument` if the position
    /// or the length is not a multiple of 512 bytes; `Unsupported` during an atomic write of the
    /// file.
    pub fn read_direct(&self, at: FileOffset, buffer: &mut [u8]) -> Result<usize> {
        self.require_reading()?;
        if pagecache::is_mapped(buffer) {
            let mut copy = vec![0; buffer.len()];
            let length = self.read_direct(at, &mut copy)?;
            buffer[..length].copy_from_slice(&copy[..length]);
            return Ok(length);
        }
        let node = self.node();
        let lock = node.lock_shared();
        if let Some(state) = &lock {
            state.atomic.check_no_direct()?;
        }
        let context = self.context(node.data()?, RwFlags::default());
        if at.0 >= context.size {
            return Ok(0);
        }
        check_alignment(at, buffer.len())?;
        match iomap::read_direct(&context, node.writable.get(), at, buffer, lock) {
            Ok(read) => read,
            Err(_) => self.read_with(at, buffer, RwFlags::default()),
        }
    }

    /// [`write_at`](Self::write_at) without the cache. Afterwards, the cache has no data of the
    /// range. `sync` says how much of the write is durable. Returns the number of bytes written,
    /// which is less than the length of `data` only at the maximum size of files.
    ///
    /// Overwrites of existing blocks run concurrently if they cover whole blocks or blocks with
    /// data, and the file has no setuid or setgid bit to clear. A write that cannot be direct goes
    /// through the cache, and is then written back.
    ///
    /// Errors: `InvalidArgument` for positions and lengths that are not multiples of 512 bytes, for
    /// an end of the file that is not one with [`WriteAt::End`]; `NotOpenFor`; `NotPermitted` for
    /// an immutable or append-only file; `FileTooLarge`; `NoSpace`; `ReadOnly`; `Unsupported`
    /// during an atomic write of the file.
    pub fn write_direct(
        &self,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
        sync: WriteSync,
    ) -> Result<usize> {
        let at = if self.mode().append { WriteAt::End } else { at };
        if let WriteAt::Offset(at) | WriteAt::FromCache { at, .. } = at {
            check_alignment(at, data.len())?;
        }
        let (node, file) = self.direct_file()?;
        let data = &*copied_if_mapped(data);
        let in_place = match at {
            WriteAt::Offset(at) | WriteAt::FromCache { at, .. } => {
                self.overwrite_direct(node, file, at, data, privileges)?
            }
            WriteAt::End => None,
        };
        let (at, written) = match in_place {
            Some((at, written)) => (at, written),
            None => self.write_exclusive(node, file, at, data, privileges)?,
        };
        self.make_durable(at.0..at.0 + written as u64, sync)?;
        Ok(written)
    }

    /// Submits direct reads and writes without waiting for them. They end in any order. A write
    /// that needs an exclusive lock has ended when this returns. With `at_once`, a request that
    /// would wait for anything but its own data ends with `WouldBlock`. Nothing is durable before
    /// the file is synced. The file's append mode is ignored.
    ///
    /// Positions and lengths are multiples of 512 bytes. Errors go to each request's own `done`:
    /// `InvalidArgument`, `NotOpenFor`, `FileTooLarge`, `NotPermitted`, `NoSpace`, `ReadOnly` and
    /// `Unsupported` (an atomic write). For requests that fail early or go through the cache, such
    /// as reads of inline data, this thread calls `done` before this returns.
    pub fn submit_direct(&self, batch: Vec<DirectIo>, privileges: Privileges, at_once: bool) {
        let mut refused = Vec::new();
        let mut admitted = DirectBatch::default();
        let is_admitted = |node: &Node, write: &DirectRequest| {
            check_alignment(write.at(), write.length()).is_ok()
                && node.admit_write(write.at(), write.bytes(), self.mode().append, false).is_ok()
        };
        let will_write =
            |node: &Node| batch.iter().any(|io| io.is_write && is_admitted(node, &io.request));
        match self.lock_direct(privileges, at_once, will_write) {
            Ok(state) => {
                for io in batch {
                    if let Err((reason, io)) = self.add_direct(&mut admitted, &state, io, at_once) {
                        refused.push((reason, io));
                    }
                }
            }
            Err(error) => {
                batch.into_iter().for_each(|io| refused.push((Err(error.clone()), io)));
            }
        }
        admitted.submit(&**self.node().volume().file_system.device());
        for (reason, io) in refused {
            let reason = if at_once { reason.and(Err(Error::WouldBlock)) } else { reason };
            self.end_refused(reason, io, privileges);
        }
    }

    /// Completes a request that was not submitted: with its error, or by waiting for the I/O.
    fn end_refused(&self, reason: Result<Refused>, io: DirectIo, privileges: Privileges) {
        let DirectIo { is_write, mut request } = io;
        let result = match reason {
            Err(error) => Err(error),
            Ok(_) if is_write => self.direct_file().and_then(|(node, file)| {
                let at = WriteAt::Offset(request.at());
                let written = self.write_exclusive(node, file, at, request.bytes(), privileges);
                written.map(|(_, written)| written)
            }),
            Ok(_) => {
                let at = request.at();
                request.fill(|buffer| self.read_with(at, buffer, RwFlags::default()))
            }
        };
        request.end(result);
    }

    /// Adds a request to a batch, under the inode's lock. If it cannot be added, returns it with
    /// the reason.
    fn add_direct(
        &self,
        batch: &mut DirectBatch,
        state: &Option<RankedReadGuard<'_, NodeState>>,
        io: DirectIo,
        at_once: bool,
    ) -> Result<(), (Result<Refused>, DirectIo)> {
        let DirectIo { is_write, request } = io;
        let again = |(refused, request)| (Ok(refused), DirectIo { is_write, request });
        if let Err(error) = check_alignment(request.at(), request.length()) {
            return Err((Err(error), DirectIo { is_write, request }));
        }
        // Blocks of an atomic write are free at once when their data is replaced, also while they
        // are read.
        if let Some(Err(error)) = state.as_ref().map(|state| state.atomic.check_no_direct()) {
            return Err((Err(error), DirectIo { is_write, request }));
        }
        if !is_write {
            let data = match self.require_reading().and_then(|()| self.node().data()) {
                Ok(data) => data,
                Err(error) => return Err((Err(error), DirectIo { is_write, request })),
            };
            let context = self.context(data, RwFlags::default());
            let file = self.node().writable.get();
            return batch.read(&context, file, request, at_once).map_err(again);
        }
        let admitted = self.direct_file().and_then(|(node, file)| {
            let length = request.length();
            let admitted =
                node.admit_write(request.at(), request.bytes(), self.mode().append, false)?;
            if admitted.len() < length {
                return Err(Error::FileTooLarge);
            }
            Ok((node, file))
        });
        let (node, file) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return Err((Err(error), DirectIo { is_write, request })),
        };
        let options = node.volume().direct_options;
        let is_plain = state.as_ref().is_some_and(|state| state.is_plain);
        if self.mode().append || !options.shared_overwrites || !is_plain {
            return Err((Ok(Refused::NeedsAlone), DirectIo { is_write, request }));
        }
        batch.overwrite(file, request, options.split, at_once).map_err(again)?;
        if let Some(state) = state {
            node.note_direct_write(state);
        }
        Ok(())
    }

    /// Takes the inode's lock, shared. If `will_write`, first removes the privileges that writes
    /// clear.
    fn lock_direct(
        &self,
        privileges: Privileges,
        at_once: bool,
        will_write: impl FnOnce(&Node) -> bool,
    ) -> Result<Option<RankedReadGuard<'_, NodeState>>> {
        let node = self.node();
        if !node.volume().is_writable {
            return Ok(None);
        }
        let state = if at_once {
            node.try_lock_shared().ok_or(Error::WouldBlock)?
        } else {
            node.lock_state_shared()
        };
        if state.is_plain || at_once || !self.mode().write {
            return Ok(Some(state));
        }
        drop(state);
        let mut state = node.lock();
        if will_write(node) {
            node.drop_privileges(&mut state, privileges)?;
        }
        drop(state);
        Ok(Some(node.lock_state_shared()))
    }

    /// Returns the node and its state for writing, if the file is open for writing.
    fn direct_file(&self) -> Result<(&Arc<Node>, &Arc<WritableFile>)> {
        self.require_writing()?;
        let node = self.node();
        node.writeback()?;
        node.volume().begin_change()?;
        Ok((node, node.writable()?.ok_or(Error::ReadOnly)?))
    }

    /// Overwrites existing blocks, concurrently with other direct I/O. Returns the position and the
    /// number of bytes, or `None` if the write needs an exclusive lock.
    fn overwrite_direct(
        &self,
        node: &Arc<Node>,
        file: &Arc<WritableFile>,
        at: FileOffset,
        data: &[u8],
        privileges: Privileges,
    ) -> Result<Option<(FileOffset, usize)>> {
        let options = node.volume().direct_options;
        if !options.shared_overwrites {
            return Ok(None);
        }
        let will_write =
            |node: &Node| node.admit_write(at, data, self.mode().append, false).is_ok();
        let state = self.lock_direct(privileges, false, will_write)?;
        let Some(state) = state.filter(|state| state.is_plain) else { return Ok(None) };
        state.atomic.check_no_direct()?;
        // The volume may have been closed before the lock was taken.
        node.writeback()?;
        let data = node.admit_write(at, data, false, false)?;
        node.note_direct_write(&state);
        match iomap::overwrite_direct(file, at, data, options.split, state) {
            Ok(written) => written.map(|written| Some((at, written))),
            Err(_) => Ok(None),
        }
    }

    /// Writes under the exclusive lock, through the cache if necessary. Returns the position and
    /// the number of bytes.
    fn write_exclusive(
        &self,
        node: &Arc<Node>,
        file: &Arc<WritableFile>,
        at: WriteAt,
        data: &[u8],
        privileges: Privileges,
    ) -> Result<(FileOffset, usize)> {
        node.writeback()?.throttle(node, Caching::Dropbehind)?;
        let mut state = node.lock();
        node.writeback()?;
        state.atomic.check_no_direct()?;
        let at = match at {
            WriteAt::Offset(at) | WriteAt::FromCache { at, .. } => at,
            WriteAt::End => {
                let end = FileOffset(file.size());
                check_alignment(end, data.len())?;
                end
            }
        };
        let data = node.admit_write(at, data, self.mode().append, false)?;
        node.drop_privileges(&mut state, privileges)?;
        let split = node.volume().direct_options.split;
        if let Some(written) = iomap::write_direct_alone(file, at, data, split)? {
            node.note_direct_write(&state);
            return Ok((at, written));
        }
        let errors = file.errors().count();
        let written = node.write_parts(file, &state, at, data, false, Caching::Dropbehind)?;
        iomap::write_back_and_wait(file, at.0..at.0 + written as u64);
        file.errors().check_since(errors)?;
        Ok((at, written))
    }
}

impl Node {
    /// Returns whether direct requests are in flight, which refer to this node's file.
    pub(crate) fn has_direct_requests(&self) -> bool {
        self.writable.get().is_some_and(|file| file.has_direct_requests())
    }

    /// Waits until no change is under way and no direct request in flight. The caller has made sure
    /// that new ones fail.
    pub(crate) fn wait_for_changes(&self) {
        if let Some(file) = self.writable.get() {
            let _lock = self.lock();
            file.wait_for_direct();
        }
    }

    /// Records a change of data on the device. The caller holds the lock of `state`.
    fn note_direct_write(self: &Arc<Self>, state: &NodeState) {
        self.inode().note_modified(last_tick());
        if state.life == Life::Named {
            self.note_change();
        }
    }
}

/// Fails if the position or the length is not a multiple of the sector size.
fn check_alignment(at: FileOffset, length: usize) -> Result<()> {
    if at.0 % DIRECT_ALIGNMENT == 0 && length as u64 % DIRECT_ALIGNMENT == 0 {
        Ok(())
    } else {
        Err(Error::InvalidArgument("direct I/O must consist of whole sectors"))
    }
}
