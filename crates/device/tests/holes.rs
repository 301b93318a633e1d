//! Tests of the search for data: what a device reports as a hole reads as zeroes, and holes of the
//! file are found.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::{BlockSize, DeviceOffset};
use device::{
    Backend, BlockDevice, FaultDevice, FaultPlan, FileDevice, MemoryDevice, OpenDevice,
    OverlayDevice, Part, SharedDevice, Slice, open,
};
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
/// The data in the file. Not at the boundary of a host's block.
const DATA: [(u64, usize); 3] = [(0, 700), (20 * MIB + 77, 5000), (40 * MIB, 1)];

fn sparse_file() -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    write_data(file.as_file());
    file
}

fn write_data(file: &File) {
    file.set_len(SIZE).unwrap();
    for (at, length) in DATA {
        file.write_all_at(&vec![7; length], at).unwrap();
    }
}

/// Returns all ranges with data, in order. Checks that they are, and that no hole has data.
fn ranges(device: &SharedDevice) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    loop {
        let found = device.next_data(DeviceOffset(at));
        let end = device.size();
        let hole_end = found.as_ref().map_or(end, |range| range.start.0);
        assert!((at..=end).contains(&hole_end), "{found:?} from {at} on");
        let mut bytes = vec![1; (hole_end - at) as usize];
        device.read_at(DeviceOffset(at), &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "data in the hole from {at} on");
        let Some(range) = found else { return ranges };
        assert!(range.start < range.end && range.end.0 <= end, "{range:?}");
        at = range.end.0;
        match ranges.last_mut() {
            Some((_, last_end)) if *last_end == range.start.0 => *last_end = at,
            _ => ranges.push((range.start.0, at)),
        }
    }
}

/// Checks that the ranges with data have all of `DATA` after `start`, and less than 1 MiB around
/// each.
fn check(device: &SharedDevice, start: u64) {
    let ranges = ranges(device);
    let bytes: u64 = ranges.iter().map(|(start, end)| end - start).sum();
    assert!(bytes < DATA.len() as u64 * MIB, "{ranges:?}");
    for (at, length) in DATA.into_iter().filter(|(at, _)| *at >= start) {
        let (first, last) = (at - start, at - start + length as u64);
        let has = |range: &(u64, u64)| range.0 <= first && last <= range.1;
        assert!(ranges.iter().any(has), "no {first}..{last} in {ranges:?}");
    }
}

#[test]
fn holes_of_a_file_are_found_by_every_backend() {
    let file = sparse_file();
    for backend in [Backend::Threads, Backend::Uring, Backend::Submitter] {
        let device = open(file.path(), OpenDevice { backend, ..Default::default() }).unwrap();
        check(&device, 0);
    }
}

#[test]
fn holes_of_a_part_are_those_of_the_whole() {
    let file = sparse_file();
    let start = 10 * MIB + 11;
    let part = Part::From(DeviceOffset(start));
    let device = open(file.path(), OpenDevice { part, ..Default::default() }).unwrap();
    check(&device, start);
    // No data behind the part counts.
    let file: SharedDevice = Arc::new(FileDevice::open(file.path(), true).unwrap());
    let slice: SharedDevice = Arc::new(Slice::new(file, DeviceOffset(MIB), MIB).unwrap());
    assert_eq!(slice.next_data(DeviceOffset(0)), None);
    assert_eq!(slice.next_data(DeviceOffset(MIB)), None);
}

#[test]
fn data_that_a_layer_was_given_is_no_hole() {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let base: SharedDevice = Arc::new(FileDevice::open(file.path(), true).unwrap());
    let block_size = BlockSize::from_bytes(4096).unwrap();
    let layer: SharedDevice = Arc::new(OverlayDevice::new(base, block_size, SIZE));
    assert_eq!(layer.next_data(DeviceOffset(0)), None);
    for (at, length) in DATA {
        layer.write_at(DeviceOffset(at), &vec![7; length]).unwrap();
    }
    check(&layer, 0);
    let inside = DeviceOffset(20 * MIB + 4000);
    assert_eq!(layer.next_data(inside).unwrap().start, inside);
}

#[test]
fn a_layer_over_data_has_that_data() {
    let file = sparse_file();
    let base: SharedDevice = Arc::new(FileDevice::open(file.path(), true).unwrap());
    let block_size = BlockSize::from_bytes(4096).unwrap();
    let layer: SharedDevice = Arc::new(OverlayDevice::new(base, block_size, SIZE));
    layer.write_at(DeviceOffset(30 * MIB), b"x").unwrap();
    check(&layer, 0);
    let ranges = ranges(&layer);
    assert!(ranges.contains(&(30 * MIB, 30 * MIB + 4096)), "{ranges:?}");
}

#[test]
fn a_device_that_does_not_know_has_data_everywhere() {
    let device = FaultDevice::new(Arc::new(MemoryDevice::new(vec![0; 10])), FaultPlan::default());
    assert_eq!(device.next_data(DeviceOffset(3)), Some(DeviceOffset(3)..DeviceOffset(10)));
    assert_eq!(device.next_data(DeviceOffset(10)), None);
    assert_eq!(device.next_data(DeviceOffset(u64::MAX)), None);
}
