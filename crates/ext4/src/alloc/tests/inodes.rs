//! Tests of inode tables that mke2fs has not written. Not here: the contents of inodes.

use std::process::Command;

use base::InodeNumber;

use super::common::{Image, run};
use super::*;
use crate::ROOT_INODE;

#[test]
fn tables_that_were_never_written_are_zeroed_when_they_are_first_used() {
    for features in ["metadata_csum", "^metadata_csum,uninit_bg"] {
        // The device has other contents before.
        let image = Image::make(1, &["-t", "ext2"]);
        std::fs::write(&image.path, vec![0x5A; 40 << 20]).unwrap();
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-I", "256", "-O", features]);
        run(command.args(["-E", "lazy_itable_init=1,nodiscard"]).arg(&image.path));
        let volume = open_for_writing(&image);
        let mut allocated = Vec::new();
        for count in 0..3000 {
            let is_directory = count % 10 == 0;
            let number = volume
                .change(ALLOCATE_INODE_CREDITS, |handle| {
                    volume.allocator().unwrap().allocate_inode(handle, ROOT_INODE, is_directory)
                })
                .unwrap();
            let group = volume.group(volume.geometry().inode_position(number).unwrap().0).unwrap();
            assert!(!group.inodes_uninitialised && !group.blocks_uninitialised);
            // e2fsck does not check the inodes behind those that the descriptor counts as used.
            let index = volume.geometry().inode_position(number).unwrap().1;
            assert!(group.unused_inodes + index < volume.geometry().inodes_per_group);
            // The old contents of the device are not an inode.
            assert_eq!(volume.inode_record(number).unwrap_err(), Error::NotFound);
            allocated.push((number, is_directory));
        }
        let groups = |numbers: &[(InodeNumber, bool)]| {
            let group = |&(number, _): &(InodeNumber, bool)| {
                volume.geometry().inode_position(number).unwrap().0
            };
            numbers.iter().map(group).collect::<BTreeSet<_>>().len()
        };
        assert!(groups(&allocated) > 1, "{features}");
        for (number, is_directory) in allocated {
            let free = |handle: &mut _| {
                volume.allocator().unwrap().free_inode(handle, number, is_directory)
            };
            volume.change(FREE_INODE_CREDITS, free).unwrap();
        }
        close(volume);
        image.check_by_e2fsck();
    }
}
