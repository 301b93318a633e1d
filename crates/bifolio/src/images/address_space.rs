//! Limits of address space (`ulimit -v`). Not here: the size of the cache, which the library fits
//! to them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variable with the maximum number of the C library's arenas.
const ARENAS_MAX: &str = "MALLOC_ARENA_MAX";

/// Starts the program again with one arena for allocations of all threads, if its address space is
/// limited. The C library reserves 64 MiB for an arena, of which threads would have several, and
/// leaves no room for the stacks of others. Returns if there is no need, or if it fails.
pub fn spare_arenas(arguments: &[OsString]) {
    let is_limited = pagecache::address_space_limit().is_some();
    let Some((name, rest)) = arguments.split_first().filter(|_| is_limited) else { return };
    if std::env::var_os(ARENAS_MAX).is_none() {
        // The error is not needed: the program goes on as it is.
        let _ = Command::new("/proc/self/exe").arg0(name).args(rest).env(ARENAS_MAX, "1").exec();
    }
}
