//! Servers for the tests, and the kernel's side of the protocol.
#![allow(dead_code, reason = "each test file uses only some functions")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuse::protocol::{InHeader, InitIn, InitInExtension, Opcode, OutHeader};
use fuse::{Answer, Reply, Request, Server, ServerOptions};
use parking_lot::{Condvar, Mutex};
use testkit::Mke2fs;
use testkit::memory::MemoryFileSystem;
use testkit::toy::{BLOCK_BYTES, Content, Data, Hook, Toy};
use vfs::{Volume, VolumeOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use testkit::toy::ROOT;

/// The time limit for all waits of the tests.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The inode numbers of the files.
pub const FILE: u64 = 11;
pub const SPARSE: u64 = 12;
pub const LINK: u64 = 13;
pub const BIG_DIRECTORY: u64 = 14;
pub const NODE_ONE: u64 = 1;
pub const FIFO: u64 = 15;
pub const BROKEN: u64 = 16;
pub const PANICS: u64 = 17;
/// Three files whose reads wait at the gate, and announce it (`base::waiting`).
pub const WAITING: [u64; 3] = [18, 19, 20];
/// A file each use of which waits at the gate, and announces it.
pub const SLOW: u64 = 21;
/// A file each use of which waits at the gate without announcing it, as at a lock.
pub const LOCKED: u64 = 22;
pub const MISSING: u64 = 99;

/// The number of entries in the big directory.
pub const BIG: u64 = 1000;
/// The contents of FILE and of the files that wait.
pub const CONTENTS: &[u8] = b"twelve bytes";

/// A gate at which uses of some files wait while it is closed.
#[derive(Debug, Default)]
pub struct Gate {
    /// The number of threads that have arrived, and whether the gate is open.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    /// Waits until the gate is open, and announces the wait.
    fn pass(&self) {
        base::waiting::about_to_wait();
        self.pass_silently();
    }

    /// Waits until the gate is open.
    fn pass_silently(&self) {
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        while !state.1 {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until `count` threads have arrived.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.state.lock();
        while state.0 < count {
            let waited = self.changed.wait_for(&mut state, TIMEOUT);
            assert!(!waited.timed_out(), "{} threads have arrived, not {count}", state.0);
        }
    }

    /// Closes the gate.
    pub fn close(&self) {
        self.state.lock().1 = false;
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Returns a server for a toy with all kinds of files, and the gate in it.
pub fn server_and_gate() -> (Arc<Server>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let mut data = vec![0xee; 3 * BLOCK_BYTES as usize];
    data[..CONTENTS.len()].copy_from_slice(CONTENTS);
    let volume = Arc::new(Toy::new(data, inodes(&gate)).volume(16));
    (Arc::new(Server::new(volume, ServerOptions::default()).unwrap()), gate)
}

fn inodes(gate: &Arc<Gate>) -> BTreeMap<u64, Content> {
    let first_block = BTreeMap::from([(0, 0)]);
    let file = Data { size: CONTENTS.len() as u64, blocks: first_block, ..Data::default() };
    let third_block = BTreeMap::from([(2, 1)]);
    let sparse = Data { size: 4 * BLOCK_BYTES, blocks: third_block, ..Data::default() };
    let panics = Data { before_use: Hook::new(|| panic!("as the test wants")), ..Data::default() };
    let mut inodes = BTreeMap::from([
        (ROOT, root()),
        (FILE, Content::Regular(file.clone())),
        (SPARSE, Content::Regular(sparse)),
        (LINK, Content::symlink("target/of/link")),
        (NODE_ONE, Content::empty_file()),
        (FIFO, Content::Fifo),
        (BROKEN, Content::Corrupt),
        (PANICS, Content::Regular(panics)),
    ]);
    for number in WAITING {
        let gate = Arc::clone(gate);
        let waiting = Data { before_mapping: Hook::new(move || gate.pass()), ..file.clone() };
        inodes.insert(number, Content::Regular(waiting));
    }
    let at_gate = |action: fn(&Gate)| {
        let gate = Arc::clone(gate);
        let before_use = Hook::new(move || action(&gate));
        Content::Regular(Data { before_use, ..file.clone() })
    };
    inodes.insert(SLOW, at_gate(Gate::pass));
    inodes.insert(LOCKED, at_gate(Gate::pass_silently));
    let mut names = vec![(b".".to_vec(), BIG_DIRECTORY), (b"..".to_vec(), ROOT)];
    for number in 0..BIG {
        names.push((format!("entry-{number:04}").into_bytes(), 1000 + number));
        inodes.insert(1000 + number, Content::empty_file());
    }
    inodes.insert(BIG_DIRECTORY, Content::Directory(names));
    inodes
}

fn root() -> Content {
    Content::directory(&[
        (".", ROOT),
        ("..", ROOT),
        ("file", FILE),
        ("sparse", SPARSE),
        ("link", LINK),
        ("big", BIG_DIRECTORY),
        ("one", NODE_ONE),
        ("fifo", FIFO),
        ("broken", BROKEN),
        ("panics", PANICS),
        ("waiting-0", WAITING[0]),
        ("waiting-1", WAITING[1]),
        ("waiting-2", WAITING[2]),
        ("slow", SLOW),
        ("locked", LOCKED),
        ("missing", MISSING),
    ])
}

/// Returns a server for an empty writable volume, after INIT of a kernel that offers the features
/// `flags`. Also returns the file system.
pub fn writable_server(flags: u64) -> (Server, Arc<MemoryFileSystem>) {
    writable_server_with(flags, ServerOptions::default())
}

/// Returns a server like [`writable_server`] with options.
pub fn writable_server_with(
    flags: u64,
    server_options: ServerOptions,
) -> (Server, Arc<MemoryFileSystem>) {
    let file_system = MemoryFileSystem::new();
    let mut options = VolumeOptions::default();
    options.cache.bytes_max = 4 << 20;
    let cache = iomap::PageCache::new(options.cache).unwrap();
    let volume = Volume::with_file_system(Arc::clone(&file_system) as _, cache, &options).unwrap();
    (serve(volume, flags, server_options), file_system)
}

/// Returns a server of a volume, after INIT of a kernel that offers the features `flags`.
pub fn serve(volume: Volume, flags: u64, options: ServerOptions) -> Server {
    let server = Server::new(Arc::new(volume), options).unwrap();
    let init = InitIn { major: 7, minor: 45, max_readahead: 4096, flags: flags as u32 };
    let extension = InitInExtension { flags2: (flags >> 32) as u32, unused: [0; 11] };
    ask(&server, Opcode::Init, 0, &[init.as_bytes(), extension.as_bytes()]);
    server
}

/// Returns a server for a small ext4 volume in `folder` that is open for writing.
pub fn small_server(folder: &Path) -> Server {
    let image = folder.join("image");
    Mke2fs::new("ext4", 1024).with("-J size=1").make(&image, None);
    let volume = VolumeOptions::new().writable(true).open(&image).unwrap();
    serve(volume, u64::MAX, ServerOptions::default())
}

/// Returns the bytes of a request by root.
pub fn request(opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    request_as(0, opcode as u32, node, parts)
}

/// Returns the bytes of a request by a user.
pub fn request_as(uid: u32, opcode: u32, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let header = InHeader {
        length: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 4711,
        node,
        uid,
        gid: uid,
        pid: 1,
        extension_length: 0,
        padding: 0,
    };
    [header.as_bytes(), &body].concat()
}

/// Serves a request. Returns the payload or the error number, or `None` if there is no answer.
pub fn exchange(server: &Server, request: &[u8]) -> Option<Result<Vec<u8>, i32>> {
    let request = Request::parse(request)?;
    let mut memory = vec![0xaa; 1024 * 1024];
    let mut reply = Reply::new(&mut memory);
    let answer = match server.handle(&request, &mut reply) {
        Answer::Deferred(deferred) => server.resume(&request.header, deferred, None, &mut reply),
        answer => answer,
    };
    match answer {
        Answer::Silent => None,
        Answer::Payload => Some(Ok(reply.bytes().to_vec())),
        Answer::Error(errno) => Some(Err(errno.raw_os_error())),
        Answer::Contents(contents) => Some(match contents.fetch(&mut memory) {
            Ok(length) => Ok(memory[..length].to_vec()),
            Err(errno) => Err(errno.raw_os_error()),
        }),
        Answer::Deferred(_) => panic!("the request waits twice"),
    }
}

/// Serves a request. Returns the payload of the answer; panics if it is an error.
pub fn ask(server: &Server, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let answer = exchange(server, &request(opcode, node, parts)).expect("an answer");
    answer.unwrap_or_else(|errno| panic!("{opcode:?} failed: {errno}"))
}

/// Serves a request. Returns the error number of the answer; panics if it is a success.
pub fn fail(server: &Server, opcode: Opcode, node: u64, parts: &[&[u8]]) -> i32 {
    let answer = exchange(server, &request(opcode, node, parts)).expect("an answer");
    answer.expect_err("a failure")
}

/// Returns the record at the front of a payload.
pub fn record<T: FromBytes + Immutable + zerocopy::KnownLayout>(payload: &[u8]) -> T {
    T::read_from_prefix(payload).expect("a whole record").0
}

/// Splits a reply into its header and its payload.
pub fn take_reply(bytes: &[u8]) -> (OutHeader, &[u8]) {
    let (header, payload) = OutHeader::read_from_prefix(bytes).expect("a header");
    assert_eq!(header.length as usize, bytes.len());
    (header, payload)
}
