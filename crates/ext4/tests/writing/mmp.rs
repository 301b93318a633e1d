//! Tests of multiple-mount protection against the kernel and e2fsck.

use crate::common;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Image, number_after, open_device_for_writing, open_for_writing, run};
use base::{DeviceOffset, Error};
use device::{BlockDevice, MemoryDevice, SharedDevice};
use ext4::Volume;
use testkit::{LoopMount, private_mounts};

fn image() -> Image {
    Image::make(16, &["-t", "ext4", "-b", "1024", "-O", "mmp", "-E", "mmp_update_interval=1"])
}

/// Returns the sequence number of the block, according to debugfs.
fn sequence(image: &Image) -> String {
    let text = image.debugfs("dump_mmp");
    let line = text.lines().find(|line| line.contains("sequence")).unwrap_or(&text);
    line.rsplit(' ').next().unwrap().to_string()
}

#[test]
fn debugfs_and_e2fsck_understand_the_block() {
    let image = image();
    let before = sequence(&image);
    let volume = open_for_writing(&image);
    let first = sequence(&image);
    assert_ne!(first, before);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while sequence(&image) == first {
        assert!(std::time::Instant::now() < deadline, "the sequence number does not advance");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(image.debugfs("dump_mmp").contains("bifolio"));
    // Reading is neither refused nor delayed.
    drop(common::open(image.bytes()).unwrap());
    volume.close().unwrap();
    drop(volume);
    assert_eq!(sequence(&image), before);
    image.check_by_e2fsck();
    // With -p, e2fsck claims the volume itself.
    run(Command::new("e2fsck").arg("-fp").arg(&image.path));
}

#[test]
fn the_kernel_does_not_mount_a_volume_that_is_open_for_writing() {
    private_mounts();
    let image = image();
    let volume = open_for_writing(&image);
    let folder = tempfile::tempdir().unwrap();
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        // Without `--rw`, a loop device that was left write-protected would be mounted read-only.
        command.args(["--rw", "-t", "ext4", "-o", options]).arg(&image.path).arg(folder.path());
        command.output().unwrap()
    };
    let refused = mount("loop");
    assert!(!refused.status.success(), "the mount succeeded");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("busy") || text.contains("already mounted"), "{text}");
    volume.close().unwrap();
    drop(volume);
    drop(LoopMount::new(&image.path, "ext4", "rw"));
}

/// Returns a copy of the image as a device, as another host would see it: a thread copies the block
/// whenever the kernel has written it.
fn device_of_another_host(image: &Image, stop: &Arc<AtomicBool>) -> SharedDevice {
    let block = number_after(&image.dumpe2fs(&["-h"]), "MMP block number:").unwrap();
    let device: SharedDevice = Arc::new(MemoryDevice::new(image.bytes()));
    let copy = Arc::clone(&device);
    let path = image.path.clone();
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let bytes = std::fs::read(&path).unwrap();
            let at = block as usize * 1024;
            let device: &dyn BlockDevice = &*copy;
            device.write_at(DeviceOffset(at as u64), &bytes[at..at + 1024]).unwrap();
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    device
}

#[test]
fn opening_a_volume_that_the_kernel_has_mounted_fails_and_names_the_host() {
    private_mounts();
    let image = image();
    let mount = LoopMount::new(&image.path, "ext4", "rw");
    let stop = Arc::new(AtomicBool::new(false));
    let device = device_of_another_host(&image, &stop);
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
