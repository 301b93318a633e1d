//! One request on its way: from the bytes that a channel gave to the answer that it takes.

use iomap::FolioSlice;
use rustix::io::Errno;

use crate::operations::TRANSFER_BYTES_MAX;
use crate::reply::{Answer, Contents, Reply};
use crate::request::Request;
use crate::server::Server;
use crate::transport::busy_poll::BusyPoll;
use crate::transport::channel::{Channel, End, PIECES_MAX};

/// From this many bytes on, copying a file's contents takes longer than waking another reader.
const LONG_BYTES: usize = 256 * 1024;
/// The largest request: a WRITE with its header. The kernel insists on room for one.
const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + 4096;

/// What a thread needs to serve requests one after the other.
#[derive(Debug)]
pub struct Desk {
    /// Where a request is put.
    pub request: Vec<u8>,
    payload: Vec<u8>,
    lent: Vec<FolioSlice>,
}

impl Desk {
    /// An empty one. What is not touched of it takes no memory.
    pub fn new() -> Self {
        let payload = vec![0; TRANSFER_BYTES_MAX as usize];
        Self { request: vec![0; REQUEST_BYTES_MAX], payload, lent: Vec::new() }
    }

    /// Serves the request of so many bytes and answers it, if only with the error that it gives.
    /// `before_long` is called before much is copied.
    pub fn serve(
        &mut self,
        server: &Server,
        channel: &Channel,
        length: usize,
        before_long: impl FnOnce(),
    ) -> Result<(), Errno> {
        let Some(request) = Request::parse(&self.request[..length]) else {
            tracing::warn!("{length} bytes that are no request");
            return Err(Errno::IO);
        };
        let unique = request.header.unique;
        let _at_work = server.begin();
        let mut reply = Reply::new(&mut self.payload);
        let done = match server.handle(&request, &mut reply) {
            Answer::Silent => Ok(()),
            Answer::Payload => {
                channel.succeed(unique, &[reply.bytes()]);
                Ok(())
            }
            Answer::Error(errno) => Err(errno),
            Answer::Contents(contents) => {
                if contents.length >= LONG_BYTES {
                    before_long();
                }
                self.answer_contents(channel, unique, &contents)
            }
        };
        if let Err(errno) = done {
            channel.fail(unique, errno);
        }
        done
    }

    /// The bytes go straight from the cache to the kernel, in as many pieces as there are folios, unless
    /// they go around the cache.
    fn answer_contents(
        &mut self,
        channel: &Channel,
        unique: u64,
        contents: &Contents,
    ) -> Result<(), Errno> {
        let lent = if contents.direct { Ok(()) } else { contents.lend(&mut self.lent) };
        let done = match lent {
            Ok(()) if !contents.direct && self.lent.len() <= PIECES_MAX => {
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

/// Answers the first requests, until INIT has been answered: with an agreement, a refusal or, after a
/// panic, an error, which the kernel takes for the last word.
pub fn shake_hands(server: &Server, channel: &Channel) -> Result<(), End> {
    let mut desk = Desk::new();
    let mut failed = false;
    while server.negotiated().is_none() && !failed {
        let length = channel.receive(&mut desk.request, &BusyPoll::default())?;
        failed = desk.serve(server, channel, length, || ()).is_err();
    }
    Ok(())
}
