//! System calls on a writable mount, compared with the same calls on the kernel's ext4.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::mounting::side_by_side::{Notes, side_by_side};
use crate::mounting::{NOBODY, as_user};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, IFlags, Mode, OFlags, RenameFlags, SeekFrom,
    StatxFlags, Timespec, Timestamps, UTIME_NOW, XattrFlags,
};
use rustix::io::Errno;
use testkit::command::{output, run};

fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::open(path, flags | OFlags::CLOEXEC, mode).map(File::from)
}

fn opens(path: &Path, flags: OFlags) -> Result<(), Errno> {
    open(path, flags).map(drop)
}

fn writes(file: impl AsFd, at: u64) -> Result<usize, Errno> {
    rustix::io::pwrite(file, b"new", at)
}

fn set_xattr(path: &Path) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, "user.name", b"value", XattrFlags::empty())
}

fn chmod(path: &Path) -> Result<(), Errno> {
    rustix::fs::chmod(path, Mode::from_raw_mode(0o711))
}

fn set_times(path: &Path, nanoseconds: i64) -> Result<(), Errno> {
    let time = Timespec { tv_sec: 1_000_000, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
}

fn make(path: &Path, kind: FileType) -> Result<(), Errno> {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), 0)
}

fn flags_of(path: &Path) -> Result<u32, Errno> {
    rustix::fs::ioctl_getflags(open(path, OFlags::RDONLY)?).map(|flags| flags.bits())
}

fn set_flags(path: &Path, flags: u32) -> Result<(), Errno> {
    let flags = IFlags::from_bits_retain(flags);
    rustix::fs::ioctl_setflags(open(path, OFlags::RDONLY)?, flags)
}

/// Changes an immutable or append-only file.
fn change_protected_file(root: &Path, flag: IFlags, notes: &mut Notes) {
    let at = |name: &str| root.join(name);
    let file = at("file");
    fs::write(&file, "contents").unwrap();
    fs::write(at("other"), "other").unwrap();
    set_xattr(&file).unwrap();
    let before = open(&file, OFlags::RDWR).unwrap();
    let flags = flags_of(&file).unwrap();
    notes.note("set", set_flags(&file, flags | flag.bits()));
    notes.note("flags", flags_of(&file));
    let access = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR];
    for access in access {
        for more in [OFlags::empty(), OFlags::APPEND, OFlags::TRUNC, OFlags::CREATE] {
            notes.note(format_args!("open {access:?} {more:?}"), opens(&file, access | more));
        }
    }
    notes.note("overwrite", writes(&before, 0));
    notes.note("write at the end", writes(&before, 8));
    notes.note("write past the end", writes(&before, 20));
    notes.note("truncate", rustix::fs::ftruncate(&before, 3));
    notes.note("grow", rustix::fs::ftruncate(&before, 100));
    notes.note("append", open(&file, OFlags::WRONLY | OFlags::APPEND).and_then(|f| writes(f, 0)));
    notes.note("chmod", chmod(&file));
    notes.note("chown", rustix::fs::chown(&file, Some(rustix::fs::Uid::from_raw(7)), None));
    notes.note("set times", set_times(&file, 0));
    notes.note("touch", set_times(&file, UTIME_NOW));
    notes.note("set xattr", set_xattr(&file));
    notes.note("remove xattr", rustix::fs::lremovexattr(&file, "user.name"));
    notes.note("get xattr", rustix::fs::lgetxattr(&file, "user.name", &mut [0_u8; 20][..]));
    notes.note("link", rustix::fs::link(&file, at("link")));
    notes.note("rename", rustix::fs::rename(&file, at("renamed")));
    notes.note("replace", rustix::fs::rename(at("other"), &file));
    let (other, exchange) = (at("other"), RenameFlags::EXCHANGE);
    notes.note("exchange", rustix::fs::renameat_with(CWD, &other, CWD, &file, exchange));
    notes.note("unlink", rustix::fs::unlink(&file));
    notes.note(
        "copy into",
        open(&file, OFlags::WRONLY | OFlags::APPEND).and_then(|to| {
            let from = open(&at("other"), OFlags::RDONLY)?;
            rustix::fs::copy_file_range(from, None, to, None, 10)
        }),
    );
    notes.note("contents", Ok(fs::read(&file).unwrap()));
    let no_dump = IFlags::NODUMP.bits();
    notes.note("one flag more", set_flags(&file, flags | flag.bits() | no_dump));
    notes.note("another instead", set_flags(&file, flags | no_dump));
    notes.note("flags", flags_of(&file));
    notes.note("set back", set_flags(&file, flags));
    notes.note("write again", writes(&before, 0));
    notes.note("unlink again", rustix::fs::unlink(&file));
}

/// Changes an immutable or append-only directory.
fn change_protected_directory(root: &Path, flag: IFlags, notes: &mut Notes) {
    let directory = root.join("directory");
    let at = |name: &str| directory.join(name);
    fs::create_dir_all(at("sub")).unwrap();
    fs::write(at("file"), "in it").unwrap();
    fs::write(root.join("outside"), "beside it").unwrap();
    let flags = flags_of(&directory).unwrap();
    notes.note("set", set_flags(&directory, flags | flag.bits()));
    notes.note("create", opens(&at("new"), OFlags::CREATE | OFlags::WRONLY));
    notes.note("mkdir", rustix::fs::mkdir(at("new directory"), Mode::RWXU));
    notes.note("mknod", make(&at("fifo"), FileType::Fifo));
    notes.note("symlink", rustix::fs::symlink("target", at("symlink")));
    notes.note("link", rustix::fs::link(root.join("outside"), at("link")));
    notes.note("link out", rustix::fs::link(at("file"), root.join("out")));
    notes.note("unnamed", opens(&directory, OFlags::TMPFILE | OFlags::RDWR));
    notes.note("rename into", rustix::fs::rename(root.join("outside"), at("moved")));
    notes.note("rename in it", rustix::fs::rename(at("file"), at("renamed")));
    notes.note("rename out", rustix::fs::rename(at("file"), root.join("moved out")));
    notes.note("unlink", rustix::fs::unlink(at("file")));
    notes.note("rmdir in it", rustix::fs::rmdir(at("sub")));
    notes.note("rename it", rustix::fs::rename(&directory, root.join("elsewhere")));
    notes.note("write to a file", open(&at("file"), OFlags::WRONLY).and_then(|f| writes(f, 0)));
    notes.note("chmod", chmod(&directory));
    notes.note("touch", set_times(&directory, UTIME_NOW));
    notes.note("set xattr", set_xattr(&directory));
    notes.note("set back", set_flags(&directory, flags));
    let mut names: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    notes.note("names", Ok(names));
}

#[test]
fn immutable_and_append_only_inodes_are_protected() {
    side_by_side(|root, notes| {
        for (name, flag) in [("immutable", IFlags::IMMUTABLE), ("append", IFlags::APPEND)] {
            for (kind, calls) in [
                ("file", change_protected_file as fn(&Path, IFlags, &mut Notes)),
                ("directory", change_protected_directory),
            ] {
                let below = root.join(format!("{name} {kind}"));
                fs::create_dir(&below).unwrap();
                let mut inner = Notes::default();
                calls(&below, flag, &mut inner);
                notes.0.extend(inner.0.into_iter().map(|line| format!("{name} {kind}: {line}")));
            }
        }
    });
}

/// Flags that are not compared: data journaling and DAX depend on the kernel, and only the kernel
/// converts extent trees to block maps and back.
const EXCLUDED_FLAGS: u32 = 0x4000 | 0x0200_0000 | 0x8_0000;

#[test]
fn flags_are_set_and_inherited() {
    side_by_side(|root, notes| {
        let (file, directory) = (root.join("file"), root.join("directory"));
        fs::write(&file, "contents").unwrap();
        fs::create_dir(&directory).unwrap();
        for path in [&file, &directory] {
            let flags = flags_of(path).unwrap();
            notes.note("at first", Ok(flags));
            for bit in (0..32).map(|bit| 1_u32 << bit).filter(|bit| bit & EXCLUDED_FLAGS == 0) {
                notes.note(format_args!("{bit:#x} of {path:?}", path = path.file_name()), {
                    set_flags(path, flags ^ bit)
                });
                notes.note(format_args!("{bit:#x} then"), flags_of(path));
                notes.note("back", set_flags(path, flags));
            }
        }
        set_flags(&directory, flags_of(&directory).unwrap() | 0xC0).unwrap();
        let below = |name: &str| directory.join(name);
        fs::write(below("file"), "").unwrap();
        fs::create_dir(below("sub")).unwrap();
        for name in ["file", "sub"] {
            notes.note(format_args!("inherited by {name}"), flags_of(&below(name)));
        }

        let by_xfs_io = |command: &str| {
            let output = output(Command::new("xfs_io").args(["-r", "-c", command]).arg(&file));
            output.text().replace(&*root.to_string_lossy(), "")
        };
        for command in ["chattr +dA", "lsattr", "chattr -d", "lsattr", "chattr +i", "lsattr"] {
            notes.note(command, Ok(by_xfs_io(command)));
        }
        notes.note("immutable", opens(&file, OFlags::WRONLY));
        notes.note("chattr -i", Ok(by_xfs_io("chattr -i")));
        notes.note("project", Ok(by_xfs_io("chproj 7")));

        rustix::fs::chown(&file, Some(rustix::fs::Uid::from_raw(NOBODY)), None).unwrap();
        for (user, change) in [(NOBODY, "+d"), (NOBODY, "+i"), (NOBODY, "+a"), (1, "+d")] {
            let output = output(as_user(user, "chattr").arg(change).arg(&file));
            notes.note(format_args!("{change} by {user}"), Ok(output.status.code()));
        }
        notes.note("at last", flags_of(&file));
    });
}

#[test]
fn rename_flags_behave_as_in_the_kernel() {
    const NAMES: [&str; 7] = ["file", "other", "empty", "full", "link", "fifo", "none"];
    let set_up = |root: &Path| {
        fs::create_dir_all(root.join("full/sub")).unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        fs::write(root.join("file"), "file").unwrap();
        fs::write(root.join("other"), "other").unwrap();
        rustix::fs::symlink("file", root.join("link")).unwrap();
        make(&root.join("fifo"), FileType::Fifo).unwrap();
    };
    side_by_side(|root, notes| {
        use RenameFlags as R;
        let all = R::NOREPLACE | R::EXCHANGE;
        let kinds = [R::empty(), R::NOREPLACE, R::EXCHANGE, R::WHITEOUT, all];
        for (number, flags) in kinds.into_iter().chain([R::from_bits_retain(8)]).enumerate() {
            for from in NAMES {
                for to in NAMES.into_iter().chain(["full/sub/in", "full/sub"]) {
                    let here = root.join(format!("{number}-{from}-{}", to.replace('/', "-")));
                    fs::create_dir(&here).unwrap();
                    set_up(&here);
                    let (old, new) = (here.join(from), here.join(to));
                    let done = rustix::fs::renameat_with(CWD, &old, CWD, &new, flags);
                    notes.note(format_args!("{from} to {to}, {flags:?}"), done);
                    for path in [old, new] {
                        let found = path.symlink_metadata().ok();
                        let found = found.map(|found| (found.mode(), found.nlink(), found.rdev()));
                        notes.note("now", Ok(found));
                    }
                }
            }
        }
    });
}

#[test]
fn unnamed_files_can_be_linked() {
    side_by_side(|root, notes| {
        let unnamed = |more: OFlags| open(root, OFlags::TMPFILE | OFlags::RDWR | more);
        let link = |file: &File, name: &str| {
            let here = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, here, CWD, root.join(name), AtFlags::SYMLINK_FOLLOW)
        };
        let file = unnamed(OFlags::empty()).unwrap();
        let facts = |file: &File| {
            let found = file.metadata().unwrap();
            Ok((found.mode(), found.nlink(), found.len()))
        };
        notes.note("new", facts(&file));
        notes.note("write", writes(&file, 5000));
        notes.note("written", facts(&file));
        notes.note("link", link(&file, "name"));
        notes.note("linked", facts(&file));
        notes.note("link again", link(&file, "name"));
        notes.note("link beside", link(&file, "other"));
        notes.note("unlink", rustix::fs::unlink(root.join("name")));
        notes.note("contents", Ok(fs::read(root.join("other")).unwrap()));
        notes.note("unlink", rustix::fs::unlink(root.join("other")));
        notes.note("link once more", link(&file, "again"));
        let alone = unnamed(OFlags::EXCL).unwrap();
        notes.note("link what is to stay alone", link(&alone, "alone"));
        notes.note("read only", opens(root, OFlags::TMPFILE));
        notes.note("in a file", opens(&root.join("none"), OFlags::TMPFILE | OFlags::RDWR));
    });
}

/// Returns the next data and the next hole from offsets up to `end`.
fn ranges(file: &File, end: u64) -> Vec<String> {
    let found = |at| {
        let (data, hole) = (seek(file, SeekFrom::Data(at)), seek(file, SeekFrom::Hole(at)));
        format!("{at}: {data:?} {hole:?}")
    };
    (0..=end).step_by(1024).chain([end + 1]).map(found).collect()
}

fn seek(file: &File, to: SeekFrom) -> Result<u64, Errno> {
    rustix::fs::seek(file, to)
}

#[test]
fn copies_of_ranges_and_seeks_behave_as_in_the_kernel() {
    side_by_side(|root, notes| {
        let open = |name: &str, flags| open(&root.join(name), flags | OFlags::CREATE);
        let source = open("source", OFlags::RDWR).unwrap();
        for at in [0, 40_000, 41_000, 120_000] {
            source.write_at(&[at as u8 + 1; 3000], at).unwrap();
        }
        source.set_len(200_000).unwrap();
        source.sync_all().unwrap();
        notes.note("source", Ok(ranges(&source, 200_000)));

        for (name, size) in [("empty", 0), ("short", 30_000), ("long", 150_000)] {
            for (from, at) in [(0, 0), (0, 8192), (100, 5), (39_999, 60_000), (199_999, 3)] {
                let target = open(&format!("{name}-{from}-{at}"), OFlags::RDWR).unwrap();
                target.write_at(&vec![b'x'; size], 0).unwrap();
                let (mut in_source, mut in_target) = (from, at);
                loop {
                    let left = 170_000 - (in_source - from) as usize;
                    let (from, to) = (Some(&mut in_source), Some(&mut in_target));
                    match rustix::fs::copy_file_range(&source, from, &target, to, left) {
                        Ok(0) => break,
                        Ok(_) => {}
                        failed => return notes.note("copy", failed),
                    }
                }
                notes.note("copied", Ok((in_source, in_target)));
                let mut data = vec![0; 400_000];
                let length = target.read_at(&mut data, 0).unwrap();
                data.truncate(length);
                notes.note("copy", Ok(data));
            }
        }
        let copy = |from: &File, mut at: u64, to: &File, mut to_at: u64, length| {
            rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), length)
        };
        notes.note("onto itself", copy(&source, 0, &source, 100, 1000));
        notes.note("within itself", copy(&source, 0, &source, 50_000, 1000));
        notes.note("from past the end", copy(&source, 300_000, &source, 0, 1000));
        let append = open("append", OFlags::WRONLY | OFlags::APPEND).unwrap();
        notes.note("to the end", copy(&source, 0, &append, 0, 1000));
        notes.note("to what is read", copy(&append, 0, &source, 0, 1000));
        let directory = open(".", OFlags::RDONLY - OFlags::CREATE);
        notes.note("from a directory", directory.map(|from| copy(&from, 0, &append, 0, 10)));
        // A copy by an unprivileged program removes the set-user-ID bit.
        let script = "echo changed > changed && cp --sparse=never changed program";
        fs::write(root.join("program"), "program").unwrap();
        rustix::fs::chmod(root.join("program"), Mode::from_raw_mode(0o6777)).unwrap();
        rustix::fs::chmod(root, Mode::from_raw_mode(0o777)).unwrap();
        let script = format!("cd '{}' && {script}", root.display());
        run(as_user(NOBODY, "sh").args(["-c", &script]));
        notes.note("program", Ok(root.join("program").metadata().unwrap().mode()));
    });
}

#[test]
fn lost_set_id_bits_are_visible_at_once() {
    side_by_side(|root, notes| {
        rustix::fs::chmod(root, Mode::from_raw_mode(0o777)).unwrap();
        fs::write(root.join("source"), "more").unwrap();
        for (name, script) in [
            ("appended to", "echo more >> file"),
            ("written to", "echo more 1<> file"),
            ("truncated", ": > file"),
            ("allocated", "fallocate -l 10000 file"),
            ("punched", "fallocate -p -l 3 file"),
            ("copied to", "cp source file"),
        ] {
            let file = root.join("file");
            fs::write(&file, "a program").unwrap();
            rustix::fs::chmod(&file, Mode::from_raw_mode(0o6777)).unwrap();
            // Requests only the mode, which the kernel may have cached.
            let mode = || rustix::fs::statx(CWD, &file, AtFlags::empty(), StatxFlags::MODE);
            notes.note("before", mode().map(|found| found.stx_mode));
            let script = format!("cd '{}' && {script}", root.display());
            run(as_user(NOBODY, "sh").args(["-c", &script]));
            notes.note(name, mode().map(|found| found.stx_mode));
            fs::remove_file(&file).unwrap();
        }
    });
}

#[test]
fn limits_are_those_of_the_format() {
    side_by_side(|root, notes| {
        let file = open(&root.join("file"), OFlags::CREATE | OFlags::RDWR).unwrap();
        for size in [1 << 32, (1 << 44) - 4096, (1 << 44) - 1, 1 << 44, i64::MAX as u64] {
            notes.note(format_args!("size {size:#x}"), rustix::fs::ftruncate(&file, size));
            notes.note("then", Ok(file.metadata().unwrap().len()));
        }
        for at in [(1 << 44) - 8192, (1 << 44) - 4098, (1 << 44) - 2, 1 << 44] {
            notes.note(format_args!("write at {at:#x}"), writes(&file, at));
            notes.note("then", Ok(file.metadata().unwrap().len()));
        }
        rustix::fs::ftruncate(&file, 0).unwrap();
        for length in [254, 255, 256, 1000] {
            let name = root.join("n".repeat(length));
            notes.note(format_args!("name of {length}"), make(&name, FileType::RegularFile));
        }
        for length in [59, 60, 4094, 4095, 4096] {
            let path = root.join(format!("link {length}"));
            let made = rustix::fs::symlink("t".repeat(length), &path);
            notes.note(format_args!("target of {length}"), made);
            notes
                .note("then", Ok(fs::read_link(&path).ok().map(|target| target.as_os_str().len())));
        }
        let link = root.join("link 59");
        let fifo = root.join("fifo");
        make(&fifo, FileType::Fifo).unwrap();
        let path = root.join("file");
        let set = |path: &Path, name: &str, length| {
            rustix::fs::lsetxattr(path, name, &vec![b'v'; length], XattrFlags::empty())
        };
        for (path, name, length) in [
            (&path, "user.one", 0),
            (&path, "user.", 1),
            (&path, "user", 1),
            (&path, "foo.bar", 1),
            (&path, "system.foo", 1),
            (&path, "security.foo", 1),
            (&path, "trusted.foo", 1),
            (&path, "user.large", 3000),
            (&path, "user.too-large", 5000),
            (&path, "user.huge", 70_000),
            (&link, "user.one", 1),
            (&link, "trusted.one", 1),
            (&fifo, "user.one", 1),
            (&fifo, "trusted.one", 1),
        ] {
            notes.note(format_args!("{name} of {length}"), set(path, name, length));
        }
        let long = format!("user.{}", "n".repeat(250));
        notes.note("name of 255", set(&path, &long, 1));
        notes.note("name of 256", set(&path, &format!("{long}n"), 1));
        let get =
            |room: usize| rustix::fs::lgetxattr(&path, "user.large", vec![0; room].as_mut_slice());
        for room in [0, 10, 2999, 3000, 3001] {
            notes.note(format_args!("read into {room}"), get(room));
        }
        notes.note("sync", rustix::fs::syncfs(open(root, OFlags::RDONLY).unwrap()));
    });
}

#[test]
fn direct_io_and_the_cache_see_each_other() {
    side_by_side(|root, notes| {
        let path = root.join("file");
        let cached = open(&path, OFlags::CREATE | OFlags::RDWR).unwrap();
        cached.write_at(&[b'c'; 100_000], 0).unwrap();
        // Aligned memory for direct I/O.
        let memory = vec![b'd'; 40_960];
        let aligned = &memory[memory.as_ptr().align_offset(4096)..][..32_768];
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(&path)
            .unwrap();
        notes.note("direct write", Ok(direct.write_at(aligned, 16_384).unwrap()));
        notes.note("read", Ok(fs::read(&path).unwrap()));
        cached.write_at(&[b'e'; 5000], 20_000).unwrap();
        let mut memory = vec![0_u8; 90_112 + 4096];
        let start = memory.as_ptr().align_offset(4096);
        let aligned = &mut memory[start..][..90_112];
        notes.note("direct read", Ok(direct.read_at(aligned, 0).unwrap()));
        notes.note("of", Ok(aligned.to_vec()));
        // Concurrent direct writes.
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let direct = &direct;
                scope.spawn(move || {
                    for part in 0..16 {
                        let memory = vec![b'0' + writer as u8; 12_288];
                        let aligned = &memory[memory.as_ptr().align_offset(4096)..][..8192];
                        direct.write_at(aligned, (part * 4 + writer) * 8192).unwrap();
                    }
                });
            }
        });
        notes.note("written", Ok(fs::read(&path).unwrap()));
    });
}

#[test]
fn the_birth_time_does_not_change() {
    side_by_side(|root, notes| {
        let path = root.join("file");
        let created = |path: &Path| {
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            let found = rustix::fs::statx(CWD, path, AtFlags::empty(), wanted).unwrap();
            assert!(found.stx_mask & StatxFlags::BTIME.bits() != 0);
            (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
        };
        fs::write(&path, "contents").unwrap();
        let first = created(&path);
        notes.note("now", Ok(first.0.abs_diff(seconds_now()) < 100));
        set_times(&path, 5).unwrap();
        fs::write(&path, "others").unwrap();
        fs::rename(&path, root.join("renamed")).unwrap();
        notes.note("the same", Ok(created(&root.join("renamed")) == first));
    });
}

fn seconds_now() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs() as i64)
}

/// Variable for the file that the child process of the lock test locks.
const LOCKED_FILE: &str = "BIFOLIO_TEST_LOCKED_FILE";

/// Tries both kinds of locks in this process.
fn try_locks(path: &Path) -> Vec<Result<(), Errno>> {
    let file = open(path, OFlags::RDWR).unwrap();
    let lock = FlockOperation::NonBlockingLockExclusive;
    let both = [rustix::fs::flock(&file, lock), rustix::fs::fcntl_lock(&file, lock)];
    both.to_vec()
}

/// Tries both kinds of locks in another process.
fn try_locks_in_child(path: &Path) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["operations::locks_work_between_processes", "--exact", "--nocapture"]);
    command.env(LOCKED_FILE, path).stdin(Stdio::null());
    let output = output(&mut command);
    assert!(output.status.success(), "{}", output.text());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| line.split_once("tried: "));
    found.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

#[test]
fn locks_work_between_processes() {
    if let Some(path) = std::env::var_os(LOCKED_FILE) {
        println!("\ntried: {:?}", try_locks(&PathBuf::from(path)));
        return;
    }
    side_by_side(|root, notes| {
        let path = root.join("file");
        let file = open(&path, OFlags::CREATE | OFlags::RDWR).unwrap();
        notes.note("free", Ok(try_locks_in_child(&path)));
        rustix::fs::flock(&file, FlockOperation::LockShared).unwrap();
        notes.note("with flock", Ok(try_locks_in_child(&path)));
        rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
        notes.note("with both", Ok(try_locks_in_child(&path)));
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
        notes.note("with fcntl", Ok(try_locks_in_child(&path)));
        drop(file);
        notes.note("free again", Ok(try_locks_in_child(&path)));
    });
}
