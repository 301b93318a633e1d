//! The default size of a cache, from the machine's memory, the limits of the control group, and
//! that of address space.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::param::page_size;

/// The default cache size is the usable memory divided by this.
const SHARE: u64 = 4;
/// The default cache size if the amount of memory is unknown, in bytes.
const FALLBACK: u64 = 256 << 20;

/// Returns the default limit of a cache, in bytes.
pub fn bytes_max_default() -> u64 {
    let allowed = group_limit();
    let usable = machine_memory().into_iter().chain(allowed).chain(address_space()).min();
    usable.map_or(FALLBACK, |bytes| bytes / SHARE)
}

/// Returns the memory of the machine, in bytes. `None` if it is unknown.
pub fn machine_memory() -> Option<u64> {
    memory_total(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Returns the total of `/proc/meminfo`, in bytes.
fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the limit of this process's address space (`ulimit -v`), in bytes. `None` if there is
/// none, or if it is unknown.
pub fn address_space_limit() -> Option<u64> {
    limit_in(&fs::read_to_string("/proc/self/limits").ok()?)
}

/// Returns the limit of address space in `limits`, the contents of `/proc/self/limits`.
fn limit_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the address space that this process can still use, in bytes. `None` if it is not
/// limited.
fn address_space() -> Option<u64> {
    let limit = address_space_limit()?;
    let sizes = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = sizes.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
    let used = pages.unwrap_or_default().saturating_mul(page_size() as u64);
    Some(limit.saturating_sub(used))
}

/// Returns the least memory limit of this process's control groups and their ancestors, of version
/// 1 and 2.
fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_files(&groups)
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

/// Returns the files with the limits of `groups`, the contents of `/proc/self/cgroup`. There is no
/// limit if a file does not exist or contains "max".
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_meminfo() {
        assert_eq!(
            memory_total("MemTotal:       24000000 kB\nMemFree: 1 kB\n"),
            Some(24_576_000_000)
        );
        assert_eq!(memory_total("MemFree: 1 kB\n"), None);
        assert_eq!(memory_total("MemTotal: 99999999999999999999 kB\n"), None);
    }

    #[test]
    fn limits_of_all_ancestors_apply_in_both_versions() {
        let names = |groups| -> Vec<String> {
            limit_files(groups).iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            names("5:cpu:/x\n4:memory:/a/b\n0::/\n"),
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert!(names("garbage").is_empty());
    }

    #[test]
    fn the_limit_of_address_space_is_the_current_one() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max cpu time              unlimited            unlimited            seconds\n\
            Max address space         409600000            unlimited            bytes\n";
        assert_eq!(limit_in(limits), Some(409_600_000));
        assert_eq!(limit_in(&limits.replace("409600000", "unlimited")), None);
        assert_eq!(limit_in(""), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads files of the host")]
    fn the_default_is_not_zero() {
        assert!(bytes_max_default() >= 1 << 20);
    }
}
