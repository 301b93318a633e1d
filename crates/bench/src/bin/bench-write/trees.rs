//! The table `trees`: common programs on many small files, on mounts.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use bench::{median, succeed};

use crate::notes::Notes;
use crate::source::Archive;
use bench::image::Image;
use bench::mount::{Mount, Mounter, mounters};
use bench::selection::Selection;
use bench::times::TimesTable;

/// The number of measurements of each side.
const ROUNDS: usize = 5;
const IMAGE_BYTES: u64 = 256 << 20;
/// The number of small files.
const SMALL_FILES: u32 = 1000;
/// The size of a small file in bytes.
const SMALL_BYTES: usize = 1000;

const TABLE: TimesTable = TimesTable { name_width: 20, side_width: 10, decimals: 1 };

/// The work, in this order. Each part begins with the result of the previous one.
const WORKS: [(&str, Work); 4] = [
    ("untar", untar),
    ("find + stat", find_and_stat),
    ("rm -rf", remove),
    ("create small", create_small),
];

type Work = fn(&Archive, &Path);

/// Measures and prints the table.
pub fn run(selection: &Selection, notes: &mut Notes) {
    let rows = WORKS.map(|(name, _)| selection.has_row(&format!("trees {name}")));
    if !rows.contains(&true) {
        return;
    }
    let archive = Archive::make();
    let sides = mounters().into_iter().filter(|(name, _)| selection.has_side(name));
    let sides: Vec<_> =
        sides.map(|(name, mounter)| (name, mounter, Image::make(IMAGE_BYTES, 4096, ""))).collect();
    let mut times = vec![[const { Vec::new() }; WORKS.len()]; sides.len()];
    for _ in 0..ROUNDS {
        for ((_, mounter, image), times) in sides.iter().zip(&mut times) {
            measure(image, *mounter, &archive, times);
        }
    }
    println!("\nmounted, ms; ratios of the kernel's and fuse2fs's times to mount's\n");
    TABLE.print_heading(sides.iter().map(|(name, ..)| *name));
    for (row, (name, _)) in WORKS.iter().enumerate().filter(|(row, _)| rows[*row]) {
        let medians: Vec<(&str, f64)> = sides
            .iter()
            .zip(&times)
            .map(|((side, ..), times)| (*side, median(times[row].clone())))
            .collect();
        TABLE.print_row(name, &medians);
        notes.judge_tree(name, &medians);
    }
}

fn measure(image: &Image, mounter: Mounter, archive: &Archive, times: &mut [Vec<f64>]) {
    let mut mount = Mount::new(&image.path(), mounter);
    for (index, (name, work)) in WORKS.iter().enumerate() {
        if *name == "find + stat" {
            // Remounting drops all caches.
            drop(mount);
            mount = Mount::new(&image.path(), mounter);
        }
        let begin = Instant::now();
        work(archive, mount.path());
        times[index].push(begin.elapsed().as_secs_f64());
    }
    std::fs::remove_dir_all(mount.path().join("small")).expect("removed files");
}

fn untar(archive: &Archive, top: &Path) {
    succeed(Command::new("tar").arg("-xf").arg(archive.path()).arg("-C").arg(top));
}

fn find_and_stat(_: &Archive, top: &Path) {
    succeed(Command::new("find").arg(top).args(["-printf", "%p %s %m %u %T@\\n"]));
}

fn remove(_: &Archive, top: &Path) {
    succeed(Command::new("rm").arg("-rf").arg(top.join("tree")));
}

fn create_small(_: &Archive, top: &Path) {
    let folder = top.join("small");
    std::fs::create_dir(&folder).expect("a directory");
    for number in 0..SMALL_FILES {
        let mut file = File::create_new(folder.join(format!("{number}"))).expect("a new file");
        file.write_all(&[7; SMALL_BYTES]).expect("a write");
    }
}
