//! Measures cached sequential writes in process beside memcpy, page by page and with large folios,
//! in turn, medians of five, in CPU time of the writing thread. Nothing is written back.
//! Run with `cargo bench -p bifolio-iomap --bench cached_write`. Not here: the kernel, real images.
#![allow(clippy::print_stdout, reason = "a report")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

use base::{DeviceOffset, FileOffset, Result};
use device::{MemoryDevice, SharedDevice};
use iomap::{
    EndIo, FinishedRange, Iomap, IomapKind, MapFlags, MapRead, MapWrite, ReadOptions, WritableFile,
    truncate_cache, write,
};
use support::{block_size, cache};

const ROUNDS: usize = 5;

/// A file that has space reserved for all of it.
struct Reserved;

impl MapRead for Reserved {
    fn map_read(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        let (kind, flags) = (IomapKind::Delalloc, MapFlags::default());
        Ok(Iomap { offset: at, length, kind, address: None::<DeviceOffset>, flags })
    }

    fn inline_data(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

impl MapWrite for Reserved {
    fn map_write(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_read(at, length)
    }

    fn end_write(&self, _: Range<FileOffset>) {}

    fn map_writeback(&self, at: FileOffset, length: u64) -> Result<Iomap> {
        self.map_read(at, length)
    }

    fn end_io(&self, _: &[FinishedRange], _: FileOffset) -> Result<()> {
        Ok(())
    }
}

fn main() {
    let mebibytes =
        std::env::var("BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(256);
    let size: usize = mebibytes << 20;
    let device: SharedDevice = Arc::new(MemoryDevice::new(Vec::new()));
    let caches = [0, 9].map(|order| cache(size as u64 + (64 << 20), order));
    let files = caches.each_ref().map(|cache| {
        let (mapping, end_io) = (cache.new_mapping(block_size(4096)), EndIo::start());
        let end_io = end_io.expect("a thread");
        let options = ReadOptions::default();
        WritableFile::new(mapping, Arc::new(Reserved), Arc::clone(&device), end_io, 0, options)
    });
    let mut plain = vec![1; size];
    // The percentages of the rows with large folios: how much more than page by page.
    println!("| cached write, {mebibytes} MiB | 4 KiB | 64 KiB | 1 MiB |");
    let requests = [4 << 10, 64 << 10, 1 << 20];
    // memcpy; new and again with order 0; new and again with order 9.
    let names = ["memcpy", "order 0, new", "order 0, again", "order 9, new", "order 9, again"];
    let mut rows = vec![Vec::new(); names.len()];
    for request in requests {
        let data = vec![7; request];
        let mut times = vec![Vec::new(); names.len()];
        for _ in 0..ROUNDS {
            times[0].push(timed(|| {
                for bytes in plain.chunks_exact_mut(request) {
                    black_box(bytes).copy_from_slice(black_box(&data));
                }
            }));
            for (index, file) in files.iter().enumerate() {
                truncate_cache(file, 0).expect("memory");
                times[1 + 2 * index].push(timed(|| write_all(file, size, &data)));
                times[2 + 2 * index].push(timed(|| write_all(file, size, &data)));
            }
        }
        for (row, times) in rows.iter_mut().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            row.push(times[ROUNDS / 2]);
        }
    }
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(requests).enumerate().map(|(column, (time, request))| {
            let (writes, gibibytes) = ((size / request) as f64, size as f64 / (1 << 30) as f64);
            let gain = if index < 3 { 0.0 } else { rows[index - 2][column] / time * 100.0 - 100.0 };
            format!("{:.0} k/s, {:.1} GiB/s, {gain:+.0}%", writes / time / 1e3, gibibytes / time)
        });
        println!("| {} | {} |", names[index], cells.collect::<Vec<_>>().join(" | "));
    }
}

fn timed(run: impl FnOnce()) -> f64 {
    let start = support::cpu_seconds();
    run();
    support::cpu_seconds() - start
}

fn write_all(file: &Arc<WritableFile>, size: usize, data: &[u8]) {
    for at in (0..size).step_by(data.len()) {
        write(file, FileOffset(at as u64), black_box(data)).expect("memory");
    }
}
