//! Tables of random writes into a preallocated file, with many in flight: with an exclusive or a
//! shared lock, with extents split before or after the I/O, and to the device itself.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use base::attributes::FileType;
use base::{DeviceOffset, FileOffset};
use bench::selection::Selection;
use bench::{length_name, median};
use device::{
    Backend, Bio, BioOperation, LatencyDevice, MemoryDevice, OpenDevice, Segment, SharedDevice,
};
use iomap::{DirectOptions, SplitExtents};
use testkit::Mke2fs;
use vfs::{
    Creation, Credentials, DirectIo, Fallocate, OpenMode, Privileges, Volume, VolumeOptions,
};

use crate::jobs::{self, BufferSender, DEPTH, JOBS};

const ROUNDS: usize = 5;
const SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];
const IMAGE_BYTES: u64 = 1536 << 20;
const FILE_BYTES: u64 = 1 << 30;
/// The latency of the device in memory.
const LATENCY: Duration = Duration::from_micros(80);
/// The number of requests that this device serves concurrently.
const QUEUE: usize = 32;

/// The target of the writes.
enum Side {
    Device(SharedDevice),
    Volume(Volume),
}

pub fn run(selection: &Selection) {
    if selection.has_row("latency") {
        let title = format!(
            "a device in memory with a latency of {} us, for {QUEUE} concurrent requests",
            LATENCY.as_micros()
        );
        table(selection, &title, &|image| {
            let contents = std::fs::read(image).expect("the image");
            let memory = Arc::new(MemoryDevice::new(contents));
            Arc::new(LatencyDevice::new(memory, LATENCY, QUEUE))
        });
    }
    for (row, backend) in [("threads", Backend::Threads), ("io_uring", Backend::Uring)] {
        if selection.has_row(row) {
            table(
                selection,
                &format!("a file on disk, in the host's cache, with {row}"),
                &|image| {
                    let options = OpenDevice { read_only: false, backend, ..OpenDevice::default() };
                    device::open(image, options).expect("the image")
                },
            );
        }
    }
}

fn table(selection: &Selection, title: &str, open: &dyn Fn(&Path) -> SharedDevice) {
    println!(
        "\n{title}\nrandom writes into a preallocated file, {JOBS} jobs, each {DEPTH} in flight, 1000/s\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let direct = |shared_overwrites, split| DirectOptions { shared_overwrites, split };
    let volumes = [
        ("exclusive lock", direct(false, SplitExtents::Before)),
        ("shared lock", direct(true, SplitExtents::Before)),
        ("split at the end", direct(true, SplitExtents::AtEnd)),
    ];
    let mut sides = vec![("bare device", Side::Device(open(&make_image(folder.path(), "bare"))))];
    sides.extend(volumes.map(|(name, direct)| {
        let options = VolumeOptions { writable: true, direct, ..VolumeOptions::default() };
        let device = open(&make_image(folder.path(), name));
        (name, Side::Volume(Volume::open_device(device, &options).expect("a volume")))
    }));
    sides.retain(|(name, _)| selection.has_side(name));
    print!("{:<8}", "");
    sides.iter().for_each(|(name, _)| print!("{name:>18}"));
    println!(" | shared/excl  end/shared  end/bare");
    for length in SIZES {
        let mut rates = vec![Vec::new(); sides.len()];
        for _ in 0..ROUNDS {
            for ((_, side), rates) in sides.iter().zip(&mut rates) {
                rates.push(side.measure(length));
            }
        }
        let rates: Vec<f64> = rates.into_iter().map(median).collect();
        print!("{:<8}", length_name(length));
        rates.iter().for_each(|rate| print!("{:>18.1}", rate / 1000.0));
        match rates[..] {
            [bare, exclusive, shared, at_end] => println!(
                " | {:>11.2} {:>11.2} {:>9.2}",
                shared / exclusive,
                at_end / shared,
                at_end / bare
            ),
            _ => println!(),
        }
    }
    for (_, side) in sides {
        if let Side::Volume(volume) = side {
            volume.close().expect("a closed volume");
        }
    }
}

/// Creates an image with a new volume.
fn make_image(folder: &Path, name: &str) -> std::path::PathBuf {
    let path = folder.join(name.replace(' ', "-"));
    Mke2fs { size: IMAGE_BYTES, ..Mke2fs::new("ext4", 4096) }.make(&path, None);
    path
}

impl Side {
    /// Writes at random for some time. Returns the writes per second.
    fn measure(&self, length: usize) -> f64 {
        let ranges = FILE_BYTES / length as u64;
        match self {
            Self::Device(device) => jobs::run(ranges, length, &|batch, sender| {
                let bios =
                    batch.into_iter().map(|(at, buffer)| new_write(at, buffer, sender.clone()));
                device.submit(bios.collect());
            }),
            Self::Volume(volume) => {
                let root = volume.root().expect("a root");
                let (creation, by) = (Creation::of(FileType::Regular, 0o644), Credentials::ROOT);
                let node = volume.create_in(&root, b"file", &creation, &by).expect("a file");
                let mode = OpenMode { write: true, append: false };
                let file = node.open_for(mode).expect("an open file");
                let (mode, keep) = (Fallocate::Allocate { keep_size: false }, Privileges::Keep);
                let all = FileOffset(0)..FileOffset(FILE_BYTES);
                file.fallocate(mode, all, keep).expect("enough space");
                file.sync_all().expect("a durable file");
                let rate = jobs::run(ranges, length, &|batch, sender| {
                    let writes = batch.into_iter().map(|(at, buffer)| {
                        let sender = sender.clone();
                        DirectIo::write(FileOffset(at), buffer, move |buffer, result| {
                            assert_eq!(result, Ok(buffer.len()));
                            let _ = sender.send(buffer);
                        })
                    });
                    file.submit_direct(writes.collect(), keep, false);
                });
                drop((file, node));
                volume.unlink(&root, b"file", &by).expect("a removed file");
                volume.sync().expect("a synced volume");
                rate
            }
        }
    }
}

/// Creates a write to the device itself.
fn new_write(at: u64, mut buffer: Vec<u8>, sender: BufferSender) -> Bio {
    let start = NonNull::from(buffer.as_mut_slice()).cast();
    // SAFETY: the completion function owns the buffer, whose memory does not move. No other code
    // accesses the buffer before the end of the request.
    let segment = unsafe { Segment::new(start, buffer.len()) };
    Bio::new(BioOperation::Write, DeviceOffset(at), [segment], move |result| {
        assert!(result.is_ok(), "{result:?}");
        let _ = sender.send(buffer);
    })
}
