//! POSIX ACLs in the form of getxattr(2): conversion from and to modes, and inheritance.
//! Not here: access checks.

pub mod stored;

use base::{Error, Result};

/// The name of the access ACL, which corresponds to the mode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the default ACL, which new inodes in a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A valid ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Acl {
    /// Parses the value of an attribute. Returns `None` for an ACL without entries, which has no
    /// effect.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        let invalid = || Error::InvalidArgument("the ACL is malformed");
        let (version, rest) = value.split_first_chunk::<HEADER_BYTES>().ok_or_else(invalid)?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() % ENTRY_BYTES != 0 {
            return Err(invalid());
        }
        let entries: Vec<Entry> = rest
            .chunks_exact(ENTRY_BYTES)
            .map(|bytes| Entry {
                tag: u16::from_le_bytes([bytes[0], bytes[1]]),
                permissions: u16::from_le_bytes([bytes[2], bytes[3]]),
                id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(invalid()) }
    }

    /// Returns whether the entries are valid. They must be in the order of their tags, with exactly
    /// one entry for the owner, the group and others. There must be one mask if there are named
    /// entries, and otherwise at most one.
    fn is_valid(&self) -> bool {
        let count = |tags: u16| self.entries.iter().filter(|entry| entry.tag & tags != 0).count();
        let known = USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER;
        self.entries.iter().all(|entry| {
            entry.tag.is_power_of_two() && entry.tag & known != 0 && entry.permissions <= 7
        }) && self.entries.is_sorted_by_key(|entry| entry.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&tag| count(tag) == 1)
            && (count(MASK) == 1 || count(MASK) == 0 && count(USER | GROUP) == 0)
    }

    /// Returns the value for the attribute.
    pub fn to_value(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.permissions.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Returns whether a mode can express the ACL.
    pub fn is_mode(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// Returns `permissions` with the low nine bits replaced by those of the ACL.
    pub fn apply_to(&self, permissions: u16) -> u16 {
        let mut result = permissions & !0o777;
        for entry in &self.entries {
            match entry.tag {
                USER_OBJ => result |= entry.permissions << 6,
                OTHER => result |= entry.permissions,
                tag if tag == self.group_tag() => result |= entry.permissions << 3,
                _ => {}
            }
        }
        result
    }

    /// Sets the ACL's entries to those of a mode.
    pub fn set_mode(&mut self, permissions: u16) {
        let group = self.group_tag();
        for entry in &mut self.entries {
            match entry.tag {
                USER_OBJ => entry.permissions = permissions >> 6 & 7,
                OTHER => entry.permissions = permissions & 7,
                tag if tag == group => entry.permissions = permissions >> 3 & 7,
                _ => {}
            }
        }
    }

    /// Returns the tag of the entry that corresponds to the group bits of the mode.
    fn group_tag(&self) -> u16 {
        let masked = self.entries.iter().any(|entry| entry.tag == MASK);
        if masked { MASK } else { GROUP_OBJ }
    }
}

/// Returns the permissions and the ACL of a new inode that is created with `permissions` in a
/// directory with the default ACL `default`. The ACL is `None` if the permissions express all of
/// it.
pub fn inherit(default: &Acl, permissions: u16) -> (u16, Option<Acl>) {
    let granted = default.apply_to(permissions & !0o777) & permissions | permissions & !0o777;
    let mut acl = default.clone();
    acl.set_mode(granted);
    let acl = (!acl.is_mode()).then_some(acl);
    (granted, acl)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ID: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entry = |&(tag, permissions, id): &_| Entry { tag, permissions, id };
        Acl { entries: entries.iter().map(entry).collect() }
    }

    fn named() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NO_ID),
            (MASK, 6, NO_ID),
            (OTHER, 1, NO_ID),
        ])
    }

    #[test]
    fn an_acl_is_parsed_from_its_own_value() {
        assert_eq!(Acl::parse(&named().to_value()).unwrap(), Some(named()));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn invalid_values_are_refused() {
        let plain = |entries: &[(u16, u16, u32)]| acl(entries).to_value();
        let mut wrong_version = named().to_value();
        wrong_version[0] = 1;
        for bad in [
            vec![2, 0, 0],
            wrong_version,
            named().to_value()[..15].to_vec(),
            plain(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 7, NO_ID)]),
            plain(&[(OTHER, 7, NO_ID), (GROUP_OBJ, 7, NO_ID), (USER_OBJ, 7, NO_ID)]),
            plain(&[(USER_OBJ, 8, NO_ID), (GROUP_OBJ, 7, NO_ID), (OTHER, 7, NO_ID)]),
            plain(&[(USER_OBJ, 7, 0), (USER, 7, 1), (GROUP_OBJ, 7, 0), (OTHER, 7, 0)]),
            plain(&[(1, 7, 0), (4, 7, 1), (0x10, 7, 0), (0x10, 7, 0), (0x20, 7, 0)]),
            plain(&[(1, 7, 0), (4, 7, 1), (4, 7, 1), (0x20, 7, 0)]),
            plain(&[(1, 7, 0), (4, 7, 1), (0x20, 7, 0), (0x40, 7, 0)]),
        ] {
            assert!(matches!(Acl::parse(&bad), Err(Error::InvalidArgument(_))), "{bad:?}");
        }
    }

    #[test]
    fn the_group_bits_of_a_mode_are_the_mask_if_there_is_one() {
        assert_eq!(named().apply_to(0o4000), 0o4761);
        let mut changed = named();
        changed.set_mode(0o640);
        assert_eq!(changed.entries[2].permissions, 5, "the group's own entry stays");
        assert_eq!(changed.apply_to(0), 0o640);
        let mut plain = acl(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 0, NO_ID)]);
        assert!(plain.is_mode() && !named().is_mode());
        plain.set_mode(0o604);
        assert_eq!(plain.apply_to(0), 0o604);
    }

    #[test]
    fn a_new_inode_gets_no_more_than_both_the_default_and_the_mode_grant() {
        let (permissions, acl) = inherit(&named(), 0o2666);
        assert_eq!(permissions, 0o2660);
        assert_eq!(acl.unwrap().apply_to(0), 0o660);
        let (permissions, acl) = inherit(
            &self::acl(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 0, NO_ID)]),
            0o777,
        );
        assert_eq!((permissions, acl), (0o750, None));
    }
}
