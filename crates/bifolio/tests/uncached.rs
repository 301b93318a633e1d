//! `-o uncached` and `cp --uncached`: what the kernel and the process that serves keep in memory.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use mounting::other_ways::{open_direct, write_mapped};
use mounting::{Location, bifolio};
use rustix::io::{Errno, ReadWriteFlags};
use testkit::command::{output, run};
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

/// RWF_DONTCACHE.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
const FILE_BYTES: u64 = 64 << 20;
const PART_BYTES: usize = 256 << 10;

/// How many bytes of a file the kernel has in memory.
fn kept_by_kernel(path: &Path) -> u64 {
    let mut command = Command::new("fincore");
    let output = run(command.args(["--bytes", "--noheadings", "--output", "RES"]).arg(path));
    std::str::from_utf8(&output).unwrap().trim().parse().unwrap()
}

/// How much memory of its own a process has now, in bytes.
fn memory_of(process: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

fn part(at: u64) -> Vec<u8> {
    (at..at + PART_BYTES as u64).map(|at| (at / 4096 * 7 + at) as u8).collect()
}

/// Writes a large file to a mount, reads it, and tells what the kernel and the server have then.
fn stream(options: &str) -> (u64, u64) {
    let place = Location::new();
    Mke2fs { size: 128 << 20, ..Mke2fs::new("ext4", 4096) }.make(&place.image, None);
    let mount = place.mount(&["-o", options, "--cache-size", "256M"]);
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
    let kept = (kept_by_kernel(&path), memory_of(mount.server()));
    drop(file);
    // Several who use it at once see one file, mappings of it included.
    let (one, other) = (
        OpenOptions::new().read(true).write(true).open(&path).unwrap(),
        File::open(&path).unwrap(),
    );
    one.write_all_at(b"changed", 5000).unwrap();
    let mut seen = [0; 7];
    other.read_exact_at(&mut seen, 5000).unwrap();
    assert_eq!(&seen, b"changed");
    drop((one, other));
    place.umount();
    mount.assert_gone();
    check_by_e2fsck(&place.image);
    kept
}

#[test]
fn a_mount_keeps_nothing_of_what_streams_through_it() {
    private_mounts();
    let (kernel, server) = stream("rw,uncached");
    assert_eq!(kernel, 0);
    // A window of what is written and one of what is read ahead, and what the program itself takes.
    assert!(server < FILE_BYTES * 3 / 4, "{server} bytes");
    // What there would be without.
    let (kernel, server) = stream("rw");
    assert!(kernel >= FILE_BYTES && server > FILE_BYTES, "{kernel} and {server} bytes");
}

#[test]
fn what_programs_map_of_direct_files_is_written_without_waiting_for_itself() {
    private_mounts();
    for options in ["rw,uncached", "rw"] {
        let place = Location::with_tree();
        let log = place.folder.path().join("log");
        let mount = place.mount(&["-o", options, "--log", log.to_str().unwrap()]);
        let path = mount.path().join("big");
        let file = open_direct(&path);
        // The page is read first, and nobody has forgotten it when it is written.
        write_mapped(&file, 5000, b"stored");
        let mut found = [0; 6];
        File::open(&path).unwrap().read_exact_at(&mut found, 5000).unwrap();
        assert_eq!(&found, b"stored");
        drop(file);
        place.umount();
        mount.assert_gone();
        assert_eq!(fs::read_to_string(log).unwrap_or_default(), "", "{options}");
    }
}

#[test]
fn the_kernel_has_no_dontcache_for_files_of_any_fuse_mount() {
    private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "rw"]);
    let file = OpenOptions::new().read(true).write(true).open(mount.path().join("small")).unwrap();
    let mut buffer = [0; 5];
    let read = rustix::io::preadv2(&file, &mut [IoSliceMut::new(&mut buffer)], 0, DONTCACHE);
    let written = rustix::io::pwritev2(&file, &[IoSlice::new(b"x")], 0, DONTCACHE);
    // From before the server is asked: a kernel that passes it on one day is to be made use of.
    assert_eq!((read, written), (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP)));
    assert_eq!(fs::read(mount.path().join("small")).unwrap(), b"a few bytes\n");
    drop(file);
    place.umount();
    place.mount_fails(&["-o", "rw,writeback,uncached"], 2, "cannot be combined");
}

/// The most memory that any process had which this test has run, in bytes.
fn memory_max_of_children() -> u64 {
    // SAFETY: all zeroes is a valid value, and it is filled in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage
    };
    usage.ru_maxrss as u64 * 1024
}

/// Copies to `to`; the most memory that any copy has taken so far.
fn copy(options: &[&str], from: &Path, to: &Path) -> u64 {
    let name = |path: &Path| path.display().to_string();
    let status = output(bifolio("cp").args(options).args([name(from), name(to)]));
    assert!(status.status.success(), "{}", status.text());
    memory_max_of_children()
}

#[test]
fn copies_keep_nothing_when_they_are_told_to_or_large() {
    let place = Location::new();
    Mke2fs { size: 256 << 20, ..Mke2fs::new("ext4", 4096) }.make(&place.image, None);
    let [large, back] = ["large", "back"].map(|name| place.folder.path().join(name));
    // Not in this process: what starts as a copy of it counts with all that it has.
    let arguments = ["-c", "head -c 96000001 /dev/urandom > \"$0\""];
    run(Command::new("sh").args(arguments).arg(&large));
    let in_image = |name: &str| place.image.display().to_string() + ":/" + name;
    let [one, two] = ["one", "two"].map(in_image);
    let (one, two) = (Path::new(&one), Path::new(&two));
    // What the test's programs have taken so far counts, too: the least first.
    let mut most = copy(&["--uncached", "--cache-size=1G"], &large, one);
    most = most.max(copy(&["--uncached", "--cache-size=1G"], one, &back));
    most = most.max(copy(&["--cache-size=150M"], &large, two));
    most = most.max(copy(&["--cache-size=150M"], two, &back));
    assert!(most < 80 << 20, "{most} bytes");
    run(Command::new("cmp").args([&large, &back]));
    check_by_e2fsck(&place.image);
    let cached = copy(&["--cache-size=1G"], one, &back);
    assert!(cached > 96 << 20, "{cached} bytes");
}
