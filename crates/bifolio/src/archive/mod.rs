//! Streaming reader of tar archives: ustar, GNU and pax, with sparse files and extended attributes.
//! Not here: unpacking (`import::unpack`), numbers and names in headers (crate `tar`).

mod input;
mod names;
mod pax;
mod sparse;
mod text_acl;

use std::io::{self, Read};

use base::attributes::{DeviceNumber, FileType, Timestamp};
use tar::{EntryType, Header};

use input::Input;
pub use names::decode_base64;
pub use pax::Xattrs;
use pax::{GlobalRecords, Records};
pub use sparse::Segment;
pub use text_acl::{Name, TextAcl};

/// The type of a directory in an incremental archive of GNU tar.
const INCREMENTAL_DIRECTORY: u8 = b'D';
const RECORD_BYTES: usize = 512;
/// Maximum size of an extended header or of a long name.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;

/// Kind of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file, directory, symbolic link, device or pipe.
    Inode(FileType),
    /// A hard link to the member with this path.
    HardLink(Vec<u8>),
    /// The label of the archive.
    Label,
    /// The rest of a file whose first part is in an earlier volume of the archive.
    Continued,
    /// An unknown kind, as the byte in the header.
    Unknown(u8),
}

/// A member of an archive.
#[derive(Clone, Debug)]
pub struct Member {
    /// The path in the archive.
    pub path: Vec<u8>,
    /// The kind.
    pub kind: Kind,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// The size of the file, with its holes.
    pub size: u64,
    /// The data segments of a sparse file, in order. `None` if the file is not sparse.
    pub segments: Option<Vec<Segment>>,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The time of the last change.
    pub modified: Timestamp,
    /// The time of the last access, if it is in the archive.
    pub accessed: Option<Timestamp>,
    /// The time of creation, if it is in the archive.
    pub created: Option<Timestamp>,
    /// The number of a device.
    pub device: DeviceNumber,
    /// The extended attributes.
    pub xattrs: Xattrs,
    /// The access control lists in text: that for access, and the default one.
    pub text_acls: [Option<Vec<u8>>; 2],
    /// The names of the extended records of which nothing is unpacked.
    pub lost: Vec<Vec<u8>>,
    /// The names of the extended records with invalid values. The fields of the header are used
    /// instead.
    pub invalid: Vec<Vec<u8>>,
    /// The number of extended records without a name and a value. Those of global headers are
    /// counted for the next member.
    pub malformed: usize,
}

/// A member that cannot be unpacked. The next one can be read.
#[derive(Debug)]
pub struct BadMember {
    /// The path in the archive.
    pub path: Vec<u8>,
    /// What is wrong with its headers.
    pub error: io::Error,
}

/// A part of an archive in which a header was expected, and was not found.
#[derive(Clone, Copy, Debug)]
pub struct Damage {
    /// The offset in the archive at which the header should have been.
    pub start: u64,
    /// The offset of the next header. `None` if there was none.
    pub end: Option<u64>,
}

/// Reader of members. Its [`Read`] implementation returns the data of the current member, without
/// holes.
pub struct ArchiveReader<R> {
    input: Input<R>,
    /// The number of bytes of the current member that were not read.
    data: u64,
    /// The number of bytes from the end of the data to the end of its last record.
    padding: u64,
    /// The records for all following members.
    global: GlobalRecords,
    /// Damaged parts that were skipped since the caller took them.
    damages: Vec<Damage>,
    /// Whether there was a header.
    has_header: bool,
    /// The position at which the input has ended between two members.
    early_end: Option<u64>,
}

/// The headers before that of a member, which belong to it alone.
struct OwnHeaders {
    records: Records,
    /// The long path and the long target of GNU tar.
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    /// The first error in them.
    outcome: io::Result<()>,
}

impl Default for OwnHeaders {
    fn default() -> Self {
        Self { records: Records::default(), path: None, target: None, outcome: Ok(()) }
    }
}

/// Returns whether a header belongs to others.
fn is_extension(kind: EntryType) -> bool {
    use EntryType::{GNULongLink, GNULongName, XGlobalHeader, XHeader};
    // Solaris had its own letter before POSIX.
    matches!(kind, XHeader | XGlobalHeader | GNULongName | GNULongLink) || kind.as_byte() == b'X'
}

fn invalid(text: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Returns a field of a header, which has the bytes `raw`. Replaces the error of the crate `tar`,
/// which contains these bytes. Errors: `read` is an error, or the field begins with a sign, which
/// the crate takes for a part of an octal number. (Old versions of GNU tar mark numbers in base 64
/// with it.)
fn field<T>(name: &str, raw: &[u8], read: io::Result<T>) -> io::Result<T> {
    let first = raw.iter().find(|byte| !byte.is_ascii_whitespace());
    let read = read.ok().filter(|_| first != Some(&b'+'));
    read.ok_or_else(|| invalid(format!("a header has an invalid {name}")))
}

/// Returns a number of a header. Some archivers leave the fields of members blank that have no use
/// for them.
fn number(name: &str, raw: &[u8], read: io::Result<u64>) -> io::Result<u64> {
    let is_blank = raw.iter().all(|byte| matches!(byte, 0 | b' '));
    if is_blank { Ok(0) } else { field(name, raw, read) }
}

/// Returns the number of a device.
fn device(header: &Header, records: &Records) -> io::Result<DeviceNumber> {
    let raw = match (header.as_ustar(), header.as_gnu()) {
        (Some(ustar), _) => [ustar.dev_major, ustar.dev_minor],
        (_, Some(gnu)) => [gnu.dev_major, gnu.dev_minor],
        // Has no such fields.
        _ => [[0; 8]; 2],
    };
    let [major, minor] = &raw;
    Ok(DeviceNumber {
        major: records.device_number("major", || field("device", major, header.device_major()))?,
        minor: records.device_number("minor", || field("device", minor, header.device_minor()))?,
    })
}

/// Returns the outcome of reading the headers of a member. Errors: the archive cannot be read.
fn within_member<T>(read: io::Result<T>) -> io::Result<io::Result<T>> {
    match read {
        Err(error) if error.kind() != io::ErrorKind::InvalidData => Err(error),
        read => Ok(read),
    }
}

impl<R: Read> ArchiveReader<R> {
    /// Creates a reader at the start of an archive.
    pub fn new(input: R) -> Self {
        let (global, damages) = (GlobalRecords::default(), Vec::new());
        let input = Input::new(input);
        Self { input, data: 0, padding: 0, global, damages, has_header: false, early_end: None }
    }

    /// Returns the parts before the current member that were skipped, since a header had a wrong
    /// checksum.
    pub fn take_damages(&mut self) -> Vec<Damage> {
        std::mem::take(&mut self.damages)
    }

    /// Returns the position at which the archive has ended without the zeroes of its end, if it
    /// has. It may have been cut there.
    pub fn early_end(&self) -> Option<u64> {
        self.early_end
    }

    /// Returns the next member, or `None` at the end. Skips unread data of the current member.
    /// Errors: the archive cannot be read.
    pub fn next_member(&mut self) -> io::Result<Option<Result<Member, BadMember>>> {
        let mut own = OwnHeaders::default();
        loop {
            self.skip_data()?;
            let damages = self.damages.len();
            let Some(header) = self.read_header()? else {
                return Ok(None);
            };
            if self.damages.len() > damages {
                // The member that the extended headers belong to is lost.
                own = OwnHeaders::default();
            }
            let size = number("size", &header.as_old().size, header.entry_size());
            let kind = header.entry_type();
            if is_extension(kind) {
                self.begin_data(size?);
                match kind {
                    EntryType::XGlobalHeader => {
                        let extension = self.read_extension()?;
                        self.global.read(&extension)?;
                    }
                    kind => {
                        let read = self.read_own(kind, &mut own);
                        own.outcome = own.outcome.and(within_member(read)?);
                    }
                }
                continue;
            }
            // Without a size, the next header is looked for.
            self.begin_data(*size.as_ref().unwrap_or(&0));
            let outcome = own.outcome.and(size.map(drop));
            let records = own.records.with(&self.global);
            let path = records.path().map(<[u8]>::to_vec).or(own.path);
            let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
            let read = records.size();
            if let Ok(Some(size)) = read {
                self.begin_data(size);
            }
            let found = match outcome.and(read.map(drop)) {
                Ok(()) => within_member(self.member(&header, records, path.clone(), own.target))?,
                Err(error) => Err(error),
            };
            return Ok(Some(found.map_err(|error| BadMember { path, error })));
        }
    }

    /// Reads an extended header or a long name of the next member.
    fn read_own(&mut self, kind: EntryType, own: &mut OwnHeaders) -> io::Result<()> {
        match kind {
            EntryType::GNULongName => own.path = Some(self.read_long_name()?),
            EntryType::GNULongLink => own.target = Some(self.read_long_name()?),
            // The member is not unpacked anyway, and has enough in memory.
            _ if own.outcome.is_err() => {}
            _ => own.records.read(&self.read_extension()?)?,
        }
        Ok(())
    }

    /// Returns whether a hard link is followed by the data that its size says. In pax archives, it
    /// is the data of the file. Some old archivers set the size and write no data, but the next
    /// header.
    fn has_body(&mut self, records: &Records) -> io::Result<bool> {
        if self.data == 0 || records.has_own() {
            return Ok(self.data > 0);
        }
        let next = self.input.peek()?;
        Ok(next.is_some_and(|next| !is_end(next) && parse_header(next).is_none()))
    }

    fn begin_data(&mut self, size: u64) {
        self.data = size;
        self.padding = size.wrapping_neg() % RECORD_BYTES as u64;
    }

    fn member(
        &mut self,
        header: &Header,
        records: Records,
        path: Vec<u8>,
        long_target: Option<Vec<u8>>,
    ) -> io::Result<Member> {
        let target = records.target().map(<[u8]>::to_vec).or(long_target);
        let target = target
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned))
            .unwrap_or_default();
        let kind = kind(header, &path, &target);
        if kind != Kind::Inode(FileType::Regular) {
            // Some archivers set the size of members without data in the archive. Directories of
            // incremental archives list their names as data.
            let has_data = match kind {
                Kind::HardLink(_) => self.has_body(&records)?,
                Kind::Label | Kind::Continued | Kind::Unknown(_) => true,
                _ => header.entry_type().as_byte() == INCREMENTAL_DIRECTORY,
            };
            self.begin_data(if has_data { self.data } else { 0 });
        }
        let mut size = self.data;
        let segments = match sparse::read_map(self, header, &records)? {
            Some(sparse) => {
                size = sparse.size;
                Some(sparse.segments)
            }
            None => None,
        };
        let old = header.as_old();
        let mut bad_records = Vec::new();
        let mut id = |name, record: &str, raw: &[u8], in_header: io::Result<u64>| {
            let recorded = valid(&mut bad_records, record, records.id(record));
            let in_header = || {
                let id = number(name, raw, in_header)?;
                u32::try_from(id).map_err(|_| invalid(format!("{name} {id} has more than 32 bits")))
            };
            recorded.map_or_else(in_header, Ok)
        };
        let uid = id("user", "uid", &old.uid, header.uid())?;
        let gid = id("group", "gid", &old.gid, header.gid())?;
        let device = match kind {
            Kind::Inode(FileType::CharacterDevice | FileType::BlockDevice) => {
                device(header, &records)?
            }
            _ => DeviceNumber::default(),
        };
        let mut time = |name| valid(&mut bad_records, name, records.time(name));
        let (accessed, created) = (time("atime"), time("LIBARCHIVE.creationtime"));
        let modified = match time("mtime") {
            Some(modified) => modified,
            // Base-256 numbers may be negative for times before 1970.
            None => Timestamp {
                seconds: number("time", &old.mtime, header.mtime())? as i64,
                nanoseconds: 0,
            },
        };
        Ok(Member {
            path,
            kind,
            target,
            size,
            segments,
            permissions: (number("mode", &old.mode, header.mode().map(u64::from))? & 0o7777) as u16,
            uid,
            gid,
            modified,
            accessed,
            created,
            device,
            text_acls: records.text_acls(),
            lost: records.lost(),
            invalid: bad_records,
            malformed: records.malformed() + self.global.take_malformed(),
            xattrs: records.into_xattrs(),
        })
    }

    /// Reads the next header. Returns `None` at the end of the archive. Skips what has no valid
    /// checksum, as GNU tar does. Errors: the archive begins with that, and has no header.
    fn read_header(&mut self) -> io::Result<Option<Header>> {
        let mut start = None;
        let mut record = [0; RECORD_BYTES];
        loop {
            let at = self.input.position();
            let is_end = match self.input.read_record(&mut record)? {
                0 => {
                    self.early_end = Some(at).filter(|_| start.is_none());
                    true
                }
                RECORD_BYTES => start.is_none() && is_end(&record),
                _ if start.is_none() && self.has_header => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                _ if start.is_none() => {
                    return Err(invalid(
                        "the file is shorter than a header: it is not a tar archive",
                    ));
                }
                _ => true,
            };
            let header = parse_header(&record).filter(|_| !is_end);
            self.has_header |= header.is_some();
            if header.is_none() && !is_end {
                start.get_or_insert(at);
                continue;
            }
            if let Some(start) = start {
                if !self.has_header {
                    let text =
                        "a header has a wrong checksum: the file is damaged, or not a tar archive";
                    return Err(invalid(text));
                }
                self.damages.push(Damage { start, end: header.as_ref().map(|_| at) });
            }
            return Ok(header);
        }
    }

    fn read_extension(&mut self) -> io::Result<Vec<u8>> {
        if self.data > EXTENSION_BYTES_MAX {
            return Err(invalid(format!("an extended header is too large: {} bytes", self.data)));
        }
        let mut extension = Vec::new();
        self.read_to_end(&mut extension)?;
        Ok(extension)
    }

    fn read_long_name(&mut self) -> io::Result<Vec<u8>> {
        let mut name = self.read_extension()?;
        name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
        Ok(name)
    }

    fn skip_data(&mut self) -> io::Result<()> {
        let rest = self.data.checked_add(self.padding);
        let rest =
            rest.ok_or_else(|| invalid(format!("a member is too large: {} bytes", self.data)))?;
        if io::copy(&mut (&mut self.input).take(rest), &mut io::sink())? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.data = 0;
        self.padding = 0;
        Ok(())
    }
}

impl<R: Read> Read for ArchiveReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.data).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        match self.input.read(&mut buffer[..wanted])? {
            // The archive ends within a member.
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.data -= count as u64;
                Ok(count)
            }
        }
    }
}

/// Returns whether a record is one of those at the end of an archive.
fn is_end(record: &[u8; RECORD_BYTES]) -> bool {
    record.iter().all(|&byte| byte == 0)
}

/// Returns the header in a record. `None` if its checksum is wrong.
fn parse_header(record: &[u8; RECORD_BYTES]) -> Option<Header> {
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(record);
    let sum = |as_number: fn(u8) -> i64| -> i64 {
        let bytes = record.iter().enumerate();
        // The checksum field counts as spaces.
        bytes.map(|(at, &byte)| as_number(if (148..156).contains(&at) { b' ' } else { byte })).sum()
    };
    // Some old archivers sum signed bytes.
    let sums = [sum(i64::from), sum(|byte| i64::from(byte as i8))];
    let expected = field("checksum", &header.as_old().cksum, header.cksum());
    expected.is_ok_and(|expected| sums.contains(&expected.into())).then_some(header)
}

/// Returns the value of the record `name`. Adds the name to `bad_records` if the value is invalid.
fn valid<T>(bad_records: &mut Vec<Vec<u8>>, name: &str, value: io::Result<Option<T>>) -> Option<T> {
    value.unwrap_or_else(|_| {
        bad_records.push(name.into());
        None
    })
}

fn kind(header: &Header, path: &[u8], target: &[u8]) -> Kind {
    match header.entry_type() {
        // Before POSIX, a directory was a file with a name that ends in a slash.
        EntryType::Regular if path.ends_with(b"/") => Kind::Inode(FileType::Directory),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            Kind::Inode(FileType::Regular)
        }
        EntryType::Directory => Kind::Inode(FileType::Directory),
        EntryType::Symlink => Kind::Inode(FileType::Symlink),
        EntryType::Char => Kind::Inode(FileType::CharacterDevice),
        EntryType::Block => Kind::Inode(FileType::BlockDevice),
        EntryType::Fifo => Kind::Inode(FileType::Fifo),
        EntryType::Link => Kind::HardLink(target.to_vec()),
        other => match other.as_byte() {
            INCREMENTAL_DIRECTORY => Kind::Inode(FileType::Directory),
            b'V' => Kind::Label,
            b'M' => Kind::Continued,
            byte => Kind::Unknown(byte),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::new(kind));
        header.set_size(size);
        header.set_mode(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        header
    }

    #[test]
    fn numbers_of_headers_have_no_sign() {
        let read = |at: usize, digits: &[u8]| {
            let mut header = header(b'3', 0);
            header.set_device_major(0).unwrap();
            header.set_device_minor(0).unwrap();
            header.as_mut_bytes()[at..][..digits.len()].copy_from_slice(digits);
            header.set_cksum();
            let bytes = header.as_bytes().to_vec();
            ArchiveReader::new(&bytes[..]).next_member().unwrap().unwrap().map(drop)
        };
        // The mode, owner, group, size, time and device, as POSIX places them.
        for at in [100, 108, 116, 124, 136, 329, 337] {
            read(at, b" 000012\0").unwrap();
            for sign in [&b"+000012\0"[..], b" +00012\0", b"-000012\0"] {
                read(at, sign).unwrap_err();
            }
        }
        let mut header = header(b'0', 0);
        header.as_mut_bytes()[148] = b'+';
        let bytes = header.as_bytes().to_vec();
        ArchiveReader::new(&bytes[..]).next_member().unwrap_err();
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let mut archive = Vec::new();
        let record = b"29 size=18446744073709551615\n";
        archive.extend(header(b'x', record.len() as u64).as_bytes());
        archive.extend(record);
        archive.resize(2 * RECORD_BYTES, 0);
        archive.extend(header(b'Z', 0).as_bytes());
        let mut reader = ArchiveReader::new(&archive[..]);
        let member = reader.next_member().unwrap().unwrap().unwrap();
        assert_eq!(member.kind, Kind::Unknown(b'Z'));
        assert_eq!(reader.next_member().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
