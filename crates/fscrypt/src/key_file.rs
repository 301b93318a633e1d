//! Files of master keys.

use std::fs::File;
use std::io::{Error as HostError, Read};
use std::path::Path;

use base::{Error, Result};
use data_encoding::HEXLOWER_PERMISSIVE;
use zeroize::Zeroizing;

/// The maximum length of a key file, in bytes.
const FILE_BYTES_MAX: usize = 64 << 10;

/// A descriptor, if the line has one, and a raw key.
type Line = (Option<[u8; 8]>, Zeroizing<Vec<u8>>);

const BAD_LINE: Error = Error::InvalidArgument("a line in a key file is not a key in hexadecimal");

/// Returns the contents of the file at `path`. Errors: `Open`; `InvalidArgument` if it is longer
/// than keys can be.
pub fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    // The buffer does not grow, since that would leave copies of the keys.
    let mut contents = Zeroizing::new(vec![0; FILE_BYTES_MAX + 1]);
    let length = File::open(path).and_then(|mut file| read_up_to(&mut file, &mut contents));
    let length = length.map_err(|error| Error::Open {
        path: path.to_owned(),
        errno: error.raw_os_error().unwrap_or_default(),
    })?;
    if length > FILE_BYTES_MAX {
        return Err(Error::InvalidArgument("a key file has at most 64 KiB"));
    }
    contents.truncate(length);
    Ok(contents)
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> Result<usize, HostError> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            count => length += count,
        }
    }
    Ok(length)
}

/// Returns the keys in the lines of `contents`; `None` if it is not text, and so is a raw key.
pub fn parse_lines(contents: &[u8]) -> Option<impl Iterator<Item = Result<Line>>> {
    let is_text = |byte: &u8| byte.is_ascii_hexdigit() || byte.is_ascii_whitespace();
    let lines = || contents.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let keys = move || lines().filter(|line| !line.is_empty() && line[0] != b'#');
    let looks_like_lines =
        keys().all(|line| line.iter().all(|byte| is_text(byte) || *byte == b':'));
    looks_like_lines.then(|| keys().map(parse_line))
}

fn parse_line(line: &[u8]) -> Result<Line> {
    let decode = |digits: &[u8]| {
        let decoded = HEXLOWER_PERMISSIVE.decode(digits.trim_ascii());
        decoded.map(Zeroizing::new).map_err(|_| BAD_LINE)
    };
    let Some(colon) = line.iter().position(|&byte| byte == b':') else {
        return Ok((None, decode(line)?));
    };
    let (descriptor, key) = line.split_at(colon);
    let descriptor = decode(descriptor)?[..].try_into().map_err(|_| BAD_LINE)?;
    Ok((Some(descriptor), decode(&key[1..])?))
}
