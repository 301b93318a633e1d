//! Full volumes. Every operation is tried with no free clusters (or inodes), then with one, and so
//! on, until it succeeds. So every allocation of the operation fails once. A failed operation must
//! change nothing, and what removes something never fails. The judges are e2fsck or fsck.f2fs
//! (which cannot read blocks of 16 KiB), the library's own check, and the tree and the counts from
//! before, also after the volume is opened again.

mod facts;
mod filling;
mod operations;
mod shortage;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{BlockSize, DeviceOffset, Error};
use device::{MemoryDevice, OverlayDevice, SharedDevice};
use facts::Facts;
use operations::{OPERATIONS, OPERATIONS_ON_VALUES, Operation, REFUSED_WITH_BLOCK_MAPS, REMOVALS};
use shortage::{Shortage, with_shortage};
use testkit::{check_by_e2fsck, f2fs};
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
    /// Arguments for mke2fs, or the name of a kind of f2fs image. mkfs.f2fs makes none with blocks
    /// of 16 KiB.
    arguments: &'static str,
    /// The names of the operations that the kind does not offer.
    refused: &'static [&'static str],
}

const KINDS: [Kind; 12] = [
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
    Kind { refused: REFUSED_WITH_BLOCK_MAPS, ..Kind::of("ext3", "ext3", "-J size=1") },
    Kind { refused: REFUSED_WITH_BLOCK_MAPS, ..Kind::of("ext2", "ext2", "") },
    Kind::f2fs("f2fs", "plain"),
    Kind::f2fs("f2fs_attributes", "attributes"),
    Kind { block_size: 16384, mebibytes: 192, ..Kind::f2fs("f2fs_16k", "") },
];

impl Kind {
    const fn of(name: &'static str, format: &'static str, arguments: &'static str) -> Self {
        Self { name, format, block_size: 1024, mebibytes: 4, arguments, refused: &[] }
    }

    /// Returns a kind of the smallest volume that mkfs.f2fs makes.
    const fn f2fs(name: &'static str, kind: &'static str) -> Self {
        Self { block_size: 4096, mebibytes: 52, ..Self::of(name, "f2fs", kind) }
    }

    /// Checks an image: by the format's own program, or if it cannot read the image, by the
    /// library.
    fn check(&self, image: &Arc<Vec<u8>>) {
        if self.is_f2fs() && self.block_size > f2fs::BLOCK_SIZE {
            let device = Arc::new(MemoryDevice::shared(Arc::clone(image)));
            return assert_eq!(f2fs::findings(device), [""; 0]);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("closed");
        std::fs::write(&path, &**image).unwrap();
        match self.is_f2fs() {
            true => f2fs::check_by_both(&path),
            false => check_by_e2fsck(&path),
        }
    }

    fn is_f2fs(&self) -> bool {
        self.format == "f2fs"
    }

    /// Returns what can be short. Inodes of f2fs take blocks, and their numbers are never short on
    /// a full volume.
    fn shortages(&self) -> &'static [Shortage] {
        if self.is_f2fs() { &[Shortage::Clusters] } else { &[Shortage::Clusters, Shortage::Inodes] }
    }
}

/// The most memory for what a test writes to a volume.
const WRITTEN_BYTES_MAX: u64 = 128 << 20;

fn open_with(device: SharedDevice, writable: bool) -> Volume {
    let mut options = VolumeOptions { writable, ..VolumeOptions::default() };
    options.cache.bytes_max = 8 << 20;
    Volume::open_device(device, &options).unwrap()
}

/// Opens a volume for writing. What is written does not change `image`.
fn open(image: &Arc<Vec<u8>>) -> (SharedDevice, Volume) {
    let base = Arc::new(MemoryDevice::shared(Arc::clone(image)));
    let block_size = BlockSize::from_shift(10).unwrap();
    let device = Arc::new(OverlayDevice::new(base, block_size, WRITTEN_BYTES_MAX));
    (device.clone(), open_with(device, true))
}

/// Returns the contents of a device.
fn contents(device: &SharedDevice) -> Arc<Vec<u8>> {
    let mut contents = vec![0; device.size() as usize];
    device.read_at(DeviceOffset(0), &mut contents).unwrap();
    Arc::new(contents)
}

/// Makes a volume durable, and returns the facts on its device.
fn facts(kind: &Kind, device: &SharedDevice, volume: &Volume, place: &str) -> Facts {
    volume.sync().unwrap_or_else(|error| panic!("{place}: {error}"));
    let durable = match kind.is_f2fs() {
        // A checkpoint stays as it is until the second one after it. No copy, since the volume is
        // large.
        true => Arc::clone(device),
        false => Arc::new(MemoryDevice::shared(contents(device))),
    };
    Facts::of(&open_with(durable, false), place)
}

/// Closes a volume with the facts `before`, and has it checked.
fn close(kind: &Kind, device: &SharedDevice, volume: Volume, before: &Facts, place: &str) {
    volume.close().unwrap_or_else(|error| panic!("{place}: {error}"));
    drop(volume);
    let closed = contents(device);
    kind.check(&closed);
    let (_, reopened) = open(&closed);
    // An operation that the volume does not support may have changed the time of its file.
    before.assert_same(&Facts::of(&reopened, place), true, place);
}

/// Tries the operations on a volume. Returns the names of those that have succeeded.
fn try_all(
    kind: &Kind,
    image: &Arc<Vec<u8>>,
    operations: &[&'static Operation],
    place: &str,
) -> BTreeSet<&'static str> {
    let mut done = BTreeSet::new();
    let (mut device, mut volume) = open(image);
    let mut before = facts(kind, &device, &volume, place);
    for operation in operations {
        let place = format!("{place}, {}", operation.name);
        let result = (operation.run)(&volume);
        let is_refused = matches!(result, Err(Error::Unsupported(_)));
        assert_eq!(is_refused, kind.refused.contains(&operation.name), "{place}: {result:?}");
        match result {
            Err(Error::NoSpace | Error::NoInodes) => {
                if operation.may_touch {
                    // Data without blocks is lost. The next sync reports this once.
                    let _ = volume.sync();
                }
                let after = facts(kind, &device, &volume, &place);
                before.assert_same(&after, operation.may_touch, &place);
                before = after;
            }
            Ok(()) => {
                facts(kind, &device, &volume, &place);
                done.insert(operation.name);
                // Drops the volume without closing it, as in a crash.
                (device, volume) = open(image);
                before = facts(kind, &device, &volume, &place);
            }
            Err(_) if is_refused => {
                // More space makes no difference.
                done.insert(operation.name);
            }
            Err(error) => panic!("{place}: {error}"),
        }
    }
    close(kind, &device, volume, &before, place);
    done
}

fn fail_everywhere(kind: &Kind) {
    let folder = tempfile::tempdir().unwrap();
    for &shortage in kind.shortages() {
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
            let done = try_all(kind, &image, &left, &place);
            if free == 0 {
                // Otherwise the volume is not full, and the test is void.
                let failed = left.len() - done.len();
                let failed_min = if shortage == Shortage::Clusters { 8 } else { 4 };
                assert!(failed >= failed_min, "{place}: only {failed} operations fail: {done:?}");
                let missing: Vec<_> =
                    REMOVALS.iter().filter(|name| !done.contains(*name)).collect();
                assert!(missing.is_empty(), "{place}: {missing:?} fail");
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
    an_operation_without_space_changes_nothing_on_f2fs: "f2fs",
    an_operation_without_space_changes_nothing_on_f2fs_with_extra_attributes: "f2fs_attributes",
    an_operation_without_space_changes_nothing_on_f2fs_with_blocks_of_16_kib: "f2fs_16k",
}
