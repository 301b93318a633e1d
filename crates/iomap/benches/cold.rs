//! Measures sequential reads of a file that is not cached, from a file on tmpfs, a new cache each
//! time, in turn, medians of five, in CPU time of the reading thread. Run with
//! `cargo bench -p bifolio-iomap --bench cold`. BENCH_MIB sets the file's size, BENCH_ONLY picks
//! the rows whose name contains it. Not here: the kernel beside it (`make bench-read`).
#![allow(clippy::print_stdout, reason = "a report")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use base::FileOffset;
use device::{FileDevice, SharedDevice};
use iomap::{Iomap, IomapKind, MapFlags, ReadOptions, Readahead, read};
use support::{ModelFile, block_size, cache};

const ROUNDS: usize = 5;

struct Subject {
    name: &'static str,
    order: u8,
    options: ReadOptions,
    /// Bytes that one mapping covers; zero for a file that is one hole.
    extent: u64,
    /// Bytes of the cache: less than the file makes it reuse its memory.
    cache: u64,
}

fn main() {
    let mebibytes: u64 =
        std::env::var("BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(512);
    let size = mebibytes << 20;
    let path = PathBuf::from(format!("/dev/shm/bifolio-cold-{}", std::process::id()));
    fs::write(&path, vec![0x5a; size as usize]).expect("room on tmpfs");
    let device: SharedDevice = Arc::new(FileDevice::open(&path, true).expect("just written"));
    fs::remove_file(&path).expect("just written");

    let on = ReadOptions::default();
    let no_batch = ReadOptions { batch_pending_accounting: false, ..on };
    let no_skip = ReadOptions { skip_folio_state: false, ..on };
    let neither = ReadOptions { batch_pending_accounting: false, ..no_skip };
    let (whole, large) = (size, size + (64 << 20));
    let subject =
        |name, order, options, extent, cache| Subject { name, order, options, extent, cache };
    let subjects = [
        subject("order 0", 0, on, whole, large),
        subject("order 2", 2, on, whole, large),
        subject("order 4", 4, on, whole, large),
        subject("order 9", 9, on, whole, large),
        subject("order 9, neither switch", 9, neither, whole, large),
        subject("order 9, no batch", 9, no_batch, whole, large),
        subject("order 9, no skip", 9, no_skip, whole, large),
        subject("order 9, extents of 64 KiB", 9, on, 64 << 10, large),
        subject("order 9, 64 MiB cache", 9, on, whole, 64 << 20),
        subject("order 0, 64 MiB cache", 0, on, whole, 64 << 20),
        subject("hole, order 0", 0, on, 0, large),
        subject("hole, order 9", 9, on, 0, large),
        subject("hole, order 0, 64 MiB cache", 0, on, 0, 64 << 20),
        subject("hole, order 9, 64 MiB cache", 9, on, 0, 64 << 20),
    ];
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let subjects: Vec<Subject> =
        subjects.into_iter().filter(|subject| subject.name.contains(&only)).collect();
    println!("| cold, {mebibytes} MiB, GiB/s | 4 KiB | 64 KiB | 1 MiB |");
    let mut rows = vec![Vec::new(); subjects.len()];
    for request in [4 << 10, 64 << 10, 1 << 20] {
        let mut buffer = vec![0; request];
        let mut times = vec![Vec::new(); subjects.len()];
        for _ in 0..ROUNDS {
            for (subject, times) in subjects.iter().zip(&mut times) {
                times.push(subject.time(&device, size, &mut buffer));
            }
        }
        for (row, times) in rows.iter_mut().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            row.push(format!("{:.2}", size as f64 / times[ROUNDS / 2] / (1u64 << 30) as f64));
        }
    }
    for (subject, row) in subjects.iter().zip(&rows) {
        println!("| {} | {} |", subject.name, row.join(" | "));
    }
}

impl Subject {
    fn time(&self, device: &SharedDevice, size: u64, buffer: &mut [u8]) -> f64 {
        let block = block_size(4096);
        let cache = cache(self.cache, self.order);
        let mapping = cache.new_mapping(block);
        let file = ModelFile::of_maps(block, size, extents(size, self.extent));
        let context = file.context(&mapping, device, self.options);
        let readahead = Readahead::default();
        let start = support::cpu_seconds();
        let mut at = 0;
        while at < size {
            at += read(&context, &readahead, FileOffset(at), buffer).expect("readable") as u64;
        }
        support::cpu_seconds() - start
    }
}

/// A file of extents that lie in pairs the wrong way round, so that none continues another.
fn extents(size: u64, extent: u64) -> Vec<Iomap> {
    let length = if extent == 0 { size } else { extent };
    let count = size / length;
    (0..count)
        .map(|number| Iomap {
            offset: FileOffset(number * length),
            length,
            kind: if extent == 0 { IomapKind::Hole } else { IomapKind::Mapped },
            address: (extent > 0).then(|| {
                base::DeviceOffset((if count > 1 { number ^ 1 } else { number }) * length)
            }),
            flags: MapFlags::default(),
        })
        .collect()
}
