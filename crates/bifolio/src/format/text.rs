//! Escaping of bytes from an image.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes bytes that could confuse a terminal or a reader, in the syntax of C: control characters, marks that change
/// the direction of text, bytes that are not UTF-8, and the backslash.
pub fn escape(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if !text.chars().any(needs_escape) {
            return Cow::Borrowed(text);
        }
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            if needs_escape(char) {
                push_escaped(&mut out, char);
            } else {
                out.push(char);
            }
        }
        for &byte in chunk.invalid() {
            push_octal(&mut out, byte);
        }
    }
    Cow::Owned(out)
}

pub fn needs_escape(char: char) -> bool {
    char.is_control() || char == '\\' || is_direction_mark(char)
}

/// Returns whether a character changes the order of the text around it, so that a name could look like another name.
fn is_direction_mark(char: char) -> bool {
    matches!(char, '\u{061c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn push_escaped(out: &mut String, char: char) {
    match char {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        _ => {
            let mut buffer = [0; 4];
            for &byte in char.encode_utf8(&mut buffer).as_bytes() {
                push_octal(out, byte);
            }
        }
    }
}

fn push_octal(out: &mut String, byte: u8) {
    let _ = write!(out, "\\{byte:03o}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_not() {
        let cases: [(&[u8], &str); 7] = [
            (b"plain name", "plain name"),
            ("größe".as_bytes(), "größe"),
            (b"a\x1b[31mb", "a\\033[31mb"),
            (b"line\nbreak\ttab\rback", "line\\nbreak\\ttab\\rback"),
            (b"back\\slash", "back\\\\slash"),
            (b"latin\xe9", "latin\\351"),
            ("csi\u{9b}rlo\u{202e}".as_bytes(), "csi\\302\\233rlo\\342\\200\\256"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(escape(bytes), expected);
        }
    }
}
