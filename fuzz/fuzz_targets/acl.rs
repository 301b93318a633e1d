//! POSIX ACLs as ext4 and f2fs store them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = fs::acl::stored::to_xattr(data, support::location());
});
