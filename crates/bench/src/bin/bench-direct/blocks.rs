//! The table of block sizes by sizes of direct writes, which append to a file one after the other.

use std::time::Instant;

use base::FileOffset;
use base::attributes::FileType;
use bench::image::Image;
use bench::selection::Selection;
use bench::{length_name, median};
use device::{Backend, OpenDevice};
use vfs::{Creation, Credentials, OpenMode, Privileges, Volume, VolumeOptions, WriteAt, WriteSync};

const ROUNDS: usize = 5;
const SIZES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const FILE_BYTES: u64 = 32 << 20;
const IMAGE_BYTES: u64 = 256 << 20;

pub fn run(selection: &Selection) {
    if !selection.has_row("blocks") {
        return;
    }
    println!(
        "\ndirect appending writes, one after the other, on tmpfs, MiB/s; columns: sizes of writes; rows:\nblock sizes; in brackets: ratio to blocks of 4K\n"
    );
    print!("{:<6}", "");
    SIZES.iter().for_each(|&length| print!("{:>16}", length_name(length)));
    println!();
    let volumes: Vec<(usize, Image, Volume)> = SIZES
        .iter()
        .map(|&block_size| {
            let image = Image::make(IMAGE_BYTES, block_size as u32, "");
            let options = VolumeOptions { writable: true, ..VolumeOptions::default() };
            let backend = Backend::Submitter;
            let device = OpenDevice { read_only: false, backend, ..OpenDevice::default() };
            let device = device::open(image.path(), device).expect("the image");
            (block_size, image, Volume::open_device(device, &options).expect("a volume"))
        })
        .collect();
    let mut speeds = vec![vec![Vec::new(); SIZES.len()]; volumes.len()];
    for _ in 0..ROUNDS {
        for (index, &length) in SIZES.iter().enumerate() {
            for ((.., volume), speeds) in volumes.iter().zip(&mut speeds) {
                speeds[index].push(measure(volume, length));
            }
        }
    }
    let speeds: Vec<Vec<f64>> =
        speeds.into_iter().map(|row| row.into_iter().map(median).collect()).collect();
    for ((block_size, ..), row) in volumes.iter().zip(&speeds) {
        print!("{:<6}", length_name(*block_size));
        for (speed, first) in row.iter().zip(&speeds[0]) {
            print!("{:>9.0} ({:.2})", speed, speed / first);
        }
        println!();
    }
    for (_, _, volume) in volumes {
        volume.close().expect("a closed volume");
    }
}

/// Writes a new file. Returns the speed in MiB per second.
fn measure(volume: &Volume, length: usize) -> f64 {
    let root = volume.root().expect("a root");
    let (creation, by) = (Creation::of(FileType::Regular, 0o644), Credentials::ROOT);
    let node = volume.create_in(&root, b"file", &creation, &by).expect("a file");
    let file = node.open_for(OpenMode { write: true, append: false }).expect("an open file");
    let data = vec![7; length];
    let begin = Instant::now();
    for at in (0..FILE_BYTES).step_by(length) {
        let at = WriteAt::Offset(FileOffset(at));
        let written = file.write_direct(at, &data, Privileges::Keep, WriteSync::None);
        assert_eq!(written, Ok(length));
    }
    let seconds = begin.elapsed().as_secs_f64();
    drop((file, node));
    volume.unlink(&root, b"file", &by).expect("a removed file");
    volume.sync().expect("a synced volume");
    (FILE_BYTES >> 20) as f64 / seconds
}
