//! Requests as the transport receives them: a header and a body. Not here: the operations.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use rustix::io::Errno;

use crate::protocol::{InHeader, Opcode};

/// A request with a valid length.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: InHeader,
    /// The bytes after the header, without extensions.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses a request. Returns `None` if the bytes are not a request; then there is nothing to
    /// answer.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, _) = InHeader::read_from_prefix(bytes).ok()?;
        let length = usize::try_from(header.length).ok()?;
        let end = length.checked_sub(usize::from(header.extension_length) * 8)?;
        if length != bytes.len() {
            return None;
        }
        Some(Self { header, body: bytes.get(size_of::<InHeader>()..end)? })
    }

    /// Returns the operation, if this server knows it.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_number(self.header.opcode)
    }

    /// Returns the operation's fixed part and the bytes that follow it. Fails with EINVAL if the
    /// body is too short.
    pub fn split<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<(T, &'a [u8]), Errno> {
        T::read_from_prefix(self.body).map_err(|_| Errno::INVAL)
    }
}

/// Returns the only name in `rest`, without its NUL. Fails with EINVAL if `rest` is anything else.
pub fn name(rest: &[u8]) -> Result<&[u8], Errno> {
    match rest.iter().position(|&byte| byte == 0) {
        Some(end) if end > 0 && end + 1 == rest.len() => Ok(&rest[..end]),
        _ => Err(Errno::INVAL),
    }
}

/// Returns the two names in `rest`, without their NULs. Fails with EINVAL if `rest` is anything
/// else.
pub fn two_names(rest: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = rest.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
    let (first, second) = rest.split_at(end + 1);
    Ok((name(first)?, name(second)?))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn header(length: u32, extension_length: u16) -> InHeader {
        InHeader {
            length,
            opcode: Opcode::Lookup as u32,
            unique: 2,
            node: 1,
            uid: 0,
            gid: 0,
            pid: 1,
            extension_length,
            padding: 0,
        }
    }

    #[test]
    fn a_request_must_have_the_length_in_its_header() {
        for (length, extension, extra, is_valid) in [
            (40, 0, 0, true),
            (41, 0, 0, false),
            (40, 0, 1, false),
            (48, 1, 8, true),
            (40, 1, 0, false),
        ] {
            let mut bytes = header(length, extension).as_bytes().to_vec();
            bytes.resize(40 + extra, 7);
            let request = Request::parse(&bytes);
            assert_eq!(request.is_some(), is_valid, "{length} {extension} {extra}");
            assert!(request.is_none_or(|request| request.body.is_empty()));
        }
        assert!(Request::parse(&[0; 39]).is_none());
    }

    #[test]
    fn a_name_ends_with_the_only_nul() {
        assert_eq!(name(b"a b\0"), Ok(&b"a b"[..]));
        for broken in [&b""[..], b"\0", b"abc", b"a\0b\0", b"a\0\0"] {
            assert_eq!(name(broken), Err(Errno::INVAL), "{broken:?}");
        }
        assert_eq!(two_names(b"a\0bc\0"), Ok((&b"a"[..], &b"bc"[..])));
        for broken in [&b""[..], b"a\0", b"a\0b", b"\0b\0", b"a\0b\0c\0"] {
            assert_eq!(two_names(broken), Err(Errno::INVAL), "{broken:?}");
        }
    }
}
