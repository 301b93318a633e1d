//! Names of pax records: what is unpacked of each, and the encodings of extended attributes.
//! Not here: the values of other records (`pax.rs`).

use std::borrow::Cow;

use base::text;

/// Prefix of GNU tar and star: the value of an attribute as it is. GNU tar encodes `=` and `%` in
/// names as URLs do.
const SCHILY_XATTR: &[u8] = b"SCHILY.xattr.";
/// Prefix of libarchive: the name is URL-encoded, the value is in base64.
const LIBARCHIVE_XATTR: &[u8] = b"LIBARCHIVE.xattr.";
/// The SELinux label of GNU tar.
const RHT_SELINUX: &[u8] = b"RHT.security.selinux";
const SELINUX: &[u8] = b"security.selinux";

/// The access control lists in text of GNU tar, star and libarchive.
pub const TEXT_ACLS: [&[u8]; 2] = [b"SCHILY.acl.access", b"SCHILY.acl.default"];

/// Records that are unpacked.
const UNPACKED: [&[u8]; 22] = [
    b"path",
    b"linkpath",
    b"size",
    b"uid",
    b"gid",
    b"mtime",
    b"atime",
    b"SCHILY.acl.access",
    b"SCHILY.acl.default",
    b"SCHILY.devmajor",
    b"SCHILY.devminor",
    b"SUN.devmajor",
    b"SUN.devminor",
    b"LIBARCHIVE.creationtime",
    b"GNU.sparse.major",
    b"GNU.sparse.minor",
    b"GNU.sparse.name",
    b"GNU.sparse.realsize",
    b"GNU.sparse.size",
    b"GNU.sparse.map",
    b"GNU.sparse.numblocks",
    b"GNU.sparse.offset",
];

/// Records that say nothing about the file itself: names that belong to its numbers, its place in
/// the file system that it comes from, the change time, which cannot be set, and the type of a
/// symbolic link on Windows.
const WITHOUT_EFFECT: [&[u8]; 11] = [
    b"ctime",
    b"comment",
    b"charset",
    b"hdrcharset",
    b"uname",
    b"gname",
    b"SCHILY.dev",
    b"SCHILY.ino",
    b"SCHILY.nlink",
    b"SCHILY.archtype",
    b"LIBARCHIVE.symlinktype",
];

/// What a record contains.
#[derive(Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The extended attribute with this name and value.
    Xattr(Cow<'a, [u8]>, Cow<'a, [u8]>),
    /// The extended attribute with this name and value, in the form of libarchive. The third is the
    /// encoded name.
    Libarchive(Vec<u8>, Vec<u8>, &'a [u8]),
    /// A value of this name.
    Other(&'a [u8]),
}

/// Decodes the name of a record, and its value if it is an extended attribute. An attribute with an
/// invalid encoding is another value, of which nothing is unpacked.
pub fn decode<'a>(name: &'a [u8], value: &'a [u8]) -> Record<'a> {
    if let Some(xattr) = name.strip_prefix(SCHILY_XATTR) {
        return Record::Xattr(decode_equals(xattr), value.into());
    }
    if name == RHT_SELINUX {
        return Record::Xattr(SELINUX.into(), value.into());
    }
    let encoded = name.strip_prefix(LIBARCHIVE_XATTR);
    let decoded = encoded.and_then(|encoded| {
        let (name, value) = (decode_url(encoded)?, decode_base64(value)?);
        Some(Record::Libarchive(name, value, encoded))
    });
    decoded.unwrap_or(Record::Other(name))
}

/// Returns whether something of a record that is no extended attribute is lost when its member is
/// unpacked.
pub fn is_lost(name: &[u8]) -> bool {
    !UNPACKED.contains(&name) && !WITHOUT_EFFECT.contains(&name)
}

/// Decodes the two escapes of GNU tar, and no others: star has none.
pub fn decode_equals(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.contains(&b'%') {
        return name.into();
    }
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, after @ ..] = rest {
        (rest, _) = match (first, after) {
            (b'%', [b'3', b'D', after @ ..]) => (after, decoded.push(b'=')),
            (b'%', [b'2', b'5', after @ ..]) => (after, decoded.push(b'%')),
            _ => (after, decoded.push(*first)),
        };
    }
    decoded.into()
}

fn decode_url(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let (digits, after) = after.split_first_chunk::<2>()?;
        decoded.push(text::hex_byte(*digits)?);
        rest = after;
    }
    Some(decoded)
}

/// Decodes base64, with padding or without.
pub fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    let (digits, padding) = text.split_at(end);
    if padding.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut decoded = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for &digit in group {
            let number = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(number);
        }
        let bytes = group.len() * 6 / 8;
        bits <<= 6 * (4 - group.len());
        decoded.extend_from_slice(bits.to_be_bytes().get(1..1 + bytes)?);
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_decoded_in_the_forms_of_all_archivers() {
        let xattr = |name: &str, value: &[u8]| {
            let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
            Record::Xattr(name.into(), value.into())
        };
        assert_eq!(decode(b"SCHILY.xattr.user.a", b"1\n"), xattr("user.a", b"1\n"));
        assert_eq!(decode(b"SCHILY.xattr.user.%3D%25%41", b""), xattr("user.=%%41", b""));
        assert_eq!(decode(b"RHT.security.selinux", b"l"), xattr("security.selinux", b"l"));
        let libarchive =
            |name: &'static str, value: &'static str| decode(name.as_bytes(), value.as_bytes());
        for (encoded, value, decoded, bytes) in [
            ("user.a%3Db", "AAEC/w", "user.a=b", &b"\0\x01\x02\xff"[..]),
            ("user.%C3%BC%25", "eA==", "user.\u{fc}%", b"x"),
            ("user.a", "", "user.a", b""),
        ] {
            let name = format!("LIBARCHIVE.xattr.{encoded}");
            let decoded = decoded.as_bytes().to_vec();
            let expected = Record::Libarchive(decoded, bytes.to_vec(), encoded.as_bytes());
            assert_eq!(decode(name.as_bytes(), value.as_bytes()), expected, "{name}");
        }
        for (name, value) in [
            ("LIBARCHIVE.xattr.user.%4", "eA"),
            ("LIBARCHIVE.xattr.user.%+4", "eA"),
            ("LIBARCHIVE.xattr.user.a", "e"),
            ("LIBARCHIVE.xattr.b", "e*=="),
        ] {
            assert_eq!(libarchive(name, value), Record::Other(name.as_bytes()));
            assert!(is_lost(name.as_bytes()));
        }
    }
}
