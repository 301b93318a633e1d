//! Checkpoints of nearly full volumes, whose logs begin segments that they use little of. What was
//! accepted always fits.

use std::sync::Arc;

use base::attributes::AttributeChange;
use device::MemoryDevice;
use testkit::Random;
use testkit::f2fs::offer_all_segments_but;
use vfs::{Follow, Volume};

use crate::model::{BLOCK, Model, ROOT, check, close, image, open};

/// Three segments of inodes of files, less a few for other nodes.
const FILES: usize = 1490;
const DIRECTORIES: usize = 200;
/// The number of blocks whose old versions are taken, between one volume and the next.
const STEP: usize = 192;

fn file(number: usize) -> String {
    format!("/{number}")
}

fn directory(number: usize) -> String {
    format!("/d{number}")
}

/// Returns a volume without free blocks for users, but some for a directory, and the model of a
/// large file.
fn full() -> (Vec<u8>, Model) {
    let mut image = image(64);
    offer_all_segments_but(&mut image, 8);
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open(&device);
    for number in 0..FILES {
        volume.create_file(file(number).as_bytes(), 0o644, ROOT).unwrap();
    }
    for number in 0..DIRECTORIES {
        volume.mkdir(directory(number).as_bytes(), 0o755, ROOT).unwrap();
    }
    let blocks = volume.statfs().blocks_free as usize - 64;
    let mut kept = Model { path: "/kept".into(), versions: Vec::new() };
    assert!(!kept.fill(&volume, blocks));
    volume.close().unwrap();
    drop(volume);
    (device.snapshot(), kept)
}

fn set_permissions(volume: &Volume, path: &str, permissions: u16) {
    let node = volume.resolve(path.as_bytes(), Follow::No).unwrap();
    let change = AttributeChange { permissions: Some(permissions), ..Default::default() };
    node.set_attributes(&change, ROOT).unwrap();
}

/// Overwrites `blocks` blocks of the large file, and then changes a directory and the inodes of
/// many files.
fn change_many_nodes(image: Vec<u8>, mut kept: Model, blocks: usize) {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open(&device);
    // The first change writes a checkpoint, and later ones need none.
    set_permissions(&volume, &file(0), 0o600);
    let node = volume.resolve(kept.path.as_bytes(), Follow::No).unwrap();
    let mut random = Random(blocks as u64);
    let mut first = kept.clone();
    first.versions.truncate(blocks);
    first.overwrite_all(&volume);
    assert_eq!(node.sync(false), Ok(()), "{blocks} blocks");
    kept.versions[..blocks].copy_from_slice(&first.versions);
    volume.create_file(b"/new", 0o644, ROOT).unwrap();
    for number in 0..FILES {
        set_permissions(&volume, &file(number), 0o600);
        if random.below(8) == 0 {
            set_permissions(&volume, &directory(number % DIRECTORIES), 0o700);
        }
    }
    assert_eq!(volume.sync(), Ok(()), "{blocks} blocks");
    check(&volume, &[vec![kept]], "changed");
    close(&device, volume);
    let volume = open(&device);
    for number in 0..FILES {
        let node = volume.resolve(file(number).as_bytes(), Follow::No).unwrap();
        assert_eq!(node.attributes().permissions, 0o600, "{blocks} blocks: file {number}");
    }
}

#[test]
fn changed_nodes_fit_whatever_number_of_old_blocks_is_taken() {
    let (image, kept) = full();
    assert!(kept.versions.len() > 4000, "{} blocks of {BLOCK}", kept.versions.len());
    for blocks in (1536..2880).step_by(STEP) {
        change_many_nodes(image.clone(), kept.clone(), blocks);
    }
}
