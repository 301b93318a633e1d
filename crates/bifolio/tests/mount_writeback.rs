//! Writes to mounts with and without the writeback cache of the kernel: contents are the same
//! before and after a remount, and e2fsck finds no errors.
#![allow(clippy::print_stdout, reason = "prints missing features of the host")]

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use base::OnDrop;
use mounting::direct_and_mapped::{Mapped, open_direct, write_mapped};
use mounting::{FORMATS, Fixture};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;
use testkit::{AsyncWrites, Format, check_by_e2fsck, private_mounts, wait_until};

/// Runs `work` on a writable mount, and `check` before and after a remount.
fn check(work: impl Fn(&Path), check: impl Fn(&Path)) {
    private_mounts();
    for options in ["rw,nowriteback", "rw,writeback"] {
        let fixture = Fixture::with_tree();
        let mount = fixture.mount(&["-o", options]);
        work(mount.path());
        check(mount.path());
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
        let mount = fixture.mount(&["-o", options]);
        check(mount.path());
        fixture.umount();
        mount.assert_gone();
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// The kernel sets the time of such writes itself, when they are synced.
#[test]
fn writes_to_files_that_become_append_only_and_immutable_are_synced() {
    check(
        |mount| {
            for (name, flag) in [("appended", "+a"), ("fixed", "+i")] {
                let path = mount.join(name);
                let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
                file.write_all(b"first").unwrap();
                testkit::command::run(Command::new("chattr").arg(flag).arg(&path));
                if flag == "+a" {
                    file.write_all(b" second").unwrap();
                }
                file.sync_all().unwrap();
            }
        },
        |mount| {
            assert_eq!(fs::read(mount.join("appended")).unwrap(), b"first second");
            assert_eq!(fs::read(mount.join("fixed")).unwrap(), b"first");
        },
    );
}

/// The kernel does not know the flags of a mount's files. Of its own ext4, it refuses all of this
/// at once.
#[test]
fn append_only_and_immutable_files_are_not_overwritten_through_the_kernels_cache() {
    let chattr = |flag, path: &Path| {
        testkit::command::run(Command::new("chattr").arg(flag).arg(path));
    };
    check(
        |mount| {
            let path = mount.join("log");
            fs::write(&path, "first entry").unwrap();
            chattr("+a", &path);
            let opened = |options: &mut OpenOptions| options.append(true).open(&path).unwrap();
            let mut log = opened(OpenOptions::new().read(true));
            let mapped = Mapped::new(&log, 11);
            mapped.store(0, b"FALSE");
            assert_eq!(mapped.sync(), Err(Errno::PERM));
            wait_until("the stores are gone", || fs::read(&path).unwrap() == b"first entry");
            drop(mapped);
            let other = opened(&mut OpenOptions::new());
            rustix::fs::fcntl_setfl(&other, OFlags::empty()).unwrap();
            let refused = other.write_all_at(b"FALSE", 0).and_then(|()| other.sync_all());
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
            log.write_all(b", second").unwrap();
            log.sync_all().unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"first entry, second");

            let path = mount.join("constant");
            fs::write(&path, "old text").unwrap();
            let mapped = Mapped::new(&open(&path), 8);
            mapped.store(0, b"new");
            chattr("+i", &path);
            mapped.store(4, b"TEXT");
            assert_eq!(mapped.sync(), Err(Errno::PERM));
            wait_until("the stores are gone", || fs::read(&path).unwrap() == b"new text");
        },
        |mount| {
            assert_eq!(fs::read(mount.join("log")).unwrap(), b"first entry, second");
            assert_eq!(fs::read(mount.join("constant")).unwrap(), b"new text");
        },
    );
}

#[test]
fn writes_of_all_kinds_are_coherent() {
    check(
        |mount| {
            let path = mount.join("mixed");
            let mut model = vec![0; 100_000];
            let file = open(&path);
            file.set_len(100_000).unwrap();
            let mut write = |at: usize, data: &[u8], method: &dyn Fn(u64, &[u8])| {
                if at + data.len() > model.len() {
                    model.resize(at + data.len(), 0);
                }
                model[at..][..data.len()].copy_from_slice(data);
                method(at as u64, data);
                assert_eq!(fs::metadata(&path).unwrap().len(), model.len() as u64);
                assert!(fs::read(&path).unwrap() == model);
            };
            let buffered = |at, data: &[u8]| file.write_all_at(data, at).unwrap();
            write(5_000, &[1; 3_000], &buffered);
            write(40_000, &[2; 9_000], &|at, data| write_mapped(&file, at as usize, data));
            // Appending, and through a descriptor that cannot read the rest of the page.
            write(100_000, b"appended", &|_, data| {
                OpenOptions::new().append(true).open(&path).unwrap().write_all(data).unwrap();
            });
            write(41_001, b"in the middle of a page", &|at, data| {
                OpenOptions::new().write(true).open(&path).unwrap().write_all_at(data, at).unwrap();
            });
            write(8_192, &[3; 8_192], &|at, data| {
                let direct = OFlags::DIRECT.bits() as i32;
                let file = OpenOptions::new().write(true).custom_flags(direct).open(&path).unwrap();
                file.write_all_at(data, at).unwrap();
            });
            write(9_000, &[4; 10], &buffered);
            write(150_000, &[5; 77], &buffered);
            file.set_len(60_000).unwrap();
            model.truncate(60_000);
            file.set_len(70_000).unwrap();
            model.resize(70_000, 0);
            assert!(fs::read(&path).unwrap() == model);
            fs::write(mount.join("model"), &model).unwrap();
        },
        |mount| {
            let found = fs::read(mount.join("mixed")).unwrap();
            assert!(found == fs::read(mount.join("model")).unwrap());
            assert_eq!(found.len(), 70_000);
        },
    );
}

#[test]
fn a_partial_write_keeps_the_rest_of_the_page() {
    check(
        |mount| {
            let path = mount.join("big");
            let source = fs::read(&path).unwrap();
            assert_eq!(source.len(), 5_000_001);
            for at in [10, 4_095, 1_000_000, 4_999_990] {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.write_all_at(b"changed", at).unwrap();
            }
        },
        |mount| {
            let mut expected = testkit::tree::contents(1, 5_000_001);
            for at in [10, 4_095, 1_000_000, 4_999_990] {
                expected[at..][..7].copy_from_slice(b"changed");
            }
            assert!(fs::read(mount.join("big")).unwrap() == expected);
        },
    );
}

#[test]
fn modification_times_are_those_of_writes_or_set_times() {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    check(
        |mount| {
            let before = fs::metadata(mount.join("small")).unwrap().modified().unwrap();
            for name in ["small", "set", "direct"] {
                let direct = if name == "direct" { OFlags::DIRECT.bits() as i32 } else { 0 };
                let path = mount.join(name);
                fs::write(&path, [7; 4096]).unwrap();
                if name == "direct" {
                    File::open(&path).unwrap().set_modified(long_ago).unwrap();
                }
                let mut options = OpenOptions::new();
                let file = options.write(true).custom_flags(direct).open(&path).unwrap();
                file.write_all_at(&[8; 4096], 0).unwrap();
                if name == "set" {
                    file.set_modified(long_ago).unwrap();
                }
            }
            for name in ["small", "direct"] {
                let modified = fs::metadata(mount.join(name)).unwrap().modified().unwrap();
                assert!(modified > before, "{name}: {modified:?}");
            }
            // The times that were seen first do not change.
            let seen: Vec<_> = ["small", "direct"]
                .map(|name| fs::metadata(mount.join(name)).unwrap())
                .map(|found| format!("{}.{}", found.mtime(), found.mtime_nsec()))
                .into();
            fs::write(mount.join("seen"), seen.join(" ")).unwrap();
        },
        |mount| {
            let set = fs::metadata(mount.join("set")).unwrap();
            assert_eq!(set.modified().unwrap(), long_ago);
            let found = ["small", "direct"]
                .map(|name| fs::metadata(mount.join(name)).unwrap())
                .map(|found| format!("{}.{}", found.mtime(), found.mtime_nsec()));
            assert_eq!(fs::read_to_string(mount.join("seen")).unwrap(), found.join(" "));
        },
    );
}

#[test]
fn concurrent_writes_and_truncations_leave_a_consistent_file() {
    check(
        |mount| {
            let path = mount.join("contended");
            let file = open(&path);
            std::thread::scope(|scope| {
                for writer in 1..4_u8 {
                    let file = &file;
                    scope.spawn(move || {
                        for number in 0..200_u64 {
                            let at = number * 7_919 % 300_000;
                            file.write_all_at(&[writer; 5_000], at).unwrap();
                        }
                    });
                }
                scope.spawn(|| {
                    for number in 0..200_u64 {
                        file.set_len(number * 104_729 % 320_000).unwrap();
                    }
                });
            });
            file.set_len(200_000).unwrap();
            file.write_all_at(b"end", 250_000).unwrap();
            // Truncated data does not reappear.
            let found = fs::read(&path).unwrap();
            assert_eq!(found.len(), 250_003);
            assert!(found[200_000..250_000].iter().all(|&byte| byte == 0));
            fs::write(mount.join("copy"), found).unwrap();
        },
        |mount| {
            let [found, copy] =
                ["contended", "copy"].map(|name| fs::read(mount.join(name)).unwrap());
            assert!(found == copy);
        },
    );
}

#[test]
fn the_kernel_caches_writes_only_with_writeback() {
    private_mounts();
    let [uncached, cached] = ["rw,nowriteback", "rw,writeback"].map(|options| {
        let fixture = Fixture::with_tree();
        let mount = fixture.mount(&["-o", options]);
        let file = open(&mount.path().join("file"));
        let before = written_bytes();
        for at in 0..2_000 {
            file.write_all_at(b"x", at).unwrap();
        }
        written_bytes() - before
    });
    // Uncached writes are counted in bytes, and cached writes in pages.
    assert!(uncached < 4096 && cached >= 4096, "{uncached} and {cached}");
}

/// Returns the number of bytes that this thread has written, as the kernel counts them.
fn written_bytes() -> u64 {
    let accounts = fs::read_to_string("/proc/thread-self/io").unwrap();
    let written = accounts.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    written.unwrap().parse().unwrap()
}

#[test]
fn the_writeback_cache_has_no_strict_limit() {
    private_mounts();
    // The names of mounts with a loop device have a suffix.
    let cases = [
        ("rw,nowriteback", "1\n", "-fuseblk"),
        ("rw,writeback", "0\n", "-fuseblk"),
        ("rw,nowriteback,noloop", "1\n", ""),
        ("rw,writeback,noloop", "0\n", ""),
    ];
    for (options, strict, suffix) in cases {
        let fixture = Fixture::with_tree();
        let mount = fixture.mount(&["-o", options]);
        let device = rustix::fs::stat(mount.path()).unwrap().st_dev;
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        let folder = format!("/sys/class/bdi/{}:{}{suffix}", device.0, device.1);
        assert!(fs::exists(&folder).unwrap(), "{folder}");
        match fs::read_to_string(format!("{folder}/strict_limit")) {
            Ok(found) => assert_eq!(found, strict, "{options}"),
            // Before Linux 6.2.
            Err(error) => println!("NOTE: {folder}: {error}"),
        }
    }
}

/// Returns all formats, with and without the writeback cache.
fn formats_and_options() -> impl Iterator<Item = (Format, &'static str)> {
    let options = ["rw,nowriteback", "rw,writeback"];
    FORMATS.into_iter().flat_map(move |format| options.map(|options| (format, options)))
}

/// Returns the pages of a file again and again.
fn pages_until(is_over: &AtomicBool, length: usize) -> impl Iterator<Item = usize> {
    (0..).take_while(|_| !is_over.load(Ordering::Relaxed)).map(move |page| page * 4096 % length)
}

/// When such a write has changed the file, a kernel that collects writes does not drop what was
/// read in between.
#[test]
fn data_that_is_read_during_an_asynchronous_direct_write_is_not_kept() {
    const LENGTH: usize = 256 << 10;
    const ROUNDS: u8 = 20;
    private_mounts();
    for (format, options) in formats_and_options() {
        let fixture = Fixture::with_volume(format);
        let mount = fixture.mount(&["-o", options]);
        let path = mount.path().join("file");
        fs::write(&path, vec![0; LENGTH]).unwrap();
        let file = open(&path);
        file.sync_all().unwrap();
        let (direct, mapped) = (open_direct(&path), Mapped::new(&file, LENGTH));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _guard = OnDrop(|| is_over.store(true, Ordering::Relaxed));
            scope.spawn(|| {
                for at in pages_until(&is_over, LENGTH) {
                    file.read_exact_at(&mut [0; 4096], at as u64).unwrap();
                }
            });
            scope.spawn(|| {
                let mapped = Mapped::new(&file, LENGTH);
                for at in pages_until(&is_over, LENGTH) {
                    mapped.load(at, 1);
                }
            });
            let mut writes = AsyncWrites::new(&direct, 1);
            for round in 1..=ROUNDS {
                writes.submit(&[(0, &[round; LENGTH])]);
                writes.wait();
                for found in [fs::read(&path).unwrap(), mapped.load(0, LENGTH)] {
                    let stale = found.iter().position(|&byte| byte != round);
                    assert_eq!(stale, None, "{format:?}, {options}, round {round}");
                }
            }
        });
    }
}

#[test]
fn synced_data_survives_a_killed_server() {
    private_mounts();
    for (format, options) in formats_and_options() {
        let fixture = Fixture::with_volume(format);
        let mount = fixture.mount(&["-o", options]);
        let path = mount.path().join("synced");
        let file = open(&path);
        let data: Vec<u8> = (0..1_000_000).map(|at| (at % 253) as u8).collect();
        for part in 0..10 {
            file.write_all_at(&data[part * 100_000..][..100_000], part as u64 * 100_000).unwrap();
        }
        file.sync_all().unwrap();
        File::open(mount.path()).unwrap().sync_all().unwrap();
        file.write_all_at(b"not synced", 2_000_000).unwrap();
        mount.signal_server(Signal::KILL);
        mount.unmount_dead();
        drop(file);
        let mount = fixture.mount(&["-o", options]);
        let found = fs::read(&path).unwrap();
        assert!(found.get(..data.len()) == Some(&*data), "{format:?}, {options}");
        fixture.umount();
        mount.assert_gone();
        fixture.check();
    }
}

#[test]
fn a_signal_does_not_lose_data_of_open_files() {
    const LENGTH: usize = 24 << 20;
    private_mounts();
    let alone = formats_and_options().map(|(format, options)| (format, options, false));
    let both = FORMATS.map(|format| (format, "rw,writeback", true));
    for (format, options, both) in alone.chain(both) {
        let fixture = Fixture::with_volume(format);
        let mount = fixture.mount(&["-o", options]);
        let written = open(&mount.path().join("written"));
        let gone = open(&mount.path().join("gone"));
        let mapped = open(&mount.path().join("mapped"));
        mapped.set_len(LENGTH as u64).unwrap();
        let mapping = Mapped::new(&mapped, LENGTH);
        mapping.fill(1);
        mapping.fill(7);
        // Small writes that extend the file.
        for at in (0..LENGTH / 4).step_by(10_000) {
            written.write_all_at(&[8; 10_000], at as u64).unwrap();
        }
        gone.write_all_at(&[9; 100_000], 0).unwrap();
        fs::remove_file(mount.path().join("gone")).unwrap();
        mount.signal_guard(Signal::TERM);
        if both {
            mount.signal_server(Signal::TERM);
        }
        mount.assert_gone();
        drop(mapping);
        drop((written, gone, mapped));
        fixture.check();
        let mount = fixture.mount(&["-o", "ro"]);
        let found = fs::read(mount.path().join("mapped")).unwrap();
        assert!(
            found.len() == LENGTH && found.iter().all(|&byte| byte == 7),
            "{format:?}, {options}"
        );
        let found = fs::read(mount.path().join("written")).unwrap();
        let length = (LENGTH / 4).next_multiple_of(10_000);
        assert!(
            found.len() == length && found.iter().all(|&byte| byte == 8),
            "{format:?}, {options}"
        );
        fixture.umount();
        mount.assert_gone();
    }
}
