//! Files that are written again to lie in fewer pieces.

use std::sync::Arc;

use base::{Error, FileOffset, Unsupported};
use device::MemoryDevice;
use vfs::{Defragmented, Fallocate, Follow, Privileges, Volume};

use crate::model::{BLOCK, Model, ROOT, WRITE, check, close, image, open};

/// The number of blocks of each file.
const BLOCKS: usize = 100;

/// Writes blocks of two files in turns, so that each is in as many pieces as it has blocks.
fn scatter(volume: &Volume) -> Vec<Model> {
    scatter_named(volume, ["/a", "/b"])
}

fn scatter_named(volume: &Volume, paths: [&str; 2]) -> Vec<Model> {
    let mut files: Vec<_> = paths
        .into_iter()
        .map(|path| {
            let node = volume.create_file(path.as_bytes(), 0o644, ROOT).unwrap();
            let model = Model { path: path.into(), versions: Vec::new() };
            (node.open_for(WRITE).unwrap(), model)
        })
        .collect();
    for block in 0..BLOCKS {
        for (file, model) in &mut files {
            model.versions.push(0);
            let written = file.write_at(&model.data(block), block as u64 * BLOCK);
            assert_eq!(written, Ok(BLOCK as usize), "{}", model.path);
            file.sync_data().unwrap();
        }
    }
    files.into_iter().map(|(_, model)| model).collect()
}

#[test]
fn scattered_files_are_written_again_and_keep_their_contents() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    // Cold files are otherwise overwritten in place.
    let (warm, cold) = (["/a", "/b"], ["/a.mp4", "/b.mp4"]);
    let models = [scatter_named(&volume, warm), scatter_named(&volume, cold)];
    for path in warm.into_iter().chain(cold) {
        let node = volume.resolve(path.as_bytes(), Follow::No).unwrap();
        let before = node.attributes();
        let moved = volume.defragment(&node).unwrap();
        let Defragmented::Moved { before: layout, after } = moved else { panic!("{moved:?}") };
        assert!(layout.pieces > BLOCKS as u64 / 2 && after.pieces <= 2, "{layout:?}, {after:?}");
        assert_eq!((layout.bytes, after.bytes), (BLOCKS as u64 * BLOCK, layout.bytes));
        let after = node.attributes();
        assert_eq!((after.modified, after.blocks), (before.modified, before.blocks));
    }
    check(&volume, &models, "moved");
    close(&device, volume);
    let volume = open(&device);
    check(&volume, &models, "after closing");
}

#[test]
fn holes_stay_holes_and_preallocated_blocks_stay_without_data() {
    let device = Arc::new(MemoryDevice::new(image(64)));
    let volume = open(&device);
    let models = scatter(&volume);
    let node = volume.resolve(b"/a", Follow::No).unwrap();
    let file = node.open_for(WRITE).unwrap();
    let blocks = |from: u64, to: u64| FileOffset(from * BLOCK)..FileOffset(to * BLOCK);
    file.fallocate(Fallocate::PunchHole, blocks(10, 20), Privileges::Keep).unwrap();
    let keep_size = true;
    let zeroed = Fallocate::ZeroRange { keep_size };
    file.fallocate(zeroed, blocks(40, 50), Privileges::Keep).unwrap();
    file.sync_all().unwrap();
    let before = node.attributes().blocks;
    assert!(matches!(volume.defragment(&node), Ok(Defragmented::Moved { .. })));
    assert_eq!(node.attributes().blocks, before);
    for hole in [10, 40] {
        assert_eq!(file.seek_hole(FileOffset((hole - 1) * BLOCK)), Ok(FileOffset(hole * BLOCK)));
        assert_eq!(file.seek_data(FileOffset(hole * BLOCK)), Ok(FileOffset((hole + 10) * BLOCK)));
    }
    let mut found = vec![0xEE; BLOCKS * BLOCK as usize];
    assert_eq!(file.read_at(&mut found, 0), Ok(found.len()));
    for (number, block) in found.chunks(BLOCK as usize).enumerate() {
        let is_zeroed = (10..20).contains(&number) || (40..50).contains(&number);
        let expected = models[0].data(number);
        assert!(block == if is_zeroed { vec![0; BLOCK as usize] } else { expected }, "{number}");
    }
    drop(file);
    drop(node);
    close(&device, volume);
}

#[test]
fn pinned_files_and_those_without_room_are_skipped() {
    let device = Arc::new(MemoryDevice::new(image(192)));
    let volume = open(&device);
    let models = [scatter(&volume)];
    let pinned = volume.create_file(b"/pinned", 0o644, ROOT).unwrap();
    pinned.set_pinned(true).unwrap();
    let skipped = volume.defragment(&pinned).unwrap();
    let is_inode = |error: &Error| matches!(error, Error::Unsupported(Unsupported::Inode { .. }));
    assert!(matches!(&skipped, Defragmented::Skipped(error) if is_inode(error)), "{skipped:?}");
    // More than the free segments have room for.
    let mut filler = Model { path: "/filler".into(), versions: Vec::new() };
    filler.fill(&volume, usize::MAX);
    volume.sync().unwrap();
    let node = volume.resolve(b"/filler", Follow::No).unwrap();
    assert!(node.layout().unwrap().pieces > 1);
    assert_eq!(volume.defragment(&node), Ok(Defragmented::Skipped(Error::NoSpace)));
    check(&volume, &models, "full");
    close(&device, volume);
}
