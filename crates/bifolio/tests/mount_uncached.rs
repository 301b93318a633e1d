//! `-o uncached` and `cp --uncached`: memory that the kernel and the server use for file data.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use mounting::direct_and_mapped::{open_direct, write_mapped};
use mounting::{Fixture, bifolio};
use rustix::io::{Errno, ReadWriteFlags};
use testkit::command::{output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

/// RWF_DONTCACHE.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
const FILE_BYTES: u64 = 64 << 20;
const PART_BYTES: usize = 256 << 10;

/// Returns the number of bytes of a file in the cache of the kernel.
fn cached_by_kernel(path: &Path) -> u64 {
    let mut command = Command::new("fincore");
    let output = run(command.args(["--bytes", "--noheadings", "--output", "RES"]).arg(path));
    std::str::from_utf8(&output).unwrap().trim().parse().unwrap()
}

/// Returns the anonymous memory of a process, in bytes.
fn memory_of(process: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

fn part(at: u64) -> Vec<u8> {
    (at..at + PART_BYTES as u64).map(|at| (at / 4096 * 7 + at) as u8).collect()
}

/// Writes and reads a large file on a mount. Returns the cached bytes of the kernel, and the memory
/// of the server.
fn stream(options: &str) -> (u64, u64) {
    let fixture = Fixture::new();
    Mke2fs { size: 128 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    let mount = fixture.mount(&["-o", options, "--cache-size", "256M"]);
    let path = mount.path().join("large");
    let file = File::create(&path).unwrap();
    for at in (0..FILE_BYTES).step_by(PART_BYTES) {
        file.write_all_at(&part(at), at).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let (file, mut buffer) = (File::open(&path).unwrap(), vec![0; PART_BYTES]);
    for at in (0..FILE_BYTES).step_by(PART_BYTES) {
        file.read_exact_at(&mut buffer, at).unwrap();
        assert!(buffer == part(at), "at {at}");
    }
    let used = (cached_by_kernel(&path), memory_of(mount.server()));
    drop(file);
    // Several open files see the same contents.
    let (one, other) = (
        OpenOptions::new().read(true).write(true).open(&path).unwrap(),
        File::open(&path).unwrap(),
    );
    one.write_all_at(b"changed", 5000).unwrap();
    let mut seen = [0; 7];
    other.read_exact_at(&mut seen, 5000).unwrap();
    assert_eq!(&seen, b"changed");
    drop((one, other));
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
    used
}

#[test]
fn an_uncached_mount_does_not_keep_streamed_data_in_memory() {
    private_mounts();
    let (kernel, server) = stream("rw,uncached");
    assert_eq!(kernel, 0);
    // The memory of the write-behind limit, of a readahead window and of the program.
    assert!(server < FILE_BYTES * 3 / 4, "{server} bytes");
    // Without the option, all data is cached, but for pages that a busy host's kernel evicts early.
    let (kernel, server) = stream("rw");
    assert!(kernel > FILE_BYTES / 2 && server > FILE_BYTES, "{kernel} and {server} bytes");
}

#[test]
fn writeback_of_a_mapped_direct_file_does_not_deadlock() {
    private_mounts();
    for options in ["rw,uncached", "rw"] {
        let fixture = Fixture::with_tree();
        let log = fixture.folder.path().join("log");
        let mount = fixture.mount(&["-o", options, "--log", log.to_str().unwrap()]);
        let path = mount.path().join("big");
        let file = open_direct(&path);
        // The page is read first, and is still cached when it is written.
        write_mapped(&file, 5000, b"stored");
        let mut found = [0; 6];
        File::open(&path).unwrap().read_exact_at(&mut found, 5000).unwrap();
        assert_eq!(&found, b"stored");
        drop(file);
        fixture.umount();
        mount.assert_gone();
        assert_eq!(fs::read_to_string(log).unwrap_or_default(), "", "{options}");
    }
}

#[test]
fn the_kernel_does_not_support_dontcache_on_fuse_mounts() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let file = OpenOptions::new().read(true).write(true).open(mount.path().join("small")).unwrap();
    let mut buffer = [0; 5];
    let read = rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut buffer)], 0, DONTCACHE);
    let written = rustix::io::pwritev2(&file, &[IoSlice::new(b"x")], 0, DONTCACHE);
    // The kernel refuses this itself. If a later kernel forwards the flag, the server should
    // support it.
    assert_eq!((read, written), (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP)));
    assert_eq!(fs::read(mount.path().join("small")).unwrap(), b"a few bytes\n");
    drop(file);
    fixture.umount();
    fixture.mount_fails(&["-o", "rw,writeback,uncached"], 2, "cannot be combined");
}

/// Returns the maximum memory of all child processes of this test, in bytes.
fn memory_max_of_children() -> u64 {
    // SAFETY: all zeroes is a valid value, and it is filled in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage
    };
    usage.ru_maxrss as u64 * 1024
}

/// Copies a file. Returns the maximum memory of all copies so far.
fn copy(options: &[&str], from: &Path, to: &Path) -> u64 {
    let name = |path: &Path| path.display().to_string();
    let status = output(bifolio("cp").args(options).args([name(from), name(to)]));
    assert!(status.status.success(), "{}", status.text());
    memory_max_of_children()
}

#[test]
fn uncached_and_large_copies_do_not_keep_data_in_memory() {
    let fixture = Fixture::new();
    Mke2fs { size: 256 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    let [large, back] = ["large", "back"].map(|name| fixture.folder.path().join(name));
    // Not in this process, because a forked child counts with the memory of its parent.
    let arguments = ["-c", "head -c 96000001 /dev/urandom > \"$0\""];
    run(Command::new("sh").args(arguments).arg(&large));
    let in_image = |name: &str| fixture.image.display().to_string() + ":/" + name;
    let [one, two] = ["one", "two"].map(in_image);
    let (one, two) = (Path::new(&one), Path::new(&two));
    // The maximum includes earlier programs, so the smallest limit is checked first.
    let mut most = copy(&["--uncached", "--cache-size=1G"], &large, one);
    most = most.max(copy(&["--uncached", "--cache-size=1G"], one, &back));
    most = most.max(copy(&["--cache-size=150M"], &large, two));
    most = most.max(copy(&["--cache-size=150M"], two, &back));
    assert!(most < 80 << 20, "{most} bytes");
    run(Command::new("cmp").args([&large, &back]));
    check_by_e2fsck(&fixture.image);
    let cached = copy(&["--cache-size=1G"], one, &back);
    assert!(cached > 96 << 20, "{cached} bytes");
}
