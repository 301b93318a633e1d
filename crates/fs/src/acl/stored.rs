//! Conversion of POSIX ACLs between the form that ext4 and f2fs store and the form of
//! `getxattr(2)`. Not here: the meaning of the permissions.
//!
//! Source: `fs/ext4/acl.h`, `fs/f2fs/acl.h` and `include/uapi/linux/posix_acl_xattr.h`.

use base::view::view_at;
use base::{Error, Location, Problem, Result, Unsupported};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const STRUCTURE: &str = "ACL";
const STORED_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
/// The id in entries for other classes than named users and groups.
const NO_ID: u32 = u32::MAX;
const OWNER: u16 = 0x01;
const NAMED_USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The start of an ACL as it is stored.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawAclHeader {
    /// 1.
    version: U32,
}
const _: () = assert!(size_of::<RawAclHeader>() == 4);

/// An entry of a stored ACL. In entries of named users and groups, a 32-bit id follows.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawAclEntry {
    /// Kind of the users that the entry applies to.
    tag: U16,
    /// Permissions: 4 read, 2 write, 1 execute.
    permissions: U16,
}
const _: () = assert!(size_of::<RawAclEntry>() == 4);

/// An entry of an ACL as `getxattr(2)` returns it.
#[repr(C)]
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawAclXattrEntry {
    /// Kind of the users that the entry applies to.
    tag: U16,
    /// Permissions: 4 read, 2 write, 1 execute.
    permissions: U16,
    /// Id of the named user or group; all ones in the other entries.
    id: U32,
}
const _: () = assert!(size_of::<RawAclXattrEntry>() == 8);

/// Converts the ACL `stored` to the form of `getxattr(2)`. An ACL without entries is no attribute.
pub fn to_xattr(stored: &[u8], location: Location) -> Result<Vec<u8>> {
    let header: &RawAclHeader = view_at(stored, 0, STRUCTURE, location)?;
    if header.version.get() != STORED_VERSION {
        let problem = Problem::Mismatch {
            field: "version",
            found: header.version.get().into(),
            expected: STORED_VERSION.into(),
        };
        return Err(Error::corrupt(STRUCTURE, location, problem));
    }
    let mut at = size_of::<RawAclHeader>();
    if at == stored.len() {
        return Err(Error::NoAttribute);
    }
    // Each stored entry of 4 or 8 bytes becomes one of 8.
    let mut xattr = Vec::with_capacity(2 * stored.len());
    xattr.extend(XATTR_VERSION.to_le_bytes());
    while at < stored.len() {
        let entry: &RawAclEntry = view_at(stored, at, STRUCTURE, location)?;
        let id_at = at + size_of::<RawAclEntry>();
        let (id, end) = match entry.tag.get() {
            NAMED_USER | NAMED_GROUP => {
                (*view_at::<U32>(stored, id_at, STRUCTURE, location)?, id_at + size_of::<U32>())
            }
            OWNER | OWNING_GROUP | MASK | OTHERS => (NO_ID.into(), id_at),
            tag => {
                let problem = Problem::Invalid { field: "tag", found: tag.into() };
                return Err(Error::corrupt(STRUCTURE, location.at_byte(at as u64), problem));
            }
        };
        let entry = RawAclXattrEntry { tag: entry.tag, permissions: entry.permissions, id };
        xattr.extend(entry.as_bytes());
        at = end;
    }
    Ok(xattr)
}

/// Converts the ACL `xattr` to the stored form. Returns `None` if it has no entries, which means no
/// ACL. Errors: `InvalidArgument` if the entries or their order are not as Linux requires.
pub fn to_stored(xattr: &[u8]) -> Result<Option<Vec<u8>>> {
    const BAD: Error = Error::InvalidArgument("the ACL is malformed");
    let Some((version, entries)) = xattr.split_first_chunk() else { return Err(BAD) };
    if u32::from_le_bytes(*version) != XATTR_VERSION {
        return Err(Unsupported::Operation("an ACL of another version").into());
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let entries = <[RawAclXattrEntry]>::ref_from_bytes(entries).map_err(|_| BAD)?;
    let mut stored = STORED_VERSION.to_le_bytes().to_vec();
    let (mut next_min, mut has_named, mut has_mask) = (OWNER, false, false);
    for entry in entries {
        let (tag, permissions) = (entry.tag.get(), entry.permissions.get());
        if permissions > 0o7 {
            return Err(BAD);
        }
        let is_named = matches!(tag, NAMED_USER | NAMED_GROUP);
        if is_named && entry.id.get() == NO_ID {
            return Err(BAD);
        }
        // The least tag that may follow. Tags ascend, and named users and groups may repeat.
        next_min = match tag {
            OWNER if next_min == OWNER => NAMED_USER,
            NAMED_USER if next_min == NAMED_USER => NAMED_USER,
            OWNING_GROUP if next_min == NAMED_USER => NAMED_GROUP,
            NAMED_GROUP if next_min == NAMED_GROUP => NAMED_GROUP,
            MASK if next_min == NAMED_GROUP => OTHERS,
            OTHERS if next_min == OTHERS || next_min == NAMED_GROUP => u16::MAX,
            _ => return Err(BAD),
        };
        has_named |= is_named;
        has_mask |= tag == MASK;
        stored.extend(RawAclEntry { tag: entry.tag, permissions: entry.permissions }.as_bytes());
        if is_named {
            stored.extend(entry.id.as_bytes());
        }
    }
    let is_complete = next_min == u16::MAX && (has_mask || !has_named);
    if is_complete { Ok(Some(stored)) } else { Err(BAD) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn named_entries_keep_their_id_and_other_entries_get_minus_one() {
        let stored = [
            &[1, 0, 0, 0][..],
            &[1, 0, 6, 0],
            &[2, 0, 7, 0, 0xE8, 3, 0, 0],
            &[4, 0, 4, 0],
            &[0x10, 0, 7, 0],
            &[0x20, 0, 0, 0],
        ];
        let expected = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 0xFF, 0xFF, 0xFF, 0xFF],
            &[2, 0, 7, 0, 0xE8, 3, 0, 0],
            &[4, 0, 4, 0, 0xFF, 0xFF, 0xFF, 0xFF],
            &[0x10, 0, 7, 0, 0xFF, 0xFF, 0xFF, 0xFF],
            &[0x20, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF],
        ];
        assert_eq!(to_xattr(&stored.concat(), Location::default()).unwrap(), expected.concat());
        assert_eq!(to_stored(&expected.concat()).unwrap().unwrap(), stored.concat());
    }

    /// Returns entries in the form of `getxattr(2)`. Named entries have id 7.
    fn xattr(tags: &[u16]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for &tag in tags {
            let id = if matches!(tag, NAMED_USER | NAMED_GROUP) { 7 } else { NO_ID };
            bytes.extend(tag.to_le_bytes());
            bytes.extend([5, 0]);
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn an_incomplete_or_unordered_acl_is_refused() {
        for tags in [
            &[1, 4, 0x20][..],
            &[1, 4, 0x10, 0x20],
            &[1, 2, 2, 4, 8, 8, 0x10, 0x20],
            &[1, 2, 4, 0x10, 0x20],
        ] {
            let stored = to_stored(&xattr(tags)).unwrap().unwrap();
            assert_eq!(to_xattr(&stored, Location::default()).unwrap(), xattr(tags));
        }
        for tags in [
            &[1][..],
            &[1, 4],
            &[4, 0x20],
            &[1, 0x20],
            &[1, 4, 2, 0x10, 0x20],
            &[1, 1, 4, 0x20],
            &[1, 4, 0x20, 0x20],
            &[1, 4, 0x20, 0x10],
            &[1, 4, 0x10, 0x10, 0x20],
            &[1, 2, 4, 0x20],
            &[1, 4, 8, 0x20],
            &[1, 3, 4, 0x20],
            &[1, 4, 0x40, 0x20],
        ] {
            let refused = to_stored(&xattr(tags));
            assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{tags:?} {refused:?}");
        }
        assert_eq!(to_stored(&xattr(&[])), Ok(None));
        let mut bad = xattr(&[1, 4, 0x20]);
        assert!(to_stored(&bad[..bad.len() - 1]).is_err());
        assert!(to_stored(&bad[..3]).is_err());
        bad[6] = 8;
        assert!(to_stored(&bad).is_err());
        bad[0] = 1;
        assert!(matches!(to_stored(&bad), Err(Error::Unsupported(_))));
        let mut without_id = xattr(&[1, 2, 4, 0x10, 0x20]);
        without_id[16..20].fill(0xFF);
        assert!(to_stored(&without_id).is_err());
    }

    #[test]
    fn malformed_stored_acls_are_refused() {
        for bad in [
            &[][..],
            &[1, 0, 0],
            &[2, 0, 0, 0, 1, 0, 6, 0],
            &[1, 0, 0, 0, 3, 0, 6, 0],
            &[1, 0, 0, 0, 2, 0, 6, 0],
            &[1, 0, 0, 0, 1, 0, 6],
        ] {
            assert!(
                matches!(to_xattr(bad, Location::default()), Err(Error::Corrupt(_))),
                "{bad:?}"
            );
        }
        assert_eq!(to_xattr(&[1, 0, 0, 0], Location::default()), Err(Error::NoAttribute));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(0_u8..0x21, 4..64)) {
            let _ = to_xattr(&bytes, Location::default());
            bytes[..4].copy_from_slice(&[2, 0, 0, 0]);
            let _ = to_stored(&bytes);
            bytes[..4].copy_from_slice(&[1, 0, 0, 0]);
            let _ = to_xattr(&bytes, Location::default());
        }
    }
}
