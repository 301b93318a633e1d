//! Bugs of fsync on f2fs: it does not write an attribute, so that the synced inode has the old one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use device::{Bio, BioOperation, DeviceHooks, HookedDevice, SharedDevice};
use parking_lot::Mutex;

use crate::operation::Operation;

const BLOCK: usize = 4096;
/// The words of a node's footer, from the end of the block: its number, that of its inode, and
/// flags.
const NODE: usize = 24;
const INODE: usize = 20;
const FLAGS: usize = 16;
/// The flag of the last node that a call of fsync(2) wrote.
const SYNCED: u32 = 2;
/// More than the numbers of all nodes of a small volume.
const NODES_MAX: u32 = 1 << 20;

/// The attribute that is not written.
#[derive(Clone, Copy, Debug)]
pub enum Lost {
    Mode,
    Owner,
    Group,
    Time,
}

pub const ALL: [Lost; 4] = [Lost::Mode, Lost::Owner, Lost::Group, Lost::Time];

impl Lost {
    /// Returns the operation that changes the attribute.
    pub fn operation(self, path: &'static str) -> Operation {
        match self {
            Self::Mode => Operation::SetMode(path),
            Self::Owner | Self::Group => Operation::SetOwners(path),
            Self::Time => Operation::SetTime(path),
        }
    }

    /// Returns `device` as a volume with the bug uses it.
    pub fn device(self, device: SharedDevice) -> SharedDevice {
        Arc::new(HookedDevice::new(
            device,
            WithOldAttribute { lost: self, inodes: Mutex::default() },
        ))
    }

    /// Returns the bytes of the attribute in an inode.
    fn bytes(self) -> Range<usize> {
        match self {
            Self::Mode => 0..2,
            Self::Owner => 4..8,
            Self::Group => 8..12,
            Self::Time => 48..56,
        }
    }
}

#[derive(Debug)]
struct WithOldAttribute {
    lost: Lost,
    /// The inodes of the last checkpoint, by number.
    inodes: Mutex<BTreeMap<u32, Vec<u8>>>,
}

impl WithOldAttribute {
    /// Replaces the attribute of a synced inode, and remembers others.
    fn change(&self, block: &mut [u8]) {
        let word = |from_end: usize| {
            let at = block.len() - from_end;
            u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
        };
        let (number, inode) = (word(NODE), word(INODE));
        if number != inode || !(1..NODES_MAX).contains(&number) {
            return;
        }
        let mut inodes = self.inodes.lock();
        if word(FLAGS) & SYNCED == 0 {
            inodes.insert(number, block.to_vec());
        } else if let Some(old) = inodes.get(&number) {
            let bytes = self.lost.bytes();
            block[bytes.clone()].copy_from_slice(&old[bytes]);
        }
    }
}

impl DeviceHooks for WithOldAttribute {
    fn submit(&self, device: &SharedDevice, batch: Vec<Bio>) {
        for bio in batch {
            if bio.operation() == BioOperation::Read {
                device.submit(vec![bio]);
                continue;
            }
            let mut bytes = bio.to_vec();
            bytes.chunks_exact_mut(BLOCK).for_each(|block| self.change(block));
            device.write_at(bio.offset(), &bytes).unwrap();
            bio.end(Ok(()));
        }
    }
}
