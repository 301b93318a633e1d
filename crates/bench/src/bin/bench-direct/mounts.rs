//! The table of asynchronous direct writes to a file on mounts that threads read through the cache
//! all the time. When a write has ended, its data is read through the cache, too: any other data is
//! stale.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;
use std::time::{Duration, Instant};

use bench::image::Image;
use bench::median;
use bench::mount::{KERNEL, Mount, Mounter};
use bench::selection::Selection;
use rustix::fs::OFlags;
use testkit::AsyncWrites;

/// The number of measurements of each side.
const MEASUREMENTS: usize = 5;
/// The duration of a measurement.
const DURATION: Duration = Duration::from_secs(4);
const IMAGE_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 1 << 20;
/// The distance between the writes of a round.
const DISTANCE: usize = 64 << 10;
/// The lengths of the writes of a round, in turn.
const LENGTHS: [usize; 2] = [4 << 10, 64 << 10];
const READERS: usize = 3;

const OURS: Mounter = Mounter::Bifolio("rw,io_uring=off");
const OURS_WRITEBACK: Mounter = Mounter::Bifolio("rw,io_uring=off,writeback");

type MakeImage = fn() -> Image;

/// The sides. The others are compared with the first one.
const SIDES: [(&str, Mounter, MakeImage); 5] = [
    (KERNEL, Mounter::Kernel, ext4),
    ("ext4", OURS, ext4),
    ("ext4,writeback", OURS_WRITEBACK, ext4),
    ("f2fs", OURS, f2fs),
    ("f2fs,writeback", OURS_WRITEBACK, f2fs),
];

fn ext4() -> Image {
    Image::make(IMAGE_BYTES, 4096, "")
}

fn f2fs() -> Image {
    Image::make_f2fs(IMAGE_BYTES)
}

/// The rounds of one measurement, or of several.
#[derive(Default)]
struct Rounds {
    /// The number of rounds in each measurement.
    counts: Vec<u32>,
    /// The time of the slowest round in each measurement.
    slowest: Vec<Duration>,
    /// The number of stale reads in all measurements.
    stale: usize,
}

pub fn run(selection: &Selection) {
    if !selection.has_row("mounts") {
        return;
    }
    testkit::private_mounts();
    println!(
        "\nmounts on tmpfs: rounds of {} asynchronous direct writes in {} s to a file that {READERS} threads read\n\
         through the cache; reads of data that was overwritten before (stale) must not occur\n",
        FILE_BYTES as usize / DISTANCE,
        DURATION.as_secs(),
    );
    println!("{:<16}{:>10}{:>14}{:>12}{:>8}", "", "rounds", "slowest, ms", "/ kernel", "stale");
    let sides = SIDES.into_iter().filter(|(name, ..)| selection.has_side(name));
    let mut sides: Vec<_> =
        sides.map(|(name, mounter, make)| (name, mounter, make(), Rounds::default())).collect();
    for _ in 0..MEASUREMENTS {
        for (_, mounter, image, rounds) in &mut sides {
            measure(&Mount::new(&image.path(), *mounter), rounds);
        }
    }
    let mut kernel = None;
    for (name, mounter, _, rounds) in sides {
        let (count, slowest) = (f64::from(median(rounds.counts)), median(rounds.slowest));
        print!("{name:<16}{count:>10}{:>14.1}", slowest.as_secs_f64() * 1e3);
        match kernel {
            Some(kernel) => print!("{:>12.2}", count / kernel),
            None => print!("{:>12}", ""),
        }
        println!("{:>8}", rounds.stale);
        if mounter == Mounter::Kernel {
            kernel = Some(count);
        }
    }
}

/// Writes a new file, in rounds, while other threads read it.
fn measure(mount: &Mount, rounds: &mut Rounds) {
    let path = mount.path().join("file");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(&path).expect("a new file");
    file.set_len(FILE_BYTES).expect("a size");
    let end = Instant::now() + DURATION;
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| read_until(end, &File::open(&path).expect("the file")));
        }
        let cached = File::open(&path).expect("the file");
        let mut writes = AsyncWrites::new(&file, FILE_BYTES as u32 / DISTANCE as u32);
        let (mut count, mut slowest) = (0, Duration::ZERO);
        while Instant::now() < end {
            let begin = Instant::now();
            count += 1;
            rounds.stale += write_round(&mut writes, &cached, (count % 255) as u8 + 1);
            slowest = slowest.max(begin.elapsed());
        }
        rounds.counts.push(count);
        rounds.slowest.push(slowest);
    });
}

/// Reads the file again and again.
fn read_until(end: Instant, file: &File) {
    let mut buffer = vec![0; DISTANCE];
    while Instant::now() < end {
        for at in (0..FILE_BYTES).step_by(DISTANCE) {
            file.read_exact_at(&mut buffer, at).expect("the file's bytes");
        }
    }
}

/// Submits the writes of a round, with `value` in all bytes, and reads through the cache what each
/// one has written when it has ended. Returns the number of stale reads.
fn write_round(writes: &mut AsyncWrites<'_>, cached: &File, value: u8) -> usize {
    let data = [value; DISTANCE];
    let offsets = (0..FILE_BYTES).step_by(DISTANCE);
    let round: Vec<_> = offsets
        .zip(LENGTHS.into_iter().cycle())
        .map(|(at, length)| (at, &data[..length]))
        .collect();
    writes.submit(&round);
    let mut buffer = vec![0; DISTANCE];
    let mut stale = 0;
    loop {
        let ended = writes.wait();
        if ended.is_empty() {
            return stale;
        }
        for (at, length) in ended {
            let found = &mut buffer[..length];
            cached.read_exact_at(found, at).expect("the written bytes");
            stale += usize::from(found.iter().any(|&byte| byte != value));
        }
    }
}
