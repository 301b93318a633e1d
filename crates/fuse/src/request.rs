//! A request as it came off a transport: its header and what follows. Not here: answering it.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use rustix::io::Errno;

use crate::protocol::{InHeader, Opcode};

/// A request whose outer shape is sound.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: InHeader,
    /// What follows, without extensions.
    pub body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Takes a request apart. `None` when the bytes are no request: there is then nothing to
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

    /// What is asked, where it is known.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_number(self.header.opcode)
    }

    /// The operation's fixed part and what follows it.
    pub fn split<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<(T, &'a [u8]), Errno> {
        T::read_from_prefix(self.body).map_err(|_| Errno::INVAL)
    }
}

/// The one name that `rest` holds, without the NUL that ends it.
pub fn name(rest: &[u8]) -> Result<&[u8], Errno> {
    match rest.iter().position(|&byte| byte == 0) {
        Some(end) if end > 0 && end + 1 == rest.len() => Ok(&rest[..end]),
        _ => Err(Errno::INVAL),
    }
}

/// The two names that `rest` holds, each without the NUL that ends it.
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
    fn the_length_must_be_that_of_the_bytes() {
        for (length, extension, extra, sound) in [
            (40, 0, 0, true),
            (41, 0, 0, false),
            (40, 0, 1, false),
            (48, 1, 8, true),
            (40, 1, 0, false),
        ] {
            let mut bytes = header(length, extension).as_bytes().to_vec();
            bytes.resize(40 + extra, 7);
            let request = Request::parse(&bytes);
            assert_eq!(request.is_some(), sound, "{length} {extension} {extra}");
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
