//! f2fs volumes on which one writer after another is cut off: a recovery finds what the last one has synced, and nothing of
//! those before that they could not recover themselves.

mod common;

use std::sync::Arc;

use common::{file, make, open_on};
use device::MemoryDevice;
use iomap::DirectOptions;
use tempfile::TempDir;
use testkit::f2fs::Kind;
use vfs::Volume;

const BLOCK: usize = 4096;
/// Words of a node's footer, from the end of the block, and the mark of synced nodes in the flags.
const INODE_AT: usize = BLOCK - 20;
const FLAGS_AT: usize = BLOCK - 16;
const SYNCED: u32 = 2;
/// A block of a file whose address is in a node of its own, and the number of those that are written.
const FAR: u64 = 950;
const COUNT: usize = 20;

fn open(image: Vec<u8>) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(image));
    let volume = open_on(Arc::clone(&device) as _, DirectOptions::default());
    (device, volume)
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

#[test]
fn nodes_of_an_earlier_writer_do_not_join_the_chain_of_a_later_one() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    Kind::named("plain").make(&image, 64);
    let (device, volume) = open(std::fs::read(&image).unwrap());
    let at = FAR * BLOCK as u64;
    for (name, value) in [("first", 1), ("second", 2)] {
        make(&volume, name).write_at(&vec![value; COUNT * BLOCK], at).unwrap();
    }
    volume.close().unwrap();
    let closed = device.snapshot();

    // A writer is cut off in its first sync: the last of its nodes has got to the device, and the one before has not.
    let (device, volume) = open(closed.clone());
    let first = file(&volume, "first");
    let number = first.node().number().0 as u32;
    first.write_at(&[9; 5], 0).unwrap();
    volume.sync().unwrap();
    let before = device.snapshot();
    first.write_at(&vec![3; COUNT * BLOCK], at + (COUNT * BLOCK) as u64).unwrap();
    first.sync_all().unwrap();
    let mut cut = device.snapshot();
    let changed: Vec<usize> = (0..cut.len() / BLOCK)
        .map(|block| block * BLOCK)
        .filter(|&at| cut[at..at + BLOCK] != before[at..at + BLOCK])
        .filter(|&at| word(&cut[at..], INODE_AT) == number)
        .collect();
    let is_synced = |at: &usize| word(&cut[*at..], FLAGS_AT) & SYNCED != 0;
    let (last, others): (Vec<usize>, Vec<usize>) = changed.iter().partition(|at| is_synced(at));
    assert_eq!((last.len(), others.len()), (1, 1), "{changed:?}");
    cut[others[0]..others[0] + BLOCK].copy_from_slice(&before[others[0]..others[0] + BLOCK]);
    drop((first, volume));

    // The next one finds nothing of that. It is cut off, too.
    let (device, volume) = open(cut);
    let first = file(&volume, "first");
    let size = first.node().attributes().size;
    assert_eq!(size, at + (COUNT * BLOCK) as u64);
    let second = file(&volume, "second");
    second.write_at(&[7; 6], 0).unwrap();
    second.sync_all().unwrap();
    let cut = device.snapshot();
    drop((first, second, volume));

    let (_, volume) = open(cut);
    let first = file(&volume, "first");
    assert_eq!(first.node().attributes().size, size, "what the first writer has not synced");
    let mut found = vec![0; COUNT * BLOCK];
    assert_eq!(first.read_at(&mut found, at), Ok(found.len()));
    assert!(found.iter().all(|byte| *byte == 1));
    let mut found = [0; 6];
    assert_eq!(file(&volume, "second").read_at(&mut found, 0), Ok(6));
    assert_eq!(found, [7; 6]);
    volume.close().unwrap();
}
