//! Removal of set-user-ID and set-group-ID bits and capabilities when files change, compared with
//! the kernel's ext4.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use crate::mounting::run_as;
use crate::mounting::side_by_side::{Notes, side_by_side_with};
use rustix::fs::{FallocateFlags, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{RawGid, RawUid};

const OWNER: u32 = 1000;
const GROUP: u32 = 2000;
const OTHER: u32 = 3000;

/// Callers: name, user and group.
const CALLERS: [(&str, RawUid, RawGid); 4] =
    [("root", 0, 0), ("owner", OWNER, GROUP), ("member", OTHER, GROUP), ("other", OTHER, OTHER)];

const MODES: [u32; 6] = [0o6666, 0o6676, 0o6777, 0o2666, 0o4666, 0o2676];

/// Returns the outcome without the value.
fn done<T>(result: std::io::Result<T>) -> Result<(), Errno> {
    result.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap())
}

fn write_only(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

type Change = fn(&Path) -> Result<(), Errno>;

fn fallocate(path: &Path, flags: FallocateFlags) -> Result<(), Errno> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.map_err(|error| Errno::from_io_error(&error).unwrap())?;
    rustix::fs::fallocate(&file, flags, 0, 8192)
}

/// Changes of the contents of a file.
const CHANGES: [(&str, Change); 11] = [
    ("write", |path| done(write_only(path).and_then(|file| file.write_at(b"x", 0)))),
    ("append", |path| {
        let file = OpenOptions::new().append(true).open(path);
        done(file.and_then(|mut file| std::io::Write::write(&mut file, b"x")))
    }),
    ("read and write", |path| {
        let file = OpenOptions::new().read(true).write(true).open(path);
        done(file.and_then(|file| file.write_at(b"x", 5000)))
    }),
    ("write nothing", |path| done(write_only(path).and_then(|file| file.write_at(b"", 0)))),
    ("direct write", |path| {
        let flags = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let memory = vec![7; 8192];
        let at = memory.as_ptr().align_offset(4096);
        done(file.and_then(|file| file.write_at(&memory[at..][..4096], 0)))
    }),
    ("truncate", |path| done(write_only(path).and_then(|file| file.set_len(100)))),
    ("open to truncate", |path| done(OpenOptions::new().write(true).truncate(true).open(path))),
    ("allocate", |path| fallocate(path, FallocateFlags::empty())),
    ("punch", |path| fallocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)),
    ("zero", |path| fallocate(path, FallocateFlags::ZERO_RANGE)),
    ("copy", |path| {
        let source = File::open(path.with_file_name("source")).unwrap();
        let target = write_only(path);
        let target = target.map_err(|error| Errno::from_io_error(&error).unwrap())?;
        let (mut from, mut to) = (0, 0);
        let (from, to) = (Some(&mut from), Some(&mut to));
        rustix::fs::copy_file_range(&source, from, &target, to, 4096).map(drop)
    }),
];

fn mode(path: &Path) -> String {
    format!("{:o}", fs::metadata(path).unwrap().permissions().mode())
}

/// Creates a file of the owner and the group.
fn create(path: &Path, mode: u32) {
    fs::write(path, [1; 8192]).unwrap();
    chown(path, Some(OWNER), Some(GROUP)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn has_capability(path: &Path) -> Result<usize, Errno> {
    rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64])
}

/// Sets a capability of a file in the format of setcap.
fn set_capability(path: &Path) {
    let mut value = 0x0200_0001_u32.to_le_bytes().to_vec();
    value.extend_from_slice(&[0, 0x20, 0, 0]);
    value.extend_from_slice(&[0; 12]);
    rustix::fs::setxattr(path, "security.capability", &value, XattrFlags::empty()).unwrap();
}

fn on_both_kinds_of_mount(calls: impl Fn(&Path, &mut Notes)) {
    for options in ["rw,suid,dev,allow_other", "rw,suid,dev,allow_other,writeback"] {
        side_by_side_with(options, |_| (), &calls);
    }
}

#[test]
fn changes_of_contents_remove_set_id_bits_as_in_the_kernel() {
    on_both_kinds_of_mount(|mount, notes| {
        fs::set_permissions(mount, Permissions::from_mode(0o777)).unwrap();
        fs::write(mount.join("source"), [2; 8192]).unwrap();
        for (caller, uid, gid) in CALLERS {
            for (name, change) in CHANGES {
                for bits in MODES {
                    let path = mount.join("file");
                    create(&path, bits);
                    let before = format!("{caller}, {name}, {bits:o}");
                    notes.note(&before, run_as(uid, gid, || change(&path)));
                    notes.note(&before, Ok(mode(&path)));
                    // A second change by another user.
                    let next = run_as(OTHER, OTHER, || {
                        done(write_only(&path).and_then(|file| file.set_len(50)))
                    });
                    notes.note(format!("{before}, then another"), next);
                    notes.note(format!("{before}, then another"), Ok(mode(&path)));
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    });
}

#[test]
fn changes_of_owners_remove_set_id_bits_as_in_the_kernel() {
    on_both_kinds_of_mount(|mount, notes| {
        fs::set_permissions(mount, Permissions::from_mode(0o777)).unwrap();
        for (caller, uid, gid) in
            [("root", 0, 0), ("owner", OWNER, GROUP), ("owner elsewhere", OWNER, OTHER)]
        {
            for (target, to_user, to_group) in [
                ("group", None, Some(gid)),
                ("own group", None, Some(GROUP)),
                ("user", Some(OWNER), None),
                ("unchanged", None, None),
            ] {
                for bits in MODES {
                    let path = mount.join("file");
                    create(&path, bits);
                    let given = run_as(uid, gid, || done(chown(&path, to_user, to_group)));
                    notes.note(format!("{caller} changes owner to {target}, {bits:o}"), given);
                    notes.note(
                        format!("{caller} changes owner to {target}, {bits:o}"),
                        Ok(mode(&path)),
                    );
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    });
}

#[test]
fn changes_remove_capabilities_as_in_the_kernel() {
    on_both_kinds_of_mount(|mount, notes| {
        fs::set_permissions(mount, Permissions::from_mode(0o777)).unwrap();
        fs::write(mount.join("source"), [2; 8192]).unwrap();
        for (caller, uid, gid) in CALLERS {
            for (name, change) in CHANGES {
                let path = mount.join("file");
                create(&path, 0o777);
                set_capability(&path);
                let before = format!("{caller}, {name}");
                notes.note(&before, run_as(uid, gid, || change(&path)));
                // The file was closed, so the writeback cache of the kernel is flushed.
                notes.note(&before, has_capability(&path));
                fs::remove_file(&path).unwrap();
            }
        }
        let path = mount.join("given");
        create(&path, 0o777);
        set_capability(&path);
        chown(&path, Some(OTHER), None).unwrap();
        notes.note("given away", has_capability(&path));
    });
}
