//! Single faults of ext4 images, and what a change may not lose.

use std::sync::Arc;

use base::attributes::FileType;
use base::{DeviceOffset, Error};
use device::SharedDevice;
use testkit::hostile::{Damageable, Specimen, fields::Structure, tiny, tiny_kinds, written};
use vfs::{Creation, Credentials, Follow, OpenMode, Volume, VolumeOptions};

const BY: &Credentials = &Credentials::ROOT;

fn specimen(name: &str) -> Specimen {
    (0..tiny_kinds()).map(tiny).find(|one| one.name() == name).expect("a kind")
}

fn open(device: &SharedDevice) -> Volume {
    let mut options = VolumeOptions::new();
    options.writable(true).cache_bytes_max(8 << 20);
    Volume::open_device(Arc::clone(device), &options).unwrap()
}

/// Names behind a wrong size would be lost with their directory.
#[test]
fn a_directory_with_a_wrong_size_is_not_removed() {
    let specimen = specimen("ext2");
    let device = written::over(&Arc::new(specimen.bytes().to_vec()));
    let directory = open(&device).resolve(b"/many", Follow::No).unwrap().number();
    let is_its_inode = |place: &&testkit::hostile::Place| {
        place.structure == Structure::Inode && u64::from(place.inode) == directory.0
    };
    let place = specimen.places().iter().find(is_its_inode).unwrap();
    // No entry besides "." and ".." is in the first bytes, or in the first block, which has the
    // index.
    for size in [26_u32, 1024] {
        let mut bytes = specimen.bytes().to_vec();
        bytes[place.at + 4..][..4].copy_from_slice(&size.to_le_bytes());
        let volume = open(&written::over(&Arc::new(bytes)));
        let root = volume.root().unwrap();
        let removed = volume.rmdir(&root, b"many", BY);
        assert!(matches!(removed, Err(Error::Corrupt(_))), "{size}: {removed:?}");
    }
}

/// The flusher has files that it is writing back while they are deleted.
#[test]
fn files_that_are_deleted_during_writeback_are_not_orphans_after_close() {
    const ROUNDS: usize = 40;
    const LAST_ORPHAN: DeviceOffset = DeviceOffset(1024 + 0xE8);
    let image = Arc::new(specimen("ext3").bytes().to_vec());
    for round in 0..ROUNDS {
        let device = written::over(&image);
        let volume = open(&device);
        let root = volume.root().unwrap();
        for name in [b"one", b"two"] {
            let node = volume.create_in(&root, name, &Creation::of(FileType::Regular, 0o600), BY);
            let file = node.unwrap().open_for(OpenMode { write: true, append: false }).unwrap();
            // More than the share of the cache from which on the flusher writes.
            file.write_all_at(&vec![1; 900 << 10], 0).unwrap();
        }
        volume.unlink(&root, b"one", BY).unwrap();
        volume.unlink(&root, b"two", BY).unwrap();
        drop(root);
        volume.close().unwrap();
        let mut orphan = [0; 4];
        device.read_at(LAST_ORPHAN, &mut orphan).unwrap();
        assert_eq!(u32::from_le_bytes(orphan), 0, "round {round}");
    }
}
