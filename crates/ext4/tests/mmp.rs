//! Multiple-mount protection, with the kernel and e2fsck on the other side.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{DeviceOffset, Error};
use common::{Image, number_after, open_device_for_writing, open_for_writing, run};
use device::{BlockDevice, MemoryDevice, SharedDevice};
use ext4::Volume;
use testkit::{LoopMount, private_mounts};

fn image() -> Image {
    Image::make(16, &["-t", "ext4", "-b", "1024", "-O", "mmp", "-E", "mmp_update_interval=1"])
}

/// What debugfs says of the block's number.
fn sequence(image: &Image) -> String {
    let text = image.debugfs("dump_mmp");
    let line = text.lines().find(|line| line.contains("sequence")).unwrap_or(&text);
    line.rsplit(' ').next().unwrap().to_string()
}

#[test]
fn the_block_is_what_others_expect() {
    let image = image();
    let before = sequence(&image);
    let volume = open_for_writing(&image);
    let first = sequence(&image);
    assert_ne!(first, before);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while sequence(&image) == first {
        assert!(std::time::Instant::now() < deadline, "nobody counts");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(image.debugfs("dump_mmp").contains("bifolio"));
    // Reading is not refused, nor waited for.
    drop(common::open(image.bytes()).unwrap());
    volume.close().unwrap();
    drop(volume);
    assert_eq!(sequence(&image), before);
    image.check_by_e2fsck();
    // It takes the protection itself, to write.
    run(Command::new("e2fsck").arg("-fp").arg(&image.path));
}

#[test]
fn the_kernel_does_not_mount_what_we_write() {
    private_mounts();
    let image = image();
    let volume = open_for_writing(&image);
    let folder = tempfile::tempdir().unwrap();
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "ext4", "-o", options]).arg(&image.path).arg(folder.path());
        command.output().unwrap()
    };
    let refused = mount("loop");
    assert!(!refused.status.success(), "it is mounted");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("busy") || text.contains("already mounted"), "{text}");
    volume.close().unwrap();
    drop(volume);
    drop(LoopMount::new(&image.path, "ext4", "rw"));
}

/// The device as another host would see it: what the kernel writes into the block comes there too.
fn seen_from_elsewhere(image: &Image, stop: &Arc<AtomicBool>) -> SharedDevice {
    let block = number_after(&image.dumpe2fs(&["-h"]), "MMP block number:").unwrap();
    let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
    let (theirs, path, stop) = (Arc::clone(&device), image.path.clone(), Arc::clone(stop));
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let bytes = std::fs::read(&path).unwrap();
            let at = block as usize * 1024;
            let device: &dyn BlockDevice = &*theirs;
            device.write_at(DeviceOffset(at as u64), &bytes[at..at + 1024]).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    device
}

#[test]
fn what_the_kernel_has_mounted_is_refused_by_name() {
    private_mounts();
    let image = image();
    let mount = LoopMount::new(&image.path, "ext4", "rw");
    let stop = Arc::new(AtomicBool::new(false));
    let device = seen_from_elsewhere(&image, &stop);
    let refused = open_device_for_writing(device).map(|_: Arc<Volume>| ());
    stop.store(true, Ordering::Relaxed);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    match refused {
        Err(Error::InUse { by }) => assert!(by.contains(host.trim()), "{by}"),
        other => panic!("{other:?}"),
    }
    mount.unmount();
    let volume = open_for_writing(&image);
    volume.close().unwrap();
}
