//! Regular files: sizes around all limits, holes, preallocation, many extents.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use super::{TreeOptions, contents, create, write};
use crate::must;

/// Creates files without holes, with sizes around the limits of the format's representations.
pub(super) fn sizes(folder: &Path, options: &TreeOptions) {
    let block = options.block_size as usize;
    let mut sizes = vec![0, 1, 59, 60, 61, 100, 124, 140, 156, 160, 161, 188, 250, 900, 1000];
    for bound in [512, 1024, 4096, block, 12 * block, 65_536] {
        sizes.extend([bound - 1, bound, bound + 1]);
    }
    // Reaches the second level of an indirect map, unless that takes more than 6 MiB.
    sizes.push((12 + block / 4).min((6 << 20) / block) * block + block / 2 + 1);
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        write(&folder.join(format!("{size:08}")), contents(size as u64, size));
    }
}

fn write_at(file: &File, at: u64, bytes: &[u8]) {
    must(file.write_all_at(bytes, at), format_args!("writing at {at}"));
}

/// Creates files with holes at unusual offsets.
pub(super) fn sparse(folder: &Path, options: &TreeOptions) {
    let block = u64::from(options.block_size);

    let file = create(&folder.join("only-a-hole"));
    must(file.set_len(10 * block + 7), "set_len");

    let file = create(&folder.join("hole-first"));
    write_at(&file, 5 * block + 11, &contents(1, 100));

    let file = create(&folder.join("hole-last"));
    write_at(&file, 0, &contents(2, 3));
    must(file.set_len(1_000_001), "set_len");

    let file = create(&folder.join("holes-between"));
    for step in 0..40 {
        write_at(&file, step * step * block + step, &contents(3 + step, 1 + step as usize * 100));
    }

    let file = create(&folder.join("scattered"));
    for step in 0..options.extents {
        write_at(&file, 2 * step * block, &contents(step, block as usize));
    }

    // Around the limits between levels of an indirect map, and the limits of 31 and 32 bits.
    let pointers = block / 4;
    let mut far = vec![
        12 * block - 1,
        (12 + pointers) * block - 3,
        (12 + pointers + pointers * pointers) * block - 5,
        (1 << 31) - 2,
        (1 << 32) - 2,
        (1 << 32) + 5 * block + 7,
        options.file_size_max - 10,
    ];
    far.retain(|&at| at + 10 <= options.file_size_max);
    let file = create(&folder.join("far"));
    for (seed, at) in (0..).zip(far) {
        write_at(&file, at, &contents(seed, 10));
    }

    let file = create(&folder.join("longest"));
    must(file.set_len(options.file_size_max), "set_len");
}

/// Creates files with preallocated, punched and zeroed ranges.
pub(super) fn preallocated(folder: &Path, options: &TreeOptions) {
    let block = u64::from(options.block_size);
    let allocate = |file: &File, flags: FallocateFlags, at: u64, length: u64| {
        must(rustix::fs::fallocate(file, flags, at, length), format_args!("fallocate {flags:?}"));
    };

    let file = create(&folder.join("unwritten"));
    allocate(&file, FallocateFlags::empty(), 0, 20 * block);

    let file = create(&folder.join("past-the-end"));
    write_at(&file, 0, &contents(1, block as usize / 2));
    allocate(&file, FallocateFlags::KEEP_SIZE, 0, 9 * block);

    let file = create(&folder.join("empty-past-the-end"));
    allocate(&file, FallocateFlags::KEEP_SIZE, 3 * block, 4 * block);

    let file = create(&folder.join("partly-written"));
    allocate(&file, FallocateFlags::empty(), 0, 100 * block);
    for step in [0, 7, 8, 50, 99] {
        write_at(&file, step * block + 5, &contents(step, block as usize / 2));
    }

    let file = create(&folder.join("punched"));
    write_at(&file, 0, &contents(2, 30 * block as usize));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    allocate(&file, punch, 3 * block + 10, 5 * block);
    allocate(&file, punch, 20 * block, 2 * block);

    let file = create(&folder.join("zeroed"));
    write_at(&file, 0, &contents(3, 30 * block as usize));
    let (at, length) = (5 * block + 3, 9 * block);
    match rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, at, length) {
        // tmpfs, which may contain a source tree, does not support this.
        Err(rustix::io::Errno::OPNOTSUPP) => write_at(&file, at, &vec![0; length as usize]),
        done => must(done, "fallocate to zero a range"),
    }
}
