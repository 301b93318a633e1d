//! The table of block sizes by sizes of buffered writes, compared with bigalloc clusters of the
//! same sizes.

use std::hint::black_box;
use std::time::Instant;

use bench::{GIB, length_name, median, thread_time};
use pagecache::CacheOptions;

use crate::notes::Notes;
use bench::image::Image;
use bench::selection::Selection;
use bench::sides::{Library, Side};

/// The number of measurements of each volume.
const ROUNDS: usize = 5;
const SIZES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const FILE_BYTES: u64 = 32 << 20;
const IMAGE_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Blocks of this size, with folios of any order.
    Blocks,
    /// Clusters of this size, with blocks of 4 KiB, in folios of one page. This is the baseline.
    ClustersOrder0,
    /// Clusters of this size, with blocks of 4 KiB, in folios of any order.
    Clusters,
}

struct Volume {
    kind: Kind,
    size: usize,
    side: Library,
}

impl Volume {
    fn new(kind: Kind, size: usize) -> Self {
        let image = match kind {
            Kind::Blocks => Image::make(IMAGE_BYTES, size as u32, ""),
            _ => Image::make(IMAGE_BYTES, 4096, &format!("-O bigalloc -C {size}")),
        };
        let order = match kind {
            Kind::ClustersOrder0 => 0,
            _ => CacheOptions::default().folio_order_max,
        };
        Self { kind, size, side: Library::new("", image, order, FILE_BYTES) }
    }

    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Blocks => "",
            Kind::ClustersOrder0 => " bigalloc, order 0",
            Kind::Clusters => " bigalloc",
        };
        format!("{}{kind}", length_name(self.size))
    }
}

/// Bytes per second of elapsed time, and per second of processor time.
type Speeds = [f64; 2];

/// Measures and prints the table.
pub fn run(selection: &Selection, notes: &mut Notes) {
    if !selection.has_row("blocks") {
        return;
    }
    let blocks = SIZES.map(|size| Volume::new(Kind::Blocks, size));
    let clusters = [Kind::ClustersOrder0, Kind::Clusters]
        .into_iter()
        .flat_map(|kind| SIZES[1..].iter().map(move |&size| Volume::new(kind, size)));
    let volumes: Vec<Volume> = blocks.into_iter().chain(clusters).collect();
    // Makes the host allocate the memory that each volume uses.
    for volume in &volumes {
        time(volume, 1 << 20);
    }
    let mut speeds: Vec<Vec<Speeds>> = vec![Vec::new(); volumes.len()];
    for length in SIZES {
        let mut times = vec![[const { Vec::new() }; 2]; volumes.len()];
        for _ in 0..ROUNDS {
            for (volume, times) in volumes.iter().zip(&mut times) {
                let found = time(volume, length);
                times.iter_mut().zip(found).for_each(|(times, found)| times.push(found));
            }
        }
        for (speeds, times) in speeds.iter_mut().zip(times) {
            speeds.push(times.map(|times| FILE_BYTES as f64 / median(times)));
        }
    }
    print(&volumes, &speeds);
    let gains = [0, 1].map(|clock| mean_gain(&volumes, &speeds, clock));
    println!(
        "\nlarge blocks against bigalloc at order 0, on average: {:+.0}% ({:+.0}% in processor time)",
        gains[0], gains[1]
    );
    notes.judge_blocks(gains[0]);
}

/// Writes a new file into the cache. Returns the elapsed time and the processor time, in seconds.
fn time(volume: &Volume, length: usize) -> Speeds {
    let mut file = volume.side.create("data");
    let data = vec![7; length];
    let (begin, processor) = (Instant::now(), thread_time());
    for at in (0..FILE_BYTES).step_by(length) {
        file.write(at, black_box(&data));
    }
    let found = [begin.elapsed(), thread_time().saturating_sub(processor)];
    file.sync();
    drop(file);
    volume.side.remove("data");
    found.map(|time| time.as_secs_f64())
}

fn print(volumes: &[Volume], speeds: &[Vec<Speeds>]) {
    print!(
        "\nnew files, cached, in process, GiB/s; rows: block sizes; columns: sizes of writes\n\n{:<24}",
        ""
    );
    SIZES.iter().for_each(|&length| print!("{:>8}", length_name(length)));
    println!();
    for (volume, speeds) in volumes.iter().zip(speeds) {
        print!("{:<24}", volume.name());
        speeds.iter().for_each(|[clock, _]| print!("{:>8.2}", clock / GIB));
        println!();
    }
}

/// Returns the gain of large blocks over clusters of the same size, in percent.
fn mean_gain(volumes: &[Volume], speeds: &[Vec<Speeds>], clock: usize) -> f64 {
    let of = |kind: Kind, size: usize| {
        let index = volumes.iter().position(|volume| volume.kind == kind && volume.size == size);
        &speeds[index.expect("a volume of each kind")]
    };
    let gains: Vec<f64> = SIZES[1..]
        .iter()
        .flat_map(|&size| {
            let pairs = of(Kind::Blocks, size).iter().zip(of(Kind::ClustersOrder0, size));
            pairs.map(|(blocks, clusters)| blocks[clock] / clusters[clock] * 100.0 - 100.0)
        })
        .collect();
    gains.iter().sum::<f64>() / gains.len() as f64
}
