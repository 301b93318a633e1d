//! An f2fs image with damaged fields and correct checksums. Changes it, and checks it before and
//! after: what the check finds sound stays so.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Mutex;

use libfuzzer_sys::fuzz_target;
use testkit::f2fs::hostile::{Valid, writing_image, writing_images};
use testkit::hostile::Subject;

static SUBJECTS: Mutex<BTreeMap<usize, Subject<Valid>>> = Mutex::new(BTreeMap::new());

fuzz_target!(|data: &[u8]| {
    support::write_damaged(&SUBJECTS, writing_image, writing_images(), data);
});
