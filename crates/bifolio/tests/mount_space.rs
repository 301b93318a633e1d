//! Running out of space on a volume mounted for writing, beside the kernel's ext4: some of it is kept
//! for root.

mod mounting;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use mounting::side_by_side::{Notes, side_by_side, side_by_side_on};
use mounting::{Location, NOBODY};
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use testkit::command::run;
use testkit::{Mke2fs, check_by_e2fsck, private_mounts};

const BLOCK: u64 = 4096;
/// The user and the group that the superblock names. (Linux 6.18 takes the user's number for both.)
const NAMED: u32 = 1234;
/// What nobody can have of 64 MiB, in blocks.
const KEPT_FOR_EXTENTS: u64 = 327;

/// Has a thread of this user and group make calls.
fn as_somebody<R: Send>(user: u32, group: u32, calls: impl FnOnce() -> R + Send) -> R {
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

/// Writes to the end of a new file, in parts of so many blocks and at last of one, until that fails;
/// how many blocks that were, and why it failed.
fn fill(path: &Path, blocks: usize) -> Result<(u64, Errno), Errno> {
    let file = open(path, OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND)?;
    let data = vec![7; blocks * BLOCK as usize];
    let mut written = 0;
    let mut parts = [&data[..], &data[..BLOCK as usize]].into_iter();
    let mut part = parts.next().unwrap();
    let failure = loop {
        match rustix::io::write(&file, part) {
            Ok(bytes) => written += bytes as u64,
            Err(errno) => match parts.next() {
                Some(next) => part = next,
                None => break errno,
            },
        }
    };
    // Nothing that was taken is lost.
    rustix::fs::fsync(&file)?;
    assert_eq!(file.metadata().unwrap().len(), written);
    Ok((written / BLOCK, failure))
}

/// What needs a block each, and what does not.
fn try_all(directory: &Path, who: &str, notes: &mut Notes) {
    let at = |name: &str| directory.join(format!("{who}'s {name}"));
    let file = open(&at("file"), OFlags::CREATE | OFlags::RDWR);
    notes.note(format_args!("{who}: create"), file.as_ref().map(drop).map_err(|errno| *errno));
    let write = |bytes: usize| {
        let file = file.as_ref().map_err(|errno| *errno)?;
        rustix::io::pwrite(file, &vec![1; bytes], 0)
    };
    notes.note(format_args!("{who}: write"), write(1));
    notes.note(format_args!("{who}: write many"), write(100 * BLOCK as usize));
    notes.note(format_args!("{who}: sync"), {
        file.as_ref().map_err(|errno| *errno).and_then(|file| rustix::fs::fsync(file.as_fd()))
    });
    let mode = Mode::from_raw_mode(0o700);
    notes.note(format_args!("{who}: mkdir"), rustix::fs::mkdir(at("directory"), mode));
    notes.note(format_args!("{who}: symlink"), rustix::fs::symlink("target", at("short")));
    notes.note(format_args!("{who}: long symlink"), {
        rustix::fs::symlink("target".repeat(100), at("long"))
    });
    for (name, length) in [("user.small", 10), ("user.large", 3000)] {
        // None that another inode has, too: the kernel shares their blocks.
        let value = who.bytes().cycle().take(length).collect::<Vec<_>>();
        let set = rustix::fs::lsetxattr(at("file"), name, &value, XattrFlags::empty());
        notes.note(format_args!("{who}: set {name}"), set);
    }
    notes.note(format_args!("{who}: hard link"), rustix::fs::link(at("file"), at("hard link")));
    notes.note(format_args!("{who}: rename"), rustix::fs::rename(at("file"), at("new name")));
}

fn available(root: &Path) -> u64 {
    rustix::fs::statvfs(root).unwrap().f_bavail
}

/// Fills a volume as nobody, and notes what these can do then, and what nobody can when there is room
/// again.
fn fill_and_try(root: &Path, who: &[(&str, u32, u32)], notes: &mut Notes) {
    let all = root.join("everybody's");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    let there = available(root);
    let (blocks, errno) = as_somebody(NOBODY, NOBODY, || fill(&all.join("fill"), 64)).unwrap();
    notes.note::<()>("fill", Err(errno));
    // One or the other may need a block for the map of the file.
    assert!((there - 4..=there).contains(&blocks), "{blocks} of {there} blocks");
    // The kernel's counters, which its processors share, are off by one at times.
    assert!(available(root) <= 1);
    for &(who, user, group) in who {
        as_somebody(user, group, || try_all(&all, who, notes));
    }
    fs::remove_file(all.join("fill")).unwrap();
    rustix::fs::syncfs(File::open(root).unwrap()).unwrap();
    as_somebody(NOBODY, NOBODY, || try_all(&all, "nobody at last", notes));
}

#[test]
fn an_ordinary_user_cannot_have_what_is_kept_for_root() {
    side_by_side(|root, notes| {
        let who = [("nobody", NOBODY, NOBODY), ("root", 0, 0), ("nobody again", NOBODY, NOBODY)];
        fill_and_try(root, &who, notes);
        fill(&root.join("more"), 64).unwrap();
        let counts = rustix::fs::statvfs(root).unwrap();
        notes.note("available to others", Ok(counts.f_bavail));
        // Extents can still be split.
        notes.note("root has had the rest", Ok(counts.f_bfree.abs_diff(KEPT_FOR_EXTENTS) <= 4));
    });
}

#[test]
fn the_user_and_the_group_that_the_superblock_names_can_have_what_is_kept() {
    let name = |image: &Path| {
        let named = NAMED.to_string();
        run(Command::new("tune2fs").args(["-u", &named, "-g", &named]).arg(image));
    };
    side_by_side_on(name, |root, notes| {
        let who = [
            ("the user", NAMED, NOBODY),
            ("nobody", NOBODY, NOBODY),
            ("one of the group", NOBODY, NAMED),
        ];
        fill_and_try(root, &who, notes);
    });
}

#[test]
fn what_the_kernel_collects_of_an_ordinary_user_takes_what_is_kept_rather_than_be_lost() {
    private_mounts();
    let place = Location::new();
    Mke2fs { size: 64 << 20, ..Mke2fs::new("ext4", 4096) }.make(&place.image, None);
    let mount = place.mount(&["-o", "rw,allow_other,writeback"]);
    let all = mount.path().join("everybody's");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    as_somebody(NOBODY, NOBODY, || {
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
        let collected = open(&all.join("collected"), OFlags::CREATE | OFlags::WRONLY).unwrap();
        let data = testkit::tree::contents(3, 100_000);
        assert_eq!(rustix::io::write(&collected, &data), Ok(data.len()));
        rustix::fs::fsync(&collected).unwrap();
        assert!(fs::read(all.join("collected")).unwrap() == data);
    });
    place.umount();
    mount.assert_gone();
    check_by_e2fsck(&place.image);
}

#[repr(align(4096))]
struct Aligned([u8; 65_536]);
