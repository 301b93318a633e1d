//! Tests of the worker pool, over a socket that preserves message boundaries as /dev/fuse does.

mod support;

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};

use fuse::protocol::{
    CreateIn, EntryOut, InHeader, MkDirIn, Opcode, OpenOut, ROOT_NODE, ReadIn, ReleaseIn,
    WRITE_LOCK_OWNER, WriteIn,
};
use fuse::{BusyPoll, Channel, EndReason, WorkerPool};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use support::*;
use testkit::wait_until;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn send(kernel: &OwnedFd, unique: u64, mut request: Vec<u8>) {
    let (mut header, _) = InHeader::read_from_prefix(&request).unwrap();
    header.unique = unique;
    request[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
    assert_eq!(rustix::io::write(kernel, &request).unwrap(), request.len());
}

fn receive(kernel: &OwnedFd) -> (u64, i32, Vec<u8>) {
    let timeout = rustix::event::Timespec::try_from(TIMEOUT).unwrap();
    let mut ready = [rustix::event::PollFd::new(kernel, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ready, Some(&timeout)), Ok(1), "an answer");
    let mut buffer = vec![0; 1 << 20];
    let length = rustix::io::read(kernel, &mut buffer).unwrap();
    let (header, payload) = take_reply(&buffer[..length]);
    (header.unique, header.error, payload.to_vec())
}

fn channel(device: OwnedFd) -> Channel {
    Channel::new(device).unwrap()
}

fn read_all() -> ReadIn {
    ReadIn { handle: 0, offset: 0, size: 4096, read_flags: 0, lock_owner: 0, flags: 0, padding: 0 }
}

#[test]
fn requests_are_answered_until_the_connection_ends() {
    let (server, _gate) = server_and_gate();
    let (kernel, device) = pair();
    let (ended, end) = mpsc::channel();
    let threads = NonZeroUsize::new(3).unwrap();
    let poll = BusyPoll::new(2, None);
    let at_end = move |end| ended.send(end).unwrap();
    let pool = WorkerPool::start(server, channel(device), threads, poll, at_end).unwrap();
    for unique in 1..=100 {
        send(&kernel, unique, request(Opcode::Lookup, ROOT_NODE, &[b"file\0"]));
        let (answered, error, payload) = receive(&kernel);
        assert_eq!((answered, error, record::<EntryOut>(&payload).node), (unique, 0, FILE));
    }
    send(&kernel, 7, request(Opcode::Write, FILE, &[&[0; 40]]));
    assert_eq!(receive(&kernel), (7, -30, Vec::new()));
    drop(kernel);
    assert_eq!(end.recv_timeout(TIMEOUT), Ok(EndReason::Unmounted));
    pool.join();
}

#[test]
fn a_request_that_waits_for_the_device_does_not_delay_others() {
    let (server, gate) = server_and_gate();
    let (kernel, device) = pair();
    let threads = NonZeroUsize::new(4).unwrap();
    let poll = BusyPoll::new(2, None);
    let pool = WorkerPool::start(server, channel(device), threads, poll, |_| ()).unwrap();
    for name in [&b"waiting-0\0"[..], b"waiting-1\0", b"waiting-2\0"] {
        send(&kernel, 1, request(Opcode::Lookup, ROOT_NODE, &[name]));
        assert_eq!(receive(&kernel).0, 1);
    }
    for (unique, node) in (2..).zip(WAITING) {
        send(&kernel, unique, request(Opcode::Read, node, &[read_all().as_bytes()]));
    }
    gate.wait_for(3);
    // Three of the four threads wait, and the fourth serves.
    for unique in 10..20 {
        send(&kernel, unique, request(Opcode::StatFs, ROOT_NODE, &[]));
        assert_eq!(receive(&kernel).0, unique);
    }
    gate.open();
    let mut answered: Vec<_> = (0..3).map(|_| receive(&kernel)).collect();
    answered.sort();
    let expected: Vec<_> = (2..=4).map(|unique| (unique, 0, CONTENTS.to_vec())).collect();
    assert_eq!(answered, expected);
    drop(kernel);
    pool.join();
}

/// The kernel drops pages after the reads that it has sent, or has still to send, are answered.
#[test]
fn a_write_that_waits_for_the_kernel_leaves_its_thread_to_the_reads_before_it() {
    let (server, _) = writable_server(u64::MAX);
    let file = ask(
        &server,
        Opcode::Create,
        ROOT_NODE,
        &[CreateIn { flags: 2, mode: 0o644, ..CreateIn::new_zeroed() }.as_bytes(), b"file\0"],
    );
    let (file, opened) = EntryOut::read_from_prefix(&file).unwrap();
    let handle = record::<OpenOut>(opened).handle;
    let (begins, begun) = mpsc::channel();
    let (drops, dropped) = mpsc::sync_channel::<()>(0);
    let dropped = Mutex::new(dropped);
    server.set_contents_invalidator(move |_, _, timeout| {
        assert_eq!(timeout, None, "it takes as long as it takes");
        begins.send(()).unwrap();
        assert!(dropped.lock().unwrap().recv_timeout(TIMEOUT).is_ok());
        true
    });
    let (kernel, device) = pair();
    let poll = BusyPoll::default();
    let threads = NonZeroUsize::MIN;
    let server = Arc::new(server);
    let pool = WorkerPool::start(server, channel(device), threads, poll, |_| ()).unwrap();
    let write = |unique, byte: u8, write_flags| {
        let write = WriteIn { handle, size: 8, write_flags, ..WriteIn::new_zeroed() };
        send(&kernel, unique, request(Opcode::Write, file.node, &[write.as_bytes(), &[byte; 8]]));
    };
    let read = |unique, expected: u8| {
        let read = ReadIn { handle, size: 8, ..ReadIn::new_zeroed() };
        send(&kernel, unique, request(Opcode::Read, file.node, &[read.as_bytes()]));
        assert_eq!(receive(&kernel), (unique, 0, vec![expected; 8]));
    };
    write(1, b'a', 0);
    assert_eq!(receive(&kernel).0, 1);
    write(2, b'b', WRITE_LOCK_OWNER);
    begun.recv_timeout(TIMEOUT).unwrap();
    read(3, b'a');
    read(4, b'a');
    drops.send(()).unwrap();
    // The kernel has read the page again since.
    begun.recv_timeout(TIMEOUT).unwrap();
    drops.send(()).unwrap();
    let (unique, error, _) = receive(&kernel);
    assert_eq!((unique, error), (2, 0));
    read(5, b'b');
    drop(kernel);
    pool.join();
}

#[test]
fn a_change_of_a_full_volume_leaves_its_thread_to_the_release_of_a_removed_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(small_server(folder.path()));
    let (kernel, device) = pair();
    let poll = BusyPoll::default();
    let threads = NonZeroUsize::MIN;
    let pool = WorkerPool::start(server, channel(device), threads, poll, |_| ()).unwrap();
    let make = |name| {
        let make = CreateIn { flags: 2, mode: 0o644, ..CreateIn::new_zeroed() };
        send(&kernel, 1, request(Opcode::Create, ROOT_NODE, &[make.as_bytes(), name]));
        let (_, error, made) = receive(&kernel);
        assert_eq!(error, 0);
        let (file, opened) = EntryOut::read_from_prefix(&made).unwrap();
        (file.node, record::<OpenOut>(opened).handle)
    };
    let write = |(node, handle), offset, data: &[u8]| {
        let size = data.len() as u32;
        let write = WriteIn { handle, offset, size, flags: 2, ..WriteIn::new_zeroed() };
        send(&kernel, 2, request(Opcode::Write, node, &[write.as_bytes(), data]));
        receive(&kernel).1
    };
    let large = make(b"large\0");
    let mut end = 0;
    for length in [1 << 16, 1024] {
        let data = vec![1; length];
        let full = std::iter::repeat_with(|| {
            let error = write(large, end, &data);
            end += length as u64;
            error
        });
        let full = { full }.find(|&error| error != 0);
        assert_eq!(full, Some(-Errno::NOSPC.raw_os_error()));
    }
    send(&kernel, 3, request(Opcode::Unlink, ROOT_NODE, &[b"large\0"]));
    assert_eq!(receive(&kernel).1, 0);

    let directory = MkDirIn { mode: 0o755, umask: 0 };
    send(&kernel, 2, request(Opcode::MkDir, ROOT_NODE, &[directory.as_bytes(), b"new\0"]));
    let release = ReleaseIn { handle: large.1, ..ReleaseIn::new_zeroed() };
    send(&kernel, 4, request(Opcode::Release, large.0, &[release.as_bytes()]));
    send(&kernel, 5, request(Opcode::Forget, large.0, &[&1_u64.to_ne_bytes()]));
    let mut answered =
        [receive(&kernel), receive(&kernel)].map(|(unique, error, _)| (unique, error));
    answered.sort_unstable();
    assert_eq!(answered, [(2, 0), (4, 0)]);
    drop(kernel);
    pool.join();
}

#[test]
fn a_single_thread_serves_requests_in_order() {
    let (server, gate) = server_and_gate();
    let (kernel, device) = pair();
    let threads = NonZeroUsize::MIN;
    let poll = BusyPoll::new(1, None);
    let pool = WorkerPool::start(server, channel(device), threads, poll, |_| ()).unwrap();
    send(&kernel, 1, request(Opcode::Lookup, ROOT_NODE, &[b"waiting-0\0"]));
    send(&kernel, 2, request(Opcode::Read, WAITING[0], &[read_all().as_bytes()]));
    send(&kernel, 3, request(Opcode::StatFs, ROOT_NODE, &[]));
    gate.wait_for(1);
    gate.open();
    for unique in 1..=3 {
        assert_eq!(receive(&kernel).0, unique);
    }
    drop(kernel);
    pool.join();
}

#[test]
fn a_request_that_takes_unexpectedly_long_does_not_delay_others() {
    for (name, node) in [(&b"slow\0"[..], SLOW), (b"locked\0", LOCKED)] {
        let (server, gate) = server_and_gate();
        let (kernel, device) = pair();
        let threads = NonZeroUsize::new(4).unwrap();
        let poll = BusyPoll::default();
        let pool = WorkerPool::start(server, channel(device), threads, poll, |_| ()).unwrap();
        send(&kernel, 1, request(Opcode::Lookup, ROOT_NODE, &[name]));
        assert_eq!(receive(&kernel).0, 1);
        gate.open();
        let read = || request(Opcode::Read, node, &[read_all().as_bytes()]);
        for unique in 2..100 {
            send(&kernel, unique, read());
            assert_eq!(receive(&kernel).0, unique);
        }
        // One after the other, three of the four threads become the leader and wait.
        gate.close();
        for (unique, waiting) in [(201, 1), (202, 2), (203, 3)] {
            send(&kernel, unique, read());
            gate.wait_for(98 + waiting);
            send(&kernel, 100 + unique, request(Opcode::StatFs, ROOT_NODE, &[]));
            assert_eq!(receive(&kernel).0, 100 + unique);
        }
        gate.open();
        let mut answered: Vec<_> = (0..3).map(|_| receive(&kernel).0).collect();
        answered.sort();
        assert_eq!(answered, [201, 202, 203]);
        for unique in 400..500 {
            send(&kernel, unique, read());
            assert_eq!(receive(&kernel).0, unique);
        }
        drop(kernel);
        pool.join();
    }
}

#[test]
fn a_thread_sleeps_until_there_is_room_for_its_answer() {
    const ANSWERS: u64 = 2000;
    let (kernel, device) = pair();
    let channel = channel(device);
    let (sender, id) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        sender.send(rustix::thread::gettid()).unwrap();
        (1..=ANSWERS).for_each(|unique| channel.fail(unique, Errno::NOENT));
    });
    let stat = format!("/proc/self/task/{}/stat", id.recv().unwrap());
    wait_until("the writer sleeps", || {
        // The state follows the name, which is in parentheses.
        let found = std::fs::read_to_string(&stat).unwrap();
        found.rsplit(')').next().unwrap().trim_start().starts_with('S')
    });
    for unique in 1..=ANSWERS {
        assert_eq!(receive(&kernel), (unique, -2, Vec::new()));
    }
    writer.join().unwrap();
}
