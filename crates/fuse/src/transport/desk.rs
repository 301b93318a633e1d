//! One request on its way: from the bytes that a channel gave to the answer that it takes.

use iomap::FolioSlice;

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

    /// Serves the request of so many bytes and answers it. `before_long` is called before much is
    /// copied.
    pub fn serve(
        &mut self,
        server: &Server,
        channel: &Channel,
        length: usize,
        before_long: impl FnOnce(),
    ) {
        let Some(request) = Request::parse(&self.request[..length]) else {
            tracing::warn!("{length} bytes that are no request");
            return;
        };
        let unique = request.header.unique;
        let _at_work = server.begin();
        let mut reply = Reply::new(&mut self.payload);
        match server.handle(&request, &mut reply) {
            Answer::Silent => {}
            Answer::Payload => channel.succeed(unique, &[reply.bytes()]),
            Answer::Error(errno) => channel.fail(unique, errno),
            Answer::Contents(contents) => {
                if contents.length >= LONG_BYTES {
                    before_long();
                }
                self.answer_contents(channel, unique, &contents);
            }
        }
    }

    /// The bytes go straight from the cache to the kernel, in as many pieces as there are folios.
    fn answer_contents(&mut self, channel: &Channel, unique: u64, contents: &Contents) {
        let done = match contents.lend(&mut self.lent) {
            Ok(()) if self.lent.len() <= PIECES_MAX => {
                channel.succeed(unique, &self.lent);
                Ok(())
            }
            Ok(()) => contents
                .fetch(&mut self.payload)
                .map(|length| channel.succeed(unique, &[&self.payload[..length]])),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = done {
            channel.fail(unique, errno);
        }
        self.lent.clear();
    }
}

/// Answers the first requests, until INIT has been answered.
pub fn shake_hands(server: &Server, channel: &Channel) -> Result<(), End> {
    let mut desk = Desk::new();
    while server.negotiated().is_none() {
        let length = channel.receive(&mut desk.request, &BusyPoll::default())?;
        desk.serve(server, channel, length, || ());
    }
    Ok(())
}
