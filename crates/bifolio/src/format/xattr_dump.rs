//! Values and dumps of extended attributes in the forms of getfattr(1) and setfattr(1).
//! Not here: values for people (`xattr.rs`).

use base::text::{self, needs_escape, unescape};

use super::xattr::hex;
use crate::archive::decode_base64;

/// Encoding of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Encoding {
    /// In quotes
    Text,
    /// Hexadecimal, after 0x
    Hex,
    /// Base64, after 0s
    Base64,
}

/// Encodes a value: if `encoding` is `None`, as text if all of it can be printed, and in base64
/// otherwise.
pub fn encode(value: &[u8], encoding: Option<Encoding>) -> String {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t');
    match encoding {
        Some(Encoding::Hex) => format!("0x{}", hex(value)),
        Some(Encoding::Text) => quote(value),
        None if value.iter().all(is_plain) => quote(value),
        Some(Encoding::Base64) | None => format!("0s{}", base64(value)),
    }
}

fn quote(value: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in value {
        match byte {
            b'"' | b'\\' => text.extend(['\\', byte.into()]),
            b' '..=b'~' => text.push(byte.into()),
            _ => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

fn base64(value: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(value.len().div_ceil(3) * 4);
    for group in value.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let number = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { DIGITS[number as usize].into() } else { '=' });
        }
    }
    text
}

/// Decodes a value: 0x and hexadecimal, 0s and base64, or text with escapes, in quotes or without.
/// Returns `None` if it is invalid.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    match text {
        [b'0', b'x' | b'X', digits @ ..] => decode_hex(digits),
        [b'0', b's' | b'S', digits @ ..] => decode_base64(&without_blanks(digits)),
        [b'"', inner @ .., b'"'] if is_complete(inner) => unescape_value(inner),
        [b'"', ..] => None,
        text => unescape_value(text),
    }
}

/// Returns whether the quote behind `inner` closes it, and is not escaped.
fn is_complete(inner: &[u8]) -> bool {
    inner.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 0
}

fn decode_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digits = without_blanks(digits);
    digits.chunks(2).map(|pair| text::hex_byte(pair.try_into().ok()?)).collect()
}

fn without_blanks(digits: &[u8]) -> Vec<u8> {
    digits.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
}

/// Replaces the escapes of text as setfattr(1) does: `\` and up to three octal digits, `\\` and
/// `\"`. Other backslashes stay. Names have the escapes of three digits only. Returns `None` for a
/// number that no byte has.
fn unescape_value(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let (byte, taken) = match (first, after) {
            (b'\\', [quoted @ (b'\\' | b'"'), ..]) => (*quoted, 1),
            (b'\\', [b'0'..=b'7', ..]) => {
                let digits = after.iter().take(3).take_while(|byte| matches!(byte, b'0'..=b'7'));
                let count = digits.clone().count();
                let number = digits.fold(0, |number, digit| number << 3 | u32::from(digit - b'0'));
                (u8::try_from(number).ok()?, count)
            }
            _ => (*first, 0),
        };
        bytes.push(byte);
        rest = after.get(taken..).unwrap_or_default();
    }
    Some(bytes)
}

/// Escapes a name or a path in a dump: what would end it, and what could control a terminal.
pub fn escape_name(name: &[u8]) -> String {
    let octal = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\{byte:03o}")).collect::<String>();
    let mut escaped = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for char in chunk.valid().chars() {
            if matches!(char, '\\' | '=') || needs_escape(char) {
                escaped.push_str(&octal(char.encode_utf8(&mut [0; 4]).as_bytes()));
            } else {
                escaped.push(char);
            }
        }
        escaped.push_str(&octal(chunk.invalid()));
    }
    escaped
}

/// A file of a dump.
#[derive(PartialEq, Eq, Debug)]
pub struct DumpedFile {
    /// The number of the line with its path.
    pub line: usize,
    /// The path.
    pub path: Vec<u8>,
    /// The names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Parses a dump of `getfattr -d`. Errors: the number of the first line that is invalid.
pub fn parse_dump(dump: &[u8]) -> Result<Vec<DumpedFile>, usize> {
    let mut files: Vec<DumpedFile> = Vec::new();
    for (number, line) in dump.split(|&byte| byte == b'\n').enumerate() {
        let number = number + 1;
        if let Some(path) = line.strip_prefix(b"# file: ") {
            files.push(DumpedFile { line: number, path: unescape(path), xattrs: Vec::new() });
            continue;
        }
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, value) = match line.iter().position(|&byte| byte == b'=') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let value = decode(value).ok_or(number)?;
        let file = files.last_mut().ok_or(number)?;
        file.xattrs.push((unescape(name), value));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_as_by_getfattr_and_decoded_again() {
        for (value, encoding, text) in [
            (&b"a \"b\" \\\n"[..], None, r#""a \"b\" \\\012""#),
            (b"", None, "\"\""),
            (b"\x00\x01", None, "0sAAE="),
            (b"abc", Some(Encoding::Base64), "0sYWJj"),
            (b"a", Some(Encoding::Base64), "0sYQ=="),
            (b"\xff0", Some(Encoding::Hex), "0xff30"),
            (b"\xff0", Some(Encoding::Text), r#""\3770""#),
        ] {
            assert_eq!(encode(value, encoding), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(value), "{text}");
        }
        assert_eq!(decode(b"plain").as_deref(), Some(&b"plain"[..]));
        for (text, value) in [
            (r#"a\012\\b\"c"#, &b"a\n\\b\"c"[..]),
            (r#""\q\1\12\8\377\\""#, b"\\q\x01\n\\8\xff\\"),
            (r"\+12", b"\\+12"),
            ("0x 41 4 2", b"AB"),
            ("0s YQ = =", b"a"),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(value), "{text}");
        }
        for bad in ["0x1", "0xzz", "0x+5", "0s*", "\"", "\"a", r#""a\""#, r"\777", r#""\400""#] {
            assert_eq!(decode(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn dumps_are_parsed() {
        let dump =
            b"# file:  a\\012b\\s\nuser.x=\"1\"\nuser.y\n\n# file: c\nuser.z\\075\\+12=0x00ff\n";
        let file = |line, path: &str, xattrs: &[(&str, &[u8])]| DumpedFile {
            line,
            path: path.into(),
            xattrs: xattrs
                .iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()))
                .collect(),
        };
        let expected = [
            file(1, " a\nb\\s", &[("user.x", b"1"), ("user.y", b"")]),
            file(5, "c", &[("user.z=\\+12", b"\0\xff")]),
        ];
        assert_eq!(parse_dump(dump).unwrap(), expected);
        assert_eq!(parse_dump(b"user.x=1\n"), Err(1));
        assert_eq!(parse_dump(b"# file: a\nuser.x=0x0\n"), Err(2));
    }
}
