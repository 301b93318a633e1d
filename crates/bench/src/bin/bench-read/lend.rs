//! Reads without a copy: the speed at which the library lends cached bytes.

use std::hint::black_box;
use std::time::Instant;

use base::FileOffset;
use bench::median;
use iomap::ReadOptions;
use pagecache::CacheOptions;

use crate::case::Content;
use crate::image::{FILE_BYTES, Image};
use crate::sides::{open_file, open_volume};

/// The number of measurements of each length.
const ROUNDS: usize = 5;

/// Lends slices of a completely cached file, and reads the first byte of each. Prints the number of
/// slices per second for each length.
pub fn report(image: &Image) {
    let cache = CacheOptions { bytes_max: 2 * FILE_BYTES, ..Default::default() };
    let volume = open_volume((image.opener())(), cache, ReadOptions::default());
    let file = open_file(&volume, Content::Data);
    println!("\nlent without a copy, 1 thread, cached data\n");
    for length in [4 << 10, 64 << 10, 1 << 20] {
        let speeds: Vec<f64> = (0..=ROUNDS)
            .map(|_| {
                let begin = Instant::now();
                let (mut at, mut slices) = (0, 0u32);
                while at < FILE_BYTES {
                    let slice = file.lend(FileOffset(at), length).expect("a slice");
                    black_box(slice[0]);
                    at += slice.len() as u64;
                    slices += 1;
                }
                f64::from(slices) / begin.elapsed().as_secs_f64()
            })
            // The first round fills the cache.
            .skip(1)
            .collect();
        println!("{:>5}K {:>9.2} M slices/s", length >> 10, median(speeds) / 1e6);
    }
}
