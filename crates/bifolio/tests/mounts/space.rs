//! Full volumes and blocks reserved for root, compared with the kernel's ext4.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::mounting::side_by_side::{Notes, side_by_side, side_by_side_on};
use crate::mounting::{Fixture, NOBODY};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use testkit::command::run;
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

const BLOCK: u64 = 4096;
/// User and group that the superblock names. Linux 6.18 uses the number of the user for both.
const NAMED: u32 = 1234;
/// Number of blocks of a volume of 64 MiB that are reserved for extent splits.
const RESERVED_FOR_EXTENTS: u64 = 327;

/// Runs calls on a thread with this user and group.
fn run_as<R: Send>(user: u32, group: u32, calls: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            calls()
        });
        thread.join().unwrap()
    })
}

fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o666)).map(File::from)
}

/// Appends to a new file until the volume is full, in parts of `blocks` blocks and then of one
/// block. Returns the number of blocks and the error.
///
/// The volume is full when a write fails with no writeback on its way: the kernel counts a block
/// twice for a moment, as allocated and as delayed.
fn fill(path: &Path, blocks: usize) -> Result<(u64, Errno), Errno> {
    let file = open(path, OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND)?;
    let data = vec![7; blocks * BLOCK as usize];
    let mut written = 0;
    let mut parts = [&data[..], &data[..BLOCK as usize]].into_iter();
    let mut part = parts.next().unwrap();
    let mut synced = false;
    let failure = loop {
        match rustix::io::write(&file, part) {
            Ok(bytes) => {
                written += bytes as u64;
                synced = false;
            }
            Err(errno) => match parts.next() {
                Some(next) => part = next,
                None if synced => break errno,
                // Accepted data is not lost.
                None => {
                    rustix::fs::fsync(&file)?;
                    synced = true;
                }
            },
        }
    };
    assert_eq!(file.metadata().unwrap().len(), written);
    Ok((written / BLOCK, failure))
}

/// Tries calls that need a block, and calls that do not.
fn try_all(directory: &Path, user: &str, notes: &mut Notes) {
    let at = |name: &str| directory.join(format!("{user}'s {name}"));
    let file = open(&at("file"), OFlags::CREATE | OFlags::RDWR);
    notes.note(format_args!("{user}: create"), file.as_ref().map(drop).map_err(|errno| *errno));
    let write = |bytes: usize| {
        let file = file.as_ref().map_err(|errno| *errno)?;
        rustix::io::pwrite(file, &vec![1; bytes], 0)
    };
    notes.note(format_args!("{user}: write"), write(1));
    notes.note(format_args!("{user}: write many"), write(100 * BLOCK as usize));
    notes.note(format_args!("{user}: sync"), {
        file.as_ref().map_err(|errno| *errno).and_then(|file| rustix::fs::fsync(file.as_fd()))
    });
    let mode = Mode::from_raw_mode(0o700);
    notes.note(format_args!("{user}: mkdir"), rustix::fs::mkdir(at("directory"), mode));
    notes.note(format_args!("{user}: symlink"), rustix::fs::symlink("target", at("short")));
    notes.note(format_args!("{user}: long symlink"), {
        rustix::fs::symlink("target".repeat(100), at("long"))
    });
    for (name, length) in [("user.small", 10), ("user.large", 3000)] {
        // The value is unique, because the kernel shares blocks of equal attributes.
        let value = user.bytes().cycle().take(length).collect::<Vec<_>>();
        let set = rustix::fs::lsetxattr(at("file"), name, &value, XattrFlags::empty());
        notes.note(format_args!("{user}: set {name}"), set);
    }
    notes.note(format_args!("{user}: hard link"), rustix::fs::link(at("file"), at("hard link")));
    notes.note(format_args!("{user}: rename"), rustix::fs::rename(at("file"), at("new name")));
}

fn available(root: &Path) -> u64 {
    rustix::fs::statvfs(root).unwrap().f_bavail
}

/// Fills a volume as the user nobody, and notes the calls that `users` can make then, and those
/// that nobody can make after the file is removed.
fn fill_and_try(root: &Path, users: &[(&str, u32, u32)], notes: &mut Notes) {
    let all = root.join("shared");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    let free = available(root);
    let (blocks, errno) = run_as(NOBODY, NOBODY, || fill(&all.join("fill"), 64)).unwrap();
    notes.note::<()>("fill", Err(errno));
    // A few blocks may be needed for the extent tree.
    assert!((free - 4..=free).contains(&blocks), "{blocks} of {free} blocks");
    // The per-CPU counters of the kernel can be off by one.
    assert!(available(root) <= 1);
    for &(name, user, group) in users {
        run_as(user, group, || try_all(&all, name, notes));
    }
    fs::remove_file(all.join("fill")).unwrap();
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
    run_as(NOBODY, NOBODY, || try_all(&all, "nobody at last", notes));
}

#[test]
fn ordinary_users_cannot_use_reserved_blocks() {
    side_by_side(|root, notes| {
        let users = [("nobody", NOBODY, NOBODY), ("root", 0, 0), ("nobody again", NOBODY, NOBODY)];
        fill_and_try(root, &users, notes);
        fill(&root.join("more"), 64).unwrap();
        let counts = rustix::fs::statvfs(root).unwrap();
        notes.note("available to others", Ok(counts.f_bavail));
        // The blocks for extent splits are still reserved.
        notes.note("root has had the rest", Ok(counts.f_bfree.abs_diff(RESERVED_FOR_EXTENTS) <= 4));
    });
}

#[test]
fn the_user_and_group_of_the_superblock_can_use_reserved_blocks() {
    let name = |image: &Path| {
        let named = NAMED.to_string();
        run(Command::new("tune2fs").args(["-u", &named, "-g", &named]).arg(image));
    };
    side_by_side_on(name, |root, notes| {
        let users = [
            ("the user", NAMED, NOBODY),
            ("nobody", NOBODY, NOBODY),
            ("one of the group", NOBODY, NAMED),
        ];
        fill_and_try(root, &users, notes);
    });
}

#[test]
fn writeback_of_a_users_cached_writes_can_use_reserved_blocks() {
    private_mounts();
    let fixture = Fixture::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&fixture.image, None);
    let mount = fixture.mount(&["-o", "rw,allow_other,writeback"]);
    let all = mount.path().join("shared");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    run_as(NOBODY, NOBODY, || {
        let direct = open(&all.join("direct"), OFlags::CREATE | OFlags::WRONLY | OFlags::DIRECT);
        let (direct, part) = (direct.unwrap(), Aligned([5; 65_536]));
        let mut at = 0;
        let errno = loop {
            match rustix::io::pwrite(&direct, &part.0, at) {
                Ok(written) => at += written as u64,
                Err(errno) => break errno,
            }
        };
        assert_eq!(errno, Errno::NOSPC);
        let cached = open(&all.join("cached"), OFlags::CREATE | OFlags::WRONLY).unwrap();
        let data = testkit::tree::contents(3, 100_000);
        assert_eq!(rustix::io::write(&cached, &data), Ok(data.len()));
        rustix::fs::fsync(&cached).unwrap();
        assert!(fs::read(all.join("cached")).unwrap() == data);
    });
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[repr(align(4096))]
struct Aligned([u8; 65_536]);
