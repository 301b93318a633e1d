//! The dispatch table: the handler of each operation of the protocol. Not here: the handlers
//! (`operations`).

use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::deferred::Deferred;
use crate::protocol::{InHeader, Opcode};
use crate::reply::{Answer, Failure, Outcome, Reply};
use crate::request::Request;
use crate::server::Server;

/// The effect of an operation on the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The operation changes nothing.
    None,
    /// The operation may change the volume. The handler checks whether it may.
    Request,
    /// The operation changes the volume. On a read-only volume, it fails with EROFS.
    Change,
    /// The operation makes changes durable, or ends the use of a file. On a read-only volume, it
    /// succeeds without a call of the handler, since there are no changes, and open files have no
    /// state.
    Finalize,
}

/// A handler of whole requests.
type Serve = fn(&Server, &Request<'_>, &mut Reply<'_>) -> Outcome;

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Operation {
    /// The effect on the volume.
    pub effect: Effect,
    /// Whether the kernel expects an answer. An answer to an operation without one is an error of
    /// the protocol.
    pub is_answered: bool,
    /// Whether the handler waits for data of the file that only the kernel has.
    pub needs_kernel_data: bool,
    /// The handler.
    pub serve: Serve,
}

/// A handler of parsed requests. Its arguments include the operation's fixed part and the bytes
/// that follow it.
type Handler<T> = fn(&Server, &InHeader, &T, &[u8], &mut Reply<'_>) -> Outcome;

/// Parses a request and calls `handler`.
fn call<T: FromBytes + KnownLayout + Immutable>(
    server: &Server,
    handler: Handler<T>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let (operation, rest) = request.split::<T>()?;
    handler(server, &request.header, &operation, rest, reply)
}

/// Returns a handler of whole requests that calls a method of [`Server`].
macro_rules! handler {
    ($method:ident) => {
        |server, request, reply| call(server, Server::$method, request, reply)
    };
}

const fn plain(serve: Serve) -> Operation {
    Operation { effect: Effect::None, is_answered: true, needs_kernel_data: false, serve }
}

const fn needs_kernel_data(serve: Serve) -> Operation {
    Operation { needs_kernel_data: true, ..plain(serve) }
}

const fn change(serve: Serve) -> Operation {
    Operation { effect: Effect::Change, ..plain(serve) }
}

const fn finalize(serve: Serve) -> Operation {
    Operation { effect: Effect::Finalize, ..plain(serve) }
}

const fn unanswered(serve: Serve) -> Operation {
    Operation { is_answered: false, ..plain(serve) }
}

const NOTHING_TO_DO: Serve = |_, _, _| Ok(Answer::Payload);
const NOT_SERVED: Serve = |_, _, _| Err(Errno::NOSYS.into());

impl Operation {
    /// Returns the row of an operation.
    pub const fn of(opcode: Opcode) -> Self {
        use Opcode::*;
        match opcode {
            Init => plain(handler!(init)),
            Destroy => plain(handler!(destroy)),
            Interrupt => plain(handler!(interrupt)),
            Forget => unanswered(handler!(forget)),
            BatchForget => unanswered(handler!(batch_forget)),
            NotifyReply => unanswered(NOTHING_TO_DO),

            Lookup => plain(handler!(lookup)),
            GetAttr => plain(handler!(get_attr)),
            Statx => plain(handler!(statx)),
            ReadLink => plain(handler!(read_link)),
            Open => plain(handler!(open)),
            OpenDir => plain(handler!(open_dir)),
            Read => plain(handler!(read)),
            Lseek => needs_kernel_data(handler!(lseek)),
            ReadDir => plain(handler!(read_dir)),
            ReadDirPlus => plain(handler!(read_dir_plus)),
            Bmap => needs_kernel_data(handler!(block_of_file)),
            StatFs => plain(handler!(stat_fs)),
            GetXattr => plain(handler!(get_xattr)),
            ListXattr => plain(handler!(list_xattr)),
            Ioctl => Operation { effect: Effect::Request, ..needs_kernel_data(handler!(ioctl)) },
            // Closing a file does not write its data.
            ReleaseDir | Flush => plain(NOTHING_TO_DO),

            SetAttr => change(handler!(set_attr)),
            SymLink => change(handler!(make_symlink)),
            MkNod => change(handler!(make_node)),
            MkDir => change(handler!(make_directory)),
            Create => change(handler!(create)),
            TmpFile => change(handler!(create_unnamed)),
            Link => change(handler!(link)),
            Unlink => change(handler!(unlink)),
            RmDir => change(handler!(remove_directory)),
            Rename => change(handler!(rename)),
            Rename2 => change(handler!(rename2)),
            SetXattr => change(handler!(set_xattr)),
            RemoveXattr => change(handler!(remove_xattr)),
            Write => change(handler!(write)),
            Fallocate => change(handler!(fallocate)),
            CopyFileRange => change(handler!(copy_file_range)),
            CopyFileRange64 => change(handler!(copy_file_range_64)),

            Fsync => finalize(handler!(fsync)),
            FsyncDir => finalize(handler!(fsync_directory)),
            SyncFs => finalize(handler!(sync_volume)),
            Release => finalize(handler!(release)),

            // After ENOSYS, the kernel sends no more of these requests. It checks access
            // (default_permissions) and manages locks itself.
            Access | GetLk | SetLk | SetLkW | Poll | SetupMapping | RemoveMapping => {
                plain(NOT_SERVED)
            }
        }
    }
}

impl Server {
    /// Serves a request by its row in the table.
    pub(crate) fn dispatch(&self, request: &Request<'_>, reply: &mut Reply<'_>) -> Outcome {
        let Some(opcode) = request.opcode() else { return Err(Errno::NOSYS.into()) };
        if self.is_closing() {
            // A change could come too late for the last commit, and be lost.
            return Err(Errno::IO.into());
        }
        let Operation { effect, serve, needs_kernel_data, .. } = Operation::of(opcode);
        if needs_kernel_data && let Some(deferred) = self.defer_until_received(request, serve) {
            return Ok(Answer::Deferred(deferred));
        }
        match effect {
            Effect::None => return serve(self, request, reply),
            Effect::Request if !self.volume().is_writable() => return serve(self, request, reply),
            Effect::Change if !self.volume().is_writable() => return Err(Errno::ROFS.into()),
            Effect::Finalize if !self.volume().is_writable() => return Ok(Answer::Payload),
            Effect::Request | Effect::Change | Effect::Finalize => {}
        }
        let header = &request.header;
        match (effect, opcode) {
            // Not deferred: the threads that serve deferred requests may wait for the kernel to
            // write a page.
            (Effect::Change, Opcode::Write) => {
                self.act_for(header, || self.after_removals(request, serve, reply))
            }
            (Effect::Change, _) => {
                let freed = self.volume().freed_files();
                let outcome = self.act_for(header, || serve(self, request, reply));
                let is_full = outcome.as_ref().is_err_and(Failure::is_lack_of_space);
                // The kernel sends FORGET, and RELEASE, after unlink(2) and close(2) have returned.
                let may_succeed = is_full && self.volume().may_free_more(freed);
                let deferred = may_succeed.then(|| {
                    self.defer(request, move |server, request, reply| {
                        server.after_removals(request, serve, reply)
                    })
                });
                deferred.flatten().map_or(outcome, |deferred| Ok(Answer::Deferred(deferred)))
            }
            _ => self.act_for(header, || serve(self, request, reply)),
        }
    }

    /// Serves a change. If it fails for lack of space, waits for removed files that the kernel is
    /// about to release.
    fn after_removals(
        &self,
        request: &Request<'_>,
        serve: Serve,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let serve = || serve(self, request, reply);
        self.volume().change_after_removals(serve, Failure::is_lack_of_space)
    }

    /// Defers a request if the kernel may hold data of its file.
    fn defer_until_received(&self, request: &Request<'_>, serve: Serve) -> Option<Deferred> {
        if !self.files.kernel_may_hold_data(self.nodes.number(request.header.node)) {
            return None;
        }
        self.defer(request, serve)
    }

    /// Defers a request, unless too many are deferred.
    fn defer(
        &self,
        request: &Request<'_>,
        serve: impl Fn(&Self, &Request<'_>, &mut Reply<'_>) -> Outcome + Send + 'static,
    ) -> Option<Deferred> {
        let permit = self.deferred_limit.admit(request.body.len())?;
        let (header, body) = (request.header, request.body.to_vec());
        Some(Deferred::new(permit, move |server, _, reply| {
            serve(server, &Request { header, body: &body }, reply)
        }))
    }

    /// Ends the service of a deferred request. Waits for the kernel up to `timeout`, if there is
    /// one.
    pub fn resume(
        &self,
        header: &InHeader,
        deferred: Deferred,
        timeout: Option<Duration>,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let request = Request { header: *header, body: &[] };
        let effect = request.opcode().map_or(Effect::None, |opcode| Operation::of(opcode).effect);
        self.answer(&request, reply, |_, reply| {
            let run = || deferred.run(self, timeout, reply);
            if effect == Effect::None { run() } else { self.act_for(header, run) }
        })
    }

    /// Calls `serve` on behalf of the sender of a request.
    fn act_for(&self, header: &InHeader, serve: impl FnOnce() -> Outcome) -> Outcome {
        let _privilege_guard = self.volume().act_for(&self.options.owners.credentials(header));
        let _cancellable = self.interrupts.make_cancellable(header);
        serve()
    }
}
