//! Human-readable sizes.

/// Unit letters of 1024, 1024², …
const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Formats a number of bytes as in `du -h`: rounded up, in units that are powers of 1024.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut unit = 1u128 << 10;
    let mut letters = UNITS.iter();
    let mut letter = letters.next();
    let bytes = u128::from(bytes);
    // Rounding up can reach the next unit: 1023.5 KiB is 1.0M.
    while bytes.div_ceil(unit) >= 1024 {
        match letters.next() {
            Some(next) => (letter, unit) = (Some(next), unit << 10),
            None => break,
        }
    }
    let letter = letter.copied().unwrap_or_default();
    let tenths = (bytes * 10).div_ceil(unit);
    if tenths < 100 {
        format!("{}.{}{letter}", tenths / 10, tenths % 10)
    } else {
        format!("{}{letter}", bytes.div_ceil(unit))
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_round_up_as_in_coreutils() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024 - 1, "10K"),
            (10 * 1024, "10K"),
            (10 * 1024 + 1, "11K"),
            (1023 * 1024 + 1, "1.0M"),
            (1 << 20, "1.0M"),
            (1536 << 20, "1.5G"),
            (u64::MAX, "16E"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(human(bytes), expected, "{bytes}");
        }
    }
}
