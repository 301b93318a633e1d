//! Direct I/O on ext4 volumes: beside a model and at random, with others at the same bytes, and with a
//! device that waits, judged by e2fsck.

mod calls;
mod model;
mod order;
mod races;

use std::path::Path;
use std::process::Command;

use base::FileOffset;
use base::attributes::FileType;
use device::{OpenDevice, SharedDevice};
use iomap::{CacheOptions, DirectOptions};
use testkit::Mke2fs;
use vfs::{
    Creation, Credentials, Fallocate, File, OpenMode, Privileges, Volume, VolumeOptions, WriteAt,
    WriteSync,
};

const WRITE: OpenMode = OpenMode { write: true, append: false };
/// The largest file.
const SIZE_MAX: u64 = 4 << 20;
/// What the device is full of before: no data of a file.
const STALE: u8 = 0xFE;

fn device(image: &Path) -> SharedDevice {
    device::open(image, OpenDevice { read_only: false, ..OpenDevice::default() }).unwrap()
}

fn open(image: &Path, direct: DirectOptions) -> Volume {
    open_on(device(image), direct)
}

fn open_on(device: SharedDevice, direct: DirectOptions) -> Volume {
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let options = VolumeOptions { writable: true, cache, direct, ..VolumeOptions::default() };
    Volume::open(device, &options).unwrap()
}

/// A volume on a device full of old data.
fn make(image: &Path, block_size: u32, arguments: &str) {
    let size = 96 << 20;
    std::fs::write(image, vec![STALE; size]).unwrap();
    let kind = Mke2fs { size: size as u64, ..Mke2fs::new("ext4", block_size) };
    kind.with("-E nodiscard").with(arguments).make(image, None);
}

fn create(volume: &Volume, name: &str) -> File {
    let creation = Creation::of(FileType::Regular, 0o644);
    let root = volume.root().unwrap();
    let node = volume.create(&root, name.as_bytes(), &creation, &Credentials::ROOT).unwrap();
    node.open_for(WRITE).unwrap()
}

fn reopen(volume: &Volume, name: &str) -> File {
    let root = volume.root().unwrap();
    volume.lookup(&root, name.as_bytes()).unwrap().open_for(WRITE).unwrap()
}

fn close(volume: Volume, image: &Path) {
    volume.close().unwrap();
    drop(volume);
    testkit::command::run(Command::new("e2fsck").arg("-fn").arg(image));
}

fn write_direct(file: &File, at: u64, data: &[u8]) -> base::Result<usize> {
    file.write_direct(WriteAt::Offset(FileOffset(at)), data, Privileges::Keep, WriteSync::None)
}

fn allocate(file: &File, size: u64) {
    let mode = Fallocate::Allocate { keep_size: false };
    file.fallocate(mode, FileOffset(0)..FileOffset(size), Privileges::Keep).unwrap();
}
