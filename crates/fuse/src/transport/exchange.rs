//! One request on its way: from the bytes that a channel gave to the answer that it takes.

use crate::operations::TRANSFER_BYTES_MAX;
use crate::reply::{Answer, Reply};
use crate::request::Request;
use crate::server::Server;
use crate::transport::channel::{Channel, End};

/// From this many bytes on, copying a file's contents takes longer than waking another reader.
const LONG_BYTES: usize = 256 * 1024;
/// The largest request: a WRITE with its header. The kernel insists on room for one.
const REQUEST_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + 4096;

/// Room for a request, and for the payload of its answer. What is not touched takes no memory.
pub fn buffers() -> (Vec<u8>, Vec<u8>) {
    (vec![0; REQUEST_BYTES_MAX], vec![0; TRANSFER_BYTES_MAX as usize])
}

/// Serves `request` and answers it. `before_long` is called before much is copied.
pub fn exchange(
    server: &Server,
    channel: &Channel,
    request: &[u8],
    payload: &mut [u8],
    before_long: impl FnOnce(),
) {
    let Some(request) = Request::parse(request) else {
        tracing::warn!("{} bytes that are no request", request.len());
        return;
    };
    let unique = request.header.unique;
    let mut reply = Reply::new(payload);
    match server.handle(&request, &mut reply) {
        Answer::Silent => {}
        Answer::Payload => channel.succeed(unique, reply.bytes()),
        Answer::Error(errno) => channel.fail(unique, errno),
        Answer::Contents(contents) => {
            if contents.length >= LONG_BYTES {
                before_long();
            }
            match contents.fetch(payload) {
                Ok(length) => channel.succeed(unique, &payload[..length]),
                Err(errno) => channel.fail(unique, errno),
            }
        }
    }
}

/// Answers the first requests, until INIT has been answered.
pub fn shake_hands(server: &Server, channel: &Channel) -> Result<(), End> {
    let (mut request, mut payload) = buffers();
    while server.negotiated().is_none() {
        let length = channel.receive(&mut request)?;
        exchange(server, channel, &request[..length], &mut payload, || ());
    }
    Ok(())
}
