//! Large folios that are dirty in part: they leave memory of the cache to others.

use std::sync::Arc;

use device::MemoryDevice;
use vfs::{Volume, VolumeOptions};

use crate::model::{ROOT, WRITE, close, image};

#[test]
fn folios_that_are_dirty_in_part_leave_memory_for_others() {
    const LENGTH: usize = 30 << 20;
    let device = Arc::new(MemoryDevice::new(image(128)));
    let mut options = VolumeOptions { writable: true, ..VolumeOptions::default() };
    options.cache.bytes_max = 32 << 20;
    let volume = Volume::open_device(Arc::clone(&device) as _, &options).unwrap();
    let file = volume.create_file(b"/file", 0o644, ROOT).unwrap().open_for(WRITE).unwrap();
    assert_eq!(file.write_at(&vec![1; LENGTH], 0), Ok(LENGTH));
    volume.sync().unwrap();
    let stats = volume.cache_stats();
    let order = (0..).zip(stats.folios).filter(|(_, count)| *count > 0).last().unwrap().0;
    assert!(order >= 6, "there are large folios: {stats:?}");
    let mut most = 0;
    for at in (0..LENGTH).step_by(64 << 10) {
        assert_eq!(file.write_at(&[2; 4096], at as u64), Ok(4096));
        most = most.max(volume.dirty_stats().bytes_held);
    }
    let limit = stats.bytes_max * 6 / 10 + (4096 << order);
    assert!(most <= limit, "{most} bytes of {} are held", stats.bytes_max);
    assert!(most > stats.bytes_max / 10, "{most} bytes");
    drop(file);
    close(&device, volume);
}
