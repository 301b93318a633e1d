//! Parsing of the list of extended attributes: bounds and names.
//! Not here: the meaning of names and values.
//!
//! Source: the kernel's `fs/f2fs/xattr.h`.

use base::view::view_at;
use base::{Error, Location, Problem, Result};
use fs::xattr::NameIndex;

use crate::ondisk::xattr::{RawXattrEntry, RawXattrHeader, XATTR_MAGIC};

const STRUCTURE: &str = "extended attribute";
const LIST_STRUCTURE: &str = "list of extended attributes";
pub(super) const HEADER_BYTES: usize = size_of::<RawXattrHeader>();
/// Bytes of zeroes that end the entries, unless they reach the end of the list.
const TERMINATOR_BYTES: usize = 4;
/// Alignment of entries.
pub(super) const ALIGNMENT: usize = 4;

/// One attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The prefix.
    pub index: NameIndex,
    /// The name after the prefix. It contains no NUL.
    pub name: &'a [u8],
    /// The value, as stored.
    pub value: &'a [u8],
}

/// The attributes of an inode. All entries were checked to be within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a> {
    /// The entries, without the header and the terminator.
    bytes: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Parses the list `list`, which lies at `location`: the part in the inode, and then the part
    /// in the attribute node. A list of zeroes was never written and has no attributes.
    pub fn parse(list: &'a [u8], location: Location) -> Result<Self> {
        if list.iter().take(HEADER_BYTES + TERMINATOR_BYTES).all(|&byte| byte == 0) {
            return Ok(Self { bytes: &[] });
        }
        let header: &RawXattrHeader = view_at(list, 0, LIST_STRUCTURE, location)?;
        if header.magic.get() != XATTR_MAGIC {
            let (found, expected) = (header.magic.get().into(), XATTR_MAGIC.into());
            let problem = Problem::Magic { found, expected };
            return Err(Error::corrupt(LIST_STRUCTURE, location, problem));
        }
        let bytes = list.get(HEADER_BYTES..).unwrap_or_default();
        let mut rest = bytes;
        while !is_end(rest) {
            rest = split_checked(rest).map_err(|problem| {
                let at = HEADER_BYTES + bytes.len() - rest.len();
                let byte = location.byte.unwrap_or(0) + at as u64;
                Error::corrupt(STRUCTURE, location.at_byte(byte), problem)
            })?;
        }
        Ok(Self { bytes: bytes.get(..bytes.len() - rest.len()).unwrap_or_default() })
    }

    /// Iterates over the attributes in stored order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (entry, next) = split_entry(rest).ok()?;
            rest = next;
            Some(entry)
        })
    }

    /// Returns the first attribute with this name.
    pub fn find(&self, index: NameIndex, name: &[u8]) -> Option<Entry<'a>> {
        self.iter().find(|entry| entry.index == index && entry.name == name)
    }
}

/// Returns the length of the header and the entries that are whole, in a list that may be cut off.
/// None of a list without header is.
pub(crate) fn whole_entries(list: &[u8]) -> usize {
    let header: Result<&RawXattrHeader> = view_at(list, 0, LIST_STRUCTURE, Location::default());
    if !header.is_ok_and(|header| header.magic.get() == XATTR_MAGIC) {
        return 0;
    }
    let mut rest = &list[HEADER_BYTES..];
    while !is_end(rest) {
        let Ok(next) = split_checked(rest) else { break };
        rest = next;
    }
    list.len() - rest.len()
}

/// Returns whether the entries end before `rest`.
fn is_end(rest: &[u8]) -> bool {
    rest.iter().take(TERMINATOR_BYTES).all(|&byte| byte == 0)
}

/// Returns what follows the entry at the start of `rest`, after a check of the entry.
fn split_checked(rest: &[u8]) -> Result<&[u8], Problem> {
    let (entry, next) = split_entry(rest)?;
    if entry.name.contains(&0) {
        return Err(Problem::Invalid { field: "name byte", found: 0 });
    }
    Ok(next)
}

/// Returns the entry at the start of `rest`, and what follows its padding.
fn split_entry(rest: &[u8]) -> Result<(Entry<'_>, &[u8]), Problem> {
    let truncated =
        |needed: usize| Problem::Truncated { needed: needed as u64, available: rest.len() as u64 };
    let (raw, body): (&RawXattrEntry, _) = zerocopy::FromBytes::ref_from_prefix(rest)
        .map_err(|_| truncated(size_of::<RawXattrEntry>()))?;
    let (name_bytes, value_bytes) = (usize::from(raw.name_len), usize::from(raw.value_size.get()));
    let unpadded = size_of::<RawXattrEntry>() + name_bytes + value_bytes;
    let needed = unpadded.next_multiple_of(ALIGNMENT);
    let (Some((name, body)), Some(next)) = (body.split_at_checked(name_bytes), rest.get(needed..))
    else {
        return Err(truncated(needed));
    };
    let value = body.get(..value_bytes).ok_or_else(|| truncated(needed))?;
    Ok((Entry { index: NameIndex(raw.name_index), name, value }, next))
}

#[cfg(test)]
mod tests {
    use base::InodeNumber;
    use proptest::prelude::*;

    use super::super::{get, list};
    use super::*;

    fn location() -> Location {
        Location::inode(InodeNumber(12))
    }

    fn entry(index: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut entry = vec![index, name.len() as u8];
        entry.extend((value.len() as u16).to_le_bytes());
        entry.extend(name);
        entry.extend(value);
        entry.resize(entry.len().next_multiple_of(4), 0);
        entry
    }

    /// Returns a list of `bytes` bytes.
    fn with_entries(entries: &[Vec<u8>], bytes: usize) -> Vec<u8> {
        let mut list = XATTR_MAGIC.to_le_bytes().to_vec();
        list.extend(1_u32.to_le_bytes());
        list.resize(HEADER_BYTES, 0);
        list.extend(entries.concat());
        list.resize(bytes.max(list.len()), 0);
        list
    }

    #[test]
    fn attributes_are_listed_in_order_and_found_by_name() {
        let bytes = with_entries(
            &[
                entry(1, b"mime", b"text/plain"),
                entry(9, b"c", &[2; 40]),
                entry(6, b"selinux", b"u:r:x:s0\0"),
                entry(11, b"v", &[1; 16]),
                entry(5, b"lov", b""),
                entry(4, b"empty", b""),
            ],
            200,
        );
        let names = list(&bytes, location()).unwrap();
        assert_eq!(names, [&b"user.mime"[..], b"security.selinux", b"trusted.empty"]);
        assert_eq!(get(&bytes, b"user.mime", location()).unwrap(), b"text/plain");
        assert_eq!(get(&bytes, b"security.selinux", location()).unwrap(), b"u:r:x:s0\0");
        assert_eq!(get(&bytes, b"trusted.empty", location()).unwrap(), b"");
        for name in [&b"user.mim"[..], b"trusted.mime", b"user.c", b"other", b"system.advise"] {
            assert_eq!(get(&bytes, name, location()), Err(Error::NoAttribute));
        }
        let entries = Entries::parse(&bytes, location()).unwrap();
        let context = entries.find(NameIndex::ENCRYPTION, fscrypt::CONTEXT_NAME);
        assert_eq!(context.unwrap().value, [2; 40]);
        let descriptor = entries.find(NameIndex::VERITY, super::super::VERITY_NAME);
        assert_eq!(descriptor.unwrap().value, [1; 16]);
    }

    #[test]
    fn acls_are_converted() {
        let stored = [&[1, 0, 0, 0][..], &[1, 0, 7, 0], &[2, 0, 5, 0, 0xE8, 3, 0, 0]].concat();
        let bytes = with_entries(&[entry(2, b"", &stored), entry(3, b"", &[9])], 100);
        let expected = [
            &[2, 0, 0, 0][..],
            &[1, 0, 7, 0, 0xFF, 0xFF, 0xFF, 0xFF],
            &[2, 0, 5, 0, 0xE8, 3, 0, 0],
        ];
        assert_eq!(get(&bytes, b"system.posix_acl_access", location()).unwrap(), expected.concat());
        let damaged = get(&bytes, b"system.posix_acl_default", location());
        assert!(matches!(damaged, Err(Error::Corrupt(_))), "{damaged:?}");
    }

    #[test]
    fn a_list_may_be_empty_full_or_never_written() {
        for bytes in [vec![], vec![0; 7], vec![0; 24], vec![0; 200], with_entries(&[], 24)] {
            assert_eq!(list(&bytes, location()).unwrap(), Vec::<Vec<u8>>::new());
        }
        let full = with_entries(&[entry(1, b"a", b"bcd")], 0);
        assert_eq!(full.len(), 32);
        assert_eq!(list(&full, location()).unwrap(), [b"user.a"]);
        let without_padding = with_entries(&[entry(1, b"a", b"bcd")], 34);
        assert_eq!(list(&without_padding, location()).unwrap(), [b"user.a"]);
    }

    #[track_caller]
    fn check_refused(bytes: &[u8], expected: &str) {
        let error = Entries::parse(bytes, location()).unwrap_err().to_string();
        assert_eq!(error, format!("corrupt {expected}"));
    }

    #[test]
    fn lists_out_of_bounds_are_refused() {
        let good = with_entries(&[entry(1, b"a", b"bcd"), entry(1, b"b", b"bcd")], 0);
        check_refused(
            &good[..38],
            "extended attribute at inode 12, byte 32: needs 8 bytes, but has only 6",
        );
        check_refused(
            &good[..34],
            "extended attribute at inode 12, byte 32: needs 4 bytes, but has only 2",
        );
        check_refused(
            &good[..20],
            "list of extended attributes at inode 12, byte 0: needs 24 bytes, but has only 20",
        );
        let mut bad = good.clone();
        bad[0] = 0;
        check_refused(
            &bad,
            "list of extended attributes at inode 12: magic number is 0xf2f52000, not 0xf2f52011",
        );
        check_refused(
            &with_entries(&[entry(1, b"a\0", b"")], 0),
            "extended attribute at inode 12, byte 24: name byte is invalid: 0x0",
        );
    }

    proptest! {
        #[test]
        fn random_bytes_give_located_errors_only(
            tail in proptest::collection::vec(prop_oneof![Just(0_u8), 0..12_u8, any::<u8>()], 0..600),
        ) {
            let mut bytes = with_entries(&[], 0);
            bytes.extend(&tail);
            match Entries::parse(&bytes, location()) {
                Ok(entries) => prop_assert!(entries.iter().count() <= tail.len() / 4),
                Err(error) => prop_assert!(matches!(error, Error::Corrupt(_))),
            }
            let _ = Entries::parse(&tail, location());
        }

        #[test]
        fn every_checked_entry_is_listed(
            names in proptest::collection::vec("[a-z]{1,20}", 0..8),
            value in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let entries: Vec<_> =
                names.iter().map(|name| entry(1, name.as_bytes(), &value)).collect();
            let bytes = with_entries(&entries, 24);
            let found = list(&bytes, location()).unwrap();
            let expected: Vec<_> =
                names.iter().map(|name| format!("user.{name}").into_bytes()).collect();
            prop_assert_eq!(found, expected);
            for name in names {
                let full = format!("user.{name}");
                prop_assert_eq!(&get(&bytes, full.as_bytes(), location()).unwrap(), &value);
            }
        }
    }
}
