//! Clusters of compressed files whose new blocks no node gets, since it cannot be read: the blocks
//! are free again.

use std::sync::Arc;
use std::time::Duration;

use device::{
    Bio, BioOperation, BlockDevice, DeviceHooks, FaultDevice, FaultPlan, HookedDevice, SharedDevice,
};
use parking_lot::Mutex;
use testkit::f2fs::findings;
use testkit::{Random, encryption};
use vfs::{Follow, OpenMode, Privileges, SyncRange, Volume, VolumeOptions};

use crate::kind::KINDS;
use crate::{ALL, EIO, WRITE, create, number, write};

const BLOCK: usize = 4096;
/// The number of blocks in a cluster, and its binary logarithm.
const CLUSTER_BLOCKS: usize = 16;
const CLUSTER_SHIFT: u8 = 4;
const CLUSTER: usize = CLUSTER_BLOCKS * BLOCK;
/// The number of clusters. An inode has the addresses of less than 60.
const CLUSTERS: usize = 120;
/// The clusters that are written again. Their stored forms, of 13 blocks or so, do not fit into one
/// segment.
const CHANGED: std::ops::Range<usize> = 70..112;

/// The size of the cache. A tenth of it may be dirty before data is written back in the background.
const CACHE: u64 = 32 << 20;

/// Returns a cluster of which three of four bytes do not compress.
fn cluster(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let unit = |_| {
        if random.below(4) == 0 { [7; 256] } else { [(); 256].map(|()| random.below(256) as u8) }
    };
    (0..CLUSTER / 256).flat_map(unit).collect()
}

/// Hooks that hold writes.
#[derive(Debug, Default)]
struct HeldWrites(Mutex<Option<Vec<Bio>>>);

impl DeviceHooks for HeldWrites {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            let mut held = self.0.lock();
            match &mut *held {
                Some(held) if bio.operation() == BioOperation::Write => held.push(bio),
                _ => {
                    drop(held);
                    device.submit(vec![bio]);
                }
            }
        }
    }
}

impl HeldWrites {
    fn hold(&self) {
        *self.0.lock() = Some(Vec::new());
    }

    fn count(&self) -> usize {
        self.0.lock().as_ref().map_or(0, Vec::len)
    }

    /// Submits the first `count` of the held writes.
    fn release(&self, count: usize, device: &SharedDevice) {
        let held = self.0.lock().as_mut().map(|held| held.drain(..count).collect());
        device.submit(held.unwrap_or_default());
    }

    /// Holds no more writes.
    fn end(&self) {
        assert_eq!(self.0.lock().take().map(|held| held.len()), Some(0));
    }
}

/// Opens a volume that writes nothing in the background.
fn open(device: SharedDevice) -> Volume {
    let commit_interval = Duration::from_secs(3600);
    let keys = Arc::new(encryption::master_keys());
    let mut options =
        VolumeOptions { writable: true, commit_interval, keys, ..VolumeOptions::default() };
    options.cache.bytes_max = CACHE;
    options.f2fs.cleans_in_background = false;
    Volume::open_device(device, &options).unwrap()
}

#[test]
fn clusters_whose_node_cannot_be_read_at_the_end_of_their_write_leave_no_block_taken() {
    let kind = &KINDS[2];
    let disk = kind.disk();
    let volume = kind.open(disk.clone());
    let node = create(&volume, "/file").unwrap();
    node.set_compression(1, CLUSTER_SHIFT).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let mut data = Vec::new();
    for index in 0..CLUSTERS {
        data.extend(cluster(1 + index as u64));
    }
    assert_eq!(write(&file, 0, &data), Ok(data.len()));
    file.sync_all().unwrap();
    assert!(node.compression().unwrap().unwrap().saved_blocks > CLUSTERS as u64);
    create(&volume, "/hole").unwrap().set_size(2 * CACHE, Privileges::Keep).unwrap();
    drop((file, node));
    volume.close().unwrap();
    drop(volume);

    let faults = Arc::new(FaultDevice::new(disk.clone(), FaultPlan::default()));
    let held = Arc::new(HookedDevice::new(faults.clone(), HeldWrites::default()));
    let volume = open(held.clone());
    let free = |volume: &Volume| {
        volume.sync().unwrap();
        volume.trim(0..u64::MAX, 0).unwrap()
    };
    create(&volume, "/more").unwrap();
    let before = free(&volume);
    let file = volume.resolve(b"/file", Follow::No).unwrap().open_for(WRITE).unwrap();
    for index in CHANGED {
        let new = cluster(1000 + index as u64);
        assert_eq!(write(&file, (index * CLUSTER) as u64, &new), Ok(CLUSTER));
    }
    held.hold();
    let range_of = |index: usize| (index * CLUSTER) as u64..((index + 1) * CLUSTER) as u64;
    let submit = |index| {
        let before = held.count();
        let start = SyncRange { write: true, ..SyncRange::default() };
        file.sync_range(range_of(index), start).unwrap();
        held.count() - before
    };
    let writes: Vec<usize> = CHANGED.map(submit).collect();
    assert!(writes.iter().any(|writes| *writes > 1), "no cluster is in two segments");
    // The nodes of the file leave the cache.
    let hole = volume.resolve(b"/hole", Follow::No).unwrap();
    let hole = hole.open_for(OpenMode::default()).unwrap();
    let mut found = vec![0; 1 << 20];
    for at in (0..2 * 2 * CACHE).step_by(1 << 20) {
        assert_eq!(hole.read_at(&mut found, at % (2 * CACHE)), Ok(1 << 20));
    }
    faults.fail_reads_in(0..faults.size());
    let device: SharedDevice = faults.clone();
    // One cluster after the other, so that the end of each write meets the error.
    let mut lost = 0;
    for (index, writes) in CHANGED.zip(writes) {
        held.release(writes, &device);
        lost += usize::from(file.sync_range(range_of(index), ALL).is_err());
    }
    assert_eq!(lost, CHANGED.len());
    held.end();
    faults.heal();
    assert_eq!(number(volume.sync()), EIO, "it reports the loss, too");
    assert_eq!(free(&volume), before, "bytes that no file has");
    // The volume goes on, and writes the same clusters.
    for index in CHANGED {
        let same = &data[index * CLUSTER..][..CLUSTER];
        assert_eq!(write(&file, (index * CLUSTER) as u64, same), Ok(CLUSTER));
    }
    file.sync_all().unwrap();
    assert_eq!(free(&volume), before);
    let mut found = vec![0; data.len()];
    assert_eq!(file.read_at(&mut found, 0), Ok(found.len()));
    assert!(found == data, "the file has other data");
    file.node().set_size(0, Privileges::Keep).unwrap();
    drop((file, hole));
    volume.close().unwrap();
    drop(volume);
    assert_eq!(findings(disk), [""; 0]);
}
