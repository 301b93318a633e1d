//! GPT and MBR partition tables.
#![no_main]

use std::sync::Arc;

use device::partition::PartitionTable;
use device::{MemoryDevice, SharedDevice};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut image = data.to_vec();
    image.resize(64 << 10, 0);
    // The signature of a boot record.
    image[510..512].copy_from_slice(&[0x55, 0xAA]);
    let device: SharedDevice = Arc::new(MemoryDevice::new(image));
    if let Ok(table) = PartitionTable::read(&*device, None) {
        for partition in &table.partitions {
            let _ = table.open(Arc::clone(&device), partition.number);
        }
    }
});
