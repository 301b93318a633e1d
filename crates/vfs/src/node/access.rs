//! Options for access times: which accesses change them.
//! Not here: the changes (`note_access.rs`).

use base::attributes::{Attributes, FileType, Timestamp};

/// FS_NOATIME_FL: accesses do not change the inode's access time.
const NO_ACCESS_TIME: u32 = 0x80;
/// The age, in seconds, at which [`AccessTimes::Relative`] updates an access time in any case.
const AGE_MAX: i64 = 24 * 60 * 60;

/// The accesses that change the access time of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// No accesses (`noatime`).
    #[default]
    Never,
    /// The first access after a change of the inode or its contents, and one access a day
    /// (`relatime`).
    Relative,
    /// All accesses (`strictatime`).
    Always,
}

/// Options for access times on a volume that is open for writing.
///
/// Reading a file, listing a directory, and reading or following a symbolic link are accesses. The
/// default keeps no access times, so that reading a volume does not change it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessOptions {
    /// The accesses that change the access time.
    pub times: AccessTimes,
    /// Whether directories have access times, too. `false` is `nodiratime`.
    pub directories: bool,
    /// Whether access times stay in memory until the inode is written for another reason or synced,
    /// or until 12 hours have passed (`lazytime`).
    pub lazy: bool,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self { times: AccessTimes::Never, directories: true, lazy: false }
    }
}

impl AccessOptions {
    /// Returns whether an access at `now` changes the access time of an inode with these
    /// attributes.
    pub(crate) fn wants(self, attributes: &Attributes, now: Timestamp) -> bool {
        let is_excluded = attributes.kind == FileType::Directory && !self.directories;
        if is_excluded || attributes.flags & NO_ACCESS_TIME != 0 || attributes.accessed == now {
            return false;
        }
        match self.times {
            AccessTimes::Never => false,
            AccessTimes::Always => true,
            AccessTimes::Relative => {
                let changed = attributes.modified.max(attributes.changed);
                let age = now.seconds.saturating_sub(attributes.accessed.seconds);
                changed >= attributes.accessed || age >= AGE_MAX
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::InodeNumber;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn file(accessed: i64, modified: i64, changed: i64) -> Attributes {
        Attributes {
            inode: InodeNumber(12),
            kind: FileType::Regular,
            permissions: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            device: Default::default(),
            accessed: at(accessed),
            modified: at(modified),
            changed: at(changed),
            created: None,
            generation: 0,
            flags: 0,
            project: None,
        }
    }

    #[test]
    fn the_first_access_after_a_change_counts_and_one_a_day() {
        let relative = AccessOptions { times: AccessTimes::Relative, ..Default::default() };
        let wants = |file: &Attributes, now| relative.wants(file, at(now));
        assert!(wants(&file(10, 10, 5), 20));
        assert!(wants(&file(10, 5, 10), 20));
        assert!(!wants(&file(10, 9, 9), 20));
        assert!(!wants(&file(10, 9, 9), 10 + AGE_MAX - 1));
        assert!(wants(&file(10, 9, 9), 10 + AGE_MAX));
        assert!(!wants(&file(10, 10, 10), 10), "nothing would change");
    }

    #[test]
    fn flags_and_options_exclude_inodes() {
        let always = AccessOptions { times: AccessTimes::Always, ..Default::default() };
        let (now, mut inode) = (at(20), file(10, 1, 1));
        assert!(always.wants(&inode, now));
        assert!(!AccessOptions::default().wants(&inode, now));
        inode.flags = NO_ACCESS_TIME;
        assert!(!always.wants(&inode, now));
        inode.flags = 0;
        inode.kind = FileType::Directory;
        assert!(always.wants(&inode, now));
        assert!(!AccessOptions { directories: false, ..always }.wants(&inode, now));
    }
}
