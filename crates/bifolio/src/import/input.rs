//! The input of an archive: compressions that are refused, and signals. Not here: its format
//! (`archive`).

use std::io::{self, Read};

use crate::images::writing::Writing;

/// Reader of an archive that fails once a signal has requested the end: a header, or data that is
/// skipped, can be of any size.
pub struct Interruptible<'a, R> {
    pub input: R,
    pub writing: &'a Writing,
}

impl<R: Read> Read for Interruptible<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The unpacker finds the signal, too, and reports that instead.
        self.writing.check_interrupted().map_err(|_| io::Error::other("interrupted"))?;
        self.input.read(buffer)
    }
}

/// Returns a reader of the whole input. If its first bytes show a compression, returns the name of
/// the compression instead. Errors: the input is empty, such as that of a program which has failed.
pub fn check_uncompressed(mut input: impl Read) -> io::Result<Result<impl Read, &'static str>> {
    let mut start = Vec::new();
    input.by_ref().take(6).read_to_end(&mut start)?;
    if start.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it is empty, and no tar archive",
        ));
    }
    let compressions: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    let found = compressions.iter().find(|(magic, _)| start.starts_with(magic));
    Ok(match found {
        Some((_, compression)) => Err(compression),
        None => Ok(io::Cursor::new(start).chain(input)),
    })
}
