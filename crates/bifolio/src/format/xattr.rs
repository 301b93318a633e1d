//! Values of extended attributes, as `getfattr` shows them.

use std::fmt::Write;

/// `value` in quotes when it reads as text, and in hexadecimal otherwise.
pub fn value_text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if is_readable(text) => {
            let escaped = super::text::escape(value);
            format!("\"{}\"", escaped.replace('"', "\\\""))
        }
        _ => format!("0x{}", hex(value)),
    }
}

/// Text may end in one NUL (security labels do) and hold line breaks, but nothing else that is
/// not for the eye.
fn is_readable(text: &str) -> bool {
    let text = text.strip_suffix('\0').unwrap_or(text);
    text.chars().all(|char| !char.is_control() || matches!(char, '\n' | '\t' | '\r'))
}

/// Two hexadecimal digits for each byte.
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
    fn text_is_quoted_and_the_rest_is_hexadecimal() {
        assert_eq!(value_text(b"plain"), "\"plain\"");
        assert_eq!(value_text(b""), "\"\"");
        assert_eq!(value_text(b"say \"hi\"\n"), "\"say \\\"hi\\\"\\n\"");
        assert_eq!(value_text(b"label\0"), "\"label\\000\"");
        assert_eq!(value_text(b"a\0b"), "0x610062");
        assert_eq!(value_text(&[0xff, 0x01]), "0xff01");
    }
}
