//! Fields of an inode that many operations set: its name and its times.

use base::InodeNumber;
use base::attributes::Timestamp;

use crate::dir::EntryName;
use crate::ondisk::node::{RawInode, advise};

/// The name of an inode in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeName<'n> {
    pub(crate) parent: InodeNumber,
    pub(crate) name: &'n EntryName<'n>,
}

impl RawInode {
    /// Stores the name of the inode, which a recovery gives to it.
    pub(crate) fn set_name(&mut self, to: InodeName<'_>) {
        let EntryName { stored, hash, is_encrypted, has_keyed_hash } = to.name;
        // Numbers of inodes have 32 bits, and names 255 bytes at most.
        self.parent.set(to.parent.0 as u32);
        self.name_length.set(stored.len() as u32);
        self.name.fill(0);
        let (name, rest) = self.name.split_at_mut(stored.len());
        name.copy_from_slice(stored);
        self.advise &= !(advise::ENCRYPTED_NAME | advise::LOST_NAME);
        if *is_encrypted {
            self.advise |= advise::ENCRYPTED_NAME;
        }
        if *has_keyed_hash {
            // A recovery has no key.
            match rest.first_chunk_mut() {
                Some(place) => *place = hash.to_le_bytes(),
                None => self.advise |= advise::LOST_NAME,
            }
        }
    }

    /// Stores the access time.
    pub(crate) fn set_accessed(&mut self, time: Timestamp) {
        self.atime.set(time.seconds as u64);
        self.atime_nsec.set(time.nanoseconds);
    }

    /// Stores the modification time.
    pub(crate) fn set_modified(&mut self, time: Timestamp) {
        self.mtime.set(time.seconds as u64);
        self.mtime_nsec.set(time.nanoseconds);
    }

    /// Stores the time of the inode's change.
    pub(crate) fn set_changed(&mut self, time: Timestamp) {
        self.ctime.set(time.seconds as u64);
        self.ctime_nsec.set(time.nanoseconds);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// Returns the fields of an inode with a name of `length` bytes, whose hash needs the key.
    fn named(length: usize) -> RawInode {
        let mut raw = RawInode::new_zeroed();
        raw.advise = advise::LOST_NAME;
        raw.name.fill(0xFF);
        let stored = vec![b'n'; length].into();
        let hash = 0x0403_0201;
        let name = EntryName { stored, hash, is_encrypted: true, has_keyed_hash: true };
        raw.set_name(InodeName { parent: InodeNumber(3), name: &name });
        raw
    }

    #[test]
    fn a_hash_that_needs_the_key_follows_the_name_if_there_is_room() {
        let raw = named(251);
        assert_eq!(raw.name[250..], [b'n', 1, 2, 3, 4]);
        assert_eq!(raw.advise, advise::ENCRYPTED_NAME);
        let raw = named(252);
        assert_eq!(raw.name[251..], [b'n', 0, 0, 0]);
        assert_eq!(raw.advise, advise::ENCRYPTED_NAME | advise::LOST_NAME);
    }

    #[test]
    fn another_name_leaves_nothing_of_an_encrypted_one() {
        let mut raw = named(252);
        let stored = b"plain"[..].into();
        let name = EntryName { stored, hash: 7, is_encrypted: false, has_keyed_hash: false };
        raw.set_name(InodeName { parent: InodeNumber(3), name: &name });
        assert_eq!((raw.advise, raw.name_length.get()), (0, 5));
        assert_eq!(raw.name[..8], *b"plain\0\0\0");
    }
}
