//! POSIX access control lists in the format of `getfacl -n`.

/// Names of the attributes with access control lists, and the prefixes of their lines in `getfacl`.
pub const ATTRIBUTES: [(&[u8], &str); 2] =
    [(ACCESS, ""), (b"system.posix_acl_default", "default:")];
/// The attribute with the list for access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";

/// Version that Linux writes at the start of the attribute.
const VERSION: u32 = 2;
/// The maximum length of a value on Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// The tag of the owner.
pub const USER_OWNER: u16 = 0x01;
/// The tag of a user.
pub const USER: u16 = 0x02;
/// The tag of the owning group.
pub const GROUP_OWNER: u16 = 0x04;
/// The tag of a group.
pub const GROUP: u16 = 0x08;
/// The tag of the mask.
pub const MASK: u16 = 0x10;
/// The tag of others.
pub const OTHER: u16 = 0x20;

/// An entry of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Whom the entry is for.
    pub tag: u16,
    /// The permissions, as the bits 4, 2 and 1.
    pub permissions: u16,
    /// The number of a user or group; `u32::MAX` for other tags.
    pub id: u32,
}

/// Sorts the entries of a list as the kernel wants them. Adds the mask that setfacl(1) calculates,
/// if users or groups need one.
pub fn complete(entries: &mut Vec<Entry>) {
    let has = |tags: &[u16]| entries.iter().any(|entry| tags.contains(&entry.tag));
    if has(&[USER, GROUP]) && !has(&[MASK]) {
        let masked = entries.iter().filter(|entry| [USER, GROUP, GROUP_OWNER].contains(&entry.tag));
        let permissions = masked.fold(0, |bits, entry| bits | entry.permissions);
        entries.push(Entry { tag: MASK, permissions, id: u32::MAX });
    }
    entries.sort_by_key(|entry| (entry.tag, entry.id));
}

/// Returns the value of the extended attribute with these entries.
pub fn value(entries: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for Entry { tag, permissions, id } in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Formats `value`, as returned by getxattr(2), as lines with `prefix`. Returns `None` if the value
/// is not an access control list.
pub fn lines(value: &[u8], prefix: &str) -> Option<Vec<String>> {
    let entries = parse(value)?;
    let mask = entries.iter().find(|entry| entry.tag == MASK).map(|entry| entry.permissions);
    entries.iter().map(|entry| line(entry, mask, prefix)).collect()
}

/// Returns the permissions of a file without the list `value`, which it cannot have: those of the
/// group are the list's own entry for it, within the mask. With the list, they are the mask, with
/// which the group would get more.
pub fn permissions_without(value: &[u8], permissions: u16) -> u16 {
    let entries = parse(value).unwrap_or_default();
    let of = |tag| {
        let found = entries.iter().find(|entry| entry.tag == tag);
        found.map(|entry| entry.permissions & 7)
    };
    match (of(GROUP_OWNER), of(MASK)) {
        (Some(group), Some(mask)) => permissions & !0o070 | (group & mask) << 3,
        _ => permissions,
    }
}

/// Returns whether two values have the same entries. Those without a user or group may have any
/// number.
pub fn are_same(value: &[u8], other: &[u8]) -> bool {
    let entries = |value: &[u8]| {
        let mut entries = parse(value)?;
        for entry in entries.iter_mut().filter(|entry| ![USER, GROUP].contains(&entry.tag)) {
            entry.id = u32::MAX;
        }
        complete(&mut entries);
        Some(entries)
    };
    entries(value).is_some_and(|found| Some(found) == entries(other))
}

/// Returns whether the list `value` says no more than these permissions. Volumes do not store such
/// a list.
pub fn is_mode(value: &[u8], permissions: u16) -> bool {
    let entry =
        |tag, shift: u16| Entry { tag, permissions: permissions >> shift & 7, id: u32::MAX };
    let mode = [entry(USER_OWNER, 6), entry(GROUP_OWNER, 3), entry(OTHER, 0)];
    are_same(value, &self::value(&mode))
}

fn parse(value: &[u8]) -> Option<Vec<Entry>> {
    let (header, body) = value.split_first_chunk::<HEADER_BYTES>()?;
    if value.len() > VALUE_BYTES_MAX
        || u32::from_le_bytes(*header) != VERSION
        || body.len() % ENTRY_BYTES != 0
    {
        return None;
    }
    let entry = |raw: &[u8]| match *raw {
        [t0, t1, p0, p1, i0, i1, i2, i3] => Some(Entry {
            tag: u16::from_le_bytes([t0, t1]),
            permissions: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes([i0, i1, i2, i3]),
        }),
        _ => None,
    };
    body.chunks_exact(ENTRY_BYTES).map(entry).collect()
}

fn line(entry: &Entry, mask: Option<u16>, prefix: &str) -> Option<String> {
    let qualifier = match entry.tag {
        USER_OWNER => "user:".to_owned(),
        USER => format!("user:{}", entry.id),
        GROUP_OWNER => "group:".to_owned(),
        GROUP => format!("group:{}", entry.id),
        MASK => "mask:".to_owned(),
        OTHER => "other:".to_owned(),
        _ => return None,
    };
    let mut line = format!("{prefix}{qualifier}:{}", letters(entry.permissions));
    // The mask limits all entries except those of the owner and of others.
    if let (USER | GROUP | GROUP_OWNER, Some(mask)) = (entry.tag, mask) {
        if entry.permissions & !mask & 7 != 0 {
            line.push_str(&format!("\t#effective:{}", letters(entry.permissions & mask)));
        }
    }
    Some(line)
}

fn letters(permissions: u16) -> String {
    [(4, 'r'), (2, 'w'), (1, 'x')]
        .into_iter()
        .map(|(bit, letter)| if permissions & bit != 0 { letter } else { '-' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2u32.to_le_bytes().to_vec();
        for &(tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn lists_have_the_format_of_getfacl() {
        let entries = [
            (USER_OWNER, 6, u32::MAX),
            (USER, 7, 1000),
            (GROUP_OWNER, 4, u32::MAX),
            (GROUP, 6, 5),
            (MASK, 4, u32::MAX),
            (OTHER, 0, u32::MAX),
        ];
        let expected = [
            "default:user::rw-",
            "default:user:1000:rwx\t#effective:r--",
            "default:group::r--",
            "default:group:5:rw-\t#effective:r--",
            "default:mask::r--",
            "default:other::---",
        ];
        assert_eq!(lines(&value(&entries), "default:").unwrap(), expected);
    }

    #[test]
    fn lists_are_compared_by_their_entries() {
        let list = value(&[(USER_OWNER, 6, 0), (USER, 4, 5), (GROUP_OWNER, 4, 0), (OTHER, 0, 0)]);
        let sorted = value(&[
            (USER_OWNER, 6, u32::MAX),
            (USER, 4, 5),
            (GROUP_OWNER, 4, u32::MAX),
            (MASK, 4, u32::MAX),
            (OTHER, 0, u32::MAX),
        ]);
        assert!(are_same(&list, &sorted));
        let other = value(&[(USER_OWNER, 6, 0), (USER, 4, 6), (GROUP_OWNER, 4, 0), (OTHER, 0, 0)]);
        assert!(!are_same(&list, &other));
        assert!(!are_same(b"x", b"x"));
        let mode = value(&[(USER_OWNER, 6, 0), (GROUP_OWNER, 4, 0), (OTHER, 0, 7)]);
        assert!(is_mode(&mode, 0o4640));
        assert!(!is_mode(&mode, 0o641));
        assert!(!is_mode(&list, 0o640));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let good = value(&[(USER_OWNER, 6, 0)]);
        assert!(lines(&good, "").is_some());
        assert_eq!(lines(&good[..3], ""), None);
        assert_eq!(lines(&good[..good.len() - 1], ""), None);
        assert_eq!(lines(&value(&[(0x40, 6, 0)]), ""), None);
        assert_eq!(lines(&[1, 0, 0, 0], ""), None);
        let long = value(&vec![(USER_OWNER, 6, 0); VALUE_BYTES_MAX / ENTRY_BYTES]);
        assert_eq!(lines(&long, ""), None);
        assert!(lines(&long[..long.len() - ENTRY_BYTES], "").is_some());
    }
}
