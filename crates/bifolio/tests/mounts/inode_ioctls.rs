//! lsattr, chattr and their ioctls, compared with the kernel's ext4; and FIBMAP and swapon.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::mounting::side_by_side::{Notes, side_by_side};
use crate::mounting::{Fixture, NOBODY, as_user, run_as};
use rustix::fs::IFlags;
use rustix::io::Errno;
use testkit::command::{output, run};
use testkit::{check_by_e2fsck, private_mounts};

const FSGETXATTR: libc::c_ulong = 0x801c_581f;
const FSSETXATTR: libc::c_ulong = 0x401c_5820;
const FIBMAP: libc::c_ulong = 1;
/// FS_IOC_SETFLAGS of 32-bit programs. The kernel checks it only for calls of 32-bit programs.
const SETFLAGS_32_BIT: libc::c_ulong = 0x4004_6602;

/// Letters of chattr, except `e` and `j`, which change how contents are stored.
const LETTERS: &str = "aAcCdDFimPsStTux";
/// Names of files of different kinds.
const KINDS: [&str; 4] = ["file", "directory", "link", "fifo"];

/// `struct fsxattr`: flags, extent size, extents, project, extent size of copies.
type FsXattr = [u32; 7];

fn get(path: &Path) -> Result<FsXattr, Errno> {
    ioctl(path, FSGETXATTR, [0xff; 7])
}

fn set(path: &Path, wanted: FsXattr) -> Result<FsXattr, Errno> {
    ioctl(path, FSSETXATTR, wanted)
}

fn ioctl(path: &Path, command: libc::c_ulong, mut record: FsXattr) -> Result<FsXattr, Errno> {
    let file = File::open(path).unwrap();
    // SAFETY: both commands take a record of this size.
    match unsafe { libc::ioctl(file.as_raw_fd(), command, &raw mut record) } {
        0 => Ok(record),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

/// Runs a command in the root directory of the mount, and notes its exit status and output.
fn note(notes: &mut Notes, mount: &Path, mut command: Command, line: &str) {
    let output = output(command.current_dir(mount).args(line.split_whitespace()));
    notes.note(line, Ok((output.status.code(), output.text())));
}

fn make(mount: &Path) {
    fs::write(mount.join("file"), "some data").unwrap();
    fs::create_dir_all(mount.join("directory/below")).unwrap();
    fs::write(mount.join("directory/below/file"), "").unwrap();
    std::os::unix::fs::symlink("file", mount.join("link")).unwrap();
    run(Command::new("mkfifo").arg(mount.join("fifo")));
}

#[test]
fn chattr_and_lsattr_behave_as_in_the_kernel() {
    side_by_side(|mount, notes: &mut Notes| {
        make(mount);
        for name in KINDS {
            for letter in LETTERS.chars() {
                for change in ['+', '-'] {
                    let line = format!("{change}{letter} {name}");
                    note(notes, mount, Command::new("chattr"), &line);
                    note(notes, mount, Command::new("lsattr"), &format!("-dp {name}"));
                }
            }
            for line in [
                format!("=eS {name}"),
                format!("-S {name}"),
                format!("-p 7 {name}"),
                format!("+d -p 8 {name}"),
                format!("-p 4294967295 {name}"),
                format!("+Z {name}"),
            ] {
                note(notes, mount, Command::new("chattr"), &line);
                note(notes, mount, Command::new("lsattr"), &format!("-dp {name}"));
            }
        }
        for line in ["-R +dA directory", "-R -p 9 directory", "+i file", "+i missing"] {
            note(notes, mount, Command::new("chattr"), line);
        }
        // For an immutable file, by root and by another user.
        for line in ["+A file", "-p 3 file", "-i file"] {
            note(notes, mount, Command::new("chattr"), line);
            note(notes, mount, as_user(NOBODY, "chattr"), line);
        }
        for line in ["-Rp directory", "-Rl directory", "-dlp file", "-d missing", "-d link"] {
            note(notes, mount, Command::new("lsattr"), line);
        }
    });
}

#[test]
fn fsxattr_records_are_read_and_set_as_in_the_kernel() {
    side_by_side(|mount, notes: &mut Notes| {
        make(mount);
        for name in ["file", "directory"] {
            let path = mount.join(name);
            notes.note(format!("{name} at first"), get(&path));
            for bit in 0..32 {
                notes.note(format!("{name}: bit {bit}"), set(&path, [1 << bit, 0, 0, 0, 0, 0, 0]));
                notes.note(format!("{name} after bit {bit}"), get(&path));
                notes.note(format!("{name}: no bit"), set(&path, [0; 7]));
            }
            for field in 1..7 {
                let mut wanted = [0; 7];
                wanted[field] = 4096;
                notes.note(format!("{name}: field {field}"), set(&path, wanted));
                notes.note(format!("{name} after field {field}"), get(&path));
            }
            // Extent sizes, which ext4 does not support.
            for (flag, field) in [(0x800, 1), (0x1000, 1), (0x1_0000, 4)] {
                let mut wanted = [0; 7];
                wanted[0] = flag;
                wanted[field] = 8192;
                notes.note(format!("{name}: {flag:#x} and field {field}"), set(&path, wanted));
                notes.note(format!("{name} after {flag:#x}"), get(&path));
            }
        }
    });
}

#[test]
fn chattr_does_not_change_how_contents_are_stored() {
    // The kernel's ext4 supports these changes: extents to block maps, and data journaling. Changes
    // of the generation are refused, because the kernel treats the inode of a FUSE mount as stale
    // when its generation changes.
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let path = mount.path().join("kept");
    fs::write(&path, "some data").unwrap();
    let flags = || run(Command::new("lsattr").arg("-v").arg(&path));
    let before = flags();
    for (change, said) in [
        (["-e"].as_slice(), "Operation not supported"),
        (&["=S"], "Operation not supported"),
        (&["+j"], "Operation not supported"),
        (&["-v", "7"], "Inappropriate ioctl"),
    ] {
        let refused = output(Command::new("chattr").args(change).arg(&path));
        assert!(refused.text().contains(said), "{change:?}: {}", refused.text());
        assert_eq!(flags(), before, "{change:?}");
    }
    fixture.umount();
    mount.assert_gone();
    check_by_e2fsck(&fixture.image);
}

#[test]
fn flags_cannot_be_changed_without_the_kernels_checks() {
    private_mounts();
    let fixture = Fixture::with_tree();
    // With `idmap`, requests do not contain the user.
    let mount = fixture.mount(&["-o", "rw,allow_other,idmap"]);
    let path = mount.path().join("small");
    let flags = || rustix::fs::ioctl_getflags(File::open(&path).unwrap()).unwrap();
    let before = flags();
    let set = || {
        let (file, flags) = (File::open(&path).unwrap(), (before | IFlags::IMMUTABLE).bits());
        // SAFETY: the command reads a number of this size.
        match unsafe { libc::ioctl(file.as_raw_fd(), SETFLAGS_32_BIT, &raw const flags) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
        }
    };
    assert_eq!(run_as(NOBODY, NOBODY, set), Err(Errno::NOTTY), "of a file of root's");
    assert_eq!(set(), Err(Errno::NOTTY));
    assert_eq!(flags(), before);
}

/// Returns the block of the device that FIBMAP reports for a block of a file.
fn fibmap(file: &File, block: u32) -> Result<u32, Errno> {
    let mut block = block;
    // SAFETY: the request reads and writes a number of this size.
    match unsafe { libc::ioctl(file.as_raw_fd(), FIBMAP, &raw mut block) } {
        0 => Ok(block),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
    }
}

#[test]
fn blocks_of_files_are_those_that_debugfs_reports() {
    private_mounts();
    let fixture = Fixture::with_tree();
    let mount = fixture.mount(&["-o", "rw"]);
    let path = mount.path().join("new");
    let file = File::create(&path).unwrap();
    // Data that is not on the device yet, a hole, and blocks without data.
    file.write_all_at(&[1; 10_000], 0).unwrap();
    file.write_all_at(b"after a hole", 20 * 4096).unwrap();
    run(Command::new("fallocate").args(["-n", "-o", "122880", "-l", "4096"]).arg(&path));
    let found: Vec<u32> = (0..32).map(|block| fibmap(&file, block).unwrap()).collect();
    let big = File::open(mount.path().join("big")).unwrap();
    let of_big: Vec<u32> = (0..1221).map(|block| fibmap(&big, block).unwrap()).collect();
    let counted = run(Command::new("filefrag").arg("-B").arg(mount.path().join("big")));
    drop((file, big));
    fixture.umount();
    mount.assert_gone();
    let expected = |name: &str, block: usize| {
        let request = format!("bmap /{name} {block}");
        let shown = run(Command::new("debugfs").args(["-R", &request]).arg(&fixture.image));
        String::from_utf8(shown).unwrap().split_whitespace().next().unwrap().parse::<u32>().unwrap()
    };
    for block in [0, 1, 2, 3, 19, 20, 21] {
        assert_eq!(found[block], expected("new", block), "block {block}");
    }
    assert!(found[0] != 0 && found[20] != 0 && found[3] == 0, "{found:?}");
    assert_eq!(found[30], 0, "a block without data, as with the kernel's ext4");
    assert_eq!((of_big[0], of_big[1220]), (expected("big", 0), expected("big", 1220)));
    let counted = String::from_utf8(counted).unwrap();
    assert!(counted.contains("1 extent found"), "{counted}");
    check_by_e2fsck(&fixture.image);
}

#[test]
fn swap_files_are_refused() {
    private_mounts();
    // With and without a loop device.
    for options in ["rw", "rw,noloop"] {
        let fixture = Fixture::with_tree();
        let mount = fixture.mount(&["-o", options]);
        let path = mount.path().join("swap");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        run(Command::new("mkswap").arg(&path));
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // FIBMAP is answered, which asks the server the same.
        let block = fibmap(&file, 0).unwrap();
        assert_eq!(block != 0, options == "rw", "{options}: the block of a file");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a NUL.
        let done = unsafe { libc::swapon(name.as_ptr(), 0) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        if done == 0 {
            // SAFETY: the path ends with a NUL. Must be called before the server ends.
            unsafe { libc::swapoff(name.as_ptr()) };
        }
        assert_eq!((done, errno), (-1, Some(libc::EINVAL)), "{options}");
        assert_eq!(fibmap(&file, 0).unwrap(), block, "{options}: after the attempt");
        drop(file);
        fs::write(&path, "an ordinary file").unwrap();
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
    }
}
