//! An inode's fixed and extra fields.
#![no_main]

use std::sync::{Arc, LazyLock};

use ext4::{InodeRecord, Volume};
use libfuzzer_sys::fuzz_target;

static VOLUME: LazyLock<Arc<Volume>> = LazyLock::new(|| support::ext4_volume(support::INLINE));

fuzz_target!(|data: &[u8]| {
    let number = base::InodeNumber(12);
    if let Ok(record) = InodeRecord::parse(data, VOLUME.geometry(), number, support::location()) {
        let _ = record.attributes();
    }
});
