//! Text that comes from images, archives and other processes: escapes, and numbers that have digits
//! only. Not here: formats of values for people.

use std::borrow::Cow;
use std::fmt::Write;
use std::str::FromStr;

/// Escapes bytes that could confuse a terminal or a reader, in the syntax of C: control characters,
/// marks that change the direction of text, bytes that are not UTF-8, and the backslash. For names,
/// which come from an image or the host.
pub fn escape(bytes: &[u8]) -> Cow<'_, str> {
    escape_where(bytes, needs_escape)
}

/// Escapes the same as [`escape`] but backslashes and ends of lines. For messages, in which names
/// are escaped already.
pub fn printable(message: &[u8]) -> Cow<'_, str> {
    escape_where(message, |char| needs_escape(char) && !matches!(char, '\\' | '\n'))
}

fn escape_where(bytes: &[u8], needs_escape: impl Fn(char) -> bool) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        if !text.chars().any(&needs_escape) {
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

/// Returns whether [`escape`] escapes a character.
pub fn needs_escape(char: char) -> bool {
    char.is_control() || char == '\\' || is_direction_mark(char)
}

/// Returns whether a character changes the order of the text around it, so that a name could look
/// like another name.
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

/// Replaces a backslash and three octal digits by the byte that they stand for, as in mount tables,
/// and in the names of dumps of attributes and of access control lists. Other backslashes stay.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let code = after.first_chunk::<3>().filter(|_| *first == b'\\');
        match code.and_then(|digits| octal_byte(digits)) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Returns the byte that octal digits stand for. `None` if there is another character, or if the
/// number has more than 8 bits.
pub fn octal_byte(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        number.checked_mul(8)?.checked_add(digit)
    })
}

/// Returns the byte that two hexadecimal digits stand for.
pub fn hex_byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? << 4 | low?).ok()
}

/// Parses a decimal number. `None` if `text` is empty, has anything else than digits, such as a
/// sign, which the standard library accepts, or if the number is too large.
pub fn decimal<T: FromStr>(text: &[u8]) -> Option<T> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
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

    #[test]
    fn messages_keep_their_lines_and_the_escapes_of_names() {
        let message = "a\\nb: is full\nadvice\r\u{1b}[2J\u{202e}";
        let expected = "a\\nb: is full\nadvice\\r\\033[2J\\342\\200\\256";
        assert_eq!(printable(message.as_bytes()), expected);
        assert_eq!(printable(b"x\xff"), "x\\377");
    }

    #[test]
    fn only_three_octal_digits_are_unescaped() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"a\\040b\\134", b"a b\\"),
            (b"\\377", b"\xff"),
            (b"\\400", b"\\400"),
            (b"\\+12", b"\\+12"),
            (b"\\ 12", b"\\ 12"),
            (b"\\q\\\\", b"\\q\\\\"),
            (b"\\12", b"\\12"),
            (b"\\\\012", b"\\\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(unescape(text), expected, "{}", escape(text));
        }
    }

    #[test]
    fn numbers_have_digits_only() {
        assert_eq!(decimal(b"007"), Some(7_u32));
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!([*b"fF", *b"0a"].map(hex_byte), [Some(0xff), Some(0x0a)]);
        assert_eq!([*b"+5", *b" 5", *b"0g"].map(hex_byte), [None; 3]);
        for bad in ["", "+5", "-5", " 5", "5 ", "5\0", "0x5", "5_0", "256", "\u{665}"] {
            assert_eq!(decimal::<u8>(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
