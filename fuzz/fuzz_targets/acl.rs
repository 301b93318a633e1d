//! POSIX ACLs as ext4 stores them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = ext4::xattr::acl::to_xattr(data, support::location());
});
