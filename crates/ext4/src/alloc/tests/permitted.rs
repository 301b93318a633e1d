//! Tests of requests that permit only the first groups.

use testkit::Random;

use super::common::Image;
use super::*;

const GROUPS: u32 = 3;
const BLOCKS_PER_GROUP: u64 = 1024;
const GROUPS_OF_VOLUME: u64 = 16;

/// Allocates blocks in the first groups. Returns `None` if these are full.
fn allocate(volume: &Volume, random: &mut Random, purpose: Purpose) -> Option<(FsBlock, u64)> {
    let block = FsBlock(random.below(GROUPS_OF_VOLUME * BLOCKS_PER_GROUP));
    let wanted = 1 + random.below(300);
    let preallocation = (random.below(2) == 0)
        .then(|| Preallocation { inode: base::InodeNumber(12), blocks: random.below(100) });
    let goal = Goal { block, groups: GROUPS };
    let allocated = volume.change(ALLOCATE_CREDITS, |handle| {
        volume.allocator().unwrap().allocate_blocks(handle, goal, wanted, purpose, preallocation)
    });
    match allocated {
        Ok(blocks) => Some(blocks),
        Err(error) => {
            assert_eq!(error, Error::NoSpace);
            None
        }
    }
}

#[test]
fn only_the_permitted_groups_are_used_and_they_become_full() {
    for (seed, purpose) in [(1, Purpose::Data), (2, Purpose::Metadata)] {
        let image = Image::make(16, &["-t", "ext4", "-b", "1024", "-g", "1024", "-m", "0"]);
        let volume = open_for_writing(&image);
        let end = volume.geometry().group_start(GroupNumber(GROUPS));
        // Behind a large request, others continue. Most groups have an extent of known length.
        for group in 0..GROUPS_OF_VOLUME {
            volume.allocate(group * BLOCKS_PER_GROUP + 500, 20, purpose).unwrap();
        }
        let mut random = Random(seed);
        while let Some((start, count)) = allocate(&volume, &mut random, purpose) {
            assert!(start.0 + count <= end.0, "seed {seed}: {start} is in a later group");
        }
        volume.allocate(0, 1, purpose).expect("later groups have space");
        close(volume);
        let free = free(&image).clusters;
        assert!(free.range(..end.0).next().is_none(), "seed {seed}: {free:?}");
        assert!(free.len() > 1000);
    }
}
