//! Reads tar archives as a stream: ustar, GNU and pax, with sparse files and extended attributes.
//! Not here: what becomes of the members (`import::unpack`), numbers and names in headers (`tar`).

mod pax;
mod sparse;

use std::io::{self, Read};

use base::attributes::{DeviceNumber, FileType, Timestamp};
use tar::{EntryType, Header};

use pax::{GlobalRecords, Records};
pub use sparse::Segment;

const RECORD_BYTES: usize = 512;
/// The most that is kept of a long name or of extended attributes, in bytes.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;

/// What a member is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file of its own, or a directory, link, device or pipe.
    Inode(FileType),
    /// One more name of the member with this path.
    HardLink(Vec<u8>),
    /// Something else, by the letter that stands for it.
    Unknown(u8),
}

/// One member of an archive.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its path, as the archive has it.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Where a symbolic link leads.
    pub target: Vec<u8>,
    /// Bytes in the file, with its holes.
    pub size: u64,
    /// Where data lies in a sparse file, in order; `None` when all of it is data.
    pub segments: Option<Vec<Segment>>,
    /// The low 12 bits of its mode.
    pub permissions: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it was last changed.
    pub modified: Timestamp,
    /// When it was last read, where the archive says so.
    pub accessed: Option<Timestamp>,
    /// The number of a device.
    pub device: DeviceNumber,
    /// What its extended headers say, shared with other members where it holds for all.
    records: Records,
    /// It has an access control list in words, which is not understood.
    pub has_worded_acl: bool,
}

impl Member {
    /// Names and values of its extended attributes.
    pub fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.records.xattrs()
    }
}

/// Reads members one by one. As a [`Read`] it gives the data of the last one, without holes.
pub struct ArchiveReader<R> {
    input: R,
    /// Bytes of the member's data that were not read yet, and of what fills its last record.
    data: u64,
    padding: u64,
    /// What holds for all members that follow.
    global: GlobalRecords,
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A field of a header, whose own error would show the header's bytes.
fn field<T>(name: &str, read: io::Result<T>) -> io::Result<T> {
    read.map_err(|_| invalid(format!("a header has an invalid {name}")))
}

impl<R: Read> ArchiveReader<R> {
    /// Reads an archive from its start.
    pub fn new(input: R) -> Self {
        Self { input, data: 0, padding: 0, global: GlobalRecords::default() }
    }

    /// The next member; `None` at the end. What was not read of the one before is skipped.
    pub fn next_member(&mut self) -> io::Result<Option<Member>> {
        let mut records = Records::default();
        let (mut long_path, mut long_target) = (None, None);
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            self.begin(field("size", header.entry_size())?);
            match header.entry_type() {
                EntryType::XHeader => records.read(&self.extension()?)?,
                EntryType::XGlobalHeader => {
                    let extension = self.extension()?;
                    self.global.read(&extension)?;
                }
                EntryType::GNULongName => long_path = Some(self.long_name()?),
                EntryType::GNULongLink => long_target = Some(self.long_name()?),
                _ => {
                    let records = records.with(&self.global);
                    if let Some(size) = records.size()? {
                        self.begin(size);
                    }
                    return self.member(&header, records, long_path, long_target).map(Some);
                }
            }
        }
    }

    fn begin(&mut self, size: u64) {
        self.data = size;
        self.padding = size.wrapping_neg() % RECORD_BYTES as u64;
    }

    fn member(
        &mut self,
        header: &Header,
        records: Records,
        long_path: Option<Vec<u8>>,
        long_target: Option<Vec<u8>>,
    ) -> io::Result<Member> {
        let path = records.path().map(<[u8]>::to_vec).or(long_path);
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let target = records.target().map(<[u8]>::to_vec).or(long_target);
        let target = target
            .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned))
            .unwrap_or_default();
        let kind = kind(header, &path, &target);
        if kind != Kind::Inode(FileType::Regular) {
            // Some archivers give the size of what has no data in the archive.
            let has_data = matches!(kind, Kind::Unknown(_));
            self.begin(if has_data { self.data } else { 0 });
        }
        let mut size = self.data;
        let segments = match sparse::map(self, header, &records)? {
            Some(sparse) => {
                size = sparse.size;
                Some(sparse.segments)
            }
            None => None,
        };
        let id = |name, recorded: Option<u64>, in_header: io::Result<u64>| {
            let id = recorded.map_or_else(|| field(name, in_header), Ok)?;
            u32::try_from(id).map_err(|_| invalid(format!("{name} {id} has more than 32 bits")))
        };
        let device = match kind {
            Kind::Inode(FileType::CharacterDevice | FileType::BlockDevice) => DeviceNumber {
                major: field("device", header.device_major())?.unwrap_or_default(),
                minor: field("device", header.device_minor())?.unwrap_or_default(),
            },
            _ => DeviceNumber::default(),
        };
        let modified = match records.modified()? {
            Some(modified) => modified,
            // Base-256 numbers may be negative: before 1970.
            None => Timestamp { seconds: field("time", header.mtime())? as i64, nanoseconds: 0 },
        };
        Ok(Member {
            path,
            kind,
            target,
            size,
            segments,
            permissions: (field("mode", header.mode())? & 0o7777) as u16,
            uid: id("user", records.uid()?, header.uid())?,
            gid: id("group", records.gid()?, header.gid())?,
            modified,
            accessed: records.accessed()?,
            device,
            has_worded_acl: records.has_worded_acl(),
            records,
        })
    }

    /// The next header; `None` at the end of the archive.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let mut filled = 0;
        while filled < RECORD_BYTES {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let sum = |as_number: fn(u8) -> i64| -> i64 {
            let bytes = header.as_bytes().iter().enumerate();
            // The checksum itself counts as spaces.
            bytes
                .map(|(at, &byte)| as_number(if (148..156).contains(&at) { b' ' } else { byte }))
                .sum()
        };
        // Some old archivers added signed bytes.
        let sums = [sum(i64::from), sum(|byte| i64::from(byte as i8))];
        if !header.cksum().is_ok_and(|expected| sums.contains(&expected.into())) {
            return Err(invalid(
                "a header has a wrong checksum: the file is damaged, or not a tar archive",
            ));
        }
        Ok(Some(header))
    }

    fn extension(&mut self) -> io::Result<Vec<u8>> {
        if self.data > EXTENSION_BYTES_MAX {
            return Err(invalid(format!("an extended header is too large: {} bytes", self.data)));
        }
        let mut extension = Vec::new();
        self.read_to_end(&mut extension)?;
        Ok(extension)
    }

    fn long_name(&mut self) -> io::Result<Vec<u8>> {
        let mut name = self.extension()?;
        name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
        Ok(name)
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let rest = self.data.checked_add(self.padding);
        let rest =
            rest.ok_or_else(|| invalid(format!("a member is too large: {} bytes", self.data)))?;
        if io::copy(&mut (&mut self.input).take(rest), &mut io::sink())? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (self.data, self.padding) = (0, 0);
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

fn kind(header: &Header, path: &[u8], target: &[u8]) -> Kind {
    match header.entry_type() {
        // Before POSIX a directory was a file whose name ends in a slash.
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
        other => Kind::Unknown(other.as_byte()),
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
    fn a_size_that_no_file_has_ends_the_archive() {
        let mut archive = Vec::new();
        let record = b"29 size=18446744073709551615\n";
        archive.extend(header(b'x', record.len() as u64).as_bytes());
        archive.extend(record);
        archive.resize(2 * RECORD_BYTES, 0);
        archive.extend(header(b'Z', 0).as_bytes());
        let mut reader = ArchiveReader::new(&archive[..]);
        let member = reader.next_member().unwrap().unwrap();
        assert_eq!(member.kind, Kind::Unknown(b'Z'));
        assert_eq!(reader.next_member().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
