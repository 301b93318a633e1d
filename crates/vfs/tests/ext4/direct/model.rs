//! Random direct and cached operations, compared with a model.

use base::{Error, FileOffset};
use iomap::{DirectOptions, SplitExtents};
use testkit::Random;
use vfs::{Fallocate, File, Privileges};

use crate::common::{self, close, device, make, open_on};
use crate::direct::{SIZE_MAX, make_stale, write_direct};

/// Runs a random operation on `file`, which may have extents, and on `model`. Returns a description
/// of the operation.
fn step(file: &File, has_extents: bool, model: &mut Vec<u8>, random: &mut Random) -> String {
    let (at, length) = (random.below(SIZE_MAX), 1 + random.below(100_000));
    let end = (at + length).min(SIZE_MAX);
    let sectors = at / 512 * 512..end.next_multiple_of(512);
    let fill = random.below(200) as u8 + 1;
    let data = |range: &std::ops::Range<u64>| -> Vec<u8> {
        range.clone().map(|at| fill.wrapping_add((at / 512) as u8) % 250).collect()
    };
    let write = |model: &mut Vec<u8>, at: u64, data: &[u8]| {
        let end = at as usize + data.len();
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(data);
    };
    match random.below(12) {
        0..=3 => {
            let data = data(&sectors);
            assert_eq!(write_direct(file, sectors.start, &data), Ok(data.len()));
            write(model, sectors.start, &data);
            format!("direct write {sectors:?}")
        }
        4 | 5 => {
            let length = (sectors.end - sectors.start) as usize;
            let mut found = vec![0xEE; length];
            let read = file.read_direct(FileOffset(sectors.start), &mut found).unwrap();
            let start = (sectors.start as usize).min(model.len());
            assert!(found[..read] == model[start..model.len().min(start + length)]);
            format!("direct read {sectors:?}")
        }
        6 | 7 => {
            let data = data(&(at..end));
            file.write_at(&data, at).unwrap();
            write(model, at, &data);
            format!("write {at}..{end}")
        }
        8 => {
            file.node().set_size(at, Privileges::Keep).unwrap();
            model.resize(at as usize, 0);
            format!("truncate {at}")
        }
        9 => {
            let punched = file.fallocate(
                Fallocate::PunchHole,
                FileOffset(at)..FileOffset(end),
                Privileges::Keep,
            );
            punched.unwrap();
            let size = model.len() as u64;
            model[at.min(size) as usize..end.min(size) as usize].fill(0);
            format!("punch {at}..{end}")
        }
        10 => {
            let mode = Fallocate::Allocate { keep_size: true };
            match file.fallocate(mode, FileOffset(at)..FileOffset(end), Privileges::Keep) {
                Ok(()) => {}
                Err(Error::Unsupported(_)) if !has_extents => {}
                Err(error) => panic!("{error}"),
            }
            format!("allocate {at}..{end}")
        }
        _ => {
            file.sync_all().unwrap();
            "sync".to_owned()
        }
    }
}

fn check(file: &File, model: &[u8], context: &str) {
    let mut found = vec![0xEE; model.len() + 1];
    let length = file.read_at(&mut found, 0).unwrap();
    assert_eq!(length, model.len(), "size, {context}");
    let differs = model.iter().zip(&found).position(|(wanted, found)| wanted != found);
    assert_eq!(differs, None, "{context}");
}

#[test]
fn direct_and_buffered_calls_see_each_others_writes() {
    for (block_size, arguments) in [
        (1024, ""),
        (4096, ""),
        (65_536, ""),
        (4096, "-O bigalloc,^resize_inode -C 16384"),
        (4096, "-O ^extent,^64bit"),
        (4096, "-O inline_data"),
        (16_384, "-O ^has_journal"),
    ] {
        let has_extents = !arguments.contains("^extent");
        for split in [SplitExtents::AtEnd, SplitExtents::Before] {
            let folder = tempfile::tempdir().unwrap();
            let image = folder.path().join("image");
            make_stale(&image, block_size, arguments);
            let direct = DirectOptions { split, ..DirectOptions::default() };
            let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ u64::from(block_size));
            let mut volume = open_on(device(&image), direct);
            drop(make(&volume, "a"));
            let mut model = Vec::new();
            for round in 0..3 {
                let file = common::file(&volume, "a");
                check(&file, &model, "read again");
                for number in 0..40 {
                    let done = step(&file, has_extents, &mut model, &mut random);
                    let context = format!("{block_size} {arguments}: {round}/{number}: {done}");
                    if number % 4 == 3 {
                        check(&file, &model, &context);
                    }
                }
                drop(file);
                close(volume, &image);
                volume = open_on(device(&image), direct);
            }
            close(volume, &image);
        }
    }
}
