//! Number of extents of files that are written in turns, compared with the kernel's ext4.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::mounting::Fixture;
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

const FILES: usize = 8;

/// Appends to files in turns. Each turn is written to the device before the next one.
fn grow_in_turns(root: &Path, turns: usize, bytes: usize) {
    let append = |index| {
        OpenOptions::new().create(true).append(true).open(root.join(format!("{index}"))).unwrap()
    };
    let mut files: Vec<File> = (0..FILES).map(append).collect();
    for turn in 0..turns {
        for file in &mut files {
            file.write_all(&vec![turn as u8; bytes]).unwrap();
        }
        for file in &files {
            file.sync_data().unwrap();
        }
    }
}

/// Returns the number of extents of all files in an image, as the kernel reports them.
fn extents(image: &Path) -> usize {
    let mount = LoopMount::new(image, "ext4", "ro");
    let mut names: Vec<_> =
        fs::read_dir(mount.path()).unwrap().map(|it| it.unwrap().path()).collect();
    names.retain(|path| path.is_file());
    assert_eq!(names.len(), FILES);
    let text = String::from_utf8(run(Command::new("filefrag").args(names))).unwrap();
    let count = |line: &str| line.rsplit(": ").next()?.split(' ').next()?.parse::<usize>().ok();
    text.lines().map(|line| count(line).unwrap_or_else(|| panic!("{text}"))).sum()
}

#[test]
fn files_that_grow_in_turns_have_few_extents_as_with_the_kernel() {
    private_mounts();
    for (block_size, turns, bytes) in [(4096, 100, 4096), (1024, 100, 3000), (4096, 40, 100_000)] {
        let fixture = Fixture::new();
        let image = Mke2fs { size: 256 << 20, ..Mke2fs::new("ext4", block_size) };
        image.make(&fixture.image, None);
        let kernels_image = fixture.folder.path().join("kernels.img");
        image.make(&kernels_image, None);
        let kernels = LoopMount::new(&kernels_image, "ext4", "rw");
        grow_in_turns(kernels.path(), turns, bytes);
        kernels.unmount();
        let mount = fixture.mount(&["-o", "rw"]);
        grow_in_turns(mount.path(), turns, bytes);
        fixture.umount();
        mount.assert_gone();
        check_by_e2fsck(&fixture.image);
        let (ours, theirs) = (extents(&fixture.image), extents(&kernels_image));
        let case = format!("{turns} turns of {bytes} bytes, blocks of {block_size}");
        assert!(ours <= 2 * theirs, "{case}: {ours} extents, the kernel {theirs}");
        println!("{case}: {ours} extents, the kernel {theirs}");
    }
}
