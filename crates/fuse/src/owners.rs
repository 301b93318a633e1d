//! Translation of user and group ids between the image and the host. Not here: permissions.

use std::borrow::Cow;

use base::attributes::Attributes;
use rustix::io::Errno;
use vfs::Credentials;

use crate::protocol::InHeader;

/// The id for owners without a counterpart. The kernel shows it as the overflow id, 65534, and
/// refuses writes to such files.
pub(crate) const NO_ID: u32 = u32::MAX;

/// The size of the header of an ACL in the form of getxattr(2): a version, in bytes.
const ACL_HEADER_BYTES: usize = 4;
/// The size of an entry of such an ACL: a tag and permissions of 2 bytes each, and an id of 4.
const ACL_ENTRY_BYTES: usize = 8;
/// The tag of an entry that names a user.
const ACL_USER: u16 = 0x02;
/// The tag of an entry that names a group.
const ACL_GROUP: u16 = 0x08;
/// The beginning of the names of attributes that contain ACLs.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// A range of ids in the image, and the corresponding ids on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// The first id in the image.
    pub image: u32,
    /// The first id on the host.
    pub host: u32,
    /// The number of ids, at least one. Neither side contains the highest id.
    pub count: u32,
}

impl IdRange {
    /// Parses `IMAGE:HOST:COUNT`. Returns `None` if the text has another form, or the range
    /// contains `u32::MAX`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').map(|number| base::text::decimal(number.as_bytes()));
        let mut next = || numbers.next()?;
        let range = Self { image: next()?, host: next()?, count: next()? };
        let is_sound = range.count > 0
            && range.image.checked_add(range.count).is_some()
            && range.host.checked_add(range.count).is_some();
        (is_sound && numbers.next().is_none()).then_some(range)
    }

    /// Returns whether the ranges share an id on either side.
    pub fn overlaps(&self, other: &Self) -> bool {
        let meet = |one: u32, two: u32| one < two + other.count && two < one + self.count;
        meet(self.image, other.image) || meet(self.host, other.host)
    }
}

/// A one-to-one translation of ids. Without ranges, it changes no id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdMap(Vec<IdRange>);

impl IdMap {
    /// Creates a translation by `ranges`, which do not overlap. An id in no range has no
    /// counterpart.
    pub fn new(ranges: Vec<IdRange>) -> Self {
        debug_assert!(
            ranges
                .iter()
                .enumerate()
                .all(|(at, one)| ranges[..at].iter().all(|o| !o.overlaps(one)))
        );
        Self(ranges)
    }

    /// Creates a translation that exchanges root and `host`, and changes no other id.
    pub fn root_as(host: u32) -> Self {
        if host == 0 || host == NO_ID {
            return Self::default();
        }
        let range = |image, host, count| IdRange { image, host, count };
        let mut ranges = vec![range(0, host, 1), range(host, 0, 1)];
        ranges.extend((host > 1).then(|| range(1, 1, host - 1)));
        ranges.extend((host + 1 < NO_ID).then(|| range(host + 1, host + 1, NO_ID - host - 1)));
        Self::new(ranges)
    }

    fn is_identity(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the host's id for an id of the image, or [`NO_ID`].
    pub(crate) fn to_host(&self, id: u32) -> u32 {
        if self.is_identity() {
            return id;
        }
        let range = self.0.iter().find(|range| id.wrapping_sub(range.image) < range.count);
        range.map_or(NO_ID, |range| id - range.image + range.host)
    }

    /// Returns the image's id for an id of the host, or [`NO_ID`].
    pub(crate) fn to_image(&self, id: u32) -> u32 {
        if self.is_identity() {
            return id;
        }
        let range = self.0.iter().find(|range| id.wrapping_sub(range.host) < range.count);
        range.map_or(NO_ID, |range| id - range.host + range.image)
    }
}

/// The translation of an image's owners for a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owners {
    /// The translation of users.
    pub users: IdMap,
    /// The translation of groups.
    pub groups: IdMap,
    /// Whether every caller has the rights of the image's root. The kernel admits only one user
    /// then.
    pub caller_is_root: bool,
}

impl Owners {
    /// Returns the user and the group that are shown for `attributes`.
    pub(crate) fn shown(&self, attributes: &Attributes) -> (u32, u32) {
        (self.users.to_host(attributes.uid), self.groups.to_host(attributes.gid))
    }

    /// Returns the credentials of a caller whose access the kernel has checked. Ids without a
    /// counterpart in the image are [`NO_ID`].
    pub(crate) fn credentials(&self, header: &InHeader) -> Credentials {
        let uid = self.users.to_image(header.uid);
        let gid = self.groups.to_image(header.gid);
        Credentials { uid, gid, ..Credentials::ROOT }
    }

    /// Returns the credentials of a caller whose permission the server checks, too. With [`NO_ID`],
    /// only the kernel knows the caller, and has checked it.
    pub(crate) fn checked(&self, header: &InHeader) -> Credentials {
        match header.uid {
            0 | NO_ID => Credentials::ROOT,
            _ => Credentials { privileged: self.caller_is_root, ..self.credentials(header) },
        }
    }

    /// Returns the credentials of a caller that creates a file. Fails with EOVERFLOW if the image
    /// has no ids for the caller.
    pub(crate) fn creator(&self, header: &InHeader) -> Result<Credentials, Errno> {
        let by = self.credentials(header);
        if by.uid == NO_ID || by.gid == NO_ID { Err(Errno::OVERFLOW) } else { Ok(by) }
    }

    /// Returns the image's id for a user. Fails with EOVERFLOW if there is none.
    pub(crate) fn user(&self, host: u32) -> Result<u32, Errno> {
        check_id(self.users.to_image(host))
    }

    /// Returns the image's id for a group. Fails with EOVERFLOW if there is none.
    pub(crate) fn group(&self, host: u32) -> Result<u32, Errno> {
        check_id(self.groups.to_image(host))
    }

    /// Returns the value of an extended attribute for the host. In an ACL, translates the ids, and
    /// removes the entries of users and groups without a counterpart on the host.
    pub(crate) fn shown_value<'v>(&self, name: &[u8], value: Cow<'v, [u8]>) -> Cow<'v, [u8]> {
        if !self.translates(name) {
            return value;
        }
        let translated = translate(&value, |tag, id| {
            let id = self.translate_id(tag, id, IdMap::to_host);
            (id != NO_ID).then_some(id)
        });
        Cow::Owned(translated)
    }

    /// Returns the value of an extended attribute for the image. In an ACL, translates the ids.
    /// Fails with EOVERFLOW if an ACL names an id without a counterpart in the image, or if the
    /// `old` ACL has entries that were not [shown](Self::shown_value), which the new one would
    /// lose.
    pub(crate) fn stored_value<'v>(
        &self,
        name: &[u8],
        value: &'v [u8],
        old: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<Cow<'v, [u8]>, Errno> {
        if !self.translates(name) {
            return Ok(Cow::Borrowed(value));
        }
        let mut is_known = true;
        let translated = translate(value, |tag, id| {
            let id = self.translate_id(tag, id, IdMap::to_image);
            is_known &= id != NO_ID;
            Some(id)
        });
        let hides = |old: Vec<u8>| self.shown_value(name, Cow::Borrowed(&old)).len() != old.len();
        if !is_known || old().is_some_and(hides) {
            return Err(Errno::OVERFLOW);
        }
        Ok(Cow::Owned(translated))
    }

    /// Returns whether the values of this attribute contain ids to translate.
    fn translates(&self, name: &[u8]) -> bool {
        name.starts_with(ACL_PREFIX) && !(self.users.is_identity() && self.groups.is_identity())
    }

    /// Translates the id in an ACL entry with this tag.
    fn translate_id(&self, tag: u16, id: u32, to: impl Fn(&IdMap, u32) -> u32) -> u32 {
        if tag == ACL_USER { to(&self.users, id) } else { to(&self.groups, id) }
    }
}

/// Fails with EOVERFLOW if `id` is [`NO_ID`].
fn check_id(id: u32) -> Result<u32, Errno> {
    if id == NO_ID { Err(Errno::OVERFLOW) } else { Ok(id) }
}

/// Returns an ACL with its ids translated by `id`, without the entries for which `id` returns
/// `None`. A value that is not an ACL is returned unchanged.
fn translate(value: &[u8], mut id: impl FnMut(u16, u32) -> Option<u32>) -> Vec<u8> {
    let Some((header, entries)) = value.split_at_checked(ACL_HEADER_BYTES) else {
        return value.to_vec();
    };
    let mut translated = header.to_vec();
    let entries = entries.chunks_exact(ACL_ENTRY_BYTES);
    let rest = entries.remainder();
    for entry in entries {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if !matches!(tag, ACL_USER | ACL_GROUP) {
            translated.extend_from_slice(entry);
            continue;
        }
        let named = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        if let Some(named) = id(tag, named) {
            translated.extend_from_slice(&entry[..4]);
            translated.extend_from_slice(&named.to_le_bytes());
        }
    }
    translated.extend_from_slice(rest);
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACL: &[u8] = b"system.posix_acl_access";

    fn acl(entries: &[(u16, u32)]) -> Vec<u8> {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(7_u16.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn owners(ranges: &[IdRange]) -> Owners {
        let map = IdMap::new(ranges.to_vec());
        Owners { users: map.clone(), groups: map, caller_is_root: false }
    }

    #[test]
    fn a_range_is_parsed_from_three_numbers() {
        let range = IdRange { image: 0, host: 100_000, count: 65_536 };
        assert_eq!(IdRange::parse("0:100000:65536"), Some(range));
        for wrong in ["", "0:1", "0:1:2:3", "0:1:0", "a:1:1", "4294967295:0:1", "0:4294967290:6"] {
            assert_eq!(IdRange::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ids_in_ranges_are_translated_and_other_ids_have_no_counterpart() {
        let map = IdMap::new(vec![
            IdRange { image: 0, host: 100, count: 10 },
            IdRange { image: 50, host: 7, count: 1 },
        ]);
        for (image, host) in [(0, 100), (9, 109), (50, 7)] {
            assert_eq!((map.to_host(image), map.to_image(host)), (host, image));
        }
        for absent in [10, 49, 51, NO_ID] {
            assert_eq!(map.to_host(absent), NO_ID);
        }
        for absent in [0, 99, 110, NO_ID] {
            assert_eq!(map.to_image(absent), NO_ID);
        }
    }

    #[test]
    fn only_root_and_one_user_are_exchanged() {
        for user in [0, 1, 2, 1000, u32::MAX - 1] {
            let map = IdMap::root_as(user);
            assert_eq!((map.to_host(0), map.to_host(user)), (user, 0));
            for id in [0, 1, 2, 3, 999, 1000, 1001, u32::MAX - 2, u32::MAX - 1] {
                assert_eq!(map.to_image(map.to_host(id)), id);
                assert!([0, user].contains(&id) || map.to_host(id) == id, "{user}: {id}");
            }
        }
    }

    #[test]
    fn acls_show_the_hosts_ids_and_hidden_entries_prevent_changes() {
        let owners = owners(&[IdRange { image: 0, host: 100, count: 10 }]);
        let shown = |value: &[u8]| owners.shown_value(ACL, Cow::Borrowed(value)).into_owned();
        let entries = |user, group| acl(&[(1, NO_ID), (2, user), (4, NO_ID), (8, group), (32, 0)]);
        assert_eq!(shown(&entries(3, 4)), entries(103, 104));
        let hidden = acl(&[(1, NO_ID), (4, NO_ID), (8, 100), (32, 0)]);
        assert_eq!(shown(&entries(30, 0)), hidden);
        let stored = |value: &[u8], old: Option<Vec<u8>>| {
            owners.stored_value(ACL, value, || old).map(Cow::into_owned)
        };
        assert_eq!(stored(&entries(103, 104), None), Ok(entries(3, 4)));
        assert_eq!(stored(&entries(103, 104), Some(entries(1, 2))), Ok(entries(3, 4)));
        assert_eq!(stored(&entries(3, 104), None), Err(Errno::OVERFLOW));
        assert_eq!(stored(&entries(103, 104), Some(entries(30, 0))), Err(Errno::OVERFLOW));
    }

    #[test]
    fn values_that_are_not_acls_are_unchanged() {
        let owners = owners(&[IdRange { image: 0, host: 100, count: 10 }]);
        let value = acl(&[(2, 3)]);
        let other = owners.shown_value(b"user.posix_acl", Cow::Borrowed(&value));
        assert_eq!(other, value);
        for broken in [&b""[..], b"abc", b"abcd", b"abcdefgh"] {
            assert_eq!(owners.shown_value(ACL, Cow::Borrowed(broken)), broken);
        }
    }
}
