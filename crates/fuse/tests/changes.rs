//! Tests of the operations that change the volume, over a file system in memory.

mod support;

use std::sync::{Arc, mpsc};
use std::thread;

use base::FileOffset;
use fuse::protocol::*;
use fuse::{Server, ServerOptions};
use support::*;
use testkit::memory::{DATA_BYTES_MAX, MemoryFileSystem};
use zerocopy::{FromZeros, IntoBytes};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EBADF: i32 = 9;
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;
const EOPNOTSUPP: i32 = 95;
const ESTALE: i32 = 116;
const O_APPEND: u32 = rustix::fs::OFlags::APPEND.bits();
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();

fn server() -> (Server, Arc<MemoryFileSystem>) {
    writable_server(u64::MAX)
}

fn lookup(server: &Server, directory: u64, name: &str) -> EntryOut {
    record(&ask(server, Opcode::Lookup, directory, &[name.as_bytes(), b"\0"]))
}

fn mkdir(server: &Server, directory: u64, name: &str) -> EntryOut {
    let mkdir = MkDirIn { mode: 0o755, umask: 0 };
    record(&ask(server, Opcode::MkDir, directory, &[mkdir.as_bytes(), name.as_bytes(), b"\0"]))
}

fn create_in(flags: u32, mode: u32) -> CreateIn {
    CreateIn { flags, mode: 0o100_000 | mode, umask: 0, open_flags: 0 }
}

/// Creates a file. Returns its entry and handle.
fn create(server: &Server, directory: u64, name: &str) -> (EntryOut, u64) {
    let create = create_in(2, 0o644);
    let parts = [create.as_bytes(), name.as_bytes(), b"\0"];
    let payload = ask(server, Opcode::Create, directory, &parts);
    let opened: OpenOut = record(&payload[size_of::<EntryOut>()..]);
    (record(&payload), opened.handle)
}

fn open_with(server: &Server, node: u64, flags: u32) -> OpenOut {
    let open = OpenIn { flags, open_flags: 0 };
    record(&ask(server, Opcode::Open, node, &[open.as_bytes()]))
}

fn release(server: &Server, node: u64, handle: u64) {
    let release = ReleaseIn { handle, flags: 0, release_flags: 0, lock_owner: 0 };
    ask(server, Opcode::Release, node, &[release.as_bytes()]);
}

fn forget(server: &Server, node: u64, lookups: u64) {
    exchange(server, &request(Opcode::Forget, node, &[ForgetIn { lookups }.as_bytes()]));
}

fn set_attr(server: &Server, node: u64, operation: SetAttrIn) -> Attr {
    record::<AttrOut>(&ask(server, Opcode::SetAttr, node, &[operation.as_bytes()])).attr
}

fn get_attr(server: &Server, node: u64) -> Attr {
    let operation = GetAttrIn { flags: 0, padding: 0, handle: 0 };
    record::<AttrOut>(&ask(server, Opcode::GetAttr, node, &[operation.as_bytes()])).attr
}

#[test]
fn init_leaves_the_umask_and_privileges_to_the_server() {
    let (server, _) = server();
    let flags = server.negotiated().unwrap().unwrap().flags;
    for wanted in [
        InitFlags::DONT_MASK,
        InitFlags::HANDLE_KILLPRIV_V2,
        InitFlags::SETXATTR_EXT,
        InitFlags::POSIX_ACL,
    ] {
        assert!(flags.contains(wanted), "{wanted:?}");
    }
    assert!(!flags.contains(InitFlags::WRITEBACK_CACHE));
}

#[test]
fn created_files_belong_to_the_caller_and_are_in_the_answer() {
    let (server, file_system) = server();
    let mknod =
        MkNodIn { mode: 0o060_666, device: encode_device(8, 300), umask: 0o022, padding: 0 };
    let parts = [mknod.as_bytes(), b"device\0"];
    let bytes = request_as(1000, Opcode::MkNod as u32, ROOT_NODE, &parts);
    let attr = record::<EntryOut>(&exchange(&server, &bytes).unwrap().unwrap()).attr;
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.links), (0o060_644, 1000, 1000, 1));
    assert_eq!(attr.device, encode_device(8, 300));
    let directory = mkdir(&server, ROOT_NODE, "d");
    assert_eq!(directory.attr.mode, 0o040_755);
    let link = ask(&server, Opcode::SymLink, directory.node, &[b"link\0target\0"]);
    let link: EntryOut = record(&link);
    assert_eq!(ask(&server, Opcode::ReadLink, link.node, &[]), b"target");
    assert_eq!(lookup(&server, directory.node, "link").node, link.node);
    let again = [MkDirIn { mode: 0o755, umask: 0 }.as_bytes().to_vec(), b"d\0".to_vec()].concat();
    assert_eq!(fail(&server, Opcode::MkDir, ROOT_NODE, &[&again]), EEXIST);
    let pipe = MkNodIn { mode: 0o040_755, device: 0, umask: 0, padding: 0 };
    assert_eq!(fail(&server, Opcode::MkNod, ROOT_NODE, &[pipe.as_bytes(), b"x\0"]), EINVAL);
    assert_eq!(file_system.verify(), 0);
}

#[test]
fn create_creates_a_file_and_opens_no_existing_one() {
    let (server, file_system) = server();
    let (file, handle) = create(&server, ROOT_NODE, "file");
    assert!(handle > 0);
    assert_eq!(file.attr.mode, 0o100_644);
    for (flags, errno) in [(0o100, ESTALE), (0o1100, ESTALE), (0o200, EEXIST)] {
        let again = create_in(flags, 0o644);
        let parts = [again.as_bytes(), b"file\0"];
        assert_eq!(fail(&server, Opcode::Create, ROOT_NODE, &parts), errno, "{flags:o}");
    }
    release(&server, file.node, handle);
    assert_eq!(file_system.verify(), 0);
}

#[test]
fn a_file_without_a_name_is_deleted_when_the_kernel_forgets_it() {
    let (server, file_system) = server();
    let (file, handle) = create(&server, ROOT_NODE, "file");
    assert_eq!(lookup(&server, file.node, ".").node, file.node);
    ask(&server, Opcode::Unlink, ROOT_NODE, &[b"file\0"]);
    // File handles (NFS) do not lead to the deleted file, even before the kernel has sent FORGET.
    assert_eq!(lookup(&server, file.node, ".").node, 0);
    assert_eq!(fail(&server, Opcode::Unlink, ROOT_NODE, &[b"file\0"]), ENOENT);
    let attr = set_attr(&server, file.node, SetAttrIn { valid: FATTR_SIZE, size: 7, ..EMPTY });
    assert_eq!((attr.size, attr.links), (7, 0));
    release(&server, file.node, handle);
    assert_eq!(file_system.released(), 0);
    forget(&server, file.node, 2);
    assert_eq!(file_system.released(), 1);
    assert_eq!(fail(&server, Opcode::SetAttr, file.node, &[EMPTY.as_bytes()]), ESTALE);

    let parts = [create_in(2, 0o600).as_bytes().to_vec(), b"/\0".to_vec()].concat();
    let payload = ask(&server, Opcode::TmpFile, ROOT_NODE, &[&parts]);
    let file: EntryOut = record(&payload);
    let opened: OpenOut = record(&payload[128..]);
    let link = LinkIn { node: file.node };
    let linked = ask(&server, Opcode::Link, ROOT_NODE, &[link.as_bytes(), b"named\0"]);
    assert_eq!(record::<EntryOut>(&linked).attr.links, 1);
    release(&server, file.node, opened.handle);
    forget(&server, file.node, 2);
    assert_eq!((file_system.released(), file_system.verify()), (1, 0));
}

/// A kernel closes and forgets a removed file after the program goes on, and other threads may
/// serve that later.
#[test]
fn a_change_of_a_full_volume_waits_for_a_removed_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = small_server(folder.path());
    let write = |(file, handle): (EntryOut, u64), offset, data: &[u8]| {
        let size = data.len() as u32;
        let write = WriteIn { handle, offset, size, flags: 2, ..WriteIn::new_zeroed() };
        let bytes = request(Opcode::Write, file.node, &[write.as_bytes(), data]);
        exchange(&server, &bytes).unwrap().map(|_| ())
    };
    let (large, small) = (create(&server, ROOT_NODE, "large"), create(&server, ROOT_NODE, "small"));
    let full = (0..).find_map(|block| write(large, block << 16, &[1; 1 << 16]).err());
    assert_eq!(full, Some(ENOSPC));
    ask(&server, Opcode::Unlink, ROOT_NODE, &[b"large\0"]);

    let (waits, waiting) = mpsc::channel();
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let _listening = base::waiting::listen(move || {
                let _ = waits.send(());
            });
            write(small, 0, &[2; 1 << 16])
        });
        waiting.recv().expect("the write does not wait");
        release(&server, large.0.node, large.1);
        forget(&server, large.0.node, 1);
        assert_eq!(writer.join().unwrap(), Ok(()));
    });

    // A file that stays open keeps its space.
    let full = (1..).find_map(|block| write(small, block << 16, &[1; 1 << 16]).err());
    ask(&server, Opcode::Unlink, ROOT_NODE, &[b"small\0"]);
    assert_eq!(full, Some(ENOSPC));
    assert_eq!(write(small, 1 << 30, &[1; 1 << 16]), Err(ENOSPC));
}

const EMPTY: SetAttrIn = SetAttrIn {
    valid: 0,
    padding: 0,
    handle: 0,
    size: 0,
    lock_owner: 0,
    accessed: 0,
    modified: 0,
    changed: 0,
    accessed_nanoseconds: 0,
    modified_nanoseconds: 0,
    changed_nanoseconds: 0,
    mode: 0,
    unused4: 0,
    uid: 0,
    gid: 0,
    unused5: 0,
};

#[test]
fn setattr_changes_only_valid_attributes() {
    let (server, _) = server();
    let (file, _) = create(&server, ROOT_NODE, "file");
    let set = |operation| set_attr(&server, file.node, operation);
    let times = FATTR_ATIME | FATTR_MTIME;
    let attr = set(SetAttrIn {
        valid: times,
        accessed: -1_i64 as u64,
        modified: 9,
        modified_nanoseconds: 5,
        ..EMPTY
    });
    assert_eq!((attr.accessed as i64, attr.modified, attr.modified_nanoseconds), (-1, 9, 5));
    let attr = set(SetAttrIn { valid: FATTR_MTIME | FATTR_MTIME_NOW, modified: 9, ..EMPTY });
    assert!(attr.modified > 1_700_000_000);
    let attr = set(SetAttrIn { valid: FATTR_MODE, mode: 0o106_755, ..EMPTY });
    assert_eq!(attr.mode, 0o106_755);
    let attr = set(SetAttrIn { valid: FATTR_SIZE, size: 100, ..EMPTY });
    assert_eq!((attr.size, attr.mode), (100, 0o106_755));
    let kill = FATTR_SIZE | FATTR_KILL_SUIDGID;
    assert_eq!(set(SetAttrIn { valid: kill, size: 10, ..EMPTY }).mode, 0o100_755);
    set(SetAttrIn { valid: FATTR_MODE, mode: 0o106_755, ..EMPTY });
    let own = FATTR_UID | FATTR_GID;
    let attr = set(SetAttrIn { valid: own, uid: 5, gid: 6, ..EMPTY });
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 6, 0o100_755));
    // A chown that names neither an owner nor a group.
    set(SetAttrIn { valid: FATTR_MODE, mode: 0o104_755, ..EMPTY });
    let attr = set(EMPTY);
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 6, 0o100_755));
    let bad = SetAttrIn { valid: FATTR_ATIME, accessed_nanoseconds: 1_000_000_000, ..EMPTY };
    assert_eq!(fail(&server, Opcode::SetAttr, file.node, &[bad.as_bytes()]), EINVAL);
    let size = SetAttrIn { valid: FATTR_SIZE, ..EMPTY };
    assert_eq!(fail(&server, Opcode::SetAttr, ROOT_NODE, &[size.as_bytes()]), EISDIR);
}

#[test]
fn an_open_that_truncates_clears_setuid_only_on_request() {
    let (server, _) = server();
    let (file, _) = create(&server, ROOT_NODE, "file");
    let set = |operation| set_attr(&server, file.node, operation);
    for (open_flags, mode) in [(0, 0o104_755), (OPEN_KILL_SUIDGID, 0o100_755)] {
        set(SetAttrIn { valid: FATTR_SIZE | FATTR_MODE, size: 9, mode: 0o104_755, ..EMPTY });
        let open = OpenIn { flags: 0o1001, open_flags };
        let opened: OpenOut = record(&ask(&server, Opcode::Open, file.node, &[open.as_bytes()]));
        assert!(opened.handle > 0);
        let attr = get_attr(&server, file.node);
        assert_eq!((attr.size, attr.mode), (0, mode));
    }
}

#[test]
fn rename_moves_exchanges_and_leaves_whiteouts() {
    let (server, file_system) = server();
    let directory = mkdir(&server, ROOT_NODE, "d").node;
    let (a, _) = create(&server, ROOT_NODE, "a");
    let (b, _) = create(&server, ROOT_NODE, "b");
    let rename2 = |flags, names: &[u8]| {
        let rename = Rename2In { directory, flags, padding: 0 };
        let bytes = request(Opcode::Rename2, ROOT_NODE, &[rename.as_bytes(), names]);
        exchange(&server, &bytes).unwrap().map(drop)
    };
    let plain = RenameIn { directory };
    ask(&server, Opcode::Rename, ROOT_NODE, &[plain.as_bytes(), b"a\0a\0"]);
    assert_eq!(lookup(&server, directory, "a").node, a.node);
    assert_eq!(rename2(1, b"b\0a\0"), Err(EEXIST));
    assert_eq!(rename2(2, b"b\0a\0"), Ok(()));
    assert_eq!(lookup(&server, directory, "a").node, b.node);
    assert_eq!(rename2(4, b"b\0new\0"), Ok(()));
    assert_eq!(lookup(&server, ROOT_NODE, "b").attr.mode & 0o170_000, 0o020_000);
    assert_eq!(rename2(0, b"d\0x\0"), Err(EINVAL));
    assert_eq!(rename2(8, b"b\0x\0"), Err(EINVAL));
    assert_eq!(fail(&server, Opcode::RmDir, ROOT_NODE, &[b"d\0"]), ENOTEMPTY);
    assert_eq!(file_system.verify(), 0);
}

#[test]
fn xattrs_are_set_with_and_without_the_extension() {
    for (flags, extended) in [(u64::MAX, true), (!InitFlags::SETXATTR_EXT.0, false)] {
        let (server, _) = writable_server(flags);
        let (file, _) = create(&server, ROOT_NODE, "file");
        let set = |flags, name: &[u8], value: &[u8]| {
            let set = SetXattrIn { size: value.len() as u32, flags };
            let extension = SetXattrInExtension { extra_flags: 0, padding: 0 };
            let extension = if extended { extension.as_bytes() } else { &[] };
            let parts = [set.as_bytes(), extension, name, b"\0", value];
            exchange(&server, &request(Opcode::SetXattr, file.node, &parts)).unwrap().map(drop)
        };
        assert_eq!(set(0, b"user.a", b"val\0ue"), Ok(()));
        assert_eq!(set(1, b"user.a", b""), Err(EEXIST));
        assert_eq!(set(2, b"user.b", b""), Err(ENODATA));
        assert_eq!(set(3, b"user.b", b""), Err(EINVAL));
        assert_eq!(set(0, b"system.odd", b""), Err(EOPNOTSUPP));
        let get = GetXattrIn { size: 100, padding: 0 };
        let parts = [get.as_bytes(), b"user.a\0"];
        assert_eq!(ask(&server, Opcode::GetXattr, file.node, &parts), b"val\0ue");
        ask(&server, Opcode::RemoveXattr, file.node, &[b"user.a\0"]);
        assert_eq!(fail(&server, Opcode::RemoveXattr, file.node, &[b"user.a\0"]), ENODATA);
    }
}

#[test]
fn syncs_and_destroy_make_changes_durable() {
    let (server, file_system) = server();
    let (file, handle) = create(&server, ROOT_NODE, "file");
    let fsync = |handle| FsyncIn { handle, flags: 0, padding: 0 };
    ask(&server, Opcode::Fsync, file.node, &[fsync(handle).as_bytes()]);
    ask(&server, Opcode::FsyncDir, ROOT_NODE, &[fsync(0).as_bytes()]);
    ask(&server, Opcode::SyncFs, ROOT_NODE, &[&[0; 8]]);
    assert_eq!(file_system.syncs(), 3);
    for opcode in [Opcode::Flush, Opcode::ReleaseDir] {
        ask(&server, opcode, ROOT_NODE, &[&[0; 24]]);
    }
    assert_eq!(fail(&server, Opcode::SetLk, file.node, &[&[0; 64]]), ENOSYS);
    ask(&server, Opcode::Unlink, ROOT_NODE, &[b"file\0"]);
    assert!(!file_system.is_closed());
    // umount(2) of a fuseblk mount waits for the answer.
    ask(&server, Opcode::Destroy, ROOT_NODE, &[]);
    assert!(file_system.is_closed());
    server.close().unwrap();
    assert_eq!(file_system.released(), 1, "files without a name are deleted at the end");
}

#[test]
fn written_data_is_read_back_and_made_durable() {
    let (server, file_system) = server();
    let (file, handle) = create(&server, ROOT_NODE, "file");
    let write = |handle, offset, write_flags, data: &[u8]| {
        let size = data.len() as u32;
        let zeroes = WriteIn::new_zeroed();
        let write = WriteIn { handle, offset, size, write_flags, flags: 2, ..zeroes };
        let bytes = request(Opcode::Write, file.node, &[write.as_bytes(), data]);
        let answer = exchange(&server, &bytes).unwrap();
        answer.map(|payload| record::<WriteOut>(&payload).size)
    };
    set_attr(&server, file.node, SetAttrIn { valid: FATTR_MODE, mode: 0o104_755, ..EMPTY });
    assert_eq!(write(handle, 2, 0, b"hello"), Ok(5));
    assert_eq!(get_attr(&server, file.node).mode, 0o104_755);
    assert_eq!(write(handle, 7, WRITE_KILL_SUIDGID, b"!"), Ok(1));
    let attr = get_attr(&server, file.node);
    assert_eq!((attr.mode, attr.size), (0o100_755, 8));
    assert_eq!(write(4711, 0, 0, b"x"), Err(EBADF));
    let read = ReadIn { handle, size: 100, flags: 2, ..ReadIn::new_zeroed() };
    assert_eq!(ask(&server, Opcode::Read, file.node, &[read.as_bytes()]), b"\0\0hello!");
    let fsync = FsyncIn { handle, flags: FSYNC_FDATASYNC, padding: 0 };
    ask(&server, Opcode::Fsync, file.node, &[fsync.as_bytes()]);
    assert_eq!(file_system.on_disk(base::InodeNumber(file.attr.inode)), b"\0\0hello!");
    let open = OpenIn { flags: 0, open_flags: 0 };
    let opened: OpenOut = record(&ask(&server, Opcode::Open, file.node, &[open.as_bytes()]));
    assert_eq!(write(opened.handle, 0, 0, b"x"), Err(EBADF), "the file is open for reading");
}

#[test]
fn a_kernel_that_collects_writes_keeps_the_times_itself() {
    let cached = WRITE_CACHE;
    for (collects, write_flags, changes) in
        [(false, 0, true), (false, cached, true), (true, 0, true), (true, cached, false)]
    {
        let options = ServerOptions { writeback_cache: collects, ..ServerOptions::default() };
        let (server, _) = writable_server_with(u64::MAX, options);
        let flags = server.negotiated().unwrap().unwrap().flags;
        assert_eq!(flags.contains(InitFlags::WRITEBACK_CACHE), collects);
        let (file, handle) = create(&server, ROOT_NODE, "file");
        let valid = FATTR_MTIME | FATTR_CTIME;
        set_attr(&server, file.node, SetAttrIn { valid, modified: 7, changed: 8, ..EMPTY });
        let zeroes = WriteIn::new_zeroed();
        let write = WriteIn { handle, size: 1, write_flags, flags: 2, ..zeroes };
        ask(&server, Opcode::Write, file.node, &[write.as_bytes(), b"x"]);
        let attr = get_attr(&server, file.node);
        assert_eq!(attr.size, 1);
        assert_eq!((attr.modified, attr.changed) != (7, 8), changes, "{collects} {write_flags}");
        let opened = open_with(&server, file.node, O_DIRECT | 2);
        let expected = if collects { 0 } else { FOPEN_DIRECT_IO | FOPEN_NOFLUSH };
        assert_eq!(opened.flags & (FOPEN_DIRECT_IO | FOPEN_NOFLUSH), expected);
    }
}

/// As in Linux, a store to a mapping of an immutable file fails, and so does a writable mapping of
/// a file that is opened after it became append-only. The kernel does not know these flags of a
/// mount's files.
#[test]
fn data_from_the_kernels_cache_is_written_unless_the_file_was_protected_before() {
    const IMMUTABLE: u32 = 0x10;
    const APPEND_ONLY: u32 = 0x20;
    for (collects, flag) in
        [(false, IMMUTABLE), (false, APPEND_ONLY), (true, IMMUTABLE), (true, APPEND_ONLY)]
    {
        let options = ServerOptions { writeback_cache: collects, ..ServerOptions::default() };
        let (server, file_system) = writable_server_with(u64::MAX, options);
        let (file, before) = create(&server, ROOT_NODE, "file");
        let number = base::InodeNumber(file.attr.inode);
        let write = |handle, write_flags, byte: &[u8]| {
            let zeroes = WriteIn::new_zeroed();
            let write = WriteIn { handle, size: 1, write_flags, flags: 2, ..zeroes };
            let parts = [write.as_bytes(), byte];
            exchange(&server, &request(Opcode::Write, file.node, &parts)).unwrap().map(drop)
        };
        let sync = |handle| {
            let fsync = FsyncIn { handle, flags: 0, padding: 0 };
            ask(&server, Opcode::Fsync, file.node, &[fsync.as_bytes()]);
        };
        assert_eq!(write(before, WRITE_CACHE, b"a"), Ok(()));
        file_system.set_flags(number, flag);
        let place = format!("{collects} {flag:#x}");
        if flag == IMMUTABLE {
            assert_eq!(write(before, 0, b"b"), Err(EPERM), "{place}");
            assert_eq!(write(before, WRITE_CACHE, b"c"), Err(EPERM), "{place}");
            sync(before);
            assert_eq!(file_system.on_disk(number), b"a", "{place}");
            continue;
        }
        let opened = open_with(&server, file.node, O_APPEND | 2);
        let collected = opened.flags & FOPEN_DIRECT_IO == 0;
        assert_eq!(collected, !collects, "{place}");
        assert_eq!(write(opened.handle, 0, b"b"), Err(EPERM), "{place}");
        assert_eq!(write(opened.handle, WRITE_CACHE, b"c"), Ok(()), "{place}");
        release(&server, file.node, before);
        assert_eq!(write(opened.handle, WRITE_CACHE, b"d"), Err(EPERM), "{place}");
        sync(opened.handle);
        assert_eq!(file_system.on_disk(number), b"c", "{place}");
    }
}

#[test]
fn a_kernel_that_would_keep_stale_cached_data_does_direct_writes_itself() {
    let offer = !InitFlags::DIRECT_IO_ALLOW_MMAP.0;
    for (offer, expected) in [(u64::MAX, FOPEN_DIRECT_IO), (offer, 0)] {
        let (server, _) = writable_server(offer);
        let (file, _) = create(&server, ROOT_NODE, "file");
        let opened = open_with(&server, file.node, O_DIRECT | 2);
        assert_eq!(opened.flags & FOPEN_DIRECT_IO, expected);
    }
}

#[test]
fn writes_that_bypass_the_kernels_cache_invalidate_data_that_it_has_read() {
    const DIRECT: u32 = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
    let (server, _) = server();
    let (sender, receiver) = mpsc::channel();
    server.set_contents_invalidator(move |node, _, _| sender.send(node).is_ok());
    let invalidated = || receiver.try_iter().collect::<Vec<_>>();
    let (file, cached) = create(&server, ROOT_NODE, "file");
    let opened = open_with(&server, file.node, 1);
    assert_eq!(opened.flags & DIRECT, FOPEN_DIRECT_IO);
    assert_eq!(open_with(&server, file.node, 2).flags & DIRECT, 0);
    let write = |handle| {
        let write = WriteIn { handle, size: 5, flags: 1, ..WriteIn::new_zeroed() };
        ask(&server, Opcode::Write, file.node, &[write.as_bytes(), b"hello"]);
    };
    let read = |flags| {
        let read_flags = if flags & O_DIRECT != 0 { READ_LOCK_OWNER } else { 0 };
        let zeroes = ReadIn::new_zeroed();
        let read = ReadIn { handle: cached, size: 512, read_flags, flags, ..zeroes };
        ask(&server, Opcode::Read, file.node, &[read.as_bytes()]);
    };
    write(opened.handle);
    assert!(invalidated().is_empty(), "the kernel has read nothing");
    read(2);
    write(cached);
    assert!(invalidated().is_empty(), "the write went through the kernel's cache");
    write(opened.handle);
    assert_eq!(invalidated(), [file.node]);
    read(2 | O_DIRECT);
    write(opened.handle);
    assert!(invalidated().is_empty(), "the kernel has cached nothing since");
}

/// The kernel does not drop what it has read during a direct write if it does not wait for this
/// write.
#[test]
fn direct_writes_through_files_that_are_not_opened_for_them_invalidate_cached_data() {
    let writeback = ServerOptions { writeback_cache: true, ..ServerOptions::default() };
    // Both do direct writes themselves: a kernel that collects writes, and one that keeps stale
    // cached data.
    let servers = [
        writable_server_with(u64::MAX, writeback),
        writable_server(!InitFlags::DIRECT_IO_ALLOW_MMAP.0),
    ];
    for (server, _) in servers {
        let (sender, receiver) = mpsc::channel();
        server.set_contents_invalidator(move |node, range, _| sender.send((node, range)).is_ok());
        let invalidated = || receiver.try_iter().collect::<Vec<_>>();
        let (file, _) = create(&server, ROOT_NODE, "file");
        let opened = open_with(&server, file.node, O_DIRECT | 2);
        assert_eq!(opened.flags & FOPEN_DIRECT_IO, 0);
        let write = |write_flags| {
            let write =
                WriteIn { size: 512, flags: O_DIRECT | 2, write_flags, ..WriteIn::new_zeroed() };
            let write = WriteIn { handle: opened.handle, offset: 512, ..write };
            ask(&server, Opcode::Write, file.node, &[write.as_bytes(), &[b'h'; 512]]);
        };
        let all = FileOffset(0)..FileOffset(64 << 10);
        write(WRITE_LOCK_OWNER);
        assert!(invalidated().is_empty(), "the kernel has cached nothing");
        for write_flags in [0, WRITE_CACHE] {
            write(write_flags);
            assert!(invalidated().is_empty(), "the data is in the kernel's cache: {write_flags}");
            write(WRITE_LOCK_OWNER);
            assert_eq!(invalidated(), [(file.node, all.clone())], "{write_flags}");
        }
        let read = ReadIn { handle: opened.handle, offset: 512, ..ReadIn::new_zeroed() };
        let read = ReadIn { size: 512, flags: O_DIRECT | 2, ..read };
        ask(&server, Opcode::Read, file.node, &[read.as_bytes()]);
        write(WRITE_LOCK_OWNER);
        assert_eq!(invalidated(), [(file.node, all)], "a mapping has read");
        write(WRITE_LOCK_OWNER);
        assert!(invalidated().is_empty());
    }
}

#[test]
fn direct_writes_with_o_sync_are_durable_when_they_are_answered() {
    use rustix::fs::OFlags;
    let direct = OFlags::DIRECT;
    let sync = OFlags::SYNC;
    // Not rustix's constant, whose value is that of O_SYNC.
    let data_only = OFlags::from_bits_retain(libc::O_DSYNC as u32);
    let none = OFlags::empty();
    // For data that goes through its cache, the kernel sends an FSYNC itself.
    for (name, opened, written, is_durable) in [
        ("direct-sync", none, direct | sync, true),
        ("direct-dsync", none, direct | data_only, true),
        // The data is on the device, but not flushed. This file system makes no difference.
        ("direct", none, direct, true),
        ("sync", none, sync, false),
        // O_DIRECT was cleared after the open. The write still bypasses the cache.
        ("opened-direct-sync", direct | sync, sync, true),
        ("opened-direct-dsync", direct | data_only, data_only, true),
        ("opened-direct", direct, none, false),
        ("opened-sync", sync, sync, false),
    ] {
        let (server, file_system) = server();
        let (file, _) = create(&server, ROOT_NODE, name);
        let handle = open_with(&server, file.node, opened.bits() | 2).handle;
        let data = [b'h'; 512];
        let flags = written.bits() | 2;
        let write = WriteIn { handle, size: 512, flags, ..WriteIn::new_zeroed() };
        ask(&server, Opcode::Write, file.node, &[write.as_bytes(), &data]);
        let on_disk = file_system.on_disk(base::InodeNumber(file.attr.inode));
        assert_eq!(on_disk == data, is_durable, "{name}");
    }
}

#[test]
fn copies_to_a_file_with_o_sync_are_durable_when_they_are_answered() {
    use rustix::fs::OFlags;
    for (flags, is_durable) in [
        (OFlags::SYNC, true),
        (OFlags::from_bits_retain(libc::O_DSYNC as u32), true),
        (OFlags::empty(), false),
    ] {
        let (server, file_system) = server();
        let (from, handle) = create(&server, ROOT_NODE, "from");
        let write = WriteIn { handle, size: 5, flags: 2, ..WriteIn::new_zeroed() };
        ask(&server, Opcode::Write, from.node, &[write.as_bytes(), b"hello"]);
        let (to, _) = create(&server, ROOT_NODE, "to");
        let to_handle = open_with(&server, to.node, flags.bits() | 2).handle;
        let zeroes = CopyFileRangeIn::new_zeroed();
        let copy = CopyFileRangeIn { handle, to_node: to.node, to_handle, length: 5, ..zeroes };
        ask(&server, Opcode::CopyFileRange, from.node, &[copy.as_bytes()]);
        let on_disk = file_system.on_disk(base::InodeNumber(to.attr.inode));
        assert_eq!(on_disk == b"hello", is_durable, "{flags:?}");
    }
}

#[test]
fn data_from_the_kernels_cache_is_written_completely_or_answered_with_an_error() {
    let (server, _) = server();
    let (file, handle) = create(&server, ROOT_NODE, "file");
    let write = |offset, write_flags, data: &[u8]| {
        let size = data.len() as u32;
        let zeroes = WriteIn::new_zeroed();
        let write = WriteIn { handle, offset, size, write_flags, flags: 2, ..zeroes };
        let bytes = request(Opcode::Write, file.node, &[write.as_bytes(), data]);
        let answer = exchange(&server, &bytes).unwrap();
        answer.map(|payload| record::<WriteOut>(&payload).size)
    };
    // The file can have no more data.
    let last = DATA_BYTES_MAX - 4096;
    assert_eq!(write(last, 0, &[1; 4096]), Ok(4096));
    assert_eq!(write(last, 0, &[2; 8192]), Ok(4096));
    assert_eq!(write(last, WRITE_CACHE, &[3; 8192]), Err(ENOSPC));
}

#[test]
fn ranges_are_copied_between_files() {
    let (server, _) = server();
    let (from, handle) = create(&server, ROOT_NODE, "from");
    let (to, to_handle) = create(&server, ROOT_NODE, "to");
    let write = WriteIn { handle, size: 5, flags: 2, ..WriteIn::new_zeroed() };
    ask(&server, Opcode::Write, from.node, &[write.as_bytes(), b"hello"]);
    let copy = CopyFileRangeIn {
        handle,
        offset: 1,
        to_node: to.node,
        to_handle,
        to_offset: 3,
        length: 3,
        flags: 0,
    };
    let answer = ask(&server, Opcode::CopyFileRange, from.node, &[copy.as_bytes()]);
    assert_eq!(record::<WriteOut>(&answer).size, 3);
    assert_eq!(lookup(&server, ROOT_NODE, "to").attr.size, 6);
    let more = CopyFileRangeIn { length: u64::MAX, ..copy };
    let answer = ask(&server, Opcode::CopyFileRange64, from.node, &[more.as_bytes()]);
    assert_eq!(record::<CopyFileRangeOut>(&answer).length, 4, "all data of the source");
    for (wrong, errno) in [
        (CopyFileRangeIn { flags: 1, ..copy }, EINVAL),
        (CopyFileRangeIn { handle: 99, ..copy }, EBADF),
        (CopyFileRangeIn { to_handle: 99, ..copy }, EBADF),
        (CopyFileRangeIn { to_handle: handle, to_offset: 2, ..copy }, EINVAL),
    ] {
        assert_eq!(fail(&server, Opcode::CopyFileRange, from.node, &[wrong.as_bytes()]), errno);
    }
}
