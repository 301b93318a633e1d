//! Tiny ext4 images with damaged fields and correct checksums. Changes them, and checks them before
//! and after: what the check finds sound stays so.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Mutex;

use libfuzzer_sys::fuzz_target;
use testkit::hostile::{Specimen, Subject, tiny, tiny_kinds};

static SUBJECTS: Mutex<BTreeMap<usize, Subject<Specimen>>> = Mutex::new(BTreeMap::new());

fuzz_target!(|data: &[u8]| support::write_damaged(&SUBJECTS, tiny, tiny_kinds(), data));
