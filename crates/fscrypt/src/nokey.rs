//! The names that encrypted files have without the key.

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

/// The number of bytes of a stored name that are part of the encoded form. A hash represents
/// further bytes.
const BYTES_MAX: usize = 149;
/// The length of the hash of a name in a directory.
const DIRHASH_BYTES: usize = 8;
/// The length of SHA-256.
const DIGEST_BYTES: usize = 32;

/// A stored name in the form that is shown without the key. It has all that finds the entry again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoKeyName {
    dirhash: [u32; 2],
    bytes: Vec<u8>,
    /// The SHA-256 of the bytes of the stored name after `bytes`.
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl NoKeyName {
    /// Returns the name of an entry with the stored name `stored`, at least one byte, and the major
    /// and minor hashes by which its directory orders it; zeroes if it does not, or for targets of
    /// symbolic links.
    pub fn new(dirhash: [u32; 2], stored: &[u8]) -> Self {
        match stored.split_at_checked(BYTES_MAX) {
            Some((bytes, rest)) if !rest.is_empty() => {
                let digest = Some(Sha256::digest(rest).into());
                Self { dirhash, bytes: bytes.to_vec(), digest }
            }
            _ => Self { dirhash, bytes: stored.to_vec(), digest: None },
        }
    }

    /// Returns the major and minor hashes of the name, or zeroes.
    pub fn dirhash(&self) -> [u32; 2] {
        self.dirhash
    }

    /// Returns the form that is shown: at most 252 characters of base64url.
    pub fn encode(&self) -> String {
        let mut raw = Vec::with_capacity(DIRHASH_BYTES + BYTES_MAX + DIGEST_BYTES);
        for hash in self.dirhash {
            raw.extend(hash.to_le_bytes());
        }
        raw.extend(&self.bytes);
        raw.extend(self.digest.iter().flatten());
        BASE64URL_NOPAD.encode(&raw)
    }

    /// Returns the name whose shown form is `shown`, or `None` if there is none. No entry has such
    /// a name.
    pub fn decode(shown: &[u8]) -> Option<Self> {
        const LENGTH_MAX: usize = DIRHASH_BYTES + BYTES_MAX + DIGEST_BYTES;
        if shown.len() > BASE64URL_NOPAD.encode_len(LENGTH_MAX) {
            return None;
        }
        let raw = BASE64URL_NOPAD.decode(shown).ok()?;
        let (&major, rest) = raw.split_first_chunk()?;
        let (&minor, rest) = rest.split_first_chunk()?;
        let dirhash = [u32::from_le_bytes(major), u32::from_le_bytes(minor)];
        match rest.len() {
            1..=BYTES_MAX => Some(Self { dirhash, bytes: rest.to_vec(), digest: None }),
            _ => {
                let (bytes, digest) = rest.split_at_checked(BYTES_MAX)?;
                Some(Self { dirhash, bytes: bytes.to_vec(), digest: Some(digest.try_into().ok()?) })
            }
        }
    }

    /// Returns whether this is the name of an entry with the stored name `stored`. The hash is not
    /// compared.
    pub fn matches(&self, stored: &[u8]) -> bool {
        let Self { bytes, digest, .. } = Self::new(self.dirhash, stored);
        bytes == self.bytes && digest == self.digest
    }

    /// Returns the stored name, or `None` if it is too long to be part of this form.
    pub fn stored(&self) -> Option<&[u8]> {
        self.digest.is_none().then_some(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_lengths_are_encoded_decoded_and_matched() {
        for length in 1..=255_u8 {
            let stored: Vec<u8> = (0..length).map(|at| at.wrapping_mul(7)).collect();
            let name = NoKeyName::new([0x0102_0304, u32::from(length)], &stored);
            let shown = name.encode();
            assert!(shown.len() <= 252, "{length}");
            assert_eq!(NoKeyName::decode(shown.as_bytes()), Some(name.clone()));
            assert!(name.matches(&stored));
            let mut other = stored.clone();
            *other.last_mut().expect("a byte") ^= 1;
            assert!(!name.matches(&other));
            assert!(!name.matches(&stored[1..]) && !name.matches(&[&stored[..], &[0]].concat()));
            assert_eq!(name.stored(), (length <= 149).then_some(&stored[..]));
        }
    }

    #[test]
    fn names_of_other_lengths_and_alphabets_are_refused() {
        for raw in [0, 7, 8, 8 + 150, 8 + 149 + 31, 8 + 149 + 33] {
            let shown = BASE64URL_NOPAD.encode(&vec![1; raw]);
            assert_eq!(NoKeyName::decode(shown.as_bytes()), None, "{raw}");
        }
        let shown = NoKeyName::new([0; 2], &[0xff; 17]).encode();
        assert!(shown.ends_with("___w"));
        for other in [shown.replace('_', "/"), format!("{shown}=="), shown.replace('w', "x")] {
            assert_eq!(NoKeyName::decode(other.as_bytes()), None, "{other}");
        }
    }
}
