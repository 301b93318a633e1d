//! Names of extended attributes: the prefixes that the volume stores as numbers.

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
    /// No prefix: names under it are not shown. The attribute `c` is the encryption context.
    pub const ENCRYPTION: Self = Self(9);
    /// `system.`, also for the attribute that holds inline data.
    pub const SYSTEM: Self = Self(7);
}

/// The name under [`NameIndex::SYSTEM`] whose value is inline data, and not an attribute.
pub const INLINE_DATA_NAME: &[u8] = b"data";

/// The longest name after a prefix.
const NAME_BYTES_MAX: usize = 255;

/// Prefixes by number, and whether a name follows. The kernel and e2fsprogs agree on them. Attributes with the
/// numbers left out (5 Lustre, 9 encryption) have no names in `listxattr(2)`.
const PREFIXES: [(NameIndex, &[u8], bool); 8] = [
    (NameIndex::USER, b"user.", true),
    (NameIndex::ACL_ACCESS, b"system.posix_acl_access", false),
    (NameIndex::ACL_DEFAULT, b"system.posix_acl_default", false),
    (NameIndex::TRUSTED, b"trusted.", true),
    (NameIndex::SECURITY, b"security.", true),
    (NameIndex::SYSTEM, b"system.", true),
    (NameIndex(8), b"system.richacl", false),
    (NameIndex(10), b"gnu.", true),
];

/// Returns the full name; `None` if users cannot see this attribute.
pub fn full_name(index: NameIndex, name: &[u8]) -> Option<Vec<u8>> {
    if (index, name) == (NameIndex::SYSTEM, INLINE_DATA_NAME) {
        return None;
    }
    let (_, prefix, takes_name) = PREFIXES.iter().find(|(known, ..)| *known == index)?;
    // A name must follow some prefixes, and must not follow others.
    (*takes_name != name.is_empty()).then(|| [prefix, name].concat())
}

/// Returns the stored form of a full name, if there is one.
pub fn split_name(full: &[u8]) -> Option<(NameIndex, &[u8])> {
    // Complete names come first: three of them begin with "system.".
    let complete = PREFIXES.iter().filter(|(_, prefix, takes_name)| !takes_name && *prefix == full);
    let prefixed = PREFIXES.iter().filter(|(_, prefix, takes_name)| {
        *takes_name && full.len() > prefix.len() && full.starts_with(prefix)
    });
    let &(index, prefix, _) = complete.chain(prefixed).next()?;
    let name = full.get(prefix.len()..)?;
    ((index, name) != (NameIndex::SYSTEM, INLINE_DATA_NAME)).then_some((index, name))
}

/// Returns the stored form of the name of an attribute that is to be set or removed. Errors: `Unsupported` and
/// `InvalidArgument` for names that cannot be changed; Linux refuses these, too.
pub fn changeable_name(full: &[u8]) -> Result<(NameIndex, &[u8])> {
    const CHANGEABLE: [NameIndex; 5] = [
        NameIndex::USER,
        NameIndex::ACL_ACCESS,
        NameIndex::ACL_DEFAULT,
        NameIndex::TRUSTED,
        NameIndex::SECURITY,
    ];
    if PREFIXES.iter().any(|(_, prefix, takes_name)| *takes_name && *prefix == full) {
        return Err(Error::InvalidArgument("the attribute's name is empty after its prefix"));
    }
    let (index, name) = split_name(full)
        .filter(|(index, _)| CHANGEABLE.contains(index))
        .ok_or(Unsupported::Operation("changing attributes of this namespace"))?;
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::InvalidArgument("the attribute's name is too long"));
    }
    if name.contains(&0) {
        return Err(Error::InvalidArgument("the attribute's name contains NUL"));
    }
    Ok((index, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_names_are_split_and_joined() {
        for (index, name, full) in [
            (1, &b"mime_type"[..], &b"user.mime_type"[..]),
            (2, b"", b"system.posix_acl_access"),
            (3, b"", b"system.posix_acl_default"),
            (4, b"overlay.opaque", b"trusted.overlay.opaque"),
            (6, b"selinux", b"security.selinux"),
            (7, b"verity", b"system.verity"),
            (8, b"", b"system.richacl"),
            (10, b"translator", b"gnu.translator"),
        ] {
            assert_eq!(full_name(NameIndex(index), name).unwrap(), full);
            assert_eq!(split_name(full), Some((NameIndex(index), name)));
        }
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
            assert_eq!(changeable_name(full).unwrap().0, NameIndex(index));
        }
        for full in [&b"system.data"[..], b"system.x", b"system.richacl", b"gnu.x", b"x", b""] {
            let refused = changeable_name(full);
            assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
        }
        let too_long = [&longest[..], b"n"].concat();
        for full in [&too_long[..], b"user.", b"trusted.", b"user.a\0b"] {
            let refused = changeable_name(full);
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{refused:?}");
        }
    }

    #[test]
    fn other_entries_and_names_are_no_attributes() {
        for (index, name) in
            [(0, &b"x"[..]), (1, b""), (2, b"x"), (5, b"lov"), (7, b"data"), (9, b"c"), (11, b"x")]
        {
            assert_eq!(full_name(NameIndex(index), name), None, "{index}");
        }
        for full in [&b"user."[..], b"system.data", b"user", b"", b"other.x", b"system."] {
            assert_eq!(split_name(full), None);
        }
    }
}
