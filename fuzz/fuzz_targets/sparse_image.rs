//! Android sparse images: the headers of the image and its chunks, and reads through them.
#![no_main]

use std::sync::Arc;

use base::DeviceOffset;
use device::{BlockDevice, MemoryDevice, SparseDevice};
use libfuzzer_sys::fuzz_target;

/// The magic number, major version 1 and minor version 0.
const BEGINNING: [u8; 8] = [0x3a, 0xff, 0x26, 0xed, 1, 0, 0, 0];
/// The number of bytes that are read at a time.
const READ_BYTES: u64 = 8192;

fuzz_target!(|data: &[u8]| {
    let image = [&BEGINNING[..], data].concat();
    let file = Arc::new(MemoryDevice::new(image));
    let _ = device::refusal(&*file);
    let Ok(sparse) = SparseDevice::open(file) else { return };
    let sparse: &dyn BlockDevice = &sparse;
    let length = sparse.size().min(READ_BYTES);
    let mut buffer = vec![0; length as usize];
    for start in [0, sparse.size() / 3, sparse.size() - length] {
        let start = start.min(sparse.size() - length);
        sparse.read_at(DeviceOffset(start), &mut buffer).expect("all chunks are in the file");
    }
});
