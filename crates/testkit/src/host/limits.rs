//! Limits of resources of a process, as the kernel shows them.

use std::fs;

use crate::must;

/// The limits of a process that a confinement sets, each the one that it cannot raise. `None` if
/// there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The address space, in bytes.
    pub address_space: Option<u64>,
    /// The number of open files.
    pub open_files: Option<u64>,
    /// The number of processes and threads of the user.
    pub processes: Option<u64>,
    /// The size of a core dump, in bytes.
    pub core_dump: Option<u64>,
    /// The size of files, in bytes.
    pub file_size: Option<u64>,
}

impl Limits {
    /// Returns the limits of a process.
    pub fn of(process: impl std::fmt::Display) -> Self {
        let path = format!("/proc/{process}/limits");
        let table = must(fs::read_to_string(&path), &path);
        let limit = |name: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(name));
            let line = line.unwrap_or_else(|| panic!("{name}: {table}"));
            // After the one that is in force, and before its unit.
            let hard = line.split_whitespace().nth(1).unwrap_or_default();
            (hard != "unlimited").then(|| must(hard.parse(), name))
        };
        Self {
            address_space: limit("Max address space"),
            open_files: limit("Max open files"),
            processes: limit("Max processes"),
            core_dump: limit("Max core file size"),
            file_size: limit("Max file size"),
        }
    }

    /// Checks the limits of a process that is confined to open files, and may make them as large as
    /// `file_size`. Limits of the calling process that are lower stay. Not checked: the address
    /// space.
    #[track_caller]
    pub fn check(&self, file_size: Option<u64>) {
        let own = Self::of("self");
        let lower = |max: u64, own: Option<u64>| Some(own.map_or(max, |own| own.min(max)));
        let expected = Self {
            address_space: self.address_space,
            open_files: lower(4096, own.open_files),
            processes: lower(8192, own.processes),
            core_dump: Some(0),
            file_size: file_size.map_or(own.file_size, |max| lower(max, own.file_size)),
        };
        assert_eq!(*self, expected);
    }
}
