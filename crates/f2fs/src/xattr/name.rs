//! Names of extended attributes: the prefixes that the volume stores as numbers.

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
    /// Encryption. Users cannot see its attribute, [`ENCRYPTION_NAME`].
    pub const ENCRYPTION: Self = Self(9);
    /// Verity. Users cannot see its attribute, [`VERITY_NAME`].
    pub const VERITY: Self = Self(11);
}

/// The name under [`NameIndex::ENCRYPTION`] whose value is the encryption context.
pub const ENCRYPTION_NAME: &[u8] = b"c";
/// The name under [`NameIndex::VERITY`] whose value is the position of the verity descriptor.
pub const VERITY_NAME: &[u8] = b"v";

/// Prefixes by number, and whether a name follows. Attributes with other numbers (5 Lustre, 9 encryption, 11 verity)
/// have no names in `listxattr(2)`.
const PREFIXES: [(NameIndex, &[u8], bool); 5] = [
    (NameIndex::USER, b"user.", true),
    (NameIndex::ACL_ACCESS, b"system.posix_acl_access", false),
    (NameIndex::ACL_DEFAULT, b"system.posix_acl_default", false),
    (NameIndex::TRUSTED, b"trusted.", true),
    (NameIndex::SECURITY, b"security.", true),
];

/// Returns the full name; `None` if users cannot see this attribute.
pub fn full_name(index: NameIndex, name: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix, takes_name) = PREFIXES.iter().find(|(known, ..)| *known == index)?;
    // A name must follow some prefixes, and must not follow others.
    (*takes_name != name.is_empty()).then(|| [prefix, name].concat())
}

/// Returns the stored form of a full name, if there is one.
pub fn split_name(full: &[u8]) -> Option<(NameIndex, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix, takes_name)| {
        let name = full.strip_prefix(prefix)?;
        (takes_name != name.is_empty()).then_some((index, name))
    })
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
        ] {
            assert_eq!(full_name(NameIndex(index), name).unwrap(), full);
            assert_eq!(split_name(full), Some((NameIndex(index), name)));
        }
    }

    #[test]
    fn other_entries_and_names_are_no_attributes() {
        for (index, name) in
            [(0, &b"x"[..]), (1, b""), (2, b"x"), (5, b"lov"), (7, b""), (9, b"c"), (11, b"v")]
        {
            assert_eq!(full_name(NameIndex(index), name), None, "{index}");
        }
        for full in [&b"user."[..], b"system.advise", b"user", b"", b"system.posix_acl_accessx"] {
            assert_eq!(split_name(full), None);
        }
    }
}
