//! Archives, read member by member, as by `bifolio tar` when it imports them.
#![no_main]

// The parser is part of the command, which is not a library.
#[allow(dead_code, unused_imports, reason = "this target does not use all of the parser")]
#[path = "../../crates/bifolio/src/archive/mod.rs"]
mod archive;
/// What the parser uses of the rest of the command.
#[allow(dead_code, reason = "this target does not print")]
#[path = "../../crates/bifolio/src/format"]
mod format {
    pub mod acl;
}

use std::io::Read;

use archive::ArchiveReader;
use libfuzzer_sys::fuzz_target;

const RECORD_BYTES: usize = 512;
const MAGIC: std::ops::Range<usize> = 257..262;
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// The maximum size of the names or the attributes of one member in memory, in bytes.
const KEPT_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// The maximum number of bytes of data read from one member. The archive may be much smaller than
/// its sparse files.
const READ_BYTES_MAX: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    set_checksums(&mut bytes);
    let mut reader = ArchiveReader::new(&bytes[..]);
    while let Ok(Some(member)) = reader.next_member() {
        let Ok(member) = member else { continue };
        assert!(member.path.len() <= KEPT_BYTES_MAX && member.target.len() <= KEPT_BYTES_MAX);
        assert!(member.permissions <= 0o7777);
        let times = [Some(member.modified), member.accessed];
        assert!(times.into_iter().flatten().all(|time| time.nanoseconds < 1_000_000_000));
        let xattrs = member.xattrs.iter();
        let kept: usize = xattrs.map(|(name, value)| name.len() + value.len()).sum();
        assert!(kept <= KEPT_BYTES_MAX);
        let mut end = 0;
        for segment in member.segments.iter().flatten() {
            assert!(segment.offset >= end && segment.length <= member.size - segment.offset);
            end = segment.offset + segment.length;
        }
        // The next member begins after the data, even if not all of it was read.
        let _ = std::io::copy(&mut (&mut reader).take(READ_BYTES_MAX), &mut std::io::sink());
    }
});

/// Corrects the checksum of each record that looks like a header. Otherwise almost all headers
/// would be invalid.
fn set_checksums(bytes: &mut [u8]) {
    for record in bytes.chunks_exact_mut(RECORD_BYTES) {
        if &record[MAGIC] == b"ustar" {
            record[CHECKSUM].fill(b' ');
            let sum: u32 = record.iter().map(|&byte| u32::from(byte)).sum();
            record[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
