//! The records of pax extended headers: `LENGTH NAME=VALUE\n`, where values are any bytes.

use std::collections::BTreeMap;
use std::io;

use base::attributes::Timestamp;

use super::invalid;
use super::sparse::Segment;

const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
const NANOSECOND_DIGITS: usize = 9;

/// The records that hold for one member.
#[derive(Clone, Default, Debug)]
pub struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// In the oldest form for sparse files, names come again and again.
    segments: Vec<Segment>,
}

impl Records {
    /// Takes in an extended header. Later records replace earlier ones; empty ones remove them.
    pub fn read(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (name, value, rest) = record(data).ok_or_else(|| {
                invalid("an extended header has a record that is not LENGTH NAME=VALUE")
            })?;
            match name {
                b"GNU.sparse.offset" => {
                    self.segments.push(Segment { offset: number(name, value)?, length: 0 });
                }
                b"GNU.sparse.numbytes" => match self.segments.last_mut() {
                    Some(last) => last.length = number(name, value)?,
                    None => return Err(invalid("a sparse file has a length without an offset")),
                },
                _ if value.is_empty() && !name.starts_with(XATTR_PREFIX) => {
                    self.values.remove(name);
                }
                _ => {
                    self.values.insert(name.to_vec(), value.to_vec());
                }
            }
            data = rest;
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.values.get(name.as_bytes()).map(Vec::as_slice)
    }

    pub fn number(&self, name: &str) -> io::Result<Option<u64>> {
        self.get(name).map(|value| number(name.as_bytes(), value)).transpose()
    }

    pub fn size(&self) -> io::Result<Option<u64>> {
        self.number("size")
    }

    pub fn uid(&self) -> io::Result<Option<u64>> {
        self.number("uid")
    }

    pub fn gid(&self) -> io::Result<Option<u64>> {
        self.number("gid")
    }

    pub fn modified(&self) -> io::Result<Option<Timestamp>> {
        self.time("mtime")
    }

    pub fn accessed(&self) -> io::Result<Option<Timestamp>> {
        self.time("atime")
    }

    /// The path of the member; that of a sparse file before what stands for it in the archive.
    pub fn take_path(&mut self) -> Option<Vec<u8>> {
        let path = self.values.remove(&b"path"[..]);
        self.values.remove(&b"GNU.sparse.name"[..]).or(path)
    }

    pub fn take_target(&mut self) -> Option<Vec<u8>> {
        self.values.remove(&b"linkpath"[..])
    }

    /// The segments in the oldest form for sparse files.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub fn has_worded_acl(&self) -> bool {
        ["SCHILY.acl.access", "SCHILY.acl.default"].iter().any(|name| self.get(name).is_some())
    }

    pub fn take_xattrs(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let values = self.values.into_iter();
        values
            .filter_map(|(name, value)| {
                name.strip_prefix(XATTR_PREFIX).map(|name| (name.to_vec(), value))
            })
            .collect()
    }

    fn time(&self, name: &str) -> io::Result<Option<Timestamp>> {
        self.get(name)
            .map(|value| parse_time(value).ok_or_else(|| invalid(format!("{name} is no time"))))
            .transpose()
    }
}

/// The first record of `data`, and what follows it.
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
    let (record, rest) = (length <= data.len()).then(|| data.split_at(length))?;
    let (name, value) = {
        let text = record.get(space + 1..)?.strip_suffix(b"\n")?;
        let equals = text.iter().position(|&byte| byte == b'=')?;
        (&text[..equals], &text[equals + 1..])
    };
    Some((name, value, rest))
}

fn number(name: &[u8], value: &[u8]) -> io::Result<u64> {
    let number = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
    number.ok_or_else(|| invalid(format!("{} is no number", String::from_utf8_lossy(name))))
}

/// Seconds since 1970, with a fraction.
fn parse_time(value: &[u8]) -> Option<Timestamp> {
    let value = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(NANOSECOND_DIGITS)];
    let nanoseconds: u32 = format!("{fraction:0<NANOSECOND_DIGITS$}").parse().ok()?;
    let seconds: i64 = whole.parse().ok()?;
    Some(match (whole.starts_with('-'), nanoseconds) {
        // -1.25 is three quarters after -2.
        (true, 1..) => {
            Timestamp { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }
        }
        _ => Timestamp { seconds, nanoseconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_any_bytes_and_later_ones_count() {
        let mut records = Records::default();
        records.read(b"30 SCHILY.xattr.user.a=1\n2=3\0\n12 uid=1000\n").unwrap();
        records.read(b"9 uid=77\n13 gid=12345\n").unwrap();
        records.read(b"7 gid=\n").unwrap();
        assert_eq!(records.uid().unwrap(), Some(77));
        assert_eq!(records.gid().unwrap(), None);
        assert_eq!(records.take_xattrs(), [(b"user.a".to_vec(), b"1\n2=3\0".to_vec())]);
    }

    #[test]
    fn records_that_lie_are_refused() {
        for bad in ["", "x", "5", "5 a=b", "7 a=b\n", "3 a=b\n", "5 ab\n", "99 a=b\n", "-6 a=b\n"] {
            let read = Records::default().read(bad.as_bytes());
            assert_eq!(read.is_ok(), bad.is_empty(), "{bad:?}");
        }
        let mut records = Records::default();
        records.read(b"9 uid=-7\n").unwrap();
        records.uid().unwrap_err();
    }

    #[test]
    fn times_have_fractions_and_may_be_before_1970() {
        let time = |text: &str| parse_time(text.as_bytes()).map(|at| (at.seconds, at.nanoseconds));
        assert_eq!(time("12"), Some((12, 0)));
        assert_eq!(time("12.5"), Some((12, 500_000_000)));
        assert_eq!(time("12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("-0.5"), Some((-1, 500_000_000)));
        assert_eq!(time("-3"), Some((-3, 0)));
        assert_eq!(time("1.-5"), None);
        assert_eq!(time(""), None);
    }
}
