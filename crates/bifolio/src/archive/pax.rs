//! Records of pax extended headers: `LENGTH NAME=VALUE\n`. Values can contain any bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use base::attributes::Timestamp;
use base::text;

use super::invalid;
use super::names::{self, Record, TEXT_ACLS, decode_equals};
use super::sparse::{Segment, check_count};

const SPARSE_OFFSET: &[u8] = b"GNU.sparse.offset";
const SPARSE_LENGTH: &[u8] = b"GNU.sparse.numbytes";
const NANOSECOND_DIGITS: usize = 9;

/// Maximum number of bytes of global headers.
const GLOBAL_BYTES_MAX: usize = 64 << 10;
/// Maximum number of global headers that change extended attributes. Members that are stored may
/// keep the attributes after each of them.
const GLOBAL_CHANGES_MAX: usize = 1024;
/// Maximum number of bytes of the headers of one member.
const OWN_BYTES_MAX: usize = 1 << 20;

/// Values by name.
#[derive(Clone, Default, Debug)]
struct Values {
    /// The values by name. Removed names have no value.
    by_name: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// The number of bytes of all names and values, and of what the map takes for each.
    bytes: usize,
}

/// The number of bytes that a map takes for a name, at most.
const NAME_BYTES: usize = 128;

impl Values {
    /// Adds a value, or removes it. Replaces an earlier value with this name.
    fn insert(&mut self, name: &[u8], value: Option<&[u8]>) {
        let replaced = self.by_name.insert(name.to_vec(), value.map(<[u8]>::to_vec));
        self.bytes += value.map_or(0, <[u8]>::len);
        match replaced {
            Some(replaced) => self.bytes -= replaced.map_or(0, |replaced| replaced.len()),
            None => self.bytes += name.len() + NAME_BYTES,
        }
    }

    /// Adds a record that is no extended attribute. An empty value removes the earlier record.
    fn insert_other(&mut self, name: &[u8], value: &[u8]) {
        self.insert(name, Some(value).filter(|value| !value.is_empty()));
    }

    fn get(&self, name: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.by_name.get(name)
    }

    /// Returns the names with values.
    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.by_name.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| &name[..])
    }
}

/// Errors: the headers have more bytes than allowed.
fn check_size(bytes: usize, bytes_max: usize) -> io::Result<()> {
    match bytes > bytes_max {
        true => Err(invalid(format!("extended headers are larger than {bytes_max} bytes"))),
        false => Ok(()),
    }
}

/// Records for all following members.
#[derive(Clone, Default, Debug)]
pub struct GlobalRecords {
    values: Arc<Values>,
    xattrs: Arc<Values>,
    /// The number of headers that have changed `xattrs`.
    changes: usize,
    /// The number of malformed records since a member took it.
    malformed: usize,
}

impl GlobalRecords {
    /// Adds an extended attribute. Returns whether it had another value.
    fn insert_xattr(&mut self, name: &[u8], value: &[u8]) -> bool {
        let earlier = self.xattrs.get(name);
        let is_changed = earlier.is_none_or(|earlier| earlier.as_deref() != Some(value));
        if is_changed {
            Arc::make_mut(&mut self.xattrs).insert(name, Some(value));
        }
        is_changed
    }

    /// Adds the records of a global extended header.
    pub fn read(&mut self, data: &[u8]) -> io::Result<()> {
        let (mut changes_xattrs, mut maps) = (false, 0);
        self.malformed += for_each(data, |name, value| {
            if matches!(name, SPARSE_OFFSET | SPARSE_LENGTH) {
                // A map is that of one member.
                maps += 1;
                return Ok(());
            }
            match names::decode(name, value) {
                Record::Other(name) => Arc::make_mut(&mut self.values).insert_other(name, value),
                Record::Xattr(name, value) => {
                    changes_xattrs |= self.insert_xattr(&name, &value);
                }
                Record::Libarchive(name, value, _) => {
                    changes_xattrs |= self.insert_xattr(&name, &value);
                }
            }
            check_size(self.values.bytes + self.xattrs.bytes, GLOBAL_BYTES_MAX)
        })?;
        self.malformed += maps;
        self.changes += usize::from(changes_xattrs);
        if self.changes > GLOBAL_CHANGES_MAX {
            return Err(invalid(format!(
                "more than {GLOBAL_CHANGES_MAX} global headers change extended attributes"
            )));
        }
        Ok(())
    }

    /// Returns the number of malformed records of the headers since the last call.
    pub fn take_malformed(&mut self) -> usize {
        std::mem::take(&mut self.malformed)
    }
}

/// Extended attributes of a member. Those for all members are shared.
#[derive(Clone, Default, Debug)]
pub struct Xattrs {
    own: Values,
    /// The attributes for names that are not in `own`.
    global: Arc<Values>,
}

impl Xattrs {
    /// Returns the names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let global = self.global.by_name.iter();
        let global = global.filter(|(name, _)| !self.own.by_name.contains_key(*name));
        let all = self.own.by_name.iter().chain(global);
        all.filter_map(|(name, value)| Some((&name[..], value.as_deref()?)))
    }

    /// Returns the names and values of this member alone.
    pub fn own(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let own = self.own.by_name.iter();
        own.filter_map(|(name, value)| Some((&name[..], value.as_deref()?)))
    }

    /// Adds an attribute, unless there is one with this name.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        if !self.contains(name) {
            self.own.insert(name, Some(value));
        }
    }

    /// Returns whether there is an attribute with this name.
    pub fn contains(&self, name: &[u8]) -> bool {
        [&self.own, &*self.global].into_iter().any(|values| values.get(name).is_some())
    }
}

/// Records for one member.
#[derive(Clone, Default, Debug)]
pub struct Records {
    own: Values,
    /// The records for names without an own record.
    global: Arc<Values>,
    xattrs: Xattrs,
    /// Names of extended attributes as libarchive encodes them, and the names that it means. It
    /// writes each attribute also in the form of star, which has no encoding, with the encoded
    /// name.
    encoded: Values,
    /// The segments in the oldest form for sparse files, which repeats names.
    segments: Vec<Segment>,
    /// The number of malformed records.
    malformed: usize,
}

impl Records {
    /// Adds the records of an extended header. After a record with an error, takes only the size,
    /// which says where the next member is, and returns the error.
    pub fn read(&mut self, data: &[u8]) -> io::Result<()> {
        let mut outcome = Ok(());
        self.malformed += for_each(data, |name, value| {
            if outcome.is_ok() {
                outcome = self.add(name, value);
            } else if name == b"size" {
                self.own.insert_other(name, value);
            }
            Ok(())
        })?;
        outcome
    }

    fn add(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match name {
            SPARSE_OFFSET => {
                check_count(self.segments.len() as u64)?;
                self.segments.push(Segment { offset: number(name, value)?, length: 0 });
                Ok(())
            }
            SPARSE_LENGTH => match self.segments.last_mut() {
                Some(last) => {
                    last.length = number(name, value)?;
                    Ok(())
                }
                None => Err(invalid("the map of a sparse file has a length without an offset")),
            },
            _ => {
                match names::decode(name, value) {
                    Record::Other(name) => self.own.insert_other(name, value),
                    Record::Xattr(name, value) => self.xattrs.own.insert(&name, Some(&value)),
                    Record::Libarchive(name, value, encoded) => {
                        self.xattrs.own.insert(&name, Some(&value));
                        self.encoded.insert(encoded, Some(&name));
                    }
                }
                let bytes = self.own.bytes + self.xattrs.own.bytes + self.encoded.bytes;
                check_size(bytes, OWN_BYTES_MAX)
            }
        }
    }

    /// Returns the number of malformed records.
    pub fn malformed(&self) -> usize {
        self.malformed
    }

    /// Returns these records with the records for all members.
    pub fn with(self, global: &GlobalRecords) -> Self {
        let xattrs = Xattrs { global: Arc::clone(&global.xattrs), ..self.xattrs };
        Self { global: Arc::clone(&global.values), xattrs, ..self }
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let name = name.as_bytes();
        self.own.get(name).or_else(|| self.global.get(name))?.as_deref()
    }

    pub fn number(&self, name: &str) -> io::Result<Option<u64>> {
        self.get(name).map(|value| number(name.as_bytes(), value)).transpose()
    }

    pub fn size(&self) -> io::Result<Option<u64>> {
        self.number("size")
    }

    /// Returns the number of a user or group.
    pub fn id(&self, name: &str) -> io::Result<Option<u32>> {
        let id = self.number(name)?.map(u32::try_from).transpose();
        id.map_err(|_| invalid(format!("{name} has more than 32 bits")))
    }

    /// Returns whether there are records for this member alone.
    pub fn has_own(&self) -> bool {
        self.own.bytes + self.xattrs.own.bytes > 0
    }

    /// Returns the path of the member. The `path` of a sparse file is a placeholder.
    pub fn path(&self) -> Option<&[u8]> {
        self.get("GNU.sparse.name").or_else(|| self.get("path"))
    }

    pub fn target(&self) -> Option<&[u8]> {
        self.get("linkpath")
    }

    /// Returns the segments in the oldest form for sparse files.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the part `part` of a device's number, which star and Solaris record if it does not
    /// fit into the header.
    pub fn device_number(
        &self,
        part: &str,
        in_header: impl FnOnce() -> io::Result<Option<u32>>,
    ) -> io::Result<u32> {
        for vendor in ["SCHILY", "SUN"] {
            if let Some(number) = self.number(&format!("{vendor}.dev{part}"))? {
                let number = u32::try_from(number);
                return number.map_err(|_| invalid("the number of a device is too large"));
            }
        }
        Ok(in_header()?.unwrap_or_default())
    }

    /// Returns the own access control lists in text: that for access, and the default one.
    pub fn text_acls(&self) -> [Option<Vec<u8>>; 2] {
        TEXT_ACLS.map(|name| self.own.get(name).cloned().flatten())
    }

    /// Returns the names of the records of which nothing is unpacked. Lists in text are not shared
    /// by members.
    pub fn lost(&self) -> Vec<Vec<u8>> {
        let own = self.own.names().filter(|name| names::is_lost(name));
        let global = self.global.names().filter(|name| self.own.get(name).is_none());
        let global = global.filter(|name| names::is_lost(name) || TEXT_ACLS.contains(name));
        own.chain(global).map(<[u8]>::to_vec).collect()
    }

    /// Returns the extended attributes. Leaves out those with an encoded name, of which libarchive
    /// has written the name, too.
    pub fn into_xattrs(mut self) -> Xattrs {
        let own = &self.xattrs.own;
        let meant: BTreeSet<&Vec<u8>> = self.encoded.by_name.values().flatten().collect();
        let names = self.encoded.by_name.iter();
        let names = names.filter_map(|(encoded, name)| Some((encoded, name.as_ref()?)));
        let double: Vec<Vec<u8>> = names
            .map(|(encoded, name)| (decode_equals(encoded).into_owned(), name))
            .filter(|(other, name)| own.get(other) == own.get(name) && !meant.contains(other))
            .map(|(other, _)| other)
            .collect();
        for encoded in double {
            self.xattrs.own.by_name.remove(&encoded);
        }
        self.xattrs
    }

    pub fn time(&self, name: &str) -> io::Result<Option<Timestamp>> {
        self.get(name)
            .map(|value| {
                parse_time(value).ok_or_else(|| invalid(format!("{name} is not a valid time")))
            })
            .transpose()
    }
}

/// Calls `add` with the names and values of an extended header, in order. A zero byte ends the
/// header. Returns the number of malformed records. They are skipped, with the rest of the header
/// if their length is unknown.
fn for_each(
    mut data: &[u8],
    mut add: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> io::Result<usize> {
    let mut malformed = 0;
    while data.first().is_some_and(|&byte| byte != 0) {
        let Some((text, rest)) = split_record(data) else { return Ok(malformed + 1) };
        match text.iter().position(|&byte| byte == b'=') {
            Some(equals) => add(&text[..equals], &text[equals + 1..])?,
            None => malformed += 1,
        }
        data = rest;
    }
    Ok(malformed)
}

/// Returns the text after the length of the first record of `data`, and the bytes after the record.
/// `None` if its length is wrong.
fn split_record(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = data.iter().position(|&byte| byte == b' ')?;
    let length: usize = text::decimal(data.get(..space)?)?;
    let (record, rest) = (length <= data.len()).then(|| data.split_at(length))?;
    Some((record.get(space + 1..)?.strip_suffix(b"\n")?, rest))
}

fn number(name: &[u8], value: &[u8]) -> io::Result<u64> {
    text::decimal(value)
        .ok_or_else(|| invalid(format!("the record {} is not a number", text::escape(name))))
}

/// Parses seconds since 1970, with a fraction.
fn parse_time(value: &[u8]) -> Option<Timestamp> {
    let value = std::str::from_utf8(value).ok().filter(|value| !value.starts_with('+'))?;
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(NANOSECOND_DIGITS)];
    let nanoseconds: u32 = format!("{fraction:0<NANOSECOND_DIGITS$}").parse().ok()?;
    let seconds: i64 = whole.parse().ok()?;
    Some(match (whole.starts_with('-'), nanoseconds) {
        // -1.25 is -2 seconds and 750,000,000 nanoseconds.
        (true, 1..) => {
            Timestamp { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }
        }
        _ => Timestamp { seconds, nanoseconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattrs(records: Records) -> Vec<(Vec<u8>, Vec<u8>)> {
        let xattrs = records.into_xattrs();
        xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    #[test]
    fn values_contain_any_bytes_and_later_records_replace_earlier_ones() {
        let mut records = Records::default();
        records.read(b"30 SCHILY.xattr.user.a=1\n2=3\0\n12 uid=1000\n").unwrap();
        records.read(b"9 uid=77\n13 gid=12345\n").unwrap();
        records.read(b"7 gid=\n").unwrap();
        assert_eq!(records.id("uid").unwrap(), Some(77));
        assert_eq!(records.id("gid").unwrap(), None);
        assert_eq!(xattrs(records), [(b"user.a".to_vec(), b"1\n2=3\0".to_vec())]);
    }

    #[test]
    fn global_records_are_shared_and_a_members_own_records_override_them() {
        let mut global = GlobalRecords::default();
        global.read(b"9 uid=77\n9 gid=88\n25 SCHILY.xattr.user.a=1\n").unwrap();
        global.read(b"25 SCHILY.xattr.user.b=2\n").unwrap();
        let mut records = Records::default();
        records.read(b"9 uid=99\n7 gid=\n25 SCHILY.xattr.user.a=3\n").unwrap();
        let records = records.with(&global);
        assert!(Arc::ptr_eq(&records.global, &global.values));
        assert!(Arc::ptr_eq(&records.xattrs.global, &global.xattrs));
        assert_eq!((records.id("uid").unwrap(), records.id("gid").unwrap()), (Some(99), None));
        let (a, b) = (b"user.a".to_vec(), b"user.b".to_vec());
        assert_eq!(xattrs(records), [(a, b"3".to_vec()), (b, b"2".to_vec())]);
        assert_eq!(Records::default().with(&global).id("uid").unwrap(), Some(77));
        global.read(b"26 GNU.sparse.offset=4096\n").unwrap();
        assert_eq!([global.take_malformed(), global.take_malformed()], [1, 0]);
    }

    #[test]
    fn the_size_of_records_is_limited() {
        let (mut global, mut records) = (GlobalRecords::default(), Records::default());
        let add = |number: usize| format!("1013 {number:06}={}\n", "x".repeat(1000)).into_bytes();
        // Repeated names do not need more memory.
        for _ in 0..2000 {
            global.read(&add(0)).unwrap();
            records.read(&add(0)).unwrap();
        }
        let count = (1..).take_while(|&number| global.read(&add(number)).is_ok()).count();
        assert_eq!(count + 1, GLOBAL_BYTES_MAX / (1006 + NAME_BYTES));
        let count = (1..).take_while(|&number| records.read(&add(number)).is_ok()).count();
        assert_eq!(count + 1, OWN_BYTES_MAX / (1006 + NAME_BYTES));
        // Short names need more memory than they are long.
        let mut global = GlobalRecords::default();
        let add = |number: usize| format!("25 SCHILY.xattr.{number:07}=\n");
        let count = (1..).take_while(|&number| global.read(add(number).as_bytes()).is_ok()).count();
        assert_eq!(count, GLOBAL_BYTES_MAX / (7 + NAME_BYTES));
    }

    #[test]
    fn global_attributes_change_a_limited_number_of_times() {
        let mut global = GlobalRecords::default();
        let header = |number: usize| format!("28 SCHILY.xattr.user.a={number:04}\n");
        for number in 0..GLOBAL_CHANGES_MAX {
            let before = Arc::clone(&global.xattrs);
            global.read(header(number).as_bytes()).unwrap();
            assert!(!Arc::ptr_eq(&before, &global.xattrs));
            // The same value again, and other records, leave them shared.
            let changed = Arc::clone(&global.xattrs);
            global.read(header(number).as_bytes()).unwrap();
            global.read(format!("13 uid={:05}\n", number % 2).as_bytes()).unwrap();
            assert!(Arc::ptr_eq(&changed, &global.xattrs));
        }
        global.read(header(GLOBAL_CHANGES_MAX).as_bytes()).unwrap_err();
    }

    #[test]
    fn malformed_records_are_skipped_and_counted() {
        let bad = ["x", "5", "5 a=b", "7 a=b\n", "3 a=b\n", "99 a=b\n", "-6 a=b\n", "+7 a=b\n"];
        for bad in bad.into_iter().chain([" 7 a=b\n", "99999999999999999999 a=b\n"]) {
            // What follows has no known start.
            let mut records = Records::default();
            records.read(format!("8 uid=5\n{bad}8 gid=5\n").as_bytes()).unwrap();
            assert_eq!(records.malformed(), 1, "{bad:?}");
            assert_eq!(records.id("uid").unwrap(), Some(5), "{bad:?}");
            assert_eq!(records.get("gid"), None, "{bad:?}");
        }
        let mut records = Records::default();
        records.read(b"5 ab\n8 gid=5\n3 \n").unwrap();
        assert_eq!((records.malformed(), records.id("gid").unwrap()), (2, Some(5)));
        for end in ["", "\0\0\0", "\08 gid=7\n"] {
            let mut records = Records::default();
            records.read(format!("8 gid=5\n{end}").as_bytes()).unwrap();
            assert_eq!((records.malformed(), records.id("gid").unwrap()), (0, Some(5)));
        }
        // An error leaves the size.
        let mut records = Records::default();
        records.read(b"24 GNU.sparse.offset=-1\n8 uid=5\n9 size=7\n").unwrap_err();
        assert_eq!((records.size().unwrap(), records.get("uid")), (Some(7), None));
    }

    #[test]
    fn numbers_have_only_digits() {
        for bad in ["-7", "+7", " 7", "7 "] {
            let mut records = Records::default();
            records.read(format!("{} uid={bad}\n", 7 + bad.len()).as_bytes()).unwrap();
            records.id("uid").unwrap_err();
        }
    }

    #[test]
    fn times_have_fractions_and_can_precede_1970() {
        let time = |text: &str| parse_time(text.as_bytes()).map(|at| (at.seconds, at.nanoseconds));
        assert_eq!(time("12"), Some((12, 0)));
        assert_eq!(time("12.5"), Some((12, 500_000_000)));
        assert_eq!(time("12.1234567899"), Some((12, 123_456_789)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("-0.5"), Some((-1, 500_000_000)));
        assert_eq!(time("-3"), Some((-3, 0)));
        for bad in ["", "1.-5", "1.+5", "+12", "+", "-", "-+1", " 1"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
}
