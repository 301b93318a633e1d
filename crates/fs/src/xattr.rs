//! Names of extended attributes: prefixes, which volumes store as numbers. ext4 and f2fs have the
//! same numbers. Not here: the stored lists of attributes, and permission to use them.

use base::{Error, Result, Unsupported};

/// The number of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NameIndex(pub u8);

impl NameIndex {
    /// `user.`
    pub const USER: Self = Self(1);
    /// `system.posix_acl_access`; no name follows.
    pub const ACL_ACCESS: Self = Self(2);
    /// `system.posix_acl_default`; no name follows.
    pub const ACL_DEFAULT: Self = Self(3);
    /// `trusted.`
    pub const TRUSTED: Self = Self(4);
    /// `security.`
    pub const SECURITY: Self = Self(6);
    /// `system.`
    pub const SYSTEM: Self = Self(7);
    /// No prefix: names under it are not shown. The attribute `c` is the encryption context.
    pub const ENCRYPTION: Self = Self(9);
    /// No prefix: names under it are not shown. The attribute `v` of f2fs is the position of the
    /// verity descriptor.
    pub const VERITY: Self = Self(11);
}

/// The longest name after a prefix. Also the longest one with its prefix that setxattr(2) takes.
const NAME_BYTES_MAX: usize = 255;

/// The name of the attribute with a file's capabilities.
pub const CAPABILITIES: &[u8] = b"security.capability";

/// Errors: setxattr(2) refuses to set the attribute `name` to `value` on all file systems: the name
/// is longer, prefix included, or the value is no set of capabilities that Linux reads. Images that
/// others have made may have such attributes.
pub fn check_settable(name: &[u8], value: &[u8]) -> Result<()> {
    /// The bit that makes capabilities effective, beside the revision in the first word.
    const EFFECTIVE: u32 = 1;
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::InvalidArgument("the name has more than 255 bytes with its prefix"));
    }
    if name != CAPABILITIES {
        return Ok(());
    }
    let revision = value.first_chunk().map(|&word| u32::from_le_bytes(word) & !EFFECTIVE);
    match (revision, value.len()) {
        (Some(0x0200_0000), 20) | (Some(0x0300_0000), 24) => Ok(()),
        _ => Err(Error::InvalidArgument("the value is no set of capabilities of revision 2 or 3")),
    }
}

/// A prefix of names.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// The number.
    pub index: NameIndex,
    /// The text.
    pub text: &'static [u8],
    /// Whether a name must follow. Otherwise none may follow.
    pub takes_name: bool,
}

impl Prefix {
    /// Returns a prefix of names.
    pub const fn of_names(index: NameIndex, text: &'static [u8]) -> Self {
        Self { index, text, takes_name: true }
    }

    /// Returns a complete name.
    pub const fn complete(index: NameIndex, text: &'static [u8]) -> Self {
        Self { index, text, takes_name: false }
    }

    /// Returns the stored name of the full name `full`, which may begin with this prefix.
    fn split<'n>(&self, full: &'n [u8]) -> Option<(NameIndex, &'n [u8])> {
        let name = full.strip_prefix(self.text)?;
        (self.takes_name != name.is_empty()).then_some((self.index, name))
    }
}

/// The prefixes that all formats have. Only attributes with these can be changed.
const COMMON: [Prefix; 5] = [
    Prefix::of_names(NameIndex::USER, b"user."),
    Prefix::complete(NameIndex::ACL_ACCESS, b"system.posix_acl_access"),
    Prefix::complete(NameIndex::ACL_DEFAULT, b"system.posix_acl_default"),
    Prefix::of_names(NameIndex::TRUSTED, b"trusted."),
    Prefix::of_names(NameIndex::SECURITY, b"security."),
];

/// The names that the attributes of a format can have. Attributes with other numbers (5 Lustre, 9
/// encryption, 11 verity) have no names in `listxattr(2)`.
#[derive(Clone, Copy, Debug)]
pub struct NameTable {
    /// The prefixes besides those that all formats have.
    pub own: &'static [Prefix],
    /// Stored names that are no attributes.
    pub hidden: &'static [(NameIndex, &'static [u8])],
}

impl NameTable {
    /// Returns the full name of a stored one; `None` if users cannot see this attribute.
    pub fn full_name(&self, index: NameIndex, name: &[u8]) -> Option<Vec<u8>> {
        let prefix = self.prefixes().find(|prefix| prefix.index == index)?;
        let is_shown =
            prefix.takes_name != name.is_empty() && !self.hidden.contains(&(index, name));
        is_shown.then(|| [prefix.text, name].concat())
    }

    /// Returns the stored form of a full name, if there is one.
    pub fn split_name<'n>(&self, full: &'n [u8]) -> Option<(NameIndex, &'n [u8])> {
        // Complete names come first: they may begin with a prefix of names.
        let complete = self.prefixes().filter(|prefix| !prefix.takes_name);
        let stored = complete.chain(self.prefixes()).find_map(|prefix| prefix.split(full))?;
        (!self.hidden.contains(&stored)).then_some(stored)
    }

    /// Returns the stored form of the name of an attribute that is to be set or removed. Errors:
    /// `Unsupported` and `InvalidArgument` for names that cannot be changed; Linux refuses these,
    /// too.
    pub fn changeable_name<'n>(&self, full: &'n [u8]) -> Result<(NameIndex, &'n [u8])> {
        if self.prefixes().any(|prefix| prefix.takes_name && prefix.text == full) {
            return Err(Error::InvalidArgument("the attribute's name is empty after its prefix"));
        }
        let (index, name) = self
            .split_name(full)
            .filter(|(index, _)| COMMON.iter().any(|prefix| prefix.index == *index))
            .ok_or(Unsupported::Operation("changing attributes of this namespace"))?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::InvalidArgument("the attribute's name is too long"));
        }
        if name.contains(&0) {
            return Err(Error::InvalidArgument("the attribute's name contains NUL"));
        }
        Ok((index, name))
    }

    fn prefixes(&self) -> impl Iterator<Item = &'static Prefix> + use<> {
        COMMON.iter().chain(self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table without names of its own.
    const PLAIN: NameTable = NameTable { own: &[], hidden: &[] };
    /// A table with names of its own, one of which begins with a prefix.
    const LARGE: NameTable = NameTable {
        own: &[
            Prefix::of_names(NameIndex::SYSTEM, b"system."),
            Prefix::complete(NameIndex(8), b"system.richacl"),
        ],
        hidden: &[(NameIndex::SYSTEM, b"data")],
    };

    #[test]
    fn full_names_are_split_and_joined() {
        for (index, name, full) in [
            (1, &b"mime_type"[..], &b"user.mime_type"[..]),
            (2, b"", b"system.posix_acl_access"),
            (3, b"", b"system.posix_acl_default"),
            (4, b"overlay.opaque", b"trusted.overlay.opaque"),
            (6, b"selinux", b"security.selinux"),
        ] {
            for table in [PLAIN, LARGE] {
                assert_eq!(table.full_name(NameIndex(index), name).unwrap(), full);
                assert_eq!(table.split_name(full), Some((NameIndex(index), name)));
            }
        }
        for (index, name, full) in
            [(7, &b"verity"[..], &b"system.verity"[..]), (8, b"", b"system.richacl")]
        {
            assert_eq!(LARGE.full_name(NameIndex(index), name).unwrap(), full);
            assert_eq!(LARGE.split_name(full), Some((NameIndex(index), name)));
            assert_eq!(PLAIN.full_name(NameIndex(index), name), None);
            assert_eq!(PLAIN.split_name(full), None);
        }
    }

    #[test]
    fn other_entries_and_names_are_no_attributes() {
        for (index, name) in
            [(0, &b"x"[..]), (1, b""), (2, b"x"), (5, b"lov"), (7, b"data"), (9, b"c"), (11, b"v")]
        {
            assert_eq!(LARGE.full_name(NameIndex(index), name), None, "{index}");
        }
        for full in [&b"user."[..], b"system.data", b"user", b"", b"other.x", b"system."] {
            assert_eq!(LARGE.split_name(full), None);
        }
        for full in [&b"system.advise"[..], b"system.posix_acl_accessx"] {
            assert_eq!(PLAIN.split_name(full), None);
        }
    }

    #[test]
    fn what_setxattr_refuses_everywhere_cannot_be_set() {
        let name = |bytes: usize| [&b"user."[..], &vec![b'n'; bytes - 5]].concat();
        assert_eq!(check_settable(&name(255), b"x"), Ok(()));
        assert!(matches!(check_settable(&name(256), b"x"), Err(Error::InvalidArgument(_))));
        let capabilities = |revision: u32, length: usize| {
            let mut value = revision.to_le_bytes().to_vec();
            value.resize(length, 0);
            check_settable(b"security.capability", &value)
        };
        for (revision, length) in [(0x0200_0000, 20), (0x0200_0001, 20), (0x0300_0001, 24)] {
            assert_eq!(capabilities(revision, length), Ok(()));
        }
        for (revision, length) in [
            (0x0100_0000, 12),
            (0x0200_0000, 24),
            (0x0200_0002, 20),
            (0x0300_0000, 20),
            (0x0400_0000, 24),
            (0x0200_0000, 0),
        ] {
            let refused = capabilities(revision, length);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{revision:x}, {length}");
        }
        assert_eq!(check_settable(b"security.capabilitys", b"x"), Ok(()));
    }

    #[test]
    fn names_that_cannot_be_changed_are_distinguished_from_invalid_ones() {
        let longest = [&b"user."[..], &[b'n'; 255]].concat();
        for (full, index) in [
            (&b"user.x"[..], 1),
            (&longest, 1),
            (b"system.posix_acl_access", 2),
            (b"system.posix_acl_default", 3),
            (b"trusted.x", 4),
            (b"security.x", 6),
        ] {
            assert_eq!(LARGE.changeable_name(full).unwrap().0, NameIndex(index));
        }
        for full in [&b"system.data"[..], b"system.x", b"system.richacl", b"gnu.x", b"x", b""] {
            let refused = LARGE.changeable_name(full);
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        }
        let too_long = [&longest[..], b"n"].concat();
        for full in [&too_long[..], b"user.", b"trusted.", b"user.a\0b"] {
            let refused = LARGE.changeable_name(full);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        }
    }
}
