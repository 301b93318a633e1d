//! The tests of `mount` and `mount_writing` with requests through io_uring, and tests of this
//! transport. On hosts without FUSE over io_uring, they print a note and use the other transport.
#![allow(clippy::duplicate_mod, reason = "included test files include the same helpers")]
#![allow(clippy::print_stdout, reason = "prints missing features of the host")]

#[path = "mount.rs"]
mod reading;
#[path = "mount_writing.rs"]
mod writing;

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use mounting::{FORMATS, Fixture, Mount, bifolio, mount_entry, retry_while_busy};
use rustix::fs::OFlags;
use rustix::process::Signal;
use testkit::command::{output, run};
use testkit::{RingOffer, check_by_e2fsck, private_mounts, wait_until};

const REFUSAL: &str = "does not offer FUSE over io_uring";

/// Returns whether the host supports FUSE over io_uring. If not, prints a note.
fn has_rings() -> bool {
    let is_supported = RingOffer::put(true).is_some();
    if !is_supported {
        println!("NOTE: this host has no FUSE over io_uring: only the refusal was tested");
    }
    is_supported
}

#[test]
fn without_kernel_support_auto_uses_no_rings_and_on_fails() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let _offer = RingOffer::put(false);
    fixture.mount_fails(&["-o", "io_uring=on"], 1, REFUSAL);
    for arguments in [&[][..], &["-o", "io_uring=auto"]] {
        let mut command = bifolio("mount");
        run(command.args(arguments).arg(&fixture.image).arg(&fixture.directory));
        let mount = fixture.mounted();
        assert!(mount.thread_run_times("fuse-ring").is_empty());
        assert_eq!(fs::read(mount.path().join("small")).unwrap(), b"a few bytes\n");
    }
}

#[test]
fn with_kernel_support_requests_go_through_rings_unless_off() {
    private_mounts();
    if !has_rings() {
        return;
    }
    let fixture = Fixture::with_tree();
    let ran = |option: &str, rings: usize| {
        let offer = RingOffer::put(true);
        run(bifolio("mount").args(["-o", option]).arg(&fixture.image).arg(&fixture.directory));
        drop(offer);
        let mount = fixture.mounted();
        assert_eq!(mount.thread_run_times("fuse-ring").len(), rings, "{option}");
        let before = [mount.total_run_time("fuse-"), mount.total_run_time("fuse-ring")];
        // Many requests, so that the start of threads is negligible.
        for number in 0..5_000 {
            assert!(fs::metadata(mount.path().join(format!("absent {number}"))).is_err());
        }
        let ring = mount.total_run_time("fuse-ring") - before[1];
        (mount.total_run_time("fuse-") - before[0] - ring, ring)
    };
    let processors = std::thread::available_parallelism().unwrap().get();
    let rings = processors * 16_usize.div_ceil(processors).max(4);
    for option in ["ro", "io_uring=auto", "io_uring=on"] {
        let (device, ring) = ran(option, rings);
        assert!(ring > 4 * device, "{option}: {device} and {ring}");
    }
    let (device, ring) = ran("io_uring=off", 0);
    assert!(device > 0 && ring == 0, "{device} and {ring}");
}

#[test]
fn concurrent_clients_get_their_own_data() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let block = |writer: usize, number: usize| {
        let mut block = vec![writer as u8; 4096 * (1 + number % 40)];
        block[..8].copy_from_slice(&number.to_ne_bytes());
        block
    };
    std::thread::scope(|scope| {
        for writer in 0..12 {
            let path = mount.path().join(format!("of {writer}"));
            scope.spawn(move || {
                for number in 0..60 {
                    fs::write(&path, block(writer, number)).unwrap();
                    // Not through the cache of the kernel.
                    let direct = OFlags::DIRECT.bits() as i32;
                    let file = OpenOptions::new().read(true).custom_flags(direct).open(&path);
                    let mut found = vec![0; 4096 * 41];
                    let length = file.unwrap().read_at(&mut found, 0).unwrap();
                    assert!(found[..length] == block(writer, number), "{writer}, {number}");
                }
            });
        }
    });
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

/// Runs several readers on a mount, and ends the mount with `end`. Checks that all readers end.
fn check_end_under_load(arguments: &[&str], end: impl FnOnce(&Mount<'_>)) {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(arguments);
    let path = mount.path().join("big");
    let direct = OFlags::DIRECT.bits() as i32;
    let files: Vec<_> = (0..6)
        .map(|_| OpenOptions::new().read(true).custom_flags(direct).open(&path).unwrap())
        .collect();
    let reading = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            let reading = &reading;
            scope.spawn(move || {
                let mut buffer = vec![0; 65_536];
                while file.read_at(&mut buffer, number as u64 * 65_536).is_ok() {
                    reading.store(true, Ordering::Relaxed);
                }
            });
        }
        wait_until("reading", || reading.load(Ordering::Relaxed));
        end(&mount);
        // The scope waits for the readers.
    });
    mount.assert_gone();
}

#[test]
fn clients_of_a_killed_server_do_not_block() {
    check_end_under_load(&[], |mount| {
        mount.signal_server(Signal::KILL);
        mount.unmount_dead();
    });
}

#[test]
fn a_signal_under_load_ends_the_server_and_clients() {
    check_end_under_load(&["-o", "rw"], |mount| mount.signal_guard(Signal::TERM));
}

#[test]
fn an_aborted_connection_ends_the_server_and_clients() {
    check_end_under_load(&[], |mount| {
        let control = tempfile::tempdir().unwrap();
        run(Command::new("mount").args(["-t", "fusectl", "none"]).arg(control.path()));
        let entry = mount_entry(mount.path()).unwrap();
        let minor = entry.split_whitespace().nth(2).unwrap().split(':').nth(1).unwrap();
        fs::write(control.path().join(minor).join("abort"), b"1").unwrap();
        retry_while_busy(|| output(Command::new("umount").arg(control.path())));
        mount.unmount_dead();
    });
}

#[test]
fn synced_files_survive_a_killed_server() {
    private_mounts();
    for format in FORMATS {
        let fixture = Fixture::with_volume(format);
        let durable = sync_until_killed(&fixture);
        assert!(durable >= 20);
        let mount = fixture.mount(&["-o", "rw"]);
        for number in 0..durable {
            let found = fs::read(mount.path().join(format!("file {number}"))).unwrap();
            assert!(found == vec![number as u8; 10_000], "{format:?}: {number} of {durable}");
        }
        fixture.umount();
        mount.assert_gone();
        fixture.check();
    }
}

/// Writes and syncs files, each followed by its directory, until the server is killed. Returns the
/// number of files whose syncs have succeeded.
fn sync_until_killed(fixture: &Fixture) -> usize {
    let mount = fixture.mount(&["-o", "rw"]);
    let directory = File::open(mount.path()).unwrap();
    let mut durable = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0.. {
                let path = mount.path().join(format!("file {number}"));
                let made = fs::write(&path, vec![number as u8; 10_000])
                    .and_then(|()| File::open(&path)?.sync_all())
                    .and_then(|()| directory.sync_all());
                if made.is_err() {
                    return number;
                }
            }
            0
        });
        wait_until("files", || mount.path().join("file 20").exists());
        mount.signal_server(Signal::KILL);
        durable = writer.join().unwrap();
    });
    drop(directory);
    mount.unmount_dead();
    durable
}
