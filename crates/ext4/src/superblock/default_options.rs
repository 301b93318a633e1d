//! The mount options that a superblock has as defaults: bits, and a list as of `-o` (`tune2fs -o`,
//! `tune2fs -E mount_opts=`). Not here: the meaning of those that are not ext4's to apply
//! (`fs::DefaultOptions`).

use fs::ErrorPolicy;

use super::until_nul;
use crate::ondisk::superblock::RawSuperblock;

/// The bits and their options, as in the kernel's documentation of the superblock.
const BITS: &[(u32, u32, &str)] = &[
    (0x1, 0x1, "debug"),
    (0x2, 0x2, "bsdgroups"),
    (0x4, 0x4, "user_xattr"),
    (0x8, 0x8, "acl"),
    (0x10, 0x10, "nouid32"),
    (JOURNAL_MODE, 0x20, "data=journal"),
    (JOURNAL_MODE, 0x40, "data=ordered"),
    (JOURNAL_MODE, 0x60, "data=writeback"),
    (0x100, 0x100, "nobarrier"),
    (0x200, 0x200, "block_validity"),
    (0x400, 0x400, "discard"),
    (0x800, 0x800, "nodelalloc"),
];
/// The bits of the journaling mode, of which each value is an option.
const JOURNAL_MODE: u32 = 0x60;

/// The default mount options of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct DefaultOptions {
    /// Whether new files get the group of their directory.
    pub bsd_groups: bool,
    /// Whether freed blocks are discarded.
    pub discard: bool,
    /// The reaction to corruption, instead of that in the superblock's own field.
    pub errors: Option<ErrorPolicy>,
    /// The others.
    pub others: Vec<String>,
}

impl DefaultOptions {
    /// Parses the defaults. As in the kernel, the list overrides the bits.
    pub(super) fn parse(raw: &RawSuperblock) -> Self {
        let bits = raw.default_mount_opts.get();
        let list = String::from_utf8_lossy(until_nul(&raw.mount_opts)).into_owned();
        let of_bits = BITS.iter().filter(|(mask, value, _)| bits & mask == *value);
        let mut options = Self::default();
        of_bits.map(|(_, _, name)| *name).chain(list.split(',')).for_each(|one| options.add(one));
        options
    }

    fn add(&mut self, option: &str) {
        match option {
            "" => {}
            "grpid" | "bsdgroups" => self.bsd_groups = true,
            "nogrpid" | "sysvgroups" => self.bsd_groups = false,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "errors=continue" => self.errors = Some(ErrorPolicy::Continue),
            "errors=remount-ro" => self.errors = Some(ErrorPolicy::ReadOnly),
            "errors=panic" => self.errors = Some(ErrorPolicy::Panic),
            _ if self.others.iter().any(|other| other == option) => {}
            _ => self.others.push(option.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn parse(bits: u32, list: &[u8]) -> DefaultOptions {
        let mut raw = RawSuperblock::new_zeroed();
        raw.default_mount_opts = bits.into();
        raw.mount_opts[..list.len()].copy_from_slice(list);
        DefaultOptions::parse(&raw)
    }

    #[test]
    fn bits_and_list_are_parsed_and_the_list_overrides_the_bits() {
        assert_eq!(parse(0, b""), DefaultOptions::default());
        let options = parse(0xd7e, b"nodelalloc,frob=1,errors=panic");
        assert!(options.bsd_groups && options.discard);
        assert_eq!(options.errors, Some(ErrorPolicy::Panic));
        let others =
            ["user_xattr", "acl", "nouid32", "data=writeback", "nobarrier", "nodelalloc", "frob=1"];
        assert_eq!(options.others, others);
        let options = parse(0x422, b"sysvgroups,nodiscard");
        assert!(!options.bsd_groups && !options.discard);
        assert_eq!(options.others, ["data=journal"]);
        // All of the list is in use.
        assert_eq!(parse(0, &[b'x'; 64]).others, ["x".repeat(64)]);
    }
}
