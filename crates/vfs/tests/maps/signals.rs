//! Accesses that kill the program with a signal. These tests run themselves in another process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use iomap::CacheOptions;
use testkit::Mke2fs;
use vfs::{FileMap, MapAccess, Privileges};

use crate::{PAGE, Stage, bytes, load, map, store, write};

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;
/// Set in the other process.
const IN_CHILD: &str = "MAPS_IN_CHILD";

/// Runs the test `name` in another process. Returns the signal that killed it.
fn signal_of(name: &str) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("signals::{name}")]).env(IN_CHILD, "1");
    command.stdout(Stdio::null()).status().unwrap().signal()
}

/// Checks that `access_map` kills the other process with `signal`. It gets a map of 64 KiB of a
/// file of 5,000 bytes.
fn check(name: &str, signal: i32, access: MapAccess, access_map: impl FnOnce(&Stage, &FileMap)) {
    if std::env::var_os(IN_CHILD).is_none() {
        assert_eq!(signal_of(name), Some(signal), "{name}");
        return;
    }
    let stage = Stage::new(65_536, 8 << 20);
    let file = stage.make("file");
    write(&file, 0, &[1; 5000]);
    let memory = file.map(bytes(0..65_536), access).unwrap();
    // All of the last page can be accessed.
    assert_eq!(load(&memory, 4999..5001), [1, 0]);
    assert_eq!(load(&memory, 2 * PAGE - 1..2 * PAGE), [0]);
    access_map(&stage, &memory);
    // Without a signal, the process ends successfully, and the check fails.
}

#[test]
fn loads_past_the_end() {
    check("loads_past_the_end", SIGBUS, MapAccess::Read, |_, memory| {
        load(memory, 2 * PAGE..2 * PAGE + 1);
    });
}

#[test]
fn stores_past_the_end() {
    check("stores_past_the_end", SIGBUS, MapAccess::ReadWrite, |_, memory| {
        store(memory, 3 * PAGE, &[1]);
    });
}

#[test]
fn loads_past_a_truncation() {
    check("loads_past_a_truncation", SIGBUS, MapAccess::ReadWrite, |stage, memory| {
        store(memory, 5000, &[9; 100]);
        let file = stage.file("file");
        file.node().set_size(60_000, Privileges::Keep).unwrap();
        assert_eq!(load(memory, 5000..6000), [0; 1000]);
        store(memory, 3 * PAGE, &[1]);
        file.node().set_size(PAGE as u64, Privileges::Keep).unwrap();
        assert_eq!(load(memory, PAGE - 1..PAGE), [1]);
        load(memory, PAGE..PAGE + 1);
    });
}

#[test]
fn stores_to_a_read_only_map() {
    check("stores_to_a_read_only_map", SIGSEGV, MapAccess::Read, |_, memory| {
        store(memory, 0, &[1])
    });
}

#[test]
fn stores_without_space() {
    if std::env::var_os(IN_CHILD).is_none() {
        assert_eq!(signal_of("stores_without_space"), Some(SIGBUS));
        return;
    }
    let mke2fs = Mke2fs { size: 8 << 20, ..Mke2fs::new("ext4", 1024) };
    let cache = CacheOptions { bytes_max: 8 << 20, ..CacheOptions::default() };
    let stage = Stage::with(&mke2fs, cache);
    let file = stage.make("file");
    file.node().set_size(1 << 30, Privileges::Keep).unwrap();
    let memory = map(&file, 0..1 << 30);
    for page in 0..(1 << 30) / PAGE {
        // Loads the hole first, so that the page is shown.
        assert_eq!(load(&memory, page * PAGE..page * PAGE + 1), [0]);
        store(&memory, page * PAGE, &[1]);
    }
}
