//! ioctls of f2fs on mounts, sent by f2fs_io and directly: atomic writes, and requests for the
//! volume.

mod moves;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::mounting::{Fixture, NOBODY, run_as};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use testkit::command::{output, run};
use testkit::f2fs::{Kind, check_by_both};
use testkit::tree::contents;
use testkit::{private_mounts, wait_until};

const START: libc::c_ulong = 0xf501;
const COMMIT: libc::c_ulong = 0xf502;
const ABORT: libc::c_ulong = 0xf505;
const REPLACE: libc::c_ulong = 0xf519;
const SET_PIN_FILE: libc::c_ulong = 0x4004_f50d;
const GET_PIN_FILE: libc::c_ulong = 0x8004_f50e;
const RELEASE_COMPRESS_BLOCKS: libc::c_ulong = 0x8008_f512;
const RESERVE_COMPRESS_BLOCKS: libc::c_ulong = 0x8008_f513;
const GARBAGE_COLLECT: libc::c_ulong = 0x4004_f506;
const WRITE_CHECKPOINT: libc::c_ulong = 0xf507;
const GET_FEATURES: libc::c_ulong = 0x8004_f50c;
const PRECACHE_EXTENTS: libc::c_ulong = 0xf50f;
const FEATURE_ATOMIC_WRITE: u32 = 4;

const BLOCK: usize = 4096;

fn f2fs() -> Fixture {
    let fixture = Fixture::new();
    Kind::named("attributes").make(&fixture.image, 128);
    fixture
}

/// Mounts an image, calls `work`, unmounts and has the image checked.
fn with_mount(fixture: &Fixture, options: &str, work: impl FnOnce(&Path)) {
    let mount = fixture.mount(&["-o", options]);
    work(mount.path());
    fixture.umount();
    mount.assert_gone();
    check_by_both(&fixture.image);
}

fn ioctl_with<T>(file: &File, command: libc::c_ulong, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: callers pass an argument of the type that the command reads or writes, or the command
    // has none.
    match unsafe { libc::ioctl(file.as_raw_fd(), command, &raw mut *argument) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

fn ioctl(file: &File, command: libc::c_ulong) -> Result<(), Errno> {
    ioctl_with(file, command, &mut 0_u64)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn atomic_writes_end_by_their_commit_or_abort() {
    private_mounts();
    let fixture = f2fs();
    let (old, new) = (contents(1, 100_000), contents(2, 300_000));
    with_mount(&fixture, "rw", |mount| {
        let path = mount.join("f");
        fs::write(&path, &old).unwrap();
        let file = open(&path);
        for (command, expected) in [(START, &new[..]), (REPLACE, &new[..10])] {
            for is_committed in [false, true] {
                // Cached by the kernel.
                assert!(fs::read(&path).unwrap() == old);
                ioctl(&file, command).unwrap();
                file.write_all_at(expected, 0).unwrap();
                assert!(fs::read(&path).unwrap() == expected, "before the end");
                let end = if is_committed { COMMIT } else { ABORT };
                ioctl(&file, end).unwrap();
                let found = fs::read(&path).unwrap();
                assert!(found == if is_committed { expected } else { &old }, "after the end");
            }
            fs::write(&path, &old).unwrap();
        }
        // A commit without an atomic write is an fsync, and an abort does nothing.
        ioctl(&file, COMMIT).unwrap();
        ioctl(&file, ABORT).unwrap();
        assert!(fs::read(&path).unwrap() == old);
    });
}

#[test]
fn closing_a_file_aborts_its_atomic_write() {
    private_mounts();
    let fixture = f2fs();
    let old = contents(1, 50_000);
    with_mount(&fixture, "rw", |mount| {
        let path = mount.join("f");
        fs::write(&path, &old).unwrap();
        let file = open(&path);
        ioctl(&file, START).unwrap();
        file.write_all_at(&contents(2, 200_000), 10_000).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 210_000);
        drop(file);
        // The kernel does not wait for the server.
        wait_until("the end of the atomic write", || fs::read(&path).unwrap() == old);
        assert_eq!(fs::metadata(&path).unwrap().len(), 50_000);
    });
}

#[test]
fn stores_to_maps_are_part_of_an_atomic_write() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw", |mount| {
        let path = mount.join("f");
        let mut now = contents(1, 8 * BLOCK);
        fs::write(&path, &now).unwrap();
        let file = open(&path);
        let (length, protection) = (now.len(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map =
            unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0) };
        let map = map.unwrap().cast::<u8>();
        let store = |at: usize, byte: u8| {
            assert!(at < length);
            // SAFETY: the byte is in the mapping.
            unsafe { map.add(at).write_volatile(byte) }
        };
        store(5000, 7);
        now[5000] = 7;
        for command in [ABORT, COMMIT] {
            ioctl(&file, START).unwrap();
            store(9000, 8);
            ioctl(&file, command).unwrap();
            if command == COMMIT {
                now[9000] = 8;
            }
            assert!(fs::read(&path).unwrap() == now, "{command:#x}");
            // SAFETY: the byte is in the mapping.
            assert_eq!(unsafe { map.add(9000).read_volatile() }, now[9000], "{command:#x}");
        }
        // SAFETY: the mapping is not used any more.
        unsafe { munmap(map.cast(), length) }.unwrap();
    });
}

#[test]
fn atomic_writes_need_a_writable_file_of_the_caller() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw,allow_other", |mount| {
        let path = mount.join("f");
        fs::write(&path, [1; 5000]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let reader = File::open(&path).unwrap();
        let direct =
            OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let directory = File::open(mount).unwrap();
        for command in [START, REPLACE, COMMIT, ABORT] {
            assert_eq!(ioctl(&reader, command), Err(Errno::BADF), "{command:#x}");
            assert_eq!(ioctl(&directory, command), Err(Errno::BADF), "{command:#x}");
            let by_other = run_as(NOBODY, NOBODY, || ioctl(&open(&path), command));
            assert_eq!(by_other, Err(Errno::ACCESS), "{command:#x}");
        }
        assert_eq!(ioctl(&direct, START), Err(Errno::INVAL));
        let file = open(&path);
        ioctl(&file, START).unwrap();
        let truncated = file.set_len(10).unwrap_err();
        assert_eq!(truncated.raw_os_error(), Some(libc::EOPNOTSUPP));
        ioctl(&file, ABORT).unwrap();
        file.set_len(10).unwrap();
    });
}

#[test]
fn programs_learn_whether_they_can_write_atomically() {
    private_mounts();
    let fixture = f2fs();
    for (options, has) in [("rw", true), ("rw,writeback", false), ("ro", false)] {
        with_mount(&fixture, options, |mount| {
            let root = File::open(mount).unwrap();
            let mut features = 0_u32;
            ioctl_with(&root, GET_FEATURES, &mut features).unwrap();
            assert_eq!(features & FEATURE_ATOMIC_WRITE != 0, has, "{options}");
            let others = fs::read(&fixture.image).unwrap()[1024 + 2180..][..4].to_vec();
            let others = u32::from_le_bytes(others.try_into().unwrap());
            assert_eq!(features & !FEATURE_ATOMIC_WRITE, others & !FEATURE_ATOMIC_WRITE);
            if options == "rw,writeback" {
                fs::write(mount.join("f"), [1; 5000]).unwrap();
                assert_eq!(ioctl(&open(&mount.join("f")), START), Err(Errno::OPNOTSUPP));
            }
        });
    }
    let ext4 = Fixture::with_tree();
    let mount = ext4.mount(&["-o", "rw"]);
    let file = open(&mount.path().join("small"));
    for command in [GET_FEATURES, START, WRITE_CHECKPOINT] {
        assert_eq!(ioctl(&file, command), Err(Errno::NOTTY), "{command:#x}");
    }
}

#[test]
fn f2fs_io_writes_atomically() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw", |mount| {
        let path = mount.join("f");
        let write = |pattern: &str, how: &str| {
            let arguments = ["write", "1", "0", "8", pattern, how];
            run(Command::new("f2fs_io").args(arguments).arg(&path).arg("0"));
            fs::read(&path).unwrap()
        };
        let numbers = write("inc_num", "atomic_commit");
        assert_eq!(numbers.len(), 8 * BLOCK);
        assert_ne!(numbers, vec![0; 8 * BLOCK]);
        assert!(write("zero", "atomic_abort") == numbers, "aborted");
        assert!(write("zero", "atomic_commit") == vec![0; 8 * BLOCK], "committed");
    });
}

#[test]
fn requests_for_the_volume_are_answered_or_refused() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw,allow_other", |mount| {
        let path = mount.join("f");
        fs::write(&path, contents(1, 100_000)).unwrap();
        let file = open(&path);
        ioctl(&file, WRITE_CHECKPOINT).unwrap();
        ioctl(&file, PRECACHE_EXTENTS).unwrap();
        let mut argument = [0_u8; 64];
        let mut send = |command| ioctl_with(&file, command, &mut argument);
        for (name, command, expected) in [
            ("MOVE_RANGE", 0xc020_f509, Errno::OPNOTSUPP),
            ("FLUSH_DEVICE", 0x4008_f50a, Errno::INVAL),
            ("RESIZE_FS", 0x4008_f510, Errno::OPNOTSUPP),
            ("SEC_TRIM_FILE", 0x4018_f514, Errno::OPNOTSUPP),
            ("IO_PRIO", 0x4004_f51b, Errno::OPNOTSUPP),
            ("GET_COMPRESS_BLOCKS", 0x8008_f511, Errno::OPNOTSUPP),
            ("GET_COMPRESS_OPTION", 0x8002_f515, Errno::OPNOTSUPP),
            ("SET_COMPRESS_OPTION", 0x4002_f516, Errno::OPNOTSUPP),
            ("START_VOLATILE_WRITE", 0xf503, Errno::NOTTY),
            ("SHUTDOWN", 0x8004_587d, Errno::NOTTY),
        ] {
            assert_eq!(send(command), Err(expected), "{name}");
        }
        assert_eq!(send(0x8004_f51a), Ok(()), "GET_DEV_ALIAS_FILE");
        let by_other = run_as(NOBODY, NOBODY, || {
            let root = File::open(mount).unwrap();
            [WRITE_CHECKPOINT, GARBAGE_COLLECT, 0x4008_f50a].map(|command| ioctl(&root, command))
        });
        assert_eq!(by_other, [Err(Errno::PERM); 3]);
    });
}

#[test]
fn sections_are_cleaned_on_request_until_nothing_is_left_to_gain() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw", |mount| {
        let kept = |number: usize| mount.join(format!("kept {number}"));
        let root = File::open(mount).unwrap();
        for number in 0..24 {
            fs::write(kept(number), contents(number as u64, 500 * BLOCK)).unwrap();
            fs::write(mount.join("removed"), contents(1, 500 * BLOCK)).unwrap();
            ioctl(&root, WRITE_CHECKPOINT).unwrap();
            fs::remove_file(mount.join("removed")).unwrap();
        }
        let cleaned = (0..200).position(|_| match ioctl(&root, GARBAGE_COLLECT) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error, Errno::NODATA);
                true
            }
        });
        assert!(cleaned.is_some_and(|cleaned| cleaned > 2), "{cleaned:?} sections were cleaned");
        for number in 0..24 {
            assert!(fs::read(kept(number)).unwrap() == contents(number as u64, 500 * BLOCK));
        }
    });
}

#[test]
fn a_file_that_is_not_compressed_has_no_compression_to_show() {
    private_mounts();
    let fixture = Fixture::new();
    Kind::named("lz4").make(&fixture.image, 128);
    with_mount(&fixture, "rw", |mount| {
        let path = mount.join("f");
        fs::write(&path, [1; 5000]).unwrap();
        let file = open(&path);
        let mut argument = [0_u8; 8];
        let mut send = |command| ioctl_with(&file, command, &mut argument);
        assert_eq!(send(0x8008_f511), Err(Errno::INVAL), "GET_COMPRESS_BLOCKS");
        assert_eq!(send(0x8002_f515), Err(Errno::NODATA), "GET_COMPRESS_OPTION");
        for command in ["get_cblocks", "get_coption"] {
            assert!(!output(Command::new("f2fs_io").arg(command).arg(&path)).status.success());
        }
    });
}

#[test]
fn compression_is_chosen_and_its_saved_blocks_are_released() {
    private_mounts();
    for options in ["rw", "rw,writeback"] {
        let fixture = Fixture::new();
        Kind::named("lz4").make(&fixture.image, 128);
        with_mount(&fixture, options, |mount| {
            let folder = mount.join("folder");
            fs::create_dir(&folder).unwrap();
            run(Command::new("chattr").arg("+c").arg(&folder));
            let path = folder.join("f");
            let f2fs_io = |arguments: &[&str]| {
                let found = output(Command::new("f2fs_io").args(arguments).arg(&path));
                assert!(found.status.success(), "{arguments:?}: {found:?}");
                String::from_utf8(found.stdout).unwrap()
            };
            let file = File::create(&path).unwrap();
            assert!(f2fs_io(&["get_coption"]).contains("algorithm:1"), "LZ4");
            f2fs_io(&["set_coption", "2", "3"]);
            let option = f2fs_io(&["get_coption"]);
            assert!(option.contains("algorithm:2") && option.contains("size:3"), "{option}");
            let text: Vec<u8> = (0..64 * BLOCK).map(|at| (at / 1000) as u8).collect();
            fs::write(&path, &text).unwrap();
            file.sync_all().unwrap();
            // Files with blocks stay as they are.
            assert!(!output(Command::new("chattr").arg("-c").arg(&path)).status.success());
            let refused =
                output(Command::new("f2fs_io").args(["set_coption", "1", "2"]).arg(&path));
            assert!(!refused.status.success(), "{refused:?}");
            // Clusters of 8 blocks need one each.
            assert_eq!(f2fs_io(&["get_cblocks"]).trim(), (7 * 8).to_string());
            assert_eq!(f2fs_io(&["release_cblocks"]).trim(), (7 * 8).to_string());
            assert_eq!(fs::metadata(&path).unwrap().blocks(), 8 * 8);
            assert_eq!(f2fs_io(&["get_cblocks"]).trim(), "0");
            assert!(fs::write(&path, b"x").is_err());
            assert_eq!(f2fs_io(&["reserve_cblocks"]).trim(), (7 * 8).to_string());
            file.write_all_at(b"changed", 100_000).unwrap();
            file.sync_all().unwrap();
            let mut expected = text;
            expected[100_000..100_007].copy_from_slice(b"changed");
            assert!(fs::read(&path).unwrap() == expected);
            assert_eq!(f2fs_io(&["get_cblocks"]).trim(), (7 * 8).to_string());
        });
    }
}

#[test]
fn pinned_files_are_overwritten_and_nothing_else() {
    private_mounts();
    for options in ["rw", "rw,writeback"] {
        let fixture = f2fs();
        with_mount(&fixture, &format!("{options},allow_other"), |mount| {
            let path = mount.join("f");
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            let file = file.unwrap();
            let failures = |file: &File| {
                let mut failures = 7_u32;
                ioctl_with(file, GET_PIN_FILE, &mut failures).map(|()| failures)
            };
            let pin = |file: &File, mut pin: u32| ioctl_with(file, SET_PIN_FILE, &mut pin);
            assert_eq!(failures(&file), Ok(0));
            run(Command::new("f2fs_io").args(["pinfile", "set"]).arg(&path));
            let shown = output(Command::new("f2fs_io").args(["pinfile", "get"]).arg(&path));
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains("0 blocks moved"), "{shown}");
            // FS_NOCOW_FL
            let flags = rustix::fs::ioctl_getflags(&file).unwrap().bits();
            assert_eq!(flags, 0x80_0000, "{options}");
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 100_000).unwrap();
            let now = contents(1, 100_000);
            file.write_all_at(&now, 0).unwrap();
            file.sync_all().unwrap();
            assert!(fs::read(&path).unwrap() == now);
            let punch =
                rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let punched = rustix::fs::fallocate(&file, punch, 0, 4096);
            assert_eq!(punched, Err(Errno::OPNOTSUPP), "{options}");
            for size in [1, 50_000, 100_000] {
                let truncated = file.set_len(size).unwrap_err();
                assert_eq!(truncated.raw_os_error(), Some(libc::EINVAL), "{options}: {size}");
            }
            assert!(fs::read(&path).unwrap() == now, "{options}");
            file.set_len(200_000).unwrap();
            pin(&file, 0).unwrap();
            file.set_len(50_000).unwrap();
            assert_eq!(pin(&file, 1), Err(Errno::FBIG), "{options}");
            assert_eq!(pin(&File::open(mount).unwrap(), 1), Err(Errno::INVAL));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            let by_other = run_as(NOBODY, NOBODY, || pin(&open(&path), 1));
            assert_eq!(by_other, Err(Errno::ACCESS), "{options}");
            // What the kernel holds has blocks before the file is pinned.
            let other = OpenOptions::new().write(true).create_new(true).open(mount.join("other"));
            let other = other.unwrap();
            other.write_all_at(&[1; 5000], 0).unwrap();
            assert_eq!(pin(&other, 1), Err(Errno::FBIG), "{options}");
        });
    }
}

#[test]
fn chattr_sets_projects_which_renames_respect() {
    private_mounts();
    let fixture = Fixture::new();
    Kind::named("project").make(&fixture.image, 64);
    with_mount(&fixture, "rw", |mount| {
        let directory = mount.join("d");
        fs::create_dir(&directory).unwrap();
        run(Command::new("chattr").args(["-p", "7", "+P"]).arg(&directory));
        fs::write(directory.join("inside"), "data").unwrap();
        fs::write(mount.join("outside"), "data").unwrap();
        let shown = output(Command::new("lsattr").arg("-p").arg(directory.join("inside")));
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert_eq!(shown.split_whitespace().next(), Some("7"), "{shown}");
        let refused = fs::rename(mount.join("outside"), directory.join("moved")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EXDEV));
        let refused = fs::hard_link(mount.join("outside"), directory.join("link")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EXDEV));
        run(Command::new("chattr").args(["-p", "7"]).arg(mount.join("outside")));
        fs::rename(mount.join("outside"), directory.join("moved")).unwrap();
    });
    let without = Fixture::new();
    Kind::named("extra_attr").make(&without.image, 64);
    with_mount(&without, "rw", |mount| {
        let set = output(Command::new("chattr").args(["-p", "7"]).arg(mount));
        assert!(!set.status.success());
    });
}

#[test]
fn only_owners_set_advice() {
    private_mounts();
    let fixture = f2fs();
    with_mount(&fixture, "rw,allow_other", |mount| {
        let path = mount.join("f");
        fs::write(&path, "data").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let set = |value: u8| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "system.advise", &[value], flags)
        };
        assert_eq!(set(4), Err(Errno::INVAL));
        assert_eq!(run_as(NOBODY, NOBODY, || set(0x20)), Err(Errno::PERM));
        set(0x20).unwrap();
        let mut found = [0; 8];
        let length = rustix::fs::getxattr(&path, "system.advise", &mut found).unwrap();
        assert_eq!(found[..length], [0x20]);
    });
}

/// With `idmap`, requests do not name the user, and the kernel does not check these.
#[test]
fn callers_without_a_name_are_not_owners() {
    private_mounts();
    let fixture = Fixture::new();
    Kind::named("lz4").make(&fixture.image, 128);
    with_mount(&fixture, "rw,allow_other,idmap", |mount| {
        let path = mount.join("f");
        fs::write(&path, "data").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let by_nobody = |command| run_as(NOBODY, NOBODY, || ioctl(&open(&path), command));
        for command in [SET_PIN_FILE, START, RELEASE_COMPRESS_BLOCKS, RESERVE_COMPRESS_BLOCKS] {
            assert_eq!(by_nobody(command), Err(Errno::ACCESS), "{command:#x}");
        }
        let advice = || {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "system.advise", &[0x20], flags)
        };
        assert_eq!(run_as(NOBODY, NOBODY, advice), Err(Errno::PERM));
    });
}

#[test]
fn the_kernel_takes_names_that_differ_in_case_for_one() {
    private_mounts();
    let fixture = Fixture::new();
    Kind::named("casefold").make(&fixture.image, 128);
    with_mount(&fixture, "rw", |root| {
        let folder = root.join("folder");
        fs::create_dir(&folder).unwrap();
        // The kernel must not remember this under the new rule for names.
        assert!(!folder.join("EARLY").exists());
        let opened = File::open(&folder).unwrap();
        let mut flags = rustix::fs::ioctl_getflags(&opened).unwrap();
        flags |= rustix::fs::IFlags::from_bits_retain(0x4000_0000);
        rustix::fs::ioctl_setflags(&opened, flags).unwrap();
        let at = |name: &str| folder.join(name);
        let read = |name: &str| fs::read_to_string(at(name)).ok();
        fs::write(at("Report"), "precious").unwrap();
        assert_eq!(read("report").as_deref(), Some("precious"));
        fs::rename(at("report"), at("kept")).unwrap();
        fs::write(at("Report"), "new").unwrap();
        assert_eq!(read("kept").as_deref(), Some("precious"));
        fs::remove_file(at("REPORT")).unwrap();
        assert_eq!(read("Report"), None);
        fs::write(at("Report"), "again").unwrap();
        assert_eq!(read("report").as_deref(), Some("again"));
        fs::rename(at("Kept"), at("rePort")).unwrap();
        assert_eq!(read("Report").as_deref(), Some("precious"));
        assert_eq!(read("neg"), None);
        fs::write(at("NEG"), "x").unwrap();
        assert_eq!(read("neg").as_deref(), Some("x"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        let directory = |name: &str| fs::create_dir(at(name)).map_err(|error| error.kind());
        assert_eq!(directory("REPORT"), Err(std::io::ErrorKind::AlreadyExists));
        fs::write(at("early"), "found").unwrap();
        assert_eq!(read("EARLY").as_deref(), Some("found"));
        fs::hard_link(at("NEG"), at("Other")).unwrap();
        assert_eq!(read("OTHER").as_deref(), Some("x"));
    });
}
