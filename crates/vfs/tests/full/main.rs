//! Full volumes. Every operation is tried with no free clusters (or inodes), then with one, and so on, until it
//! succeeds. So every allocation of the operation fails once. A failed operation must change nothing.
//! The judges are e2fsck, the library's own check, and the tree and the counts from before.

mod facts;
mod operations;
mod shortage;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use base::Error;
use device::MemoryDevice;
use facts::Facts;
use operations::{OPERATIONS, OPERATIONS_ON_VALUES, Operation};
use shortage::{Shortage, with_shortage};
use testkit::check_by_e2fsck;
use vfs::{Volume, VolumeOptions};

/// The maximum number of clusters that any operation needs.
const CLUSTERS_MAX: u64 = 14;
/// The maximum number of inodes that any operation needs.
const INODES_MAX: u64 = 4;

/// A kind of volume.
struct Kind {
    name: &'static str,
    format: &'static str,
    block_size: u32,
    mebibytes: u64,
    arguments: &'static str,
}

const KINDS: [Kind; 9] = [
    Kind::of("ext4", "ext4", "-J size=1"),
    Kind::of("orphan_file", "ext4", "-O orphan_file -J size=1"),
    Kind::of("no_journal", "ext4", "-O ^has_journal"),
    Kind::of("no_checksums", "ext4", "-O ^metadata_csum,uninit_bg -J size=1"),
    Kind::of("inline_data", "ext4", "-O inline_data -J size=1"),
    Kind::of("ea_inode", "ext4", "-O ea_inode -J size=1"),
    Kind {
        block_size: 4096,
        mebibytes: 12,
        ..Kind::of("bigalloc", "ext4", "-O bigalloc -C 16384 -J size=4")
    },
    Kind::of("ext3", "ext3", "-J size=1"),
    Kind::of("ext2", "ext2", ""),
];

impl Kind {
    const fn of(name: &'static str, format: &'static str, arguments: &'static str) -> Self {
        Self { name, format, block_size: 1024, mebibytes: 4, arguments }
    }
}

fn open_with(device: Arc<MemoryDevice>, writable: bool) -> Volume {
    let mut options = VolumeOptions { writable, ..VolumeOptions::default() };
    options.cache.bytes_max = 8 << 20;
    Volume::open_device(device, &options).unwrap()
}

fn open(image: &[u8]) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(image.to_vec()));
    (device.clone(), open_with(device, true))
}

/// Makes a volume durable, and returns the facts on its device.
fn facts(device: &MemoryDevice, volume: &Volume, place: &str) -> Facts {
    volume.sync().unwrap_or_else(|error| panic!("{place}: {error}"));
    let durable = open_with(Arc::new(MemoryDevice::new(device.snapshot())), false);
    Facts::of(&durable, place)
}

fn close(device: &MemoryDevice, volume: Volume, folder: &Path, place: &str) {
    volume.close().unwrap_or_else(|error| panic!("{place}: {error}"));
    drop(volume);
    let image = folder.join("closed");
    std::fs::write(&image, device.snapshot()).unwrap();
    check_by_e2fsck(&image);
}

/// Tries the operations on a volume. Returns the names of those that have succeeded.
fn try_all(
    image: &[u8],
    operations: &[&'static Operation],
    folder: &Path,
    place: &str,
) -> BTreeSet<&'static str> {
    let mut done = BTreeSet::new();
    let (mut device, mut volume) = open(image);
    let mut before = facts(&device, &volume, place);
    for operation in operations {
        let place = format!("{place}, {}", operation.name);
        match (operation.run)(&volume) {
            Err(Error::NoSpace) => {
                if operation.may_touch {
                    // Data without blocks is lost. The next sync reports this once.
                    let _ = volume.sync();
                }
                let after = facts(&device, &volume, &place);
                before.assert_same(&after, operation.may_touch, &place);
                before = after;
            }
            Ok(()) => {
                facts(&device, &volume, &place);
                done.insert(operation.name);
                // Drops the volume without closing it, as in a crash.
                (device, volume) = open(image);
                before = facts(&device, &volume, &place);
            }
            Err(Error::Unsupported(_)) => {
                // More space makes no difference.
                done.insert(operation.name);
            }
            Err(error) => panic!("{place}: {error}"),
        }
    }
    close(&device, volume, folder, place);
    done
}

fn fail_everywhere(kind: &Kind) {
    let folder = tempfile::tempdir().unwrap();
    for shortage in [Shortage::Clusters, Shortage::Inodes] {
        let full = shortage::full(kind, shortage, folder.path());
        let mut left: Vec<&Operation> = OPERATIONS.iter().collect();
        if kind.arguments.contains("ea_inode") {
            left.extend(OPERATIONS_ON_VALUES);
        }
        let free_max = match shortage {
            Shortage::Clusters => CLUSTERS_MAX,
            Shortage::Inodes => INODES_MAX,
        };
        for free in 0..=free_max {
            let image = with_shortage(&full, shortage, free);
            let place = format!("{}: {free} free {shortage:?}", kind.name);
            let done = try_all(&image, &left, folder.path(), &place);
            if free == 0 {
                // Otherwise the volume is not full, and the test is void.
                let failed = left.len() - done.len();
                let failed_min = if shortage == Shortage::Clusters { 8 } else { 4 };
                assert!(failed >= failed_min, "{place}: only {failed} operations fail: {done:?}");
            }
            left.retain(|operation| !done.contains(operation.name));
        }
        let left: Vec<&str> = left.iter().map(|operation| operation.name).collect();
        assert!(left.is_empty(), "{}: {left:?} fail with enough {shortage:?}", kind.name);
    }
}

macro_rules! kinds {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            fail_everywhere(KINDS.iter().find(|kind| kind.name == $name).unwrap());
        })*
    };
}

kinds! {
    an_operation_without_space_changes_nothing_on_ext4: "ext4",
    an_operation_without_space_changes_nothing_with_an_orphan_file: "orphan_file",
    an_operation_without_space_changes_nothing_without_a_journal: "no_journal",
    an_operation_without_space_changes_nothing_without_checksums: "no_checksums",
    an_operation_without_space_changes_nothing_with_inline_data: "inline_data",
    an_operation_without_space_changes_nothing_with_attribute_inodes: "ea_inode",
    an_operation_without_space_changes_nothing_with_clusters: "bigalloc",
    an_operation_without_space_changes_nothing_on_ext3: "ext3",
    an_operation_without_space_changes_nothing_on_ext2: "ext2",
}
