//! `make bench-trees`: common programs on a tree of many small files, on mounts of bifolio with
//! several options, of the running kernel and of fuse2fs. The machine is idle, or runs as many busy
//! loops as it has processors. The sides take turns; the results are medians.
//!
//! Not here: the tree (`source`).
// The output is for people.
#![allow(clippy::print_stdout)]

mod source;

use std::path::Path;
use std::process::Command;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use bench::image::Image;
use bench::mount::{FUSE2FS, KERNEL, MOUNT, Mount, Mounter, NO_LOW_LATENCY, WRITEBACK};
use bench::selection::Selection;
use bench::times::TimesTable;
use bench::{median, succeed};

use crate::source::{FILES, Source};

/// The number of measurements of each side.
const ROUNDS: usize = 5;
const IMAGE_BYTES: u64 = 512 << 20;

const TABLE: TimesTable = TimesTable { name_width: 12, side_width: 12, decimals: 0 };

/// The sides: the kernel, fuse2fs, and bifolio with default options, with nolow_latency and with
/// writeback.
const SIDES: [(&str, Mounter); 5] = [
    (KERNEL, Mounter::Kernel),
    (FUSE2FS, Mounter::Fuse2fs),
    (MOUNT, Mounter::Bifolio("rw,io_uring=off")),
    (NO_LOW_LATENCY, Mounter::Bifolio("rw,io_uring=off,nolow_latency")),
    (WRITEBACK, Mounter::Bifolio("rw,io_uring=off,writeback")),
];

type Work = fn(&Source, &Path);

/// The work, in this order. Each part begins with the result of the previous one.
const WORKS: [(&str, Work); 5] =
    [("untar", untar), ("ls -lR", list), ("rsync", sync), ("git clone", clone), ("rm -rf", remove)];

fn main() -> ExitCode {
    if let Some(warning) = bench::busy_warning() {
        println!("{warning}");
    }
    let selection = Selection::new(std::env::args().skip(1));
    testkit::private_mounts();
    let source = Source::make();
    let sides = SIDES.into_iter().filter(|(name, _)| selection.has_side(name));
    let sides: Vec<_> =
        sides.map(|(name, mounter)| (name, mounter, Image::make(IMAGE_BYTES, 4096, ""))).collect();
    for state in ["idle", "busy"].into_iter().filter(|state| selection.has_row(state)) {
        let mut times = vec![[const { Vec::new() }; WORKS.len()]; sides.len()];
        with_load(state == "busy", || {
            for _ in 0..ROUNDS {
                for ((_, mounter, image), times) in sides.iter().zip(&mut times) {
                    measure(image, *mounter, &source, times);
                }
            }
        });
        println!(
            "\n{state}, {FILES} files, ms; ratios of the kernel's and fuse2fs's times to mount's\n"
        );
        TABLE.print_heading(sides.iter().map(|(name, ..)| *name));
        for (row, (name, _)) in WORKS.iter().enumerate() {
            let medians = sides.iter().zip(&times);
            let medians = medians.map(|((side, ..), times)| (*side, median(times[row].clone())));
            TABLE.print_row(name, &medians.collect::<Vec<_>>());
        }
    }
    println!("\nload at the end: {}", bench::load().unwrap_or_default());
    selection.finish()
}

/// Does `work`. If `busy`, runs a busy loop on each processor during the work.
fn with_load(busy: bool, work: impl FnOnce()) {
    let loops = if busy { thread::available_parallelism().map_or(1, usize::from) } else { 0 };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        work();
        done.store(true, Ordering::Relaxed);
    });
}

fn measure(image: &Image, mounter: Mounter, source: &Source, times: &mut [Vec<f64>]) {
    let mount = Mount::new(&image.path(), mounter);
    for ((_, work), times) in WORKS.iter().zip(times) {
        let begin = Instant::now();
        work(source, mount.path());
        times.push(begin.elapsed().as_secs_f64());
    }
}

fn untar(source: &Source, top: &Path) {
    succeed(Command::new("tar").arg("-xf").arg(source.archive()).arg("-C").arg(top));
}

fn list(_: &Source, top: &Path) {
    succeed(Command::new("ls").arg("-lR").arg(top));
}

fn sync(_: &Source, top: &Path) {
    succeed(Command::new("rsync").arg("-a").arg(top.join("tree/")).arg(top.join("copy")));
}

fn clone(source: &Source, top: &Path) {
    let mut git = source::git(top);
    succeed(git.args(["clone", "-q", "--no-local"]).arg(source.repository()).arg("clone"));
}

fn remove(_: &Source, top: &Path) {
    succeed(
        Command::new("rm").arg("-rf").args(["tree", "copy", "clone"].map(|name| top.join(name))),
    );
}
