//! Tests of random allocation and freeing. Other programs must see the same blocks and inodes in
//! use. Not here: running out of space.

use std::process::Command;

use base::{FsBlock, InodeNumber};
use testkit::Random;

use super::common::{Image, run};
use super::*;
use crate::ROOT_INODE;

/// The sizes in MiB and the options of the images.
const KINDS: &[(u64, &str)] = &[
    (40, "-t ext4 -b 1024"),
    (40, "-t ext4 -b 4096"),
    (256, "-t ext4 -b 65536"),
    (256, "-t ext4 -b 65536 -O ^64bit"),
    (40, "-t ext4 -b 1024 -O bigalloc,^resize_inode -C 8192"),
    (256, "-t ext4 -b 4096 -O bigalloc,^resize_inode -C 65536"),
    (40, "-t ext2 -b 1024"),
    (40, "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^flex_bg"),
    (40, "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode"),
    (40, "-t ext4 -b 1024 -G 4 -O ^has_journal,^64bit"),
    (40, "-t ext3 -b 2048 -O sparse_super2 -E num_backup_sb=1"),
];

/// A user of a volume, with the blocks and inodes that it has allocated.
struct User {
    random: Random,
    runs: Vec<(FsBlock, u64)>,
    inodes: Vec<(InodeNumber, bool)>,
}

impl User {
    fn new(seed: u64) -> Self {
        Self { random: Random(seed), runs: Vec::new(), inodes: Vec::new() }
    }

    fn change(&mut self, volume: &Volume) {
        let random = &mut self.random;
        if random.below(5) < 2 {
            if let Some((start, count)) = random.take(&mut self.runs) {
                // In half of the cases, keeps about half of the blocks, in whole clusters.
                let kept = (random.below(2) * (count / 2)) >> volume.geometry().cluster_shift;
                let kept = kept << volume.geometry().cluster_shift;
                volume.free((FsBlock(start.0 + kept), count - kept)).unwrap();
                if kept > 0 {
                    self.runs.push((start, kept));
                }
            }
        } else {
            let goal = random.below(volume.geometry().block_count + 5);
            let wanted_max = [20, 20, 20, 3000][random.below(4) as usize];
            let wanted = 1 + random.below(wanted_max);
            let purpose = [Purpose::Data, Purpose::Metadata][random.below(2) as usize];
            let (inode, blocks) = (InodeNumber(20 + random.below(5)), random.below(200));
            let preallocation = (random.below(2) == 0).then_some(Preallocation { inode, blocks });
            let found = volume.allocator().unwrap().with_space(|| {
                volume.allocate_with_preallocation(goal, wanted, purpose, preallocation)
            });
            match found {
                Ok((start, count)) => {
                    let wanted = volume.geometry().clusters_for(wanted);
                    assert!(count >= 1 && volume.geometry().clusters_for(count) <= wanted);
                    self.runs.push((start, count));
                }
                Err(error) => assert_eq!(error, Error::NoSpace),
            }
        }
        let is_directory = random.below(3) == 0;
        if random.below(5) < 2 {
            if let Some((number, is_directory)) = random.take(&mut self.inodes) {
                let free = |handle: &mut _| {
                    volume.allocator().unwrap().free_inode(handle, number, is_directory)
                };
                volume.change(FREE_INODE_CREDITS, free).unwrap();
            }
        } else {
            let parent = random.take(&mut self.inodes.clone()).map_or(ROOT_INODE, |inode| inode.0);
            let allocate = |handle: &mut _| {
                volume.allocator().unwrap().allocate_inode(handle, parent, is_directory)
            };
            match volume.change(ALLOCATE_INODE_CREDITS, allocate) {
                Ok(number) => self.inodes.push((number, is_directory)),
                Err(error) => assert_eq!(error, Error::NoSpace),
            }
        }
    }

    fn free_all(&mut self, volume: &Volume) {
        for run in self.runs.drain(..) {
            volume.free(run).unwrap();
        }
        for (number, is_directory) in self.inodes.drain(..) {
            let free = |handle: &mut _| {
                volume.allocator().unwrap().free_inode(handle, number, is_directory)
            };
            volume.change(FREE_INODE_CREDITS, free).unwrap();
        }
    }
}

fn image(megabytes: u64, options: &str) -> Image {
    Image::filled(megabytes, options, |folder| {
        std::fs::write(folder.join("file"), vec![1; 3_000_000]).unwrap();
    })
}

/// Checks that each block and inode that was free at first is now either free or allocated by
/// exactly one user.
fn check(image: &Image, at_first: &Free, users: &[User], context: &str) {
    let Free { mut clusters, mut inodes } = free(image);
    let cluster = image.open().geometry().blocks_per_cluster() as usize;
    for user in users {
        for &(start, count) in &user.runs {
            for block in (start.0..start.0 + count).step_by(cluster) {
                assert!(clusters.insert(block), "{context}: block {block} is in use and free");
            }
        }
        for &(number, _) in &user.inodes {
            assert!(inodes.insert(number.0), "{context}: inode {number} is in use and free");
        }
    }
    assert!(Free { clusters, inodes } == *at_first, "{context}");
}

#[test]
fn e2fsprogs_sees_the_blocks_and_inodes_that_are_in_use() {
    for &(megabytes, options) in KINDS {
        let image = image(megabytes, options);
        let at_first = free(&image);
        let mut users = [User::new(0x9E37_79B9_7F4A_7C15)];
        for round in 0..4 {
            let volume = open_for_writing(&image);
            for change in 0..120 {
                users[0].change(&volume);
                if change % 50 == 49 {
                    volume.sync().unwrap();
                }
            }
            let counts = volume.statfs();
            close(volume);
            check(&image, &at_first, &users, options);
            let seen = image.open().statfs();
            assert_eq!(counts, seen, "{options}, round {round}");
        }
        let volume = open_for_writing(&image);
        users[0].free_all(&volume);
        close(volume);
        assert!(free(&image) == at_first, "{options}");
        image.check_by_e2fsck();
    }
}

#[test]
fn threads_never_allocate_the_same_block_or_inode() {
    for &(megabytes, options) in &[(24, "-t ext4 -b 1024 -g 2048"), (40, "-t ext4 -b 4096")] {
        let image = image(megabytes, options);
        let at_first = free(&image);
        let volume = open_for_writing(&image);
        let mut users = [User::new(1), User::new(0x1234_5678)];
        std::thread::scope(|scope| {
            for user in &mut users {
                scope.spawn(|| (0..2000).for_each(|_| user.change(&volume)));
            }
            for _ in 0..20 {
                std::thread::sleep(std::time::Duration::from_millis(5));
                volume.sync().unwrap();
            }
        });
        close(volume);
        check(&image, &at_first, &users, options);
        let volume = open_for_writing(&image);
        users.iter_mut().for_each(|user| user.free_all(&volume));
        close(volume);
        image.check_by_e2fsck();
    }
}

#[test]
fn the_kernel_allocates_on_a_volume_that_was_changed() {
    testkit::private_mounts();
    let image = image(40, "-t ext4 -b 1024");
    let volume = open_for_writing(&image);
    let mut user = User::new(77);
    (0..200).for_each(|_| user.change(&volume));
    user.free_all(&volume);
    let ours = volume.statfs();
    close(volume);
    let mount = testkit::LoopMount::new(&image.path, "ext4", "rw");
    let theirs = run(Command::new("stat").args(["-f", "-c", "%f %a %d"]).arg(mount.path()));
    let ours = format!("{} {} {}", ours.blocks_free, ours.blocks_available, ours.inodes_free);
    assert_eq!(theirs.trim(), ours);
    for name in 0..300 {
        std::fs::write(mount.path().join(format!("{name}")), vec![7; name * 100]).unwrap();
        std::fs::create_dir(mount.path().join(format!("directory {name}"))).unwrap();
    }
    drop(mount);
    image.check_by_e2fsck();
}
