//! The list of extended attributes of an f2fs inode.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|list: &[u8]| {
    let Ok(names) = f2fs::xattr::list(list, support::location()) else { return };
    for name in names {
        let _ = f2fs::xattr::get(list, &name, support::location());
    }
});
