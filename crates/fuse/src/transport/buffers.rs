//! The buffers of one worker, and the service of a request in them: from the bytes that the channel
//! received to the answer.

use std::sync::Arc;

use iomap::FolioSlice;
use rustix::io::Errno;

use crate::operations::TRANSFER_BYTES_MAX;
use crate::reply::{Answer, Contents, Reply};
use crate::request::Request;
use crate::server::Server;
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::{Channel, EndReason, PIECES_MAX};
use crate::transport::waiters::Waiting;

/// The number of bytes of a file from which on copying them takes longer than waking another
/// thread.
const LONG_BYTES: usize = 256 * 1024;
/// The size of the largest request: a WRITE with its header. The kernel insists on room for one.
const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + 4096;

/// The buffers of one worker, which it uses for one request after the other.
#[derive(Debug)]
pub struct Buffers {
    /// The bytes of the received request.
    pub request: Vec<u8>,
    payload: Vec<u8>,
    lent: Vec<FolioSlice>,
}

impl Buffers {
    /// Creates empty buffers. Untouched pages take no memory.
    pub fn new() -> Self {
        Self {
            request: vec![0; REQUEST_BYTES_MAX],
            payload: vec![0; TRANSFER_BYTES_MAX as usize],
            lent: Vec::new(),
        }
    }

    /// Serves the request in the first `length` bytes and sends the answer. Calls `before_copy`
    /// before a long copy. Returns the request if it has to wait for the kernel before it is
    /// answered.
    ///
    /// Errors: the error that was sent as the answer, or EIO if the bytes are not a request.
    pub fn serve(
        &mut self,
        server: &Arc<Server>,
        channel: &Channel,
        length: usize,
        before_copy: impl FnOnce(),
    ) -> Result<Option<Waiting>, Errno> {
        let Some(request) = Request::parse(&self.request[..length]) else {
            tracing::warn!("received {length} bytes that are not a valid request");
            return Err(Errno::IO);
        };
        let unique = request.header.unique;
        let in_flight = server.begin_request();
        let mut reply = Reply::new(&mut self.payload);
        let done = match server.handle(&request, &mut reply) {
            Answer::Silent => Ok(()),
            Answer::Payload => {
                channel.succeed(unique, &[reply.bytes()]);
                Ok(())
            }
            Answer::Error(errno) => Err(errno),
            Answer::Deferred(deferred) => {
                let in_flight = in_flight.own(server);
                return Ok(Some(Waiting { header: request.header, deferred, in_flight }));
            }
            Answer::Contents(contents) => {
                if contents.length >= LONG_BYTES {
                    before_copy();
                }
                self.answer_contents(channel, unique, &contents)
            }
        };
        if let Err(errno) = done {
            channel.fail(unique, errno);
        }
        done.map(|()| None)
    }

    /// Answers with bytes of a file. They are passed from the cache to the kernel without a copy,
    /// in one piece for each folio, unless the read is direct or has too many pieces.
    fn answer_contents(
        &mut self,
        channel: &Channel,
        unique: u64,
        contents: &Contents,
    ) -> Result<(), Errno> {
        let lent = if contents.is_direct { Ok(()) } else { contents.lend(&mut self.lent) };
        let done = match lent {
            Ok(()) if !contents.is_direct && self.lent.len() <= PIECES_MAX => {
                channel.succeed(unique, &self.lent);
                Ok(())
            }
            Ok(()) => contents
                .fetch(&mut self.payload)
                .map(|length| channel.succeed(unique, &[&self.payload[..length]])),
            Err(errno) => Err(errno),
        };
        self.lent.clear();
        done
    }
}

/// Serves requests until INIT is answered: with an agreement, a refusal or, after a panic, an
/// error. The kernel sends no second INIT after an error.
pub fn shake_hands(server: &Arc<Server>, channel: &Channel) -> Result<(), EndReason> {
    let mut buffers = Buffers::new();
    let mut has_failed = false;
    while server.negotiated().is_none() && !has_failed {
        let length = channel.receive(&mut buffers.request, &BusyPoll::default())?;
        has_failed = buffers.serve(server, channel, length, || ()).is_err();
    }
    Ok(())
}
