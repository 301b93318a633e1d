//! In how many pieces files lie that were written in turns, on a mount and by the kernel's ext4.
#![allow(clippy::print_stdout, reason = "the figures are worth reading")]
mod mounting;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use mounting::Location;
use testkit::command::run;
use testkit::{LoopMount, Mke2fs, check_by_e2fsck, private_mounts};

const FILES: usize = 8;

/// Adds to files in turns; what each turn adds is written to the device before the next one.
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

/// How many extents the files on an image have, by the kernel.
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
fn files_that_grow_in_turns_have_about_as_few_extents_as_with_the_kernel() {
    private_mounts();
    for (block_size, turns, bytes) in [(4096, 100, 4096), (1024, 100, 3000), (4096, 40, 100_000)] {
        let place = Location::new();
        let image = Mke2fs { size: 256 << 20, ..Mke2fs::new("ext4", block_size) };
        image.make(&place.image, None);
        let kernels_image = place.folder.path().join("kernels.img");
        image.make(&kernels_image, None);
        let kernels = LoopMount::new(&kernels_image, "ext4", "rw");
        grow_in_turns(kernels.path(), turns, bytes);
        kernels.unmount();
        let mount = place.mount(&["-o", "rw"]);
        grow_in_turns(mount.path(), turns, bytes);
        place.umount();
        mount.assert_gone();
        check_by_e2fsck(&place.image);
        let (ours, theirs) = (extents(&place.image), extents(&kernels_image));
        let case = format!("{turns} turns of {bytes} bytes, blocks of {block_size}");
        assert!(ours <= 2 * theirs, "{case}: {ours} extents, the kernel {theirs}");
        println!("{case}: {ours} extents, the kernel {theirs}");
    }
}
