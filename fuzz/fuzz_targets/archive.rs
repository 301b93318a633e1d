//! Archives, read member by member as `bifolio tar` does that imports them.
#![no_main]

// The parser belongs to the command, which is no library.
#[allow(dead_code, reason = "not all that a member says is looked at here")]
#[path = "../../crates/bifolio/src/archive/mod.rs"]
mod archive;

use std::io::Read;

use archive::ArchiveReader;
use libfuzzer_sys::fuzz_target;

const RECORD_BYTES: usize = 512;
const MAGIC: std::ops::Range<usize> = 257..262;
const CHECKSUM: std::ops::Range<usize> = 148..156;
/// The most that is kept of one member's names and attributes, in bytes.
const KEPT_BYTES_MAX: usize = (1 << 20) + (64 << 10);
/// Of data, in bytes: sparse files say that they have more than there is.
const READ_BYTES_MAX: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    set_checksums(&mut bytes);
    let mut reader = ArchiveReader::new(&bytes[..]);
    while let Ok(Some(member)) = reader.next_member() {
        assert!(member.path.len() <= KEPT_BYTES_MAX && member.target.len() <= KEPT_BYTES_MAX);
        assert!(member.permissions <= 0o7777);
        let times = [Some(member.modified), member.accessed];
        assert!(times.into_iter().flatten().all(|time| time.nanoseconds < 1_000_000_000));
        let xattrs = member.xattrs();
        let kept: usize = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(kept <= KEPT_BYTES_MAX);
        let mut end = 0;
        for segment in member.segments.iter().flatten() {
            assert!(segment.offset >= end && segment.length <= member.size - segment.offset);
            end = segment.offset + segment.length;
        }
        // The next member begins behind the data, whether all of it was read or not.
        let _ = std::io::copy(&mut (&mut reader).take(READ_BYTES_MAX), &mut std::io::sink());
    }
});

/// Makes right the checksum of each record that looks like a header: else hardly one would be.
fn set_checksums(bytes: &mut [u8]) {
    for record in bytes.chunks_exact_mut(RECORD_BYTES) {
        if &record[MAGIC] == b"ustar" {
            record[CHECKSUM].fill(b' ');
            let sum: u32 = record.iter().map(|&byte| u32::from(byte)).sum();
            record[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
