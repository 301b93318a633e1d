//! Times of files on mounts, compared with the kernel's ext4: stored times, and times that stat
//! shows.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::mounting::{Fixture, bifolio};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

/// Seconds near all limits.
const SECONDS: [i64; 14] = [
    -(1 << 40),
    -(1 << 32),
    -(1 << 31) - 1,
    -(1 << 31),
    -1,
    0,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 33,
    (1 << 34) - (1 << 31) - 2,
    (1 << 34) - (1 << 31) - 1,
    1 << 34,
    1 << 40,
];

/// Creates an image with inodes of this size.
fn make(image: &Path, inode_size: u32) {
    let small = Mke2fs { size: 32 << 20, ..Mke2fs::new("ext4", 4096) };
    small.with(&format!("-I {inode_size}")).make(image, None);
}

fn set_times(mount: &Path) {
    for (number, tv_sec) in SECONDS.into_iter().enumerate() {
        for tv_nsec in [0, 999_999_999] {
            let time = Timespec { tv_sec, tv_nsec };
            let times = Timestamps { last_access: time, last_modification: time };
            let path = mount.join(format!("file {number} {tv_nsec}"));
            fs::write(&path, "").unwrap();
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
            let path = mount.join(format!("link {number} {tv_nsec}"));
            std::os::unix::fs::symlink("x", &path).unwrap();
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
}

/// Returns the access and modification times of all files.
fn times(mount: &Path) -> Vec<String> {
    let mut found: Vec<_> = fs::read_dir(mount)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name() != "lost+found")
        .map(|entry| {
            let found = fs::symlink_metadata(entry.path()).unwrap();
            let (atime, mtime) = (found.atime(), found.mtime());
            let parts = (found.atime_nsec(), found.mtime_nsec());
            format!("{:?}: {atime}.{:09} {mtime}.{:09}", entry.file_name(), parts.0, parts.1)
        })
        .collect();
    found.sort();
    found
}

#[test]
fn times_out_of_range_are_clamped_as_in_the_kernel() {
    private_mounts();
    for inode_size in [128, 256] {
        let fixture = Fixture::new();
        let kernels_image = fixture.folder.path().join("kernels.img");
        for image in [&fixture.image, &kernels_image] {
            make(image, inode_size);
        }
        let kernels = LoopMount::new(&kernels_image, "ext4", "rw");
        set_times(kernels.path());
        let expected = times(kernels.path());
        assert_eq!(expected.len(), 4 * SECONDS.len());
        kernels.unmount();
        let mount = fixture.mount(&["-o", "rw"]);
        set_times(mount.path());
        assert_eq!(times(mount.path()), expected, "after they were set, {inode_size}");
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
        for image in [&fixture.image, &kernels_image] {
            let kernels = LoopMount::new(image, "ext4", "ro");
            assert_eq!(times(kernels.path()), expected, "on a mount of the kernel, {inode_size}");
        }
        let mount = fixture.mount(&[]);
        assert_eq!(times(mount.path()), expected, "on a new mount, {inode_size}");
        fixture.umount();
        mount.assert_gone();
    }
}

#[test]
fn shown_times_equal_stored_times() {
    private_mounts();
    for (inode_size, options) in
        [(128, "rw,nowriteback"), (128, "rw,writeback"), (256, "rw,nowriteback")]
    {
        let fixture = Fixture::new();
        make(&fixture.image, inode_size);
        let mount = fixture.mount(&["-o", options]);
        let paths = ["written", "directory", "touched"].map(|name| mount.path().join(name));
        fs::write(&paths[0], "data").unwrap();
        fs::create_dir(&paths[1]).unwrap();
        fs::write(paths[1].join("entry"), "").unwrap();
        fs::write(&paths[2], "").unwrap();
        run(Command::new("touch").arg(&paths[2]));
        let show = || {
            paths.each_ref().map(|path| {
                let found = fs::metadata(path).unwrap();
                let fields = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
                (fields, found.atime(), found.atime_nsec())
            })
        };
        let shown = show();
        fixture.umount();
        mount.assert_gone();
        let mount = fixture.mount(&["-o", "rw"]);
        assert_eq!(show(), shown, "{inode_size}, {options}");
        let has_nanoseconds = shown.iter().any(|(fields, ..)| fields.1 != 0);
        assert_eq!(has_nanoseconds, inode_size == 256);
        fixture.umount();
        mount.assert_gone();
    }
}

#[test]
fn times_out_of_range_in_archives_are_clamped() {
    private_mounts();
    for (inode_size, late) in [(128, (1 << 31) - 1), (256, (1_i64 << 34) - (1 << 31) - 1)] {
        let fixture = Fixture::new();
        make(&fixture.image, inode_size);
        let folder = fixture.folder.path();
        let archive = folder.join("archive");
        for (name, time) in [("late", 1_i64 << 34), ("early", -(1 << 32))] {
            fs::write(folder.join(name), "").unwrap();
            run(Command::new("tar")
                .args(["--format=pax", "-rf"])
                .arg(&archive)
                .arg(format!("--mtime=@{time}"))
                .arg("-C")
                .arg(folder)
                .arg(name));
        }
        run(bifolio("tar").arg(&archive).arg(format!("{}:/", fixture.image.display())));
        check_by_e2fsck(&fixture.image);
        let kernels = LoopMount::new(&fixture.image, "ext4", "ro");
        let mtime = |name| fs::metadata(kernels.path().join(name)).unwrap().mtime();
        assert_eq!((mtime("late"), mtime("early")), (late, -(1 << 31)), "{inode_size}");
    }
}
