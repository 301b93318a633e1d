//! The memory of changed metadata before its checkpoint: within the cache's limit, plus a constant.
//! This is a program of its own, since it measures the peak memory of its process.
#![allow(clippy::print_stdout, reason = "the measurement")]

use std::fs;
use std::time::Duration;

use device::OpenDevice;
use iomap::CacheOptions;
use testkit::Mke2fs;
use vfs::{Credentials, Volume, VolumeOptions};

/// The limit of the cache.
const CACHE_BYTES: u64 = 8 << 20;
/// The memory outside the cache: 16,384 inodes of some 1,500 bytes, the tables of the groups, and
/// changed blocks on the heap. Up to 1,024 changed blocks may be in the log whatever the cache's
/// size, and half of the cache is for data.
const CONSTANT_BYTES: u64 = 32 << 20;
const DIRECTORIES: usize = 100_000;

/// Returns the peak memory of this process, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kibibytes << 10
}

#[test]
fn a_hundred_thousand_directories_need_no_more_memory_than_the_cache_and_a_constant() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = "-N 200000 -J size=1024 -E lazy_itable_init=1";
    let made = Mke2fs { size: 4 << 30, ..Mke2fs::new("ext4", 4096).with(options) };
    made.make(&image, None);
    let device = device::open(&image, OpenDevice { read_only: false, ..OpenDevice::default() });
    let options = VolumeOptions {
        writable: true,
        cache: CacheOptions { bytes_max: CACHE_BYTES, ..CacheOptions::default() },
        // So that only the limit of memory makes the volume commit.
        commit_interval: Duration::from_secs(3600),
        ..VolumeOptions::default()
    };
    let volume = Volume::open_device(device.unwrap(), &options).unwrap();
    let before = peak();
    for parent in 0..DIRECTORIES / 1000 {
        volume.mkdir(format!("/{parent}").as_bytes(), 0o755, &Credentials::ROOT).unwrap();
        for index in 1..1000 {
            let path = format!("/{parent}/{index}");
            volume.mkdir(path.as_bytes(), 0o755, &Credentials::ROOT).unwrap();
        }
    }
    let grown = peak() - before;
    println!("the process has grown by {} MiB", grown >> 20);
    volume.close().unwrap();
    assert!(grown <= CACHE_BYTES + CONSTANT_BYTES, "the process has grown by {} MiB", grown >> 20);
    testkit::check_by_e2fsck(&image);
}
