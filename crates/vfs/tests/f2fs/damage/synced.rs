//! Damage of what a recovery reads: synced nodes, and those of the checkpoint that they replace.
//! Contradictions refuse the recovery, and the volume can be read without one.

use std::sync::Arc;

use base::attributes::{FileType, XattrMode};
use base::{Error, Result};
use device::MemoryDevice;
use testkit::f2fs::lose_synced_xattr_node;
use vfs::{Creation, Volume, VolumeOptions};

use crate::damage::{
    BLOCK, BY, FIRST_ADDRESS, KEEP, WRITE, blocks_of, change, check_contents, check_usable,
    copy_of, create, damage_inode, damaged, device, find, first_address, number, open, set_word,
    word,
};

/// Adds data to the file `data`, syncs it, and calls `more`. Returns a device as after a power cut.
pub fn cut_after_sync(device: &MemoryDevice, more: impl FnOnce(&Volume)) -> Arc<MemoryDevice> {
    let device = copy_of(device);
    let volume = open(&device).unwrap();
    let file = find(&volume, "data").open_for(WRITE).unwrap();
    file.write_all_at(&[b's'; 20 * BLOCK], 3 * BLOCK as u64).unwrap();
    file.sync_all().unwrap();
    more(&volume);
    copy_of(&device)
}

/// Changes the address of the fourth block in the synced inode of `data` to what `address` returns
/// for the inode's block.
fn damage_synced(device: &MemoryDevice, address: impl Fn(u32) -> u32) -> Arc<MemoryDevice> {
    change_synced(device, |block, inode| {
        let at = FIRST_ADDRESS + 3 * 4;
        assert_ne!(word(inode, at), 0);
        set_word(inode, at, address(block));
    })
}

/// Calls `work` with the block number and the contents of the synced inode of `data`.
pub fn change_synced(device: &MemoryDevice, work: impl Fn(u32, &mut [u8])) -> Arc<MemoryDevice> {
    const FSYNC: u32 = 2;
    let number = number(device, "data");
    damaged(device, |image| {
        let blocks = blocks_of(image, number, number).into_iter();
        let is_synced = |at: &usize| word(&image[at * BLOCK..], BLOCK - 24 + 8) & FSYNC != 0;
        let [synced] = { blocks }.filter(is_synced).collect::<Vec<_>>()[..] else {
            panic!("one synced inode")
        };
        work(synced as u32, &mut image[synced * BLOCK..][..BLOCK]);
    })
}

#[track_caller]
fn check_not_recovered(device: &Arc<MemoryDevice>, expected: &str) {
    for writable in [false, true] {
        let mut options = VolumeOptions::new();
        options.writable(writable);
        let error = Volume::open_device(device.clone(), &options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let mut options = VolumeOptions::new();
    options.no_recovery(true);
    let volume = Volume::open_device(device.clone(), &options).unwrap();
    check_contents(&volume, "data", 0, b'd');
}

#[test]
fn a_synced_address_among_nodes_is_refused() {
    let whole = device();
    let cut = cut_after_sync(&whole, |_| ());
    let image = cut.snapshot();
    let main = word(&image[1024..], 92);
    let last_of_segment = |block: u32| block - (block - main) % 512 + 511;
    let root = *blocks_of(&image, 3, 3).last().unwrap() as u32;
    let addresses: [&dyn Fn(u32) -> u32; 3] =
        [&|own| own, &last_of_segment, &|_| last_of_segment(root)];
    for address in addresses {
        check_not_recovered(&damage_synced(&cut, address), "address among nodes");
    }
    // The same file without damage.
    check_usable(&cut);
}

/// Makes a node's address the owner of a block that the inode `from` has had as its first one.
fn set_owner(device: &MemoryDevice, block: u32, from: u32, owner: (u32, u16)) -> Arc<MemoryDevice> {
    damaged(device, |image| {
        let [checkpoints, main] = [76, 92].map(|at| word(&image[1024..], at));
        let at = (block - main) as usize % 512 * 7;
        let mut changed = 0;
        for block in image[..main as usize * BLOCK].chunks_mut(BLOCK).skip(checkpoints as usize) {
            let summary = &mut block[at..at + 7];
            if word(summary, 0) == from && summary[5..] == [0; 2] {
                set_word(summary, 0, owner.0);
                summary[5..].copy_from_slice(&owner.1.to_le_bytes());
                changed += 1;
            }
        }
        assert!(changed > 0, "no summary of {block}");
    })
}

#[test]
fn the_number_of_a_device_is_no_address_that_a_recovery_takes_away() {
    let whole = change(&device(), |volume| {
        create(volume, "old").write_all_at(&[b'o'; BLOCK], 0).unwrap();
        let creation = Creation::of(FileType::CharacterDevice, 0o644);
        volume.create_in(&volume.root().unwrap(), b"special", &creation, BY).unwrap();
    });
    let address = first_address(&whole, "old");
    let (old, special) = (number(&whole, "old"), number(&whole, "special"));
    let whole = damage_inode(&whole, "special", |inode| {
        // With a block that it could lose.
        inode[24..32].copy_from_slice(&2_u64.to_le_bytes());
        set_word(inode, FIRST_ADDRESS, 0);
        set_word(inode, FIRST_ADDRESS + 4, address);
    });
    let cut = cut_after_sync(&whole, |_| ());
    let cut = set_owner(&damage_synced(&cut, |_| address), address, old, (special, 1));
    check_not_recovered(&cut, "used more than once");
}

/// The position of a node with extended attributes, as it is in footers.
const XATTR_POSITION: u32 = 0x1FFF_FFFF;

/// Syncs changes of a file whose node with extended attributes is damaged. Only the attributes are
/// lost.
#[test]
fn files_are_recovered_although_their_node_of_attributes_is_damaged() {
    let set = |volume: &Volume, name: &[u8], value: &[u8]| {
        find(volume, "data").set_xattr(name, value, XattrMode::Either, KEEP).unwrap();
    };
    let sync = |volume: &Volume| {
        find(volume, "data").open_for(WRITE).unwrap().sync_all().unwrap();
    };
    let whole = change(&device(), |volume| set(volume, b"user.large", &[b'a'; 3000]));
    let inode = number(&whole, "data");
    let xattr_nodes = |image: &[u8]| -> Vec<usize> {
        let is_node = |block: &[u8]| {
            word(block, BLOCK - 24 + 4) == inode
                && word(block, BLOCK - 24 + 8) >> 3 == XATTR_POSITION
        };
        let blocks = image.chunks(BLOCK).enumerate();
        blocks.filter(|(_, block)| is_node(block)).map(|(at, _)| at).collect()
    };
    let [old] = xattr_nodes(&whole.snapshot())[..] else { panic!("one node of attributes") };
    let is_damaged = |result: Result<Vec<u8>>| matches!(result, Err(Error::Corrupt(_)));
    let changed = |volume: &Volume| {
        set(volume, b"user.small", b"s");
        set(volume, b"user.large", &[b'b'; 3000]);
        sync(volume);
    };
    for (is_changed, is_lost) in [(false, false), (true, true), (true, false)] {
        let cut = cut_after_sync(&whole, |volume| {
            if is_changed {
                changed(volume)
            }
        });
        let cut = damaged(&cut, |image| {
            if is_lost {
                lose_synced_xattr_node(image);
            }
            image[old * BLOCK..][..BLOCK].fill(0);
        });
        for writable in [false, true] {
            let mut options = VolumeOptions::new();
            options.writable(writable);
            let volume = Volume::open_device(cut.clone(), &options).unwrap();
            check_contents(&volume, "data", 3 * BLOCK as u64, b's');
            let large = find(&volume, "data").get_xattr(b"user.large");
            if is_changed && !is_lost {
                assert_eq!(large, Ok(vec![b'b'; 3000]));
            } else {
                assert!(is_damaged(large), "{is_changed} {is_lost} {writable}");
            }
        }
        check_usable(&cut);
    }
}
