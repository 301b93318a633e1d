//! Numbers in options of several commands: sizes, positions, blocks and partitions. Not here:
//! numbers of inodes (`images/target.rs`).

use std::num::NonZeroUsize;

use base::BlockSize;

/// Maximum of numbers of threads.
const THREADS_MAX: u16 = 1024;

/// Parses a number that is decimal, or with the prefix 0x hexadecimal.
pub fn parse_number(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.get(..2) {
        Some("0x" | "0X") => (&text[2..], 16),
        _ => (text, 10),
    };
    // Without a sign, which the standard library accepts.
    let number =
        Some(digits).filter(|digits| digits.as_bytes().iter().all(u8::is_ascii_alphanumeric));
    let number = number.and_then(|digits| u64::from_str_radix(digits, radix).ok());
    number.ok_or_else(|| "expected a number, such as 32768 or 0x8000".to_owned())
}

/// Parses the number of a partition, of which the first one is 1.
pub fn parse_partition(text: &str) -> Result<u32, String> {
    let number = parse_number(text).ok().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|&number| number > 0);
    number.ok_or_else(|| "expected the number of a partition, such as 1 or 0x1".to_owned())
}

/// Parses a number of bytes, decimal or hexadecimal, with an optional suffix: K, M, G or T for a
/// power of 1024, also as KiB, KB for a power of 1000, s for sectors of 512 bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let error =
        || "expected a number of bytes, such as 4096, 0x1000, 64K, 512M, 2G or 2048s".to_owned();
    let (text, is_decimal) = match text.as_bytes() {
        [.., b'K' | b'M' | b'G' | b'T', b'i', b'B'] => (&text[..text.len() - 2], false),
        [.., b'K' | b'M' | b'G' | b'T', b'B'] => (&text[..text.len() - 1], true),
        _ => (text, false),
    };
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        Some(b'S') => (&text[..text.len() - 1], 9),
        _ => (text, 0),
    };
    let number = parse_number(digits).map_err(|_| error())?;
    let unit = if is_decimal { 1000_u64.pow(shift / 10) } else { 1 << shift };
    number.checked_mul(unit).ok_or_else(|| "the number of bytes is too large".to_owned())
}

/// Parses a number of threads.
pub fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    number
        .and_then(|number| NonZeroUsize::new(number.into()))
        .ok_or_else(|| format!("expected a number from 1 to {THREADS_MAX}"))
}

/// Parses the size of a file system's blocks.
pub fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let bytes = parse_size(text)?;
    let size = BlockSize::from_bytes(bytes).filter(|size| (10..=16).contains(&size.shift()));
    size.ok_or_else(|| "expected 1K, 2K, 4K, 8K, 16K, 32K or 64K".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_partitions_are_decimal_or_hexadecimal() {
        assert_eq!(["1", "0x1", "0X01"].map(parse_partition), [1; 3].map(Ok));
        for bad in ["", "0", "0x0", "-1", "x", "4294967296"] {
            assert!(parse_partition(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_suffixes_and_invalid_sizes_are_refused() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        assert_eq!(parse_size("0x100000"), Ok(1 << 20));
        assert_eq!(parse_size("0X1fK"), Ok(31 << 10));
        assert_eq!(parse_size("2048s"), Ok(1 << 20));
        assert_eq!(parse_size("3KB"), Ok(3000));
        assert_eq!(parse_size("3KiB"), Ok(3072));
        assert_eq!(parse_size("2TB"), Ok(2_000_000_000_000));
        assert_eq!(parse_size("0x1B"), Ok(27));
        for bad in [
            "",
            "K",
            "0x",
            "0xg",
            "0x-1",
            "+1",
            "1f",
            "s",
            "0x1p4",
            "-1",
            "1.5M",
            "99999999999T",
            "x",
            "1B",
            "KB",
            "1KiKB",
            "1sB",
            "é",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
