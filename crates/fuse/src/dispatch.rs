//! Dispatch table: how each operation of the protocol is served. Not here: the operations (`operations`).

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::protocol::{InHeader, Opcode};
use crate::reply::{Answer, Outcome, Reply};
use crate::request::Request;
use crate::server::Server;

/// Effect of an operation on the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// None.
    None,
    /// Changes the volume. A read-only volume answers with EROFS.
    Change,
    /// Makes changes durable, or ends the use of a file. A read-only volume has nothing to do: no state depends on
    /// its open files.
    Settle,
}

/// Serves a request.
type Serve = fn(&Server, &Request<'_>, &mut Reply<'_>) -> Outcome;

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Operation {
    /// The effect on the volume.
    pub effect: Effect,
    /// Whether the kernel expects an answer. It takes any answer to the others for a fault.
    pub is_answered: bool,
    /// The handler.
    pub serve: Serve,
}

/// A handler with parsed parts of the request: the operation's own structure, and what follows it.
type Handler<T> = fn(&Server, &InHeader, &T, &[u8], &mut Reply<'_>) -> Outcome;

/// Parses a request for `handler`.
fn call<T: FromBytes + KnownLayout + Immutable>(
    server: &Server,
    handler: Handler<T>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let (operation, rest) = request.split::<T>()?;
    handler(server, &request.header, &operation, rest, reply)
}

/// A method of [`Server`] as the handler of a row.
macro_rules! by {
    ($method:ident) => {
        |server, request, reply| call(server, Server::$method, request, reply)
    };
}

const fn plain(serve: Serve) -> Operation {
    Operation { effect: Effect::None, is_answered: true, serve }
}

const fn change(serve: Serve) -> Operation {
    Operation { effect: Effect::Change, ..plain(serve) }
}

const fn settle(serve: Serve) -> Operation {
    Operation { effect: Effect::Settle, ..plain(serve) }
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
            Init => plain(by!(init)),
            Destroy => plain(by!(destroy)),
            Interrupt => plain(by!(interrupt)),
            Forget => unanswered(by!(forget)),
            BatchForget => unanswered(by!(batch_forget)),
            NotifyReply => unanswered(NOTHING_TO_DO),

            Lookup => plain(by!(lookup)),
            GetAttr => plain(by!(get_attr)),
            Statx => plain(by!(statx)),
            ReadLink => plain(by!(read_link)),
            Open => plain(by!(open)),
            OpenDir => plain(by!(open_dir)),
            Read => plain(by!(read)),
            Lseek => plain(by!(lseek)),
            ReadDir => plain(by!(read_dir)),
            ReadDirPlus => plain(by!(read_dir_plus)),
            StatFs => plain(by!(stat_fs)),
            GetXattr => plain(by!(get_xattr)),
            ListXattr => plain(by!(list_xattr)),
            Ioctl => plain(by!(ioctl)),
            // Closing a file writes nothing.
            ReleaseDir | Flush => plain(NOTHING_TO_DO),

            SetAttr => change(by!(set_attr)),
            SymLink => change(by!(make_symlink)),
            MkNod => change(by!(make_node)),
            MkDir => change(by!(make_directory)),
            Create => change(by!(create)),
            TmpFile => change(by!(create_unnamed)),
            Link => change(by!(link)),
            Unlink => change(by!(unlink)),
            RmDir => change(by!(remove_directory)),
            Rename => change(by!(rename)),
            Rename2 => change(by!(rename2)),
            SetXattr => change(by!(set_xattr)),
            RemoveXattr => change(by!(remove_xattr)),
            Write => change(by!(write)),
            Fallocate => change(by!(fallocate)),
            CopyFileRange => change(by!(copy_file_range)),
            CopyFileRange64 => change(by!(copy_file_range_64)),

            Fsync => settle(by!(fsync)),
            FsyncDir => settle(by!(fsync_directory)),
            SyncFs => settle(by!(sync_volume)),
            Release => settle(by!(release)),

            // ENOSYS: the kernel never asks again. It checks access by itself (default_permissions), and keeps locks
            // by itself. With an answer to BMAP, it would swap to the blocks of a file even after this server has
            // ended.
            Access | GetLk | SetLk | SetLkW | Bmap | Poll | SetupMapping | RemoveMapping => {
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
            // What would be changed now might be lost.
            return Err(Errno::IO.into());
        }
        let Operation { effect, serve, .. } = Operation::of(opcode);
        match effect {
            Effect::None => return serve(self, request, reply),
            Effect::Change if !self.volume.is_writable() => return Err(Errno::ROFS.into()),
            Effect::Settle if !self.volume.is_writable() => return Ok(Answer::Payload),
            Effect::Change | Effect::Settle => {}
        }
        let _acting = self.volume.act_for(&self.options.owners.credentials(&request.header));
        let _serving = self.interrupts.serve(&request.header);
        serve(self, request, reply)
    }
}
