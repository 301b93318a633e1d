//! Tests of the operations that change nothing, as bytes of requests and answers, without a mount.

mod support;

use fuse::protocol::*;
use fuse::{InitRefused, Server, ServerOptions};
use support::*;
use testkit::memory::MemoryFileSystem;
use vfs::{AccessOptions, AccessTimes, Volume, VolumeOptions};
use zerocopy::{FromBytes, IntoBytes};

const EIO: i32 = 5;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENXIO: i32 = 6;
const ENOTTY: i32 = 25;
const EROFS: i32 = 30;
const ERANGE: i32 = 34;
const ENAMETOOLONG: i32 = 36;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;
const EUCLEAN: i32 = 117;

fn server() -> std::sync::Arc<Server> {
    server_and_gate().0
}

fn lookup(server: &Server, name: &str) -> EntryOut {
    record(&ask(server, Opcode::Lookup, ROOT_NODE, &[name.as_bytes(), b"\0"]))
}

fn read(node_offset: u64, size: u32) -> ReadIn {
    ReadIn {
        handle: 0,
        offset: node_offset,
        size,
        read_flags: 0,
        lock_owner: 0,
        flags: 0,
        padding: 0,
    }
}

/// Returns the entries of a READDIR payload: name, inode, position of the next entry, type.
fn entries(mut payload: &[u8]) -> Vec<(String, u64, u64, u32)> {
    let mut found = Vec::new();
    while !payload.is_empty() {
        let (header, rest) = DirentHeader::read_from_prefix(payload).unwrap();
        let name = &rest[..header.name_length as usize];
        let name = String::from_utf8(name.to_vec()).unwrap();
        found.push((name, header.inode, header.next, header.kind));
        payload = &payload[align(size_of::<DirentHeader>() + header.name_length as usize)..];
    }
    found
}

#[test]
fn init_agrees_on_the_lesser_version_and_refuses_old_kernels() {
    let server = server();
    let init = InitIn { major: 7, minor: 36, max_readahead: 4096, flags: u32::MAX };
    let out: InitOut = record(&ask(&server, Opcode::Init, 0, &[init.as_bytes(), &[0xff; 48]]));
    assert_eq!((out.major, out.max_readahead, out.max_write), (7, 4096, 1 << 20));
    assert_eq!(server.negotiated().unwrap().unwrap().minor, 36);

    let server = self::server();
    let init = InitIn { major: 7, minor: 12, max_readahead: 4096, flags: 0 };
    fail(&server, Opcode::Init, 0, &[init.as_bytes()]);
    let refused = server.negotiated().unwrap().unwrap_err();
    assert_eq!(refused, InitRefused { major: 7, minor: 12 });
    assert!(refused.to_string().contains("7.12"), "{refused}");
}

/// Returns a server for an empty writable volume that keeps access times.
fn server_with(times: AccessTimes, directories: bool) -> std::sync::Arc<Server> {
    let access = AccessOptions { times, directories, ..AccessOptions::default() };
    let mut options = VolumeOptions { access, ..VolumeOptions::default() };
    options.cache.bytes_max = 1 << 20;
    let cache = iomap::PageCache::new(options.cache).unwrap();
    let volume = Volume::with_file_system(MemoryFileSystem::new(), cache, &options).unwrap();
    let server = Server::new(std::sync::Arc::new(volume), ServerOptions::default());
    std::sync::Arc::new(server.unwrap())
}

#[test]
fn the_kernel_opens_directories_itself_unless_each_listing_counts_as_an_access() {
    let can = InitFlags::NO_OPENDIR_SUPPORT.0 as u32;
    let operation = OpenIn { flags: 0, open_flags: 0 };
    for (server, flags, is_served) in [
        (server(), can, false),
        (server(), 0, true),
        (server_with(AccessTimes::Never, true), can, false),
        (server_with(AccessTimes::Relative, true), can, false),
        (server_with(AccessTimes::Always, true), can, true),
        (server_with(AccessTimes::Always, false), can, false),
    ] {
        let init = InitIn { major: 7, minor: 36, max_readahead: 4096, flags };
        ask(&server, Opcode::Init, 0, &[init.as_bytes()]);
        if is_served {
            let out: OpenOut =
                record(&ask(&server, Opcode::OpenDir, ROOT_NODE, &[operation.as_bytes()]));
            assert_eq!(out.flags, FOPEN_CACHE_DIR | FOPEN_KEEP_CACHE);
        } else {
            let errno = fail(&server, Opcode::OpenDir, ROOT_NODE, &[operation.as_bytes()]);
            assert_eq!(errno, ENOSYS);
        }
    }
    // A file that is not a directory is refused in any case.
    let server = server();
    lookup(&server, "file");
    let errno = fail(&server, Opcode::OpenDir, FILE, &[operation.as_bytes()]);
    assert_eq!(errno, ENOTDIR);
}

#[test]
fn lookup_returns_node_generation_and_attributes() {
    let server = server();
    let entry = lookup(&server, "file");
    assert_eq!((entry.node, entry.generation), (FILE, 77));
    assert!(entry.entry_valid >= 60 && entry.attr_valid >= 60);
    let attr = entry.attr;
    assert_eq!((attr.inode, attr.size, attr.blocks, attr.links), (FILE, 12, 8, 3));
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o104_755, 1000, 100));
    assert_eq!((attr.accessed as i64, attr.modified), (-1, 1 << 33));
    assert_eq!((attr.accessed_nanoseconds, attr.block_size), (5, 4096));
    assert_eq!(attr.device, 0x45 | 259 << 8 | 0x123 << 20);
}

#[test]
fn the_answer_for_an_absent_name_can_be_cached() {
    let entry = lookup(&server(), "absent");
    assert_eq!(entry.node, 0);
    assert!(entry.entry_valid >= 60);
}

#[test]
fn lookup_fails_as_the_kernels_own_ext4_does() {
    let server = server();
    let long = [b'x'; 256];
    assert_eq!(fail(&server, Opcode::Lookup, ROOT_NODE, &[&long, b"\0"]), ENAMETOOLONG);
    assert_eq!(fail(&server, Opcode::Lookup, ROOT_NODE, &[b"missing\0"]), EUCLEAN);
    assert_eq!(fail(&server, Opcode::Lookup, ROOT_NODE, &[b"broken\0"]), EUCLEAN);
    assert_eq!(fail(&server, Opcode::Lookup, 4242, &[b"file\0"]), ESTALE);
    assert_eq!(fail(&server, Opcode::Lookup, ROOT_NODE, &[b"no end"]), EINVAL);
}

#[test]
fn the_node_ids_of_the_root_and_of_inode_one_are_exchanged() {
    let server = server();
    assert_eq!(lookup(&server, "one").node, ROOT);
    let attr = |node| {
        let getattr = GetAttrIn { flags: 0, padding: 0, handle: 0 };
        record::<AttrOut>(&ask(&server, Opcode::GetAttr, node, &[getattr.as_bytes()])).attr
    };
    assert_eq!((attr(ROOT_NODE).inode, attr(ROOT_NODE).mode & 0o170_000), (ROOT, 0o040_000));
    assert_eq!(attr(ROOT).inode, NODE_ONE);
}

#[test]
fn a_node_is_released_when_all_its_lookups_are_forgotten() {
    let server = server();
    let getattr = GetAttrIn { flags: 0, padding: 0, handle: 0 };
    let stat = || exchange(&server, &request(Opcode::GetAttr, FILE, &[getattr.as_bytes()]));
    let forget = |lookups: u64| {
        let forget = ForgetIn { lookups };
        exchange(&server, &request(Opcode::Forget, FILE, &[forget.as_bytes()]))
    };
    assert_eq!(stat(), Some(Err(ESTALE)));
    for _ in 0..3 {
        lookup(&server, "file");
    }
    assert_eq!(forget(2), None);
    assert!(stat().unwrap().is_ok());
    assert_eq!(forget(1), None);
    assert_eq!(stat(), Some(Err(ESTALE)));

    lookup(&server, "file");
    lookup(&server, "link");
    let batch = [
        BatchForgetIn { count: 3, padding: 0 }.as_bytes(),
        ForgetOne { node: FILE, lookups: 1 }.as_bytes(),
        ForgetOne { node: ROOT_NODE, lookups: 9 }.as_bytes(),
        ForgetOne { node: 12_345, lookups: u64::MAX }.as_bytes(),
    ]
    .concat();
    assert_eq!(exchange(&server, &request(Opcode::BatchForget, 0, &[&batch])), None);
    assert_eq!(stat(), Some(Err(ESTALE)));
    assert_eq!(lookup(&server, "link").node, LINK);
}

#[test]
fn statx_returns_the_time_of_creation() {
    let server = server();
    lookup(&server, "file");
    let statx = StatxIn { getattr_flags: 0, reserved: 0, handle: 0, flags: 0, mask: u32::MAX };
    let out: StatxOut = record(&ask(&server, Opcode::Statx, FILE, &[statx.as_bytes()]));
    assert_eq!(out.statx.mask, STATX_BASIC_STATS | STATX_BTIME);
    assert_eq!((out.statx.created.seconds, out.statx.created.nanoseconds), (4, 5));
    assert_eq!((out.statx.accessed.seconds, out.statx.size), (-1, 12));
    assert_eq!((out.statx.device_major, out.statx.device_minor), (259, 0x12345));
}

#[test]
fn statfs_and_readlink_answer() {
    let server = server();
    let out: StatFsOut = record(&ask(&server, Opcode::StatFs, ROOT_NODE, &[]));
    assert_eq!((out.blocks, out.blocks_free, out.blocks_available), (100, 50, 40));
    assert_eq!((out.inodes, out.inodes_free, out.name_bytes_max), (30, 20, 255));
    assert_eq!((out.block_size, out.fragment_size), (4096, 4096));
    lookup(&server, "link");
    assert_eq!(ask(&server, Opcode::ReadLink, LINK, &[]), b"target/of/link");
    lookup(&server, "file");
    assert_eq!(fail(&server, Opcode::ReadLink, FILE, &[]), EINVAL);
}

#[test]
fn open_keeps_the_cache_and_refuses_writing() {
    let server = server();
    let init = InitIn { major: 7, minor: 36, max_readahead: 4096, flags: u32::MAX };
    ask(&server, Opcode::Init, 0, &[init.as_bytes(), &[0xff; 48]]);
    lookup(&server, "file");
    let open = |node, flags| {
        let open = OpenIn { flags, open_flags: 0 };
        exchange(&server, &request(Opcode::Open, node, &[open.as_bytes()])).unwrap()
    };
    let rdonly = 0;
    let wronly = 1;
    let rdwr = 2;
    let trunc = 0o1000;
    let direct = 0o40000;
    let out: OpenOut = record(&open(FILE, rdonly).unwrap());
    assert_eq!(out.flags, FOPEN_KEEP_CACHE | FOPEN_NOFLUSH);
    let out: OpenOut = record(&open(FILE, direct).unwrap());
    assert_eq!(out.flags & FOPEN_DIRECT_IO, FOPEN_DIRECT_IO);
    for flags in [wronly, rdwr, rdonly | trunc] {
        assert_eq!(open(FILE, flags), Err(EROFS));
    }
    assert_eq!(open(ROOT_NODE, rdonly), Err(EISDIR));
}

#[test]
fn read_stops_at_the_end_and_sees_holes_as_zeroes() {
    let server = server();
    lookup(&server, "file");
    lookup(&server, "sparse");
    let bytes =
        |node, offset, size| ask(&server, Opcode::Read, node, &[read(offset, size).as_bytes()]);
    assert_eq!(bytes(FILE, 0, 4096), CONTENTS);
    assert_eq!(bytes(FILE, 7, 3), b"byt");
    assert_eq!(bytes(FILE, 12, 10), b"");
    assert_eq!(bytes(FILE, u64::MAX, u32::MAX), b"");
    let sparse = bytes(SPARSE, 0, u32::MAX);
    assert_eq!(sparse.len(), 4 * 4096);
    for (index, block) in sparse.chunks(4096).enumerate() {
        let expected = if index == 2 { 0xee } else { 0 };
        assert!(block.iter().all(|&byte| byte == expected), "block {index}");
    }
    let error = exchange(&server, &request(Opcode::Read, ROOT_NODE, &[read(0, 1).as_bytes()]));
    assert_eq!(error, Some(Err(EISDIR)));
}

#[test]
fn lseek_finds_data_and_holes() {
    let server = server();
    lookup(&server, "sparse");
    let seek = |offset, whence| {
        let seek = LseekIn { handle: 0, offset, whence, padding: 0 };
        exchange(&server, &request(Opcode::Lseek, SPARSE, &[seek.as_bytes()]))
            .unwrap()
            .map(|payload| record::<LseekOut>(&payload).offset)
    };
    assert_eq!(seek(0, SEEK_DATA), Ok(8192));
    assert_eq!(seek(0, SEEK_HOLE), Ok(0));
    assert_eq!(seek(9000, SEEK_HOLE), Ok(12_288));
    assert_eq!(seek(12_288, SEEK_DATA), Err(ENXIO));
    assert_eq!(seek(4 * 4096, SEEK_HOLE), Err(ENXIO));
    assert_eq!(seek(0, 2), Err(EINVAL));
}

#[test]
fn readdir_returns_every_entry_once_in_buffers_of_all_sizes() {
    let server = server();
    lookup(&server, "big");
    for room in [64, 100, 4096, 1 << 20] {
        let mut from = 0;
        let mut names = Vec::new();
        loop {
            let payload =
                ask(&server, Opcode::ReadDir, BIG_DIRECTORY, &[read(from, room).as_bytes()]);
            assert!(payload.len() <= room as usize);
            let found = entries(&payload);
            let Some(last) = found.last() else { break };
            from = last.2;
            names.extend(found.into_iter().map(|entry| (entry.0, entry.1)));
        }
        assert_eq!(names.len() as u64, BIG + 2);
        assert_eq!(names[0], (".".to_owned(), BIG_DIRECTORY));
        assert_eq!(names[1], ("..".to_owned(), ROOT));
        assert_eq!(names[501], ("entry-0499".to_owned(), 1499));
    }
}

#[test]
fn readdirplus_counts_a_lookup_for_each_entry() {
    let server = server();
    let payload = ask(&server, Opcode::ReadDirPlus, ROOT_NODE, &[read(0, 1 << 16).as_bytes()]);
    let mut rest = payload.as_slice();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let entry: EntryOut = record(rest);
        rest = &rest[size_of::<EntryOut>()..];
        let header: DirentHeader = record(rest);
        let name = &rest[size_of::<DirentHeader>()..][..header.name_length as usize];
        found.push((String::from_utf8(name.to_vec()).unwrap(), entry.node, header.kind));
        rest = &rest[align(size_of::<DirentHeader>() + name.len())..];
    }
    let find = |name: &str| found.iter().find(|entry| entry.0 == name).unwrap();
    assert_eq!((find("file").1, find("file").2), (FILE, 8));
    assert_eq!((find("link").1, find("link").2), (LINK, 10));
    // These do not count as lookups. Entries whose inodes cannot be loaded are still listed.
    for name in [".", "..", "broken", "missing"] {
        assert_eq!((find(name).1, find(name).2), (0, 0), "{name}");
    }
    let forget = ForgetIn { lookups: 1 };
    exchange(&server, &request(Opcode::Forget, FILE, &[forget.as_bytes()]));
    assert_eq!(fail(&server, Opcode::Read, FILE, &[read(0, 1).as_bytes()]), ESTALE);
    ask(&server, Opcode::Read, SPARSE, &[read(0, 1).as_bytes()]);

    let small = ask(&server, Opcode::ReadDirPlus, ROOT_NODE, &[read(0, 400).as_bytes()]);
    assert_eq!(small.len(), 320);
}

#[test]
fn xattrs_are_sized_read_and_listed() {
    let server = server();
    lookup(&server, "file");
    let get = |name: &[u8], size| {
        let get = GetXattrIn { size, padding: 0 };
        exchange(&server, &request(Opcode::GetXattr, FILE, &[get.as_bytes(), name])).unwrap()
    };
    assert_eq!(record::<GetXattrOut>(&get(b"user.a\0", 0).unwrap()).size, 5);
    assert_eq!(get(b"user.a\0", 5), Ok(b"value".to_vec()));
    assert_eq!(get(b"user.a\0", 4), Err(ERANGE));
    assert_eq!(get(b"user.b\0", 100), Err(ENODATA));
    assert_eq!(get(b"system.data\0", 100), Err(EOPNOTSUPP));
    let list = |uid, size| {
        let get = GetXattrIn { size, padding: 0 };
        let request = request_as(uid, Opcode::ListXattr as u32, FILE, &[get.as_bytes()]);
        exchange(&server, &request).unwrap()
    };
    assert_eq!(list(0, 100), Ok(b"user.a\0trusted.b\0".to_vec()));
    assert_eq!(list(7, 100), Ok(b"user.a\0".to_vec()));
    assert_eq!(record::<GetXattrOut>(&list(0, 0).unwrap()).size, 17);
    assert_eq!(list(0, 16), Err(ERANGE));
}

#[test]
fn ioctls_read_flags_generation_and_project() {
    let server = server();
    lookup(&server, "file");
    let ioctl = |command, out_size| {
        let ioctl = IoctlIn { handle: 0, flags: 0, command, argument: 0, in_size: 0, out_size };
        exchange(&server, &request(Opcode::Ioctl, FILE, &[ioctl.as_bytes()])).unwrap()
    };
    let data = |command, out_size| {
        let payload = ioctl(command, out_size).unwrap();
        assert_eq!(record::<IoctlOut>(&payload).result, 0);
        payload[16..].to_vec()
    };
    assert_eq!(data(0x8008_6601, 4), 0x0008_0030_u32.as_bytes());
    assert_eq!(data(0x8008_7601, 8), 77_u32.as_bytes());
    let fsx = data(0x801c_581f, 28);
    assert_eq!(&fsx[..4], (0x8_u32 | 0x10).as_bytes());
    assert_eq!(&fsx[12..16], 42_u32.as_bytes());
    assert_eq!(ioctl(0x5401, 100), Err(ENOTTY));
    assert_eq!(ioctl(0x801c_581f, 27), Err(EINVAL));
}

#[test]
fn changes_are_refused_on_a_read_only_volume() {
    use Opcode::*;
    for opcode in [
        SetAttr,
        SymLink,
        MkNod,
        MkDir,
        Unlink,
        RmDir,
        Rename,
        Rename2,
        Link,
        Write,
        SetXattr,
        RemoveXattr,
        Create,
        TmpFile,
        Fallocate,
        CopyFileRange,
        CopyFileRange64,
    ] {
        assert_eq!(fail(&server(), opcode, ROOT_NODE, &[&[0; 64]]), EROFS, "{opcode:?}");
    }
    for opcode in [Release, ReleaseDir, Flush, Fsync, FsyncDir, SyncFs, Destroy] {
        assert_eq!(ask(&server(), opcode, ROOT_NODE, &[&[0; 64]]), b"", "{opcode:?}");
    }
    assert_eq!(fail(&server(), Access, ROOT_NODE, &[&[0; 8]]), ENOSYS);
    let unknown = request_as(0, 9999, ROOT_NODE, &[]);
    assert_eq!(exchange(&server(), &unknown), Some(Err(ENOSYS)));
}

#[test]
fn a_panic_is_answered_with_eio() {
    let server = server();
    lookup(&server, "panics");
    let xattr = GetXattrIn { size: 10, padding: 0 };
    let answer = fail(&server, Opcode::GetXattr, PANICS, &[xattr.as_bytes(), b"user.a\0"]);
    assert_eq!(answer, EIO);
    assert_eq!(fail(&server, Opcode::Read, PANICS, &[read(0, 1).as_bytes()]), EIO);
}
