//! Patterns of names of extended attributes: the part of regular expressions that getfattr(1) is
//! used with.

use std::str::FromStr;

/// Maximum length, which bounds the time of a match.
const BYTES_MAX: usize = 256;

/// Pattern of a part of a name.
#[derive(Clone, Debug)]
pub struct Pattern {
    at_start: bool,
    at_end: bool,
    /// Each byte, or `None` for any byte, and whether it may be repeated or missing.
    parts: Vec<(Option<u8>, bool)>,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pattern = Self { at_start: false, at_end: false, parts: Vec::new() };
        if text == "-" {
            return Ok(pattern);
        }
        if text.len() > BYTES_MAX {
            return Err("the pattern is too long".to_owned());
        }
        let text = match text.strip_prefix('^') {
            Some(rest) => {
                pattern.at_start = true;
                rest
            }
            None => text,
        };
        let mut bytes = text.bytes().peekable();
        while let Some(byte) = bytes.next() {
            let part = match byte {
                b'$' if bytes.peek().is_none() => {
                    pattern.at_end = true;
                    break;
                }
                b'.' => None,
                b'\\' => Some(bytes.next().ok_or("the pattern ends in \\")?),
                b'*' | b'[' | b']' | b'(' | b')' | b'|' | b'+' | b'?' | b'{' | b'}' => {
                    let char = char::from(byte);
                    return Err(format!(
                        "{char} is not supported here; write \\{char} for the character"
                    ));
                }
                byte => Some(byte),
            };
            pattern.parts.push((part, bytes.next_if_eq(&b'*').is_some()));
        }
        Ok(pattern)
    }
}

impl Pattern {
    /// Returns whether a part of `name` matches the pattern.
    pub fn is_in(&self, name: &[u8]) -> bool {
        // The parts that may match next, for each byte of the name.
        let mut states = vec![false; self.parts.len() + 1];
        states[0] = true;
        self.skip(&mut states);
        let is_done = |states: &[bool]| states.last() == Some(&true);
        for &byte in name {
            if is_done(&states) && !self.at_end {
                return true;
            }
            let mut next = vec![false; states.len()];
            for (at, &(part, repeats)) in self.parts.iter().enumerate() {
                if states[at] && part.is_none_or(|part| part == byte) {
                    next[if repeats { at } else { at + 1 }] = true;
                }
            }
            next[0] |= !self.at_start;
            self.skip(&mut next);
            states = next;
        }
        is_done(&states)
    }

    /// Adds the parts after those that may be missing.
    fn skip(&self, states: &mut [bool]) {
        for (at, (_, repeats)) in self.parts.iter().enumerate() {
            if *repeats && states[at] {
                states[at + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_regular_expressions() {
        let is_in =
            |pattern: &str, name: &str| pattern.parse::<Pattern>().unwrap().is_in(name.as_bytes());
        for (pattern, name, expected) in [
            ("-", "security.x", true),
            ("", "x", true),
            ("^user\\.", "user.a", true),
            ("^user\\.", "userxa", false),
            ("^user\\.", "trusted.user.a", false),
            ("user", "trusted.user.a", true),
            ("^security\\.|", "", false),
            ("^trusted\\..*a$", "trusted.bba", true),
            ("^trusted\\..*a$", "trusted.bab", false),
            ("a*b", "b", true),
            ("^a*$", "aab", false),
            ("x$", "xax", true),
        ] {
            if pattern.contains('|') {
                assert!(pattern.parse::<Pattern>().is_err());
            } else {
                assert_eq!(is_in(pattern, name), expected, "{pattern} in {name}");
            }
        }
        for bad in ["*", "[a]", "a|b", "a\\"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }
}
