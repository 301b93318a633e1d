//! A small file system in memory and a kernel's side of the protocol.
#![allow(dead_code, reason = "each test file uses its part")]

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::attributes::{
    Attributes, CheckSummary, DeviceNumber, DirCursor, DirEntry, FileType, StatFs, Timestamp,
    VolumeInfo,
};
use base::{BlockSize, DeviceOffset, Error, FileOffset, InodeNumber, Place, Problem, Result};
use device::{MemoryDevice, SharedDevice};
use fuse::protocol::{InHeader, Opcode, OutHeader};
use fuse::{Answer, Reply, Request, Server, ServerOptions};
use iomap::{Iomap, IomapKind, MapFlags, MapRead};
use pagecache::PageCache;
use parking_lot::{Condvar, Mutex};
use vfs::{FileData, FileSystem, Inode, Volume, VolumeOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How long anything may take that should happen soon.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Inode numbers of the toy.
pub const ROOT: u64 = 2;
pub const FILE: u64 = 11;
pub const SPARSE: u64 = 12;
pub const LINK: u64 = 13;
pub const BIG_DIRECTORY: u64 = 14;
pub const NODE_ONE: u64 = 1;
pub const FIFO: u64 = 15;
pub const BROKEN: u64 = 16;
pub const PANICS: u64 = 17;
/// Three files whose reading waits at the gate.
pub const WAITS: [u64; 3] = [18, 19, 20];
pub const MISSING: u64 = 99;

/// Entries of the big directory.
pub const BIG: u64 = 1000;
/// The contents of the file.
pub const CONTENTS: &[u8] = b"twelve bytes";

/// Where reads of the inodes WAITS wait.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        base::waiting::about_to_wait();
        let mut state = self.state.lock();
        state.0 += 1;
        self.changed.notify_all();
        while !state.1 {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until `count` readers wait.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.state.lock();
        while state.0 < count {
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "{} readers, not {count}", state.0);
        }
    }

    /// Lets everyone through from now on.
    pub fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

/// The toy.
#[derive(Debug)]
pub struct Toy {
    device: SharedDevice,
    gate: Arc<Gate>,
}

impl Toy {
    /// A server for the toy, and the gate in it.
    pub fn server() -> (Arc<Server>, Arc<Gate>) {
        let mut data = vec![0xee; 3 * 4096];
        data[..CONTENTS.len()].copy_from_slice(CONTENTS);
        let gate = Arc::new(Gate::default());
        let toy = Self { device: Arc::new(MemoryDevice::new(data)), gate: Arc::clone(&gate) };
        let mut options = VolumeOptions { nodes_max: 16, ..VolumeOptions::default() };
        options.cache.bytes_max = 4 << 20;
        let cache = PageCache::new(options.cache).unwrap();
        let volume = Arc::new(Volume::with_file_system(Arc::new(toy), cache, &options));
        (Arc::new(Server::new(volume, ServerOptions::default()).unwrap()), gate)
    }
}

impl FileSystem for Toy {
    fn root(&self) -> InodeNumber {
        InodeNumber(ROOT)
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::from_bytes(4096).unwrap()
    }

    fn load_inode(&self, number: InodeNumber) -> Result<Arc<dyn Inode>> {
        let kind = match number.0 {
            ROOT | BIG_DIRECTORY => FileType::Directory,
            LINK => FileType::Symlink,
            FIFO => FileType::Fifo,
            MISSING => return Err(Error::NotFound),
            BROKEN => {
                let place = Place::inode(number);
                let problem = Problem::Checksum { stored: 1, computed: 2 };
                return Err(Error::corrupt("inode", place, problem));
            }
            _ => FileType::Regular,
        };
        Ok(Arc::new(ToyInode { number: number.0, kind, gate: Arc::clone(&self.gate) }))
    }

    fn statfs(&self) -> StatFs {
        StatFs {
            block_size: 4096,
            blocks: 100,
            blocks_free: 50,
            blocks_available: 40,
            inodes: 30,
            inodes_free: 20,
            name_bytes_max: 255,
        }
    }

    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            format: "toy",
            label: Vec::new(),
            uuid: [0; 16],
            features: Vec::new(),
            details: Vec::new(),
        }
    }

    fn check(&self, _found: &mut dyn FnMut(Error) -> ControlFlow<()>) -> CheckSummary {
        CheckSummary::default()
    }

    fn device(&self) -> &SharedDevice {
        &self.device
    }
}

#[derive(Debug)]
struct ToyInode {
    number: u64,
    kind: FileType,
    gate: Arc<Gate>,
}

impl ToyInode {
    fn entries(&self) -> Vec<(Vec<u8>, u64)> {
        let mut entries = vec![(b".".to_vec(), self.number), (b"..".to_vec(), ROOT)];
        if self.number == BIG_DIRECTORY {
            entries.extend((0..BIG).map(|n| (format!("entry-{n:04}").into_bytes(), 1000 + n)));
        } else {
            let names: BTreeMap<&str, u64> = BTreeMap::from([
                ("file", FILE),
                ("sparse", SPARSE),
                ("link", LINK),
                ("big", BIG_DIRECTORY),
                ("one", NODE_ONE),
                ("fifo", FIFO),
                ("broken", BROKEN),
                ("panics", PANICS),
                ("waits-0", WAITS[0]),
                ("waits-1", WAITS[1]),
                ("waits-2", WAITS[2]),
                ("missing", MISSING),
            ]);
            entries.extend(names.into_iter().map(|(name, number)| (name.into(), number)));
        }
        entries
    }

    fn size(&self) -> u64 {
        match self.number {
            FILE => CONTENTS.len() as u64,
            number if WAITS.contains(&number) => CONTENTS.len() as u64,
            SPARSE => 4 * 4096,
            _ => 0,
        }
    }
}

impl Inode for ToyInode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attributes(&self) -> Attributes {
        let time = |seconds| Timestamp { seconds, nanoseconds: 5 };
        Attributes {
            inode: InodeNumber(self.number),
            kind: self.kind,
            permissions: 0o4755,
            links: 3,
            uid: 1000,
            gid: 100,
            size: self.size(),
            blocks: 8,
            device: DeviceNumber { major: 259, minor: 0x12345 },
            accessed: time(-1),
            modified: time(1 << 33),
            changed: time(3),
            created: Some(time(4)),
            generation: 77,
            flags: 0x0008_0030,
            project: Some(42),
        }
    }

    fn lookup(&self, name: &[u8]) -> Result<InodeNumber> {
        let entries = self.entries();
        let found = entries.iter().find(|(entry, _)| entry == name).ok_or(Error::NotFound)?;
        Ok(InodeNumber(found.1))
    }

    fn read_dir(
        &self,
        from: DirCursor,
        emit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (index, (name, inode)) in (0..).zip(self.entries()).skip(from.0 as usize) {
            let next = DirCursor(index + 1);
            let entry = DirEntry { name: &name, inode: InodeNumber(inode), kind: None, next };
            if emit(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Ok(b"target/of/link".to_vec())
    }

    fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Ok(vec![b"user.a".to_vec(), b"trusted.b".to_vec()])
    }

    fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        assert!(self.number != PANICS, "panics, as the test wants");
        if name == b"user.a" { Ok(b"value".to_vec()) } else { Err(Error::NoAttribute) }
    }

    fn data(&self) -> Result<FileData<'_>> {
        assert!(self.number != PANICS, "panics, as the test wants");
        Ok(FileData { mapper: self, size: self.size() })
    }
}

impl MapRead for ToyInode {
    /// The sparse file has data in its third block only.
    fn map_read(&self, at: FileOffset, _length: u64) -> Result<Iomap> {
        if WAITS.contains(&self.number) {
            self.gate.pass();
        }
        let (offset, length, address) = match (self.number, at.0 / 4096) {
            (SPARSE, 0 | 1) => (0, 8192, None),
            (SPARSE, 2) => (8192, 4096, Some(4096)),
            (SPARSE, _) => (12_288, u64::MAX - 12_288, None),
            _ => (0, 4096, Some(0)),
        };
        Ok(Iomap {
            offset: FileOffset(offset),
            length,
            kind: if address.is_some() { IomapKind::Mapped } else { IomapKind::Hole },
            address: address.map(DeviceOffset),
            flags: MapFlags::default(),
        })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

/// The bytes of a request by root.
pub fn request(opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    request_as(0, opcode as u32, node, parts)
}

/// The bytes of a request by a user.
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

/// What comes back: the error number, or the payload; `None` for no answer.
pub fn exchange(server: &Server, request: &[u8]) -> Option<Result<Vec<u8>, i32>> {
    let request = Request::parse(request)?;
    let mut memory = vec![0xaa; 1024 * 1024];
    let mut reply = Reply::new(&mut memory);
    match server.handle(&request, &mut reply) {
        Answer::Silent => None,
        Answer::Payload => Some(Ok(reply.bytes().to_vec())),
        Answer::Error(errno) => Some(Err(errno.raw_os_error())),
        Answer::Contents(contents) => Some(match contents.fetch(&mut memory) {
            Ok(length) => Ok(memory[..length].to_vec()),
            Err(errno) => Err(errno.raw_os_error()),
        }),
    }
}

/// A successful answer's payload.
pub fn ask(server: &Server, opcode: Opcode, node: u64, parts: &[&[u8]]) -> Vec<u8> {
    let answer = exchange(server, &request(opcode, node, parts)).expect("an answer");
    answer.unwrap_or_else(|errno| panic!("{opcode:?} failed: {errno}"))
}

/// A failure's error number.
pub fn fail(server: &Server, opcode: Opcode, node: u64, parts: &[&[u8]]) -> i32 {
    let answer = exchange(server, &request(opcode, node, parts)).expect("an answer");
    answer.expect_err("a failure")
}

/// The record at the front of a payload.
pub fn record<T: FromBytes + Immutable + zerocopy::KnownLayout>(payload: &[u8]) -> T {
    T::read_from_prefix(payload).expect("a whole record").0
}

/// Takes a reply apart.
pub fn take_reply(bytes: &[u8]) -> (OutHeader, &[u8]) {
    let (header, payload) = OutHeader::read_from_prefix(bytes).expect("a header");
    assert_eq!(header.length as usize, bytes.len());
    (header, payload)
}
