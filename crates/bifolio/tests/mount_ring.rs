//! The tests of mounts again, with requests that travel through io_uring; and what is peculiar to that.
//! On a host that does not have it, they say so, and see that mounts do without.
#![allow(clippy::duplicate_mod, reason = "test files bring their supports with them")]
#![allow(clippy::print_stdout, reason = "what a host does not have is said")]

#[path = "mount.rs"]
mod reading;
#[path = "mount_writing.rs"]
mod writing;

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use mounting::{Location, Mount, bifolio, mount_entry, soon};
use rustix::fs::OFlags;
use rustix::process::Signal;
use testkit::command::{output, run};
use testkit::{RingOffer, check_by_e2fsck, private_mounts, wait_until};

const REFUSAL: &str = "does not offer FUSE over io_uring";

/// Whether the host has io_uring for FUSE. Says so when it has not.
fn host_can() -> bool {
    let can = RingOffer::put(true).is_some();
    if !can {
        println!("NOTE: this host has no FUSE over io_uring: only that it is refused was tested");
    }
    can
}

#[test]
fn without_an_offer_auto_does_without_and_on_is_refused_by_name() {
    private_mounts();
    let place = Location::with_tree();
    let _offer = RingOffer::put(false);
    place.mount_fails(&["-o", "io_uring=on"], 1, REFUSAL);
    for arguments in [&[][..], &["-o", "io_uring=auto"]] {
        let mut command = bifolio("mount");
        run(command.args(arguments).arg(&place.image).arg(&place.directory));
        let mount = place.mounted();
        assert!(mount.threads("fuse-ring").is_empty());
        assert_eq!(fs::read(mount.path().join("small")).unwrap(), b"a few bytes\n");
    }
}

#[test]
fn with_an_offer_requests_travel_through_rings_unless_that_is_off() {
    private_mounts();
    if !host_can() {
        return;
    }
    let place = Location::with_tree();
    let ran = |option: &str, rings: usize| {
        let offer = RingOffer::put(true);
        run(bifolio("mount").args(["-o", option]).arg(&place.image).arg(&place.directory));
        drop(offer);
        let mount = place.mounted();
        assert_eq!(mount.threads("fuse-ring").len(), rings, "{option}");
        let before = [mount.ran("fuse-"), mount.ran("fuse-ring")];
        // So many that threads which only start do not count.
        for number in 0..5_000 {
            assert!(fs::metadata(mount.path().join(format!("absent {number}"))).is_err());
        }
        let ring = mount.ran("fuse-ring") - before[1];
        (mount.ran("fuse-") - before[0] - ring, ring)
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
fn many_clients_on_all_processors_get_what_is_theirs() {
    private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "rw"]);
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
                    // Past the kernel's cache.
                    let direct = OFlags::DIRECT.bits() as i32;
                    let file = OpenOptions::new().read(true).custom_flags(direct).open(&path);
                    let mut found = vec![0; 4096 * 41];
                    let length = file.unwrap().read_at(&mut found, 0).unwrap();
                    assert!(found[..length] == block(writer, number), "{writer}, {number}");
                }
            });
        }
    });
    place.umount();
    mount.assert_gone();
    check_by_e2fsck(&place.image);
}

/// Has several clients read from a mount, lets `end` end it, and sees that all of them end, too.
fn check_end_under_load(arguments: &[&str], end: impl FnOnce(&Mount<'_>)) {
    private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(arguments);
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
        // The readers end: the scope waits for them.
    });
    mount.assert_gone();
}

#[test]
fn a_server_that_is_killed_under_load_leaves_no_client_waiting() {
    check_end_under_load(&[], |mount| mount.signal_server(Signal::KILL));
}

#[test]
fn a_signal_under_load_ends_server_and_clients() {
    check_end_under_load(&["-o", "rw"], |mount| mount.signal_guard(Signal::TERM));
}

#[test]
fn an_aborted_connection_ends_server_and_clients() {
    check_end_under_load(&[], |mount| {
        let control = tempfile::tempdir().unwrap();
        run(Command::new("mount").args(["-t", "fusectl", "none"]).arg(control.path()));
        let entry = mount_entry(mount.path()).unwrap();
        let minor = entry.split_whitespace().nth(2).unwrap().split(':').nth(1).unwrap();
        fs::write(control.path().join(minor).join("abort"), b"1").unwrap();
        soon(|| output(Command::new("umount").arg(control.path())));
    });
}

#[test]
fn what_was_synced_outlives_a_server_that_is_killed() {
    private_mounts();
    let place = Location::with_tree();
    let mount = place.mount(&["-o", "rw"]);
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
    mount.assert_gone();
    assert!(durable >= 20);
    let mount = place.mount(&["-o", "rw"]);
    for number in 0..durable {
        let found = fs::read(mount.path().join(format!("file {number}"))).unwrap();
        assert!(found == vec![number as u8; 10_000], "{number} of {durable}");
    }
    place.umount();
    mount.assert_gone();
    check_by_e2fsck(&place.image);
}
