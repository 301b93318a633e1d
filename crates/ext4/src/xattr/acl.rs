//! POSIX ACLs: from the form that ext4 stores to the form that `getxattr(2)` gives.
//! Not here: what the permissions mean.

use base::view::view_at;
use base::{Error, Place, Problem, Result};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::ondisk::xattr::{RawAclEntry, RawAclHeader, RawAclXattrEntry};

const STRUCTURE: &str = "ACL";
const STORED_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
/// The id in entries that are not about a named user or group.
const NO_ID: u32 = u32::MAX;

/// The ACL that `stored` holds, as `getxattr(2)` gives it. One without entries is no attribute.
pub fn to_xattr(stored: &[u8], place: Place) -> Result<Vec<u8>> {
    let header: &RawAclHeader = view_at(stored, 0, STRUCTURE, place)?;
    if header.version.get() != STORED_VERSION {
        let problem = Problem::Mismatch {
            field: "version",
            found: header.version.get().into(),
            expected: STORED_VERSION.into(),
        };
        return Err(Error::corrupt(STRUCTURE, place, problem));
    }
    let mut at = size_of::<RawAclHeader>();
    if at == stored.len() {
        return Err(Error::NoAttribute);
    }
    // Each stored entry of 4 or 8 bytes becomes one of 8.
    let mut xattr = Vec::with_capacity(2 * stored.len());
    xattr.extend(XATTR_VERSION.to_le_bytes());
    while at < stored.len() {
        let entry: &RawAclEntry = view_at(stored, at, STRUCTURE, place)?;
        let id_at = at + size_of::<RawAclEntry>();
        let (id, end) = match entry.tag.get() {
            // A named user, a named group.
            0x02 | 0x08 => {
                (*view_at::<U32>(stored, id_at, STRUCTURE, place)?, id_at + size_of::<U32>())
            }
            // The owner, the owning group, the mask, everybody else.
            0x01 | 0x04 | 0x10 | 0x20 => (NO_ID.into(), id_at),
            tag => {
                let problem = Problem::Invalid { field: "tag", found: tag.into() };
                return Err(Error::corrupt(STRUCTURE, place.at_byte(at as u64), problem));
            }
        };
        let entry = RawAclXattrEntry { tag: entry.tag, permissions: entry.permissions, id };
        xattr.extend(entry.as_bytes());
        at = end;
    }
    Ok(xattr)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn named_entries_keep_their_id_and_the_others_get_minus_one() {
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
        assert_eq!(to_xattr(&stored.concat(), Place::default()).unwrap(), expected.concat());
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        for bad in [
            &[][..],
            &[1, 0, 0],
            &[2, 0, 0, 0, 1, 0, 6, 0],
            &[1, 0, 0, 0, 3, 0, 6, 0],
            &[1, 0, 0, 0, 2, 0, 6, 0],
            &[1, 0, 0, 0, 1, 0, 6],
        ] {
            assert!(matches!(to_xattr(bad, Place::default()), Err(Error::Corrupt(_))), "{bad:?}");
        }
        assert_eq!(to_xattr(&[1, 0, 0, 0], Place::default()), Err(Error::NoAttribute));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in proptest::collection::vec(0_u8..0x21, 4..64)) {
            let _ = to_xattr(&bytes, Place::default());
            bytes[..4].copy_from_slice(&[1, 0, 0, 0]);
            let _ = to_xattr(&bytes, Place::default());
        }
    }
}
