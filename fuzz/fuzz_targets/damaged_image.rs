//! Valid images of every kind, with random bytes written over some of their blocks. Reads the whole
//! tree.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testkit::hostile::{KINDS, damage};

fuzz_target!(|data: (u8, u64, Vec<(u16, Vec<u8>)>)| {
    let (kind, seed, overlays) = data;
    let mut image = support::image(usize::from(kind) % KINDS.len()).to_vec();
    for (block, bytes) in overlays {
        let at = usize::from(block) * 512 % image.len();
        let end = image.len().min(at + bytes.len());
        image[at..end].copy_from_slice(&bytes[..end - at]);
    }
    if seed % 2 == 1 {
        damage(&mut image, seed);
    }
    if let Ok(volume) = support::open(image) {
        testkit::walk::walk(&volume);
    }
});
