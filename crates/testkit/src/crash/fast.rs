//! Volumes with fast commits to be recovered, left by a shutdown of the running kernel's mount.
//! Bifolio's own journal writes no fast commits.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use device::MemoryDevice;
use iomap::{CacheOptions, PageCache};

use super::disks::{Disks, VolumeFormat};
use crate::host::command::run;
use crate::{LoopMount, private_mounts};

/// Mounts `image` with the kernel's ext4, creates files in its root, each durable by a fast commit,
/// and shuts the file system down. Returns the contents of the image.
pub fn leave_fast_commits(image: &Path) -> Vec<u8> {
    private_mounts();
    let mount = LoopMount::new(image, "ext4", "commit=600");
    let path = |name: &str| mount.path().join(name);
    let append = |name: &str, length: usize| {
        let mut file = File::options().append(true).create(true).open(path(name)).unwrap();
        file.write_all(&vec![b'k'; length]).unwrap();
        file.sync_all().unwrap();
    };
    for number in 0..8 {
        append(&format!("kernel{number}"), 1 + number * 700);
    }
    std::fs::rename(path("kernel1"), path("renamed")).unwrap();
    append("renamed", 100);
    std::fs::remove_file(path("kernel2")).unwrap();
    append("kernel3", 3000);
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mount.path()));
    let bytes = std::fs::read(image).unwrap();
    mount.unmount();
    let device = Arc::new(MemoryDevice::new(bytes.clone()));
    let cache = PageCache::new(CacheOptions::default()).unwrap();
    let volume = Disks::new(device, VolumeFormat::Ext4).open_ext4(&cache).unwrap();
    let recovered = volume.recovery().expect("it was not unmounted");
    assert!(recovered.fast_commits > 5, "only {} fast commits", recovered.fast_commits);
    bytes
}
