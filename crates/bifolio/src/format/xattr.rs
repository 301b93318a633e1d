//! Values of extended attributes in the format of `getfattr`.

use std::fmt::Write;

/// Formats a value in quotes if it is text, and in hexadecimal otherwise.
pub fn value_text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if is_printable(text) => {
            let escaped = base::text::escape(value);
            format!("\"{}\"", escaped.replace('"', "\\\""))
        }
        _ => format!("0x{}", hex(value)),
    }
}

/// Returns whether a value is text. Text may end with a NUL byte, as security labels do, and
/// contain tabs and line breaks, but no other control characters.
fn is_printable(text: &str) -> bool {
    let text = text.strip_suffix('\0').unwrap_or(text);
    text.chars().all(|char| !char.is_control() || matches!(char, '\n' | '\t' | '\r'))
}

/// Formats bytes with two hexadecimal digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_and_other_values_are_hexadecimal() {
        assert_eq!(value_text(b"plain"), "\"plain\"");
        assert_eq!(value_text(b""), "\"\"");
        assert_eq!(value_text(b"say \"hi\"\n"), "\"say \\\"hi\\\"\\n\"");
        assert_eq!(value_text(b"label\0"), "\"label\\000\"");
        assert_eq!(value_text(b"a\0b"), "0x610062");
        assert_eq!(value_text(&[0xff, 0x01]), "0xff01");
    }
}
