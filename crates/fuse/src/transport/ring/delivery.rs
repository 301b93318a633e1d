//! The service of one request in an entry of a ring: from the parts that the kernel stored there to
//! the answer. Not here: passing entries to the kernel (`entry`).
//!
//! ```text
//! 0          288           4096 - n            4096            4096 + payload
//! ├ RingHeader ┤ ... unused ┤ header, fixed part ┤ payload ...... ┤
//! ```
//!
//! The kernel delivers a request in three parts. The first two are copied in front of the payload.
//! Then the request has the same layout as from /dev/fuse, and no name or data is copied.

use std::time::Duration;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::operations::TRANSFER_BYTES_MAX;
use crate::protocol::{InHeader, OutHeader, RING_PART_BYTES, RingHeader};
use crate::reply::{Answer, Reply};
use crate::request::Request;
use crate::server::Server;
use crate::transport::channel::error_number;

/// The offset of the payload in an entry's memory.
pub const PAYLOAD_AT: usize = 4096;
/// The size of an entry's memory.
pub const ENTRY_BYTES: usize = PAYLOAD_AT + TRANSFER_BYTES_MAX as usize;
/// The maximum size of an answer to a request that has a payload itself: an attribute's value.
pub const SPARE_BYTES: usize = 68 * 1024;

/// The time for which a request waits for the kernel to drop cached data. The kernel may wait for
/// requests that need this entry, or others that wait as well.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Serves the request in `entry`, which has [`ENTRY_BYTES`], and stores the answer there. Returns
/// the commit id. The answer is built in `spare` if the request's payload is in its location.
pub fn serve(server: &Server, entry: &mut [u8], spare: &mut [u8]) -> u64 {
    let _in_flight = server.begin_request();
    let Ok((header, _)) = RingHeader::read_from_prefix(entry) else { return 0 };
    let Ok((message, _)) = InHeader::read_from_prefix(&header.message) else { return 0 };
    let outcome = match Assembled::new(&header, &message, entry) {
        Some(request) => request.answer(server, entry, spare),
        None => {
            tracing::warn!(
                "received a ring entry without a valid request: {message:?}, {:?}",
                header.entry
            );
            Err(Errno::IO)
        }
    };
    let (length, error) = match outcome {
        Ok(length) => (length, 0),
        Err(errno) => (0, -error_number(errno)),
    };
    let total = size_of::<OutHeader>() as u32 + length;
    let answer = OutHeader { length: total, error, unique: message.unique };
    let mut reply = header;
    reply.message[..size_of::<OutHeader>()].copy_from_slice(answer.as_bytes());
    reply.entry.payload_bytes = length;
    // It fits, since it was read from here.
    let _ = reply.write_to_prefix(entry);
    header.entry.commit
}

/// A request in consecutive bytes of an entry's memory.
struct Assembled {
    start: usize,
    end: usize,
}

impl Assembled {
    /// Assembles a request from its parts. Returns `None` if the lengths contradict each other.
    fn new(header: &RingHeader, message: &InHeader, entry: &mut [u8]) -> Option<Self> {
        let payload = usize::try_from(header.entry.payload_bytes).ok()?;
        let length = usize::try_from(message.length).ok()?;
        let fixed = length.checked_sub(size_of::<InHeader>() + payload)?;
        let fixed = header.operation.get(..fixed)?;
        let end = PAYLOAD_AT.checked_add(payload).filter(|&end| end <= entry.len())?;
        let start = PAYLOAD_AT - fixed.len() - size_of::<InHeader>();
        let (to_header, to_fixed) = entry[start..PAYLOAD_AT].split_at_mut(size_of::<InHeader>());
        to_header.copy_from_slice(message.as_bytes());
        to_fixed.copy_from_slice(fixed);
        Some(Self { start, end })
    }

    /// Serves the request, stores the answer's payload in `entry`, and returns its length.
    fn answer(&self, server: &Server, entry: &mut [u8], spare: &mut [u8]) -> Result<u32, Errno> {
        if self.end == PAYLOAD_AT {
            let (front, payload) = entry.split_at_mut(PAYLOAD_AT);
            return answer(server, &front[self.start..], payload).map(|length| length as u32);
        }
        let length = answer(server, &entry[self.start..self.end], spare)?;
        let payload = entry[PAYLOAD_AT..].get_mut(..length).ok_or(Errno::IO)?;
        payload.copy_from_slice(&spare[..length]);
        Ok(length as u32)
    }
}
const _: () =
    assert!(size_of::<RingHeader>() + size_of::<InHeader>() + RING_PART_BYTES <= PAYLOAD_AT);

/// Stores the answer to `request` in `payload`, and returns its length.
fn answer(server: &Server, request: &[u8], payload: &mut [u8]) -> Result<usize, Errno> {
    let request = Request::parse(request).ok_or(Errno::IO)?;
    let mut reply = Reply::new(payload);
    let answer = match server.handle(&request, &mut reply) {
        // The entry belongs to this thread.
        Answer::Deferred(deferred) => {
            server.resume(&request.header, deferred, Some(TIMEOUT), &mut reply)
        }
        answer => answer,
    };
    match answer {
        Answer::Payload => Ok(reply.bytes().len()),
        Answer::Contents(contents) => contents.fetch(payload),
        Answer::Error(errno) => Err(errno),
        // Such requests do not come through rings. If one does, the entry must be returned all the
        // same.
        Answer::Silent | Answer::Deferred(_) => Err(Errno::NOSYS),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use testkit::memory::MemoryFileSystem;
    use vfs::{Volume, VolumeOptions};
    use zerocopy::FromZeros;

    use super::*;
    use crate::protocol::{
        AttrOut, CreateIn, EntryOut, GetXattrIn, Opcode, OpenOut, ROOT_NODE, ReadIn, RingEntry,
        SetXattrIn, WriteIn, WriteOut,
    };
    use crate::server::ServerOptions;

    struct Kernel {
        server: Server,
        entry: Vec<u8>,
        spare: Vec<u8>,
        commits: u64,
    }

    impl Kernel {
        fn new() -> Self {
            let mut options = VolumeOptions::default();
            options.cache.bytes_max = 4 << 20;
            let cache = iomap::PageCache::new(options.cache).unwrap();
            let volume =
                Volume::with_file_system(MemoryFileSystem::new() as _, cache, &options).unwrap();
            let server = Server::new(Arc::new(volume), ServerOptions::default()).unwrap();
            Self { server, entry: vec![0xa5; ENTRY_BYTES], spare: vec![0; SPARE_BYTES], commits: 7 }
        }

        /// Stores a request in the entry as the kernel does. The header claims `lie` more bytes of
        /// payload than there are.
        fn deliver(&mut self, opcode: Opcode, node: u64, fixed: &[u8], payload: &[u8], lie: u32) {
            self.commits += 1;
            let length = size_of::<InHeader>() + fixed.len() + payload.len();
            let message = InHeader {
                length: length as u32,
                opcode: opcode as u32,
                unique: 2 * self.commits,
                node,
                ..InHeader::new_zeroed()
            };
            let entry = RingEntry {
                commit: self.commits,
                payload_bytes: payload.len() as u32 + lie,
                ..RingEntry::new_zeroed()
            };
            let mut header = RingHeader { entry, ..RingHeader::new_zeroed() };
            header.message[..size_of::<InHeader>()].copy_from_slice(message.as_bytes());
            header.operation[..fixed.len()].copy_from_slice(fixed);
            header.write_to_prefix(&mut self.entry).unwrap();
            self.entry[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
        }

        /// Serves the request. Returns the answer's payload, or the error number.
        fn answer(&mut self) -> Result<&[u8], i32> {
            assert_eq!(serve(&self.server, &mut self.entry, &mut self.spare), self.commits);
            let (header, _) = RingHeader::read_from_prefix(&self.entry).unwrap();
            let (message, _) = OutHeader::read_from_prefix(&header.message).unwrap();
            let length = header.entry.payload_bytes as usize;
            assert_eq!(message.unique, 2 * self.commits);
            assert_eq!(message.length as usize, size_of::<OutHeader>() + length);
            match message.error {
                0 => Ok(&self.entry[PAYLOAD_AT..][..length]),
                error => Err(error),
            }
        }

        fn ask(&mut self, opcode: Opcode, node: u64, fixed: &[u8], payload: &[u8]) -> &[u8] {
            self.deliver(opcode, node, fixed, payload, 0);
            self.answer().unwrap()
        }
    }

    #[test]
    fn requests_in_parts_are_assembled_and_answered() {
        let mut kernel = Kernel::new();
        let create = CreateIn { flags: 2, mode: 0o644, ..CreateIn::new_zeroed() };
        let made = kernel.ask(Opcode::Create, ROOT_NODE, create.as_bytes(), b"name\0");
        let (entry, rest) = EntryOut::read_from_prefix(made).unwrap();
        let (opened, rest) = OpenOut::read_from_prefix(rest).unwrap();
        assert!(rest.is_empty());
        let node = entry.node;
        let handle = opened.handle;
        let data: Vec<u8> = (0..50_000_usize).map(|at| (at % 251) as u8).collect();
        let write = WriteIn { handle, size: data.len() as u32, ..WriteIn::new_zeroed() };
        let written = kernel.ask(Opcode::Write, node, write.as_bytes(), &data);
        assert_eq!(WriteOut::read_from_bytes(written).unwrap().size as usize, data.len());
        let read = ReadIn { handle, offset: 1000, size: 1 << 20, ..ReadIn::new_zeroed() };
        let found = kernel.ask(Opcode::Read, node, read.as_bytes(), &[]);
        assert!(found == &data[1000..]);
        let attributes = kernel.ask(Opcode::GetAttr, node, &[0; 16], &[]);
        let attributes = AttrOut::read_from_bytes(attributes).unwrap();
        assert_eq!(attributes.attr.size as usize, data.len());
    }

    #[test]
    fn the_largest_attribute_fits() {
        let mut kernel = Kernel::new();
        let value = vec![0x5a; 60_000];
        let set = SetXattrIn { size: value.len() as u32, ..SetXattrIn::new_zeroed() };
        let name = b"user.note\0";
        kernel.ask(Opcode::SetXattr, ROOT_NODE, set.as_bytes(), &[&name[..], &value].concat());
        let get = GetXattrIn { size: 65_536, padding: 0 };
        assert!(kernel.ask(Opcode::GetXattr, ROOT_NODE, get.as_bytes(), name) == value);
    }

    #[test]
    fn failed_and_contradictory_requests_are_answered_with_errors() {
        let mut kernel = Kernel::new();
        kernel.deliver(Opcode::Unlink, ROOT_NODE, &[], b"absent\0", 0);
        assert_eq!(kernel.answer(), Err(-2));
        for lie in [1, 7, 1 << 20, u32::MAX - 100] {
            kernel.deliver(Opcode::Unlink, ROOT_NODE, &[], b"absent\0", lie);
            assert_eq!(kernel.answer(), Err(-5), "{lie}");
        }
        // A fixed part that is larger than its room in the header.
        kernel.deliver(Opcode::Write, ROOT_NODE, &[0; 40], &[], 0);
        let mut header = RingHeader::read_from_prefix(&kernel.entry).unwrap().0;
        header.message[..4].copy_from_slice(&300_u32.to_ne_bytes());
        header.write_to_prefix(&mut kernel.entry).unwrap();
        assert_eq!(kernel.answer(), Err(-5));
        // The entry is returned even for a request that needs no answer.
        kernel.deliver(Opcode::Forget, ROOT_NODE, &[0; 8], &[], 0);
        assert_eq!(kernel.answer(), Err(-38));
    }
}
