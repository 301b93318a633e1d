//! Group descriptors of 32 and 64 bytes.
#![no_main]

use std::sync::{Arc, LazyLock};

use base::{GroupNumber, Location};
use ext4::{GroupDescriptor, Volume};
use libfuzzer_sys::fuzz_target;

static VOLUME: LazyLock<Arc<Volume>> = LazyLock::new(|| support::ext4_volume(support::INLINE));

fuzz_target!(|data: &[u8]| {
    let group = GroupNumber(0);
    let _ = GroupDescriptor::parse(data, VOLUME.geometry(), group, Location::group(group));
});
