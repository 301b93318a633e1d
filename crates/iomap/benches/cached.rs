//! Measures cached sequential reads in process beside memcpy, in turn, medians of
//! five, in CPU time of the reading thread (other load disturbs it less than elapsed time).
//! Run with `cargo bench -p bifolio-iomap`. Not here: the kernel, real images (`make bench-read`).
#![allow(clippy::print_stdout, reason = "a report")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::FileOffset;
use device::{MemoryDevice, SharedDevice};
use iomap::{ReadContext, ReadOptions, Readahead, lend, read};
use support::{ModelFile, block_size, cache};

const ROUNDS: usize = 5;

type Run<'a> = dyn Fn(usize, &mut [u8]) + 'a;

/// Something to be timed: copies or lends all of the file, in requests of some size.
struct Subject<'a> {
    name: &'static str,
    run: Box<Run<'a>>,
}

fn main() {
    let mebibytes =
        std::env::var("BENCH_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(256);
    let size: usize = mebibytes << 20;
    let contents: Vec<u8> = (0..size).map(|at| (at >> 9) as u8).collect();
    let block = block_size(4096);
    let file = ModelFile::contiguous(block, size as u64, 0, &contents);
    let device: SharedDevice = Arc::new(MemoryDevice::new(contents));
    let caches = [0, 4, 9].map(|order| cache(size as u64 + (64 << 20), order));
    let mappings = [0, 1, 2].map(|which: usize| caches[which].new_mapping(block));
    let contexts = [0, 1, 2].map(|which: usize| {
        let context = file.context(&mappings[which], &device, ReadOptions::default());
        let mut buffer = vec![0; 1 << 20];
        read_all(&context, 1 << 20, &mut buffer);
        context
    });
    // What the limit copies from, on huge pages like the cache.
    let plain_cache = cache(size as u64 + (64 << 20), 9);
    let plain_mapping = plain_cache.new_mapping(block);
    let plain = file.context(&plain_mapping, &device, ReadOptions::default());
    let slices: Vec<_> = (0..size as u64)
        .step_by(2 << 20)
        .map(|at| lend(&plain, &Readahead::default(), FileOffset(at), 2 << 20).expect("readable"))
        .collect();
    let folios: Vec<&[u8]> = slices.iter().map(|slice| &**slice).collect();

    let subjects = [
        Subject {
            name: "memcpy",
            run: Box::new(|request, buffer| {
                for bytes in folios.iter().flat_map(|folio| folio.chunks_exact(request)) {
                    black_box(&mut *buffer)[..request].copy_from_slice(black_box(bytes));
                }
            }),
        },
        Subject {
            name: "order 0",
            run: Box::new(|request, buffer| read_all(&contexts[0], request, buffer)),
        },
        Subject {
            name: "order 4",
            run: Box::new(|request, buffer| read_all(&contexts[1], request, buffer)),
        },
        Subject {
            name: "order 9",
            run: Box::new(|request, buffer| read_all(&contexts[2], request, buffer)),
        },
        Subject {
            name: "order 9, beside a second thread",
            run: Box::new(|request, buffer| {
                let done = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut buffer = vec![0; request];
                        while !done.load(Ordering::Relaxed) {
                            read_all(&contexts[2], request, &mut buffer);
                        }
                    });
                    read_all(&contexts[2], request, buffer);
                    done.store(true, Ordering::Relaxed);
                });
            }),
        },
        Subject { name: "lend", run: Box::new(|request, _| lend_all(&contexts[2], request)) },
    ];
    println!("| cached, {mebibytes} MiB | {} |", ["4 KiB", "64 KiB", "1 MiB"].join(" | "));
    let mut rows = vec![Vec::new(); subjects.len()];
    for request in [4 << 10, 64 << 10, 1 << 20] {
        let mut buffer = vec![0; request];
        let mut times = vec![Vec::new(); subjects.len()];
        for _ in 0..ROUNDS {
            for (subject, times) in subjects.iter().zip(&mut times) {
                let start = support::cpu_seconds();
                (subject.run)(request, &mut buffer);
                times.push(support::cpu_seconds() - start);
            }
        }
        for (row, times) in rows.iter_mut().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            row.push((times[ROUNDS / 2], request));
        }
    }
    for (subject, row) in subjects.iter().zip(&rows) {
        let cells: Vec<String> = row
            .iter()
            .zip(&rows[0])
            .map(|((time, request), (limit, _))| {
                let reads = (size / request) as f64;
                format!(
                    "{:.2} M/s, {:.1} GiB/s, {:.0} ns, {:.2} of memcpy",
                    reads / time / 1e6,
                    size as f64 / time / (1u64 << 30) as f64,
                    time / reads * 1e9,
                    limit / time,
                )
            })
            .collect();
        println!("| {} | {} |", subject.name, cells.join(" | "));
    }
}

fn read_all(context: &ReadContext<'_>, request: usize, buffer: &mut [u8]) {
    let readahead = Readahead::default();
    let mut at = 0;
    while at < context.size {
        at += read(context, &readahead, FileOffset(at), &mut buffer[..request]).expect("readable")
            as u64;
    }
}

fn lend_all(context: &ReadContext<'_>, request: usize) {
    let readahead = Readahead::default();
    let mut at = 0;
    while at < context.size {
        let slice = lend(context, &readahead, FileOffset(at), request).expect("readable");
        at += black_box(&slice).len() as u64;
    }
}
