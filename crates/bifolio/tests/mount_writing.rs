//! Volumes mounted for writing: programs of the host change them, and e2fsck and the kernel's own
//! mount judge what is there afterwards.

mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use mounting::Place;
use testkit::command::run;
use testkit::{LoopMount, private_mounts};

/// Mounts a new volume for writing, lets `work` change it, unmounts, has e2fsck judge the image,
/// and shows it to `check` as the kernel mounts it.
fn check(work: impl FnOnce(&Path), check: impl FnOnce(&Path)) {
    private_mounts();
    let place = Place::with_tree();
    let mount = place.mount(&["-o", "rw"]);
    work(mount.path());
    place.umount();
    mount.assert_gone();
    run(Command::new("e2fsck").arg("-fn").arg(&place.image));
    let kernels = LoopMount::new(&place.image, "ext4", "ro");
    check(kernels.path());
}

#[test]
fn a_tree_copied_in_is_what_the_kernel_reads() {
    let source = tempfile::tempdir().unwrap();
    let data: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let from = source.path();
    for directory in 0..5 {
        let folder = from.join(format!("directory {directory}/below"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..30 {
            fs::write(folder.join(format!("file {file}")), &data[..file * 9_000]).unwrap();
        }
        symlink("file 3", folder.join("link")).unwrap();
        symlink("t".repeat(200), folder.join("long link")).unwrap();
        fs::hard_link(folder.join("file 4"), folder.join("the same")).unwrap();
    }
    run(Command::new("setfattr")
        .args(["-n", "user.note", "-v", "text"])
        .arg(from.join("directory 1")));
    let same = |to: &Path| {
        let copy = to.join("copy");
        let output =
            run(Command::new("diff").args(["-r", "--no-dereference"]).arg(from).arg(&copy));
        assert!(output.is_empty());
        let inode = |name: &str| fs::metadata(copy.join("directory 2/below").join(name)).unwrap();
        assert_eq!(inode("file 4").ino(), inode("the same").ino());
        assert_eq!(inode("file 4").nlink(), 2);
        let note = run(Command::new("getfattr")
            .args(["-n", "user.note", "--only-values"])
            .arg(copy.join("directory 1")));
        assert_eq!(note, b"text");
    };
    check(
        |mount| {
            run(Command::new("cp").arg("-a").arg(from).arg(mount.join("copy")));
            same(mount);
        },
        same,
    );
}

#[test]
fn what_programs_do_to_files_is_done() {
    check(
        |mount| {
            let path = mount.join("changed");
            let mut file =
                OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
            file.write_all(&[b'a'; 10_000]).unwrap();
            file.write_all_at(b"hole after", 200_000).unwrap();
            file.sync_all().unwrap();
            file.set_len(150_000).unwrap();
            file.seek(SeekFrom::Start(9_990)).unwrap();
            let mut read = [0; 20];
            file.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"aaaaaaaaaa\0\0\0\0\0\0\0\0\0\0");
            OpenOptions::new().append(true).open(&path).unwrap().write_all(b"end").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), 150_003);
            fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
            // Open and without a name, it can still be used.
            let mut gone = File::create(mount.join("gone")).unwrap();
            fs::remove_file(mount.join("gone")).unwrap();
            gone.write_all(&[b'x'; 100_000]).unwrap();
            fs::create_dir(mount.join("one")).unwrap();
            fs::create_dir(mount.join("two")).unwrap();
            fs::write(mount.join("one/file"), "moved").unwrap();
            fs::rename(mount.join("one"), mount.join("two/one")).unwrap();
            assert!(fs::remove_dir(mount.join("two")).is_err());
            drop(gone);
        },
        |mount| {
            let data = fs::read(mount.join("changed")).unwrap();
            assert_eq!(data.len(), 150_003);
            assert!(data[..10_000].iter().all(|&byte| byte == b'a'));
            assert!(data[10_000..150_000].iter().all(|&byte| byte == 0));
            assert_eq!(&data[150_000..], b"end");
            assert_eq!(fs::metadata(mount.join("changed")).unwrap().mode() & 0o7777, 0o640);
            assert_eq!(fs::read(mount.join("two/one/file")).unwrap(), b"moved");
            assert!(!mount.join("gone").exists() && !mount.join("one").exists());
        },
    );
}

#[test]
fn everything_can_be_removed() {
    check(
        |mount| {
            for entry in fs::read_dir(mount).unwrap() {
                run(Command::new("rm").arg("-rf").arg(entry.unwrap().path()));
            }
        },
        |mount| assert_eq!(fs::read_dir(mount).unwrap().count(), 0),
    );
}
